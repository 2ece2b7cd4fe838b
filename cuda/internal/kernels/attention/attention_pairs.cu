// What comes before the kernels of attention_pairs.cuh.
//
//   nsa_pairs_share_i32  idx int32 [B,S,Hkv,most] -> blocks, count, lone
//   nsa_pairs_sort_i32   idx, which is lone -> list, lengths, items, count
//
// Which place of its block's list a pair has depends on the order of integer atomics, but no result does.
#include "attention_mma.cuh"
#include "attention_pairs.cuh"

namespace nsa {

constexpr int kSorters = 1024, kSharers = 128;  // threads of a block

// Calls f(block, pair) for the pairs of a unit, and g(query, length) for its queries.
template <class F, class G> __device__ inline void each_pair(const AttentionParams& p, const Unit& unit, F f, G g) {
  const Blocks& mask = p.blocks;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  int width = 1;  // lanes of a query
  while (width < min(32, mask.most)) width *= 2;
  const int mine = lane / width, step = 32 / width;
#pragma unroll 1
  for (int from = warp * step; from < unit.queries; from += kSorters / 32 * step) {
    const int q = from + mine, t = unit.first + q;
    const int* chosen = p.idx + mask.list(p.n, unit.b, unit.g, min(t, p.n.queries - 1));
#pragma unroll 1
    for (int first = 0;; first += width) {
      const int i = first + lane % width, j = q < unit.queries ? mask.at(chosen, i, t) : Blocks::kNone;
      const unsigned ended = __ballot_sync(0xffffffff, j == Blocks::kNone);
      const unsigned own = ended >> mine * width & (0xffffffffu >> (32 - width));
      const int length = first + (own ? __ffs(own) - 1 : width);
      if (i < length) f(j, q * mask.most + i);
      if (!ended && width == 32 && first + width < mask.most) continue;
      if (lane % width == 0 && q < unit.queries) g(q, length);
      break;
    }
  }
}

// What a warp does for a tile, with a lane for each query: the lanes take the least of their next blocks in turn.
__device__ inline void share(const PairParams& a, int number) {
  const AttentionParams& p = a.p;
  const Sizes& n = p.n;
  const Walks& x = a.walks;
  const int group = number / x.tiles, first = number % x.tiles * x.queries, end = min(first + x.queries, n.queries);
  const int b = group / n.groups, t = first + lane(), parts = (p.blocks.size - 1) / kPairKeys + 1;
  const bool in = t < end;
  const long long at = p.blocks.list(n, b, group % n.groups, in ? t : first);
  const int* list = p.idx + at;
  int32_t* lone = x.lone + at;
  SharedBlock* blocks = x.blocks + (long long)number * x.room;
  const auto entry = [&](int i) { return in ? p.blocks.at(list, i, t) : Blocks::kNone; };
  int count = 0, alone = 0, i = 0;
#pragma unroll 1
  for (int mine = entry(0), next = entry(1);;) {
    const int j = __reduce_min_sync(0xffffffff, mine);
    if (j == Blocks::kNone) break;
    const bool has = mine == j;
    if (__popc(__ballot_sync(0xffffffff, has)) >= x.least) {
#pragma unroll 1
      for (int key = j * p.blocks.size, part = 0; part < parts && key < end; part++, key += kPairKeys) {
        const unsigned queries = __ballot_sync(0xffffffff, has && key <= t);
        if (queries == 0) continue;
        if (lane() == 0) blocks[count] = {key, queries};
        count++;
      }
    } else if (has) {
      lone[alone++] = j;
    }
    if (has) mine = next, next = entry(++i + 1);
  }
  if (lane() == 0) x.count[number] = count;
  if (in && x.least > 1)
    for (; alone < p.blocks.most; alone++) lone[alone] = -1;
}

}  // namespace nsa

// Grid x is the number of units; the shared memory has a number for each block.
extern "C" __global__ void __launch_bounds__(nsa::kSorters, 1) nsa_pairs_sort_i32(const __grid_constant__ nsa::PairParams a) {
  using namespace nsa;
  const AttentionParams& p = a.p;
  const Pairs& x = a.pairs;
  const Unit unit(a, blockIdx.x);
  const int blocks = p.blocks.count(p.n), lane = threadIdx.x % 32;
  int* next = reinterpret_cast<int*>(dynamic_shared());  // how often a block was chosen, then where its next pair goes
  int* list = x.list + (long long)blockIdx.x * x.queries * p.blocks.most;
  for (int j = threadIdx.x; j < blocks; j += kSorters) next[j] = 0;
  __syncthreads();
  int* lengths = x.lengths + (long long)blockIdx.x * x.queries;
  each_pair(p, unit, [&](int j, int) { atomicAdd(next + j, 1); }, [&](int q, int length) { lengths[q] = length; });
  __syncthreads();
  if (threadIdx.x < 32) {
    PairItem* items = x.items + (long long)blockIdx.x * x.room;
    int pairs = 0, work = 0;
#pragma unroll 1
    for (int from = 0; from < blocks; from += 32) {
      const int j = from + lane, key = j * p.blocks.size, length = j < blocks ? next[j] : 0;
      const int own = (length + x.chunk - 1) / x.chunk * x.parts;
      int before = length, ahead = own;
      for (int m = 1; m < 32; m *= 2) {
        const int y = __shfl_up_sync(0xffffffff, before, m), z = __shfl_up_sync(0xffffffff, ahead, m);
        if (lane >= m) before += y, ahead += z;
      }
      const int first = pairs + before - length;
      if (j < blocks) next[j] = first;
      PairItem* to = items + work + ahead - own;
      for (int done = 0; done < length; done += x.chunk)
        for (int part = 0; part < x.parts; part++)
          *to++ = {key + part * kPairKeys, first + done, min(x.chunk, length - done), part};
      pairs += __shfl_sync(0xffffffff, before, 31), work += __shfl_sync(0xffffffff, ahead, 31);
    }
    if (lane == 0) x.count[blockIdx.x] = work;
  }
  __syncthreads();
  each_pair(p, unit, [&](int j, int pair) { list[atomicAdd(next + j, 1)] = pair; }, [](int, int) {});
}

// Grid x is the number of blocks of kSharers threads with a warp for each tile of queries.
extern "C" __global__ void __launch_bounds__(nsa::kSharers) nsa_pairs_share_i32(const __grid_constant__ nsa::PairParams a) {
  using namespace nsa;
  const int number = blockIdx.x * (kSharers / 32) + threadIdx.x / 32;
  if (number < a.walks.tiles * a.p.n.batch * a.p.n.groups) share(a, number);
}
