// Inverts idx int32 [B,S,Hkv,top_n], the selected blocks, into the layout of attention_index.cuh. Four kernels run in this order.
// The sequence is cut into `segments` that are counted and filled independently, so lists are ascending in whatever order thread
// blocks run:
//
//   nsa_index_count_i32   counts = how many queries of a segment selected a block (integer atomics, so their order does not matter)
//   nsa_index_rank_i32    counts = the place in the block's list where a segment begins; first row of starts = lengths of the lists
//   nsa_index_scan_i32    starts = running sums of lengths, of items and of partial sums
//   nsa_index_fill_i32    queries = the lists; it advances counts, which are of no use afterwards
//
// For a gradient by pairs nsa_index_rank_i32 sets PairGradients::most to 0, and thread blocks of nsa_index_scan_i32 that have no list to scan
// find it.
//
// One block of the inverse may stand for `count` adjoining selection blocks, up to four. Then the highest four bits of a list entry
// say which of them the query selected. Both kernels that read idx take 32 entries of a query at a time: if a query has more, blocks on
// both sides of such a boundary that belong to one block of the inverse make two list entries, with different bits.
#include "attention_index.cuh"
#include "attention_lists.cuh"
#include "attention_pairs.cuh"

namespace nsa {

// The mask of the blocks as idx counts them, which are smaller than those of the inverse if count > 1.
__device__ inline Blocks selection_blocks(const AttentionParams& p) { return {p.blocks.size / p.joined_blocks(), p.blocks.top_n}; }

constexpr int kScan = 256;
constexpr int kFew = 2048;  // the most names whose counts a kernel keeps in shared memory

// Where a kernel keeps its counts, one for each of `names` names of blocks. With at most kFew names it is the array number `part` in shared
// memory, else `global`.
__device__ inline int* counts_of(int part, int names, int* global) {
  return names > kFew ? global : reinterpret_cast<int*>(dynamic_shared()) + part * names;
}

// Returns the sum of x over all threads before this one in a block of kScan; *total is the sum over all threads.
__device__ inline int exclusive_sum(int x, int* total) {
  __shared__ int warps[kScan / 32];
  int sum = x;
  for (int m = 1; m < 32; m *= 2) {
    const int y = __shfl_up_sync(0xffffffff, sum, m);
    if (lane() >= m) sum += y;
  }
  __syncthreads();  // all threads have read `warps` of the previous call
  if (lane() == 31) warps[warp()] = sum;
  __syncthreads();
  int before = 0;
  *total = 0;
  for (int i = 0; i < kScan / 32; i++) {
    if (i < warp()) before += warps[i];
    *total += warps[i];
  }
  return before + sum - x;
}

// Finds PairGradients::most, by warps with numbers `first` of `warps`. They take 32 keys or values, and four rows of do at a time.
template <typename T> __device__ inline void find_most(const ListParams& a, int first, int warps) {
  const AttentionParams& p = a.p;
  const Sizes& n = p.n;
  constexpr int kAtOnce = 32;
  const int groups = n.batch * n.groups, sets = 2 * groups, share = max(1, warps / sets);  // a set: the keys or the values of a group
  const auto raise = [](float& to, float x) {  // by a warp, of numbers >= 0
    x = most_of_warp(x);
    if (lane() == 0 && x > *static_cast<volatile float*>(&to)) atomicMax(reinterpret_cast<int*>(&to), __float_as_int(x));
  };
  for (int i = first; i < sets * share; i += warps) {
    const int group = i % sets / 2;
    const bool values = i % 2;
    float most = 0;
    for (int key = i / sets * kAtOnce; key < n.keys; key += share * kAtOnce)
      most = fmaxf(most, values ? largest_of_keys<T>(n, p.v, group, key, kAtOnce, n.dv) : largest_of_keys<T>(n, p.k, group, key, kAtOnce, n.d));
    raise(values ? a.pairs.most[group].value : a.pairs.most[group].key, most);
  }
  const long long rows = a.pairs.reaches > 0 ? 0 : (long long)n.batch * n.queries * n.heads;
  float most = 0;
#pragma unroll 4
  for (long long row = 4ll * first + lane() / 8; row < rows; row += 4ll * warps) {
    float sum = 0;
    for (int c = lane() % 8 * 8; c < n.dv; c += 64) {
      float v[8];
      Pack<T>{load_once(reinterpret_cast<const uint4*>(static_cast<const T*>(p.dout) + row * n.dv + c))}.get(v);
#pragma unroll
      for (int e = 0; e < 8; e++) sum += fabsf(v[e]);
    }
    most = fmaxf(most, sum < INFINITY ? sum : 0);  // of a part of the row
  }
  most *= 8;  // no part is more than the largest one
  for (int i = first * 32 + lane(); i < a.pairs.reaches; i += warps * 32) most = fmaxf(most, a.pairs.reach[i]);
  for (int g = 0; g < groups; g++) raise(a.pairs.most[g].dout, most);
}

}  // namespace nsa

// Grid x is B*Hkv*segments, blocks of kThreads. A thread block counts one segment of a group. Dynamic shared memory: one number for each
// name, if there are at most kFew names.
extern "C" __global__ void __launch_bounds__(nsa::kThreads) nsa_index_count_i32(const __grid_constant__ nsa::AttentionParams p) {
  using namespace nsa;
  const Blocks mask = selection_blocks(p);
  const int group = blockIdx.x / p.index.segments, segment = blockIdx.x % p.index.segments;
  const int b = group / p.n.groups, g = group % p.n.groups, names = p.names();
  int* to = p.counts + (long long)blockIdx.x * names;
  int* count = counts_of(0, names, to);
  for (int j = threadIdx.x; j < names; j += kThreads) count[j] = 0;
  __syncthreads();
  const long long length = p.index.segment(p.n.queries), first = segment * length;
  const int queries = (int)max(0ll, min(length, p.n.queries - first)), from = p.n.start(b) + (int)first;
  const int32_t* lists = p.idx + mask.list(p.n, b, g, from);
  each_entry(
      p, mask, b, g, from, queries, warp(), kWarps,
      [&](int q, int i, int j) {
        const int t = from + q;
        const bool same = p.joined_blocks() > 1 && i % 32 > 0 &&
                          lists[(long long)q * p.n.groups * mask.top_n + i - 1] / p.joined_blocks() == j / p.joined_blocks();
        if (!same) atomicAdd(count + p.name(j / p.joined_blocks(), p.first(b, t)), 1);
      },
      [](int, int) {});
  __syncthreads();
  if (count != to)
    for (int j = threadIdx.x; j < names; j += kThreads) to[j] = count[j];
}

// Grid x is B*Hkv*ceil(J/32), thread blocks of [32,32]. threadIdx.x picks one of 32 blocks of tokens of a group, threadIdx.y a run of
// kRun segments.
extern "C" __global__ void __launch_bounds__(1024) nsa_index_rank_i32(const __grid_constant__ nsa::ListParams a) {
  const nsa::AttentionParams& p = a.p;
  constexpr int kRun = 8;  // so there can be 32*kRun segments at most
  __shared__ int sums[32][32];
  const int names = p.names(), across = (names - 1) / 32 + 1, segments = p.index.segments;
  const long long group = blockIdx.x / across;
  const int j = blockIdx.x % across * 32 + threadIdx.x, first = threadIdx.y * kRun;
  int* counts = p.counts + (group * segments + first) * names + j;
  const auto in = [&](int i) { return j < names && first + i < segments; };
  int own[kRun], sum = 0;
#pragma unroll
  for (int i = 0; i < kRun; i++) sum += own[i] = in(i) ? counts[(long long)i * names] : 0;
  sums[threadIdx.y][threadIdx.x] = sum;
  __syncthreads();
  int before = 0, all = 0;
  for (int y = 0; y < 32; y++) {
    if (y == threadIdx.y) before = all;
    all += sums[y][threadIdx.x];
  }
#pragma unroll
  for (int i = 0; i < kRun; i++) {
    if (in(i)) counts[(long long)i * names] = before;
    before += own[i];
  }
  if (threadIdx.y == 0 && j < names) p.starts[group * 3 * (names + 1) + j] = all;
  if (a.pairs.most && threadIdx.y == 0 && j == 0) a.pairs.most[group] = {};
}

// Grid x is at least B*Hkv, blocks of kScan threads. A thread block scans all lists of a group; those after them find PairGradients::most.
extern "C" __global__ void __launch_bounds__(nsa::kScan)
    nsa_index_scan_i32(const __grid_constant__ nsa::ListParams a) {
  const nsa::AttentionParams& p = a.p;
  const int groups = p.n.batch * p.n.groups, others = int(blockIdx.x) - groups;
  if (others >= 0) {
    nsa::find_most<nsa::bf16>(a, others * (nsa::kScan / 32) + nsa::warp(), (gridDim.x - groups) * (nsa::kScan / 32));
    return;
  }
  const int names = p.names(), b = blockIdx.x / p.n.groups;
  int* list = p.starts + (long long)blockIdx.x * 3 * (names + 1);
  int *item = list + names + 1, *partial = item + names + 1;
  int lists = 0, items = 0, partials = 0;
  for (int from = 0; from <= names; from += nsa::kScan) {
    const int j = from + (int)threadIdx.x, length = j < names ? list[j] : 0;
    const nsa::Run block = j < names ? p.tokens(b, j) : nsa::Run{0, 0};
    const int chunks = block.lo < block.hi ? p.index.chunks(length) : 0;
    int total;
    const int first = nsa::exclusive_sum(length, &total) + lists;
    lists += total;
    const int i = nsa::exclusive_sum(chunks, &total) + items;
    items += total;
    const int sum = nsa::exclusive_sum(chunks > 1 ? chunks : 0, &total) + partials;
    partials += total;
    if (j <= names) list[j] = first, item[j] = i, partial[j] = sum;
  }
}

// Grid x is ceil(B*Hkv*segments / kWarps), blocks of kThreads. A warp fills in one segment of a group: it takes the queries in order,
// and 32 entries of a query at a time. Dynamic shared memory: one number for each name and warp, if there are at most kFew names.
extern "C" __global__ void __launch_bounds__(nsa::kThreads) nsa_index_fill_i32(const __grid_constant__ nsa::ListParams a) {
  using namespace nsa;
  const AttentionParams& p = a.p;
  constexpr int kAhead = 4;  // queries whose lists are read together
  const auto& n = p.n;
  const Blocks mask = selection_blocks(p);
  const auto& index = p.index;
  const long long number = (long long)blockIdx.x * kWarps + warp(), group = number / index.segments;
  if (group >= (long long)n.batch * n.groups) return;
  const int b = (int)(group / n.groups), g = (int)(group % n.groups), names = p.names();
  const InverseIndex inverse(p, (int)group);
  int* lists = p.queries + group * n.queries * mask.top_n;
  int *counts = p.counts + number * names, *next = counts_of(warp(), names, counts);  // next: the place of a block's next query in `lists`
  for (int j = lane(); j < names; j += 32) next[j] = inverse.list[j] + counts[j];
  __syncwarp();
  const int start = n.start(b);
  int* lengths = a.pairs.lengths ? a.pairs.lengths + group * n.queries - start : nullptr;
  const long long length = index.segment(n.queries), from = start + number % index.segments * length;
  const long long to = min((long long)start + n.queries, from + length);
  const auto entry = [&](long long t, int i) { return t < to && i < mask.top_n ? p.idx[mask.list(n, b, g, (int)t) + i] : -1; };
#pragma unroll 1
  for (long long first = from; first < to; first += kAhead) {
    int ahead[kAhead];
#pragma unroll
    for (int k = 0; k < kAhead; k++) ahead[k] = entry(first + k, lane());
#pragma unroll
    for (int k = 0; k < kAhead; k++) {
      const long long t = first + k;
      if (t >= to) break;
      const int own = p.first(b, (int)t);  // of the query's document
      int j = ahead[k], last = -1;         // last: the entry before that of lane 0
#pragma unroll 1
      for (int i = lane();;) {
        int before = __shfl_up_sync(0xffffffff, j, 1);
        if (lane() == 0) before = last;
        const unsigned ended = __ballot_sync(0xffffffff, mask.ends(j, before, int(t) - own));
        const bool in = lane() < (ended ? __ffs(ended) - 1 : 32);
        const int block = in ? j / p.joined_blocks() : Blocks::kNone;
        unsigned bits = 0;
        bool first_of_block = true;
        if (p.joined_blocks() > 1) {
          bits = 1u << kJoinedShift + (in ? j % p.joined_blocks() : 0);
          const unsigned own_bit = bits;
          for (int other = 1; other < p.joined_blocks(); other++) {
            const unsigned bit = __shfl_down_sync(0xffffffff, own_bit, other);
            if (__shfl_down_sync(0xffffffff, block, other) == block) bits |= bit;
          }
          first_of_block = __shfl_up_sync(0xffffffff, block, 1) != block || lane() == 0;
        }
        if (first_of_block && in) lists[next[p.name(block, own)]++] = a.pairs.entry_bits ? int(t) << a.pairs.entry_bits | i : int(t | bits);
        __syncwarp();  // the next entries may be of the same block
        i += 32;
        if (ended || i - lane() >= mask.top_n) {
          if (lengths && lane() == 0) lengths[t] = i - 32 + (ended ? __ffs(ended) - 1 : 32);
          break;
        }
        last = __shfl_sync(0xffffffff, j, 31);
        j = entry(t, i);
      }
    }
  }
}
