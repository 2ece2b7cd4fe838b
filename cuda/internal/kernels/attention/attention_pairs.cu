// The kernels that run before and behind those of attention by pairs and by walks; attention_pairs.cuh has the layouts.
//
//   nsa_walk_blocks_i32     idx int32 [B,S,Hkv,most] -> Walks: blocks, count
//   nsa_pairs_count_i32     idx -> Pairs: lengths, counts
//   nsa_pairs_sort_i32      idx, counts -> Pairs: list, items, count
//   nsa_pairs_forward_join  sums, stats of the units of a launch -> o, lse
//   nsa_pairs_dq_join       sums of the units of a launch -> dq
//
// The place of a pair within its block's list depends on the order of integer atomics. No result depends on it.
#include "attention_lists.cuh"
#include "attention_pairs.cuh"
#include "attention_wgmma_span.cuh"

namespace nsa {

constexpr int kSorters = 512, kListers = 128, kJoiners = 256;  // threads of a block
constexpr int kWindow = 2048;                                    // blocks whose bits a warp holds at once

// A cut: the part of a unit's queries that a block of kSorters threads does.
struct Cut {
  int unit, number;
  __device__ explicit Cut(const PairParams& a) : unit(blockIdx.x / a.pairs.cuts), number(blockIdx.x % a.pairs.cuts) {}
  // each_entry for the queries of the cut; q counts from the unit's first query.
  template <class F, class G> __device__ __forceinline__ void each(const PairParams& a, F f, G end) const {
    const Unit of(a, unit);
    const int most = (a.pairs.queries - 1) / a.pairs.cuts + 1, from = number * most;
    each_entry(
        a.p, a.p.blocks, of.b, of.g, of.first + from, min(most, of.queries - from), warp(), kSorters / 32,
        [&](int q, int i, int j) { f(from + q, i, j); }, [&](int q, int length) { end(from + q, length); });
  }
};

// A warp lists the pieces of tile `number`. chose, in shared memory, has a word for each of kWindow blocks: the bits of the queries that
// chose it. Blocks are numbered as in BlockUnion: ascending with their tokens, and different in different documents.
__device__ inline void list_blocks(const WalkParams& a, int number, unsigned* chose) {
  const AttentionParams& p = a.p;
  const Walks& x = a.walks;
  const int group = number / x.tiles, first = number % x.tiles * x.queries, end = min(first + x.queries, p.n.queries);
  const int b = group / p.n.groups, begin = p.first(b, first), size = p.blocks.size, parts = (size - 1) / x.keys + 1;
  const int blocks = (end - 1 - begin) / size + 1 + (p.documents ? end - 1 - first : 0);
  // number of block 0 of the document that begins at `own`
  const auto number_of = [&](int own) { return (own - begin) / size + max(0, own - first); };
  TileBlock* to = x.blocks + (long long)number * x.room;
  int count = 0;
#pragma unroll 1
  for (int base = 0; base < blocks; base += kWindow) {
    const int here = min(kWindow, blocks - base);
    __syncwarp();
    for (int i = lane(); i < here; i += 32) chose[i] = 0;
    __syncwarp();
    each_entry(
        p, p.blocks, b, group % p.n.groups, first, end - first, 0, 1,
        [&](int q, int, int j) {
          if (p.documents) j += number_of(p.first(b, first + q));
          if (unsigned(j - base) < unsigned(here)) atomicOr(chose + j - base, 1u << q);
        },
        [](int, int) {});
    __syncwarp();
#pragma unroll 1
    for (int from = 0; from < here * parts; from += 32) {
      const int i = from + lane();
      unsigned bits = i < here * parts ? chose[i / parts] : 0;
      const int own = p.documents && bits ? p.first(b, first + __ffs(bits) - 1) : 0;
      const int key = own + (base + i / parts - number_of(own)) * size + i % parts * x.keys;
      if (key >= end) bits = 0;
      if (key > first) bits &= 0xffffffffu << (key - first) % 32;  // earlier queries see none of its keys
      const unsigned is = __ballot_sync(0xffffffff, bits != 0);
      if (bits) to[count + __popc(is & ((1u << lane()) - 1))] = {key, bits};
      count += __popc(is);
    }
  }
  if (lane() == 0) x.count[number] = count;
}

// Adds up the results of the rows of a launch. A thread has 8 columns of a row and reads kAtOnce places at once.
template <typename T, bool Forward, int kAtOnce> __device__ inline void join(const PairParams& a) {
  const AttentionParams& p = a.p;
  const Sizes& n = p.n;
  const Pairs& x = a.pairs;
  const int c = Forward ? n.dv : n.d, width = pair_width(c), cells = width / 8;
  const int blocks = (x.queries * n.each * cells - 1) / kJoiners + 1;  // thread blocks of a unit
  const int number = blockIdx.x / blocks, i = blockIdx.x % blocks * kJoiners + threadIdx.x;
  const Unit unit(a, x.first + number);
  const int cell = i % cells, row = i / cells, q = row / n.each, head = row % n.each;
  const bool in = q < unit.queries;

  const int places = in ? x.lengths[(x.first + number) * x.queries + q] * x.parts : 0, stride = n.each * width;
  const long long first = ((long long)number * x.queries + q) * p.blocks.most * x.parts * n.each + head;
  const T* sums = static_cast<const T*>(x.sums) + first * width + 8 * cell;
  const float2* stats = x.stats + first;
  Softmax all;
  all.start();
  float y[8] = {};
#pragma unroll 1
  for (int s = 0; s < places; s += kAtOnce) {
    uint4 part[kAtOnce];
    float2 stat[kAtOnce];
#pragma unroll
    for (int k = 0; k < kAtOnce; k++) {
      const bool is = s + k < places;
      part[k] = is ? load_once(reinterpret_cast<const uint4*>(sums + k * stride)) : uint4{0, 0, 0, 0};
      if (Forward) stat[k] = is ? stats[k * n.each] : make_float2(-INFINITY, 0);
    }
    if (Forward) {
      float top = stat[0].x;
#pragma unroll
      for (int k = 1; k < kAtOnce; k++) top = fmaxf(top, stat[k].x);
      const float factor = all.raise(top, n.scale_log2);
#pragma unroll
      for (int e = 0; e < 8; e++) y[e] *= factor;
    }
#pragma unroll
    for (int k = 0; k < kAtOnce; k++) {
      float v[8], weight = 1;
      if (Forward) {
        weight = power2((stat[k].x - all.base()) * n.scale_log2);
        all.sum += weight * stat[k].y;
        if (narrow<T>) weight *= stat[k].y;
      }
      Pack<T>{part[k]}.get(v);
#pragma unroll
      for (int e = 0; e < 8; e++) y[e] = fmaf(weight, v[e], y[e]);
    }
    sums += kAtOnce * stride, stats += kAtOnce * n.each;
  }
  const float factor = Forward ? all.norm() : narrow<T> ? 1 : n.scale;
  uint32_t out[4];
#pragma unroll
  for (int e = 0; e < 4; e++) out[e] = pair<T>(factor * y[2 * e], factor * y[2 * e + 1]);
  turn_four(out);
  if (!in) return;
  const int at = (unit.first + q) * n.each + head;
  if (Forward && cell == 0) p.lse[n.stat(unit.b, unit.g, at)] = all.lse(n.scale);
  T* to = static_cast<T*>(Forward ? p.o : p.dq) + n.row(unit.b, unit.g, at, c) + 8 * cell;
  if (8 * cell < c) *reinterpret_cast<uint4*>(to) = uint4{out[0], out[1], out[2], out[3]};
}

}  // namespace nsa

// Grid x is ceil(tiles / 4), blocks of kListers threads; a warp lists one tile. Each warp has min(kWindow, block numbers) words of shared
// memory.
extern "C" __global__ void __launch_bounds__(nsa::kListers, 4) nsa_walk_blocks_i32(const __grid_constant__ nsa::WalkParams a) {
  using namespace nsa;
  const int number = blockIdx.x * (kListers / 32) + warp();
  const int numbers = a.p.blocks.count(a.p.n) + (a.p.documents ? a.walks.queries : 0);
  unsigned* words = reinterpret_cast<unsigned*>(dynamic_shared()) + warp() * min(kWindow, numbers);
  if (number < a.walks.tiles * a.p.n.batch * a.p.n.groups) list_blocks(a, number, words);
}

// Grid x is units*cuts over all groups, blocks of kSorters threads. Shared memory: one int for each block of tokens.
extern "C" __global__ void __launch_bounds__(nsa::kSorters, 1) nsa_pairs_count_i32(const __grid_constant__ nsa::PairParams a) {
  using namespace nsa;
  const Cut cut(a);
  const int blocks = a.p.blocks.count(a.p.n);
  int* count = reinterpret_cast<int*>(dynamic_shared());
  int* lengths = a.pairs.lengths + (long long)cut.unit * a.pairs.queries;
  int* to = a.pairs.counts + (long long)blockIdx.x * blocks;
  for (int j = threadIdx.x; j < blocks; j += kSorters) count[j] = 0;
  __syncthreads();
  cut.each(a, [&](int, int, int j) { atomicAdd(count + j, 1); }, [&](int q, int length) { lengths[q] = length; });
  __syncthreads();
  for (int j = threadIdx.x; j < blocks; j += kSorters) to[j] = count[j];
}

// The same grid. Shared memory: one int for each block of tokens, and 64 more.
extern "C" __global__ void __launch_bounds__(nsa::kSorters, 1) nsa_pairs_sort_i32(const __grid_constant__ nsa::PairParams a) {
  using namespace nsa;
  const Pairs& x = a.pairs;
  const Cut cut(a);
  const int blocks = a.p.blocks.count(a.p.n), most = a.p.blocks.most;
  int* next = reinterpret_cast<int*>(dynamic_shared());  // the place in the list for the next pair of a block
  int *pairs = next + blocks, *work = pairs + 32;         // for each warp: the pairs and items of its 32 blocks
  const int* counts = x.counts + (long long)cut.unit * x.cuts * blocks;
  int* list = x.list + (long long)cut.unit * x.queries * most;
  PairItem* items = x.items + (long long)cut.unit * x.room;
  const auto sum = [](int& x) {  // running sum over the lanes up to this one
#pragma unroll
    for (int m = 1; m < 32; m *= 2) {
      const int y = __shfl_up_sync(0xffffffff, x, m);
      if (lane() >= m) x += y;
    }
  };
  int first = 0, item = 0;  // pairs and items of all blocks before `from`
#pragma unroll 1
  for (int from = 0; from < blocks; from += kSorters) {
    const int j = from + threadIdx.x;
    int length = 0, own = 0;  // pairs of block j in all cuts, and in the cuts before this one
#pragma unroll 4
    for (int c = 0; c < x.cuts; c++) {
      if (c == cut.number) own = length;
      length += j < blocks ? counts[c * blocks + j] : 0;
    }
    const int pieces = (length + x.chunk - 1) / x.chunk * x.parts;
    int before = length, ahead = pieces;
    sum(before), sum(ahead);
    if (lane() == 31) pairs[warp()] = before, work[warp()] = ahead;
    __syncthreads();
    int some = lane() < kSorters / 32 ? pairs[lane()] : 0, more = lane() < kSorters / 32 ? work[lane()] : 0;
    sum(some), sum(more);
    if (warp() > 0) before += __shfl_sync(0xffffffff, some, warp() - 1), ahead += __shfl_sync(0xffffffff, more, warp() - 1);
    before += first - length, ahead += item - pieces;
    if (j < blocks) next[j] = before + own;
    if (cut.number == 0) {
      PairItem* to = items + ahead;
      for (int done = 0; done < length; done += x.chunk)
        for (int part = 0; part < x.parts; part++)
          *to++ = {j * a.p.blocks.size + part * kPairKeys, before + done, min(x.chunk, length - done), part};
    }
    first += __shfl_sync(0xffffffff, some, 31), item += __shfl_sync(0xffffffff, more, 31);
    __syncthreads();
  }
  if (cut.number == 0 && threadIdx.x == 0) x.count[cut.unit] = item;
  cut.each(a, [&](int q, int i, int j) { list[atomicAdd(next + j, 1)] = q << kEntryBits | i; }, [](int, int) {});
}

// Grid x is units*ceil(queries*h*width/8 / kJoiners) over the units of the launch, blocks of kJoiners threads.
#define NSA_JOIN(op, T, Forward, AtOnce, blocks)                                                                                      \
  extern "C" __global__ void __launch_bounds__(nsa::kJoiners, blocks) nsa_pairs_##op##_join_##T(const __grid_constant__ nsa::PairParams a) { \
    nsa::join<nsa::T, Forward, AtOnce>(a);                                                                                     \
  }
NSA_JOIN(forward, bf16, true, 4, 4)
NSA_JOIN(forward, f16, true, 4, 4)
NSA_JOIN(dq, bf16, false, 8, 3)
NSA_JOIN(dq, f16, false, 8, 3)
