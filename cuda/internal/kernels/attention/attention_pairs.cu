// The kernels that run before and after those of attention by pairs and by walks. attention_pairs.cuh has the layouts.
//
//   nsa_walk_blocks_i32     idx int32 [B,S,Hkv,top_n] -> Walks: blocks, count
//   nsa_pairs_count_i32     idx -> Pairs: lengths, counts; begun = 0
//   nsa_pairs_sort          idx, counts, v -> Pairs: list, items, count, shifts
//   nsa_pairs_dq            results of the groups of a launch (PairGradients) -> dq
//
// The place of a pair within its block's list depends on the order of integer atomics. No result depends on it.
#include "attention_lists.cuh"
#include "attention_pairs.cuh"
#include "mma.cuh"

namespace nsa {

constexpr int kSortThreads = 512, kListThreads = 128, kSumThreads = 256;  // threads of a block
constexpr int kBlocksAtOnce = 2048;                                 // blocks whose bits a warp holds at once

// A cut: the part of a unit's queries that a block of kSortThreads threads does.
struct Cut {
  int unit, number;
  __device__ explicit Cut(const PairParams& a) : unit(blockIdx.x / a.pairs.cuts), number(blockIdx.x % a.pairs.cuts) {}
  // each_entry for the queries of the cut, but f only for pairs; q counts from the unit's first query.
  template <class F, class G> __device__ __forceinline__ void each(const PairParams& a, F f, G end) const {
    const Unit of(a, unit);
    const int most = (a.pairs.queries - 1) / a.pairs.cuts + 1, from = number * most;
    each_entry(
        a.p, a.p.blocks, of.b, of.g, of.first + from, min(most, of.queries - from), warp(), kSortThreads / 32,
        [&](int q, int i, int j) {
          if (!Forced::has(a.p.blocks, j, of.first + from + q)) f(from + q, i, j);
        },
        [&](int q, int length) { end(from + q, length); });
  }
};

// A warp lists the pieces of tile `number`. selected_by, in shared memory, has a word for each of kBlocksAtOnce blocks: the bits of the queries that
// selected it. Blocks are numbered as in BlockUnion: ascending with their tokens, and different in different documents.
__device__ inline void list_blocks(const WalkParams& a, int number, unsigned* selected_by) {
  const AttentionParams& p = a.p;
  const Walks& x = a.walks;
  const int group = number / x.tiles, b = group / p.n.groups, start = p.n.start(b);
  const int first = start + number % x.tiles * x.queries, end = min(first + x.queries, start + p.n.queries);
  const int begin = p.first(b, first), size = p.blocks.size, parts = (size - 1) / x.keys + 1;
  const int blocks = (end - 1 - begin) / size + 1 + (p.documents ? end - 1 - first : 0);
  TileBlock* to = x.blocks + (long long)number * x.room;
  int count = 0;
#pragma unroll 1
  for (int base = 0; base < blocks; base += kBlocksAtOnce) {
    const int here = min(kBlocksAtOnce, blocks - base);
    __syncwarp();
    for (int i = lane(); i < here; i += 32) selected_by[i] = 0;
    __syncwarp();
    each_entry(
        p, p.blocks, b, group % p.n.groups, first, end - first, 0, 1,
        [&](int q, int, int j) {
          if (p.documents) j += block_number(p.first(b, first + q), begin, first, size);
          if (unsigned(j - base) < unsigned(here)) atomicOr(selected_by + j - base, 1u << q);
        },
        [](int, int) {});
    __syncwarp();
#pragma unroll 1
    for (int from = 0; from < here * parts; from += 32) {
      const int i = from + lane();
      unsigned bits = i < here * parts ? selected_by[i / parts] : 0;
      const int own = p.documents && bits ? p.first(b, first + __ffs(bits) - 1) : 0;
      const int key = own + (base + i / parts - block_number(own, begin, first, size)) * size + i % parts * x.keys;
      if (key >= end) bits = 0;
      if (key > first) bits &= 0xffffffffu << (key - first) % 32;  // earlier queries see none of its keys
      const unsigned is = __ballot_sync(0xffffffff, bits != 0);
      if (bits) to[count + __popc(is & ((1u << lane()) - 1))] = {key, bits};
      count += __popc(is);
    }
  }
  if (lane() == 0) x.count[number] = count;
}

// Adds up the results of queries. A thread has 8 columns of a row and reads kAtOnce results at once.
template <typename T> __device__ inline void add_results(const ListParams& a) {
  constexpr int kAtOnce = 8;
  const AttentionParams& p = a.p;
  const Sizes& n = p.n;
  const PairGradients& x = a.pairs;
  const int width = result_width(n.d), cells = width / 8, stride = n.h * width;
  const int blocks = (n.queries * n.h - 1) / (kSumThreads / cells) + 1, number = blockIdx.x / blocks;  // whole rows for a thread block
  const int group = x.first + number, row = blockIdx.x % blocks * (kSumThreads / cells) + threadIdx.x / cells, cell = threadIdx.x % cells;
  const int b = group / n.groups, g = group % n.groups, start = n.start(b), q = row / n.h, head = row % n.h;  // q counts from the first query
  const bool in = threadIdx.x / cells < kSumThreads / cells && q < n.queries;
  int count = in ? x.lengths[(long long)group * n.queries + q] : 0;
  if (count > 0 && x.parts > 1) {  // the last block of the sequence may have fewer parts; in a list it can only be the last entry
    const int last = p.idx[p.blocks.list(n, b, g, start + q) + count - 1];
    count = (count - 1) * x.parts + (min(p.blocks.size, n.keys - last * p.blocks.size) - 1) / kPairKeys + 1;
  }
  const long long first = ((long long)number * n.queries + q) * p.blocks.top_n * x.parts * n.h + head;
  const f16* from = static_cast<const f16*>(x.results) + first * width + 8 * cell;
  float y[8] = {};
#pragma unroll 1
  for (int s = 0; s < count; s += kAtOnce) {
    uint4 some[kAtOnce];
#pragma unroll
    for (int k = 0; k < kAtOnce; k++) some[k] = s + k < count ? load_once(reinterpret_cast<const uint4*>(from + k * stride)) : uint4{0, 0, 0, 0};
#pragma unroll
    for (int k = 0; k < kAtOnce; k++) {
      float v[8];
      Pack<f16>{some[k]}.get(v);
#pragma unroll
      for (int e = 0; e < 8; e++) y[e] += v[e];
    }
    from += kAtOnce * stride;
  }
  const float scale = narrow<T> ? 1 : n.scale * power_of_two(-result_exponent(x.most[group]));
  uint32_t w[4];
#pragma unroll
  for (int e = 0; e < 4; e++) w[e] = pair<T>(scale * y[2 * e], scale * y[2 * e + 1]);
  // two threads exchange halves, so that each has 8 adjoining columns
  const bool odd = cell % 2;
  const uint32_t lo = __shfl_xor_sync(0xffffffff, odd ? w[0] : w[1], 1), hi = __shfl_xor_sync(0xffffffff, odd ? w[2] : w[3], 1);
  T* to = static_cast<T*>(p.dq) + n.row(b, g, start * n.h + row, n.d) + 8 * cell;
  if (in && 8 * cell < n.d) *reinterpret_cast<uint4*>(to) = odd ? uint4{lo, hi, w[1], w[3]} : uint4{w[0], w[2], lo, hi};
}

}  // namespace nsa

// Grid x is ceil(tiles / 4), blocks of kListThreads threads; a warp lists one tile. Each warp has min(kBlocksAtOnce, block numbers) words of shared
// memory.
extern "C" __global__ void __launch_bounds__(nsa::kListThreads, 4) nsa_walk_blocks_i32(const __grid_constant__ nsa::WalkParams a) {
  using namespace nsa;
  const int number = blockIdx.x * (kListThreads / 32) + warp();
  const int numbers = a.p.blocks.count(a.p.n) + (a.p.documents ? a.walks.queries : 0);
  unsigned* words = reinterpret_cast<unsigned*>(dynamic_shared()) + warp() * min(kBlocksAtOnce, numbers);
  if (number < a.walks.tiles * a.p.n.batch * a.p.n.groups) list_blocks(a, number, words);
}

// Grid x is units*cuts over all groups, blocks of kSortThreads threads. Shared memory: one int for each block of tokens.
extern "C" __global__ void __launch_bounds__(nsa::kSortThreads, 1) nsa_pairs_count_i32(const __grid_constant__ nsa::PairParams a) {
  using namespace nsa;
  const Cut cut(a);
  const int blocks = a.p.blocks.count(a.p.n);
  int* count = reinterpret_cast<int*>(dynamic_shared());
  int* lengths = a.pairs.lengths + (long long)cut.unit * a.pairs.queries;
  int* to = a.pairs.counts + (long long)blockIdx.x * blocks;
  for (int j = threadIdx.x; j < blocks; j += kSortThreads) count[j] = 0;
  if (threadIdx.x == 0 && cut.number == 0) a.pairs.begun[cut.unit] = 0;
  __syncthreads();
  cut.each(a, [&](int, int, int j) { atomicAdd(count + j, 1); }, [&](int q, int length) { lengths[q] = length; });
  __syncthreads();
  for (int j = threadIdx.x; j < blocks; j += kSortThreads) to[j] = count[j];
}

namespace nsa {
template <typename T> __device__ inline void sort_pairs(const PairParams& a) {
  const Pairs& x = a.pairs;
  const int groups = a.p.n.batch * a.p.n.groups, others = int(blockIdx.x) - groups * x.units * x.cuts;
  if (others >= 0) {
    const int tiles = (a.p.n.keys - 1) / kPairKeys + 1, warps = kSortThreads / 32;
    for (int i = others * warps + warp(); i < groups * tiles; i += (gridDim.x - groups * x.units * x.cuts) * warps) {
      const float most = most_of_warp(largest_of_keys<T>(a.p.n, a.p.v, i / tiles, i % tiles * kPairKeys, kPairKeys, a.p.n.dv));
      if (lane() == 0) x.shifts[i] = result_shift<T>(most);
    }
    return;
  }
  const Cut cut(a);
  const int blocks = a.p.blocks.count(a.p.n), top_n = a.p.blocks.top_n;
  int* next = reinterpret_cast<int*>(dynamic_shared());  // the place in the list for the next pair of a block
  int *pairs_of_warp = next + blocks, *items_of_warp = pairs_of_warp + 32;         // for each warp: the pairs and items of its 32 blocks
  const int* counts = x.counts + (long long)cut.unit * x.cuts * blocks;
  int* list = x.list + (long long)cut.unit * x.queries * top_n;
  PairItem* items = x.items + (long long)cut.unit * x.room;
  const auto sum = [](int& x) {  // running sum over the lanes up to this one
#pragma unroll
    for (int m = 1; m < 32; m *= 2) {
      const int y = __shfl_up_sync(0xffffffff, x, m);
      if (lane() >= m) x += y;
    }
  };
  int pairs_so_far = 0, items_so_far = 0;  // pairs and items of all blocks before `from`
#pragma unroll 1
  for (int from = 0; from < blocks; from += kSortThreads) {
    const int j = from + threadIdx.x;
    int length = 0, own = 0;  // pairs of block j in all cuts, and in the cuts before this one
#pragma unroll 4
    for (int c = 0; c < x.cuts; c++) {
      if (c == cut.number) own = length;
      length += j < blocks ? counts[c * blocks + j] : 0;
    }
    const int pieces = (length + x.chunk - 1) / x.chunk * x.parts;
    int first_pair = length, first_item = pieces;
    sum(first_pair), sum(first_item);
    if (lane() == 31) pairs_of_warp[warp()] = first_pair, items_of_warp[warp()] = first_item;
    __syncthreads();
    int warp_pair_sum = lane() < kSortThreads / 32 ? pairs_of_warp[lane()] : 0;
    int warp_item_sum = lane() < kSortThreads / 32 ? items_of_warp[lane()] : 0;
    sum(warp_pair_sum), sum(warp_item_sum);
    if (warp() > 0) {
      first_pair += __shfl_sync(0xffffffff, warp_pair_sum, warp() - 1);
      first_item += __shfl_sync(0xffffffff, warp_item_sum, warp() - 1);
    }
    first_pair += pairs_so_far - length, first_item += items_so_far - pieces;
    if (j < blocks) next[j] = first_pair + own;
    if (cut.number == 0) {
      PairItem* to = items + first_item;
      for (int done = 0; done < length; done += x.chunk)
        for (int part = 0; part < x.parts; part++)
          *to++ = {j * a.p.blocks.size + part * kPairKeys, first_pair + done, min(x.chunk, length - done), part};
    }
    pairs_so_far += __shfl_sync(0xffffffff, warp_pair_sum, 31), items_so_far += __shfl_sync(0xffffffff, warp_item_sum, 31);
    __syncthreads();
  }
  if (cut.number == 0 && threadIdx.x == 0) x.count[cut.unit] = items_so_far;
  cut.each(a, [&](int q, int i, int j) { list[atomicAdd(next + j, 1)] = q << kEntryBits | i; }, [](int, int) {});
}
}  // namespace nsa

// The same grid, and more thread blocks that set the shifts. Shared memory: one int for each block of tokens, and 64 more.
#define NSA_PAIRS_SORT(T)                                                                                              \
  extern "C" __global__ void __launch_bounds__(nsa::kSortThreads, 1) nsa_pairs_sort_##T(const __grid_constant__ nsa::PairParams a) { \
    nsa::sort_pairs<nsa::T>(a);                                                                                        \
  }
NSA_PAIRS_SORT(bf16)
NSA_PAIRS_SORT(f16)

// Grid x is groups*ceil(S*h / (kSumThreads / cells)) over the groups of the launch, blocks of kSumThreads threads. cells = width/8.
#define NSA_PAIRS_DQ(T)                                                                                                \
  extern "C" __global__ void __launch_bounds__(nsa::kSumThreads, 3) nsa_pairs_dq_##T(const __grid_constant__ nsa::ListParams a) { \
    nsa::add_results<nsa::T>(a);                                                                                       \
  }
NSA_PAIRS_DQ(bf16)
NSA_PAIRS_DQ(f16)
