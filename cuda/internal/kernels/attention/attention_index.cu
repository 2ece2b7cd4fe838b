// Inverts idx int32 [B,S,Hkv,most], the choice of blocks, into the layout of attention_index.cuh. Four kernels in this
// order; each writes its outputs whole. The sequence is cut into `segments` so that lists come out ascending without any
// order of execution in them:
//
//   nsa_index_count_i32   counts = how often a segment chose a block (integer atomics: their order does not show)
//   nsa_index_rank_i32    counts = where in the block's list a segment begins; lengths of the lists into starts
//   nsa_index_scan_i32    starts = running sums of lengths, items and partial sums
//   nsa_index_fill_i32    queries = the lists; counts are used up
//
// A block of the inverse may be `count` adjoining ones of the choice, up to four. Then the highest four bits of an entry of a list say which of
// them the query chose. Of more than 32 choices two of one block may be two entries, with different bits.
#include "attention_index.cuh"

namespace nsa {

// The blocks that idx names.
__device__ inline Blocks chosen_blocks(const AttentionParams& p) { return {p.blocks.size / p.count, p.blocks.most}; }

constexpr int kScan = 256;

// Running sum over the threads of a block of kScan, their own value excluded; total for all.
__device__ inline int exclusive_sum(int x, int* total) {
  __shared__ int warps[kScan / 32];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  int sum = x;
  for (int m = 1; m < 32; m *= 2) {
    const int y = __shfl_up_sync(0xffffffff, sum, m);
    if (lane >= m) sum += y;
  }
  __syncthreads();  // the sums of the call before have been read
  if (lane == 31) warps[warp] = sum;
  __syncthreads();
  int before = 0;
  *total = 0;
  for (int i = 0; i < kScan / 32; i++) {
    if (i < warp) before += warps[i];
    *total += warps[i];
  }
  return before + sum - x;
}

}  // namespace nsa

// Grid x is B*Hkv*segments, blocks of 128.
extern "C" __global__ void nsa_index_count_i32(const __grid_constant__ nsa::AttentionParams p) {
  const auto& n = p.n;
  const nsa::Blocks mask = nsa::chosen_blocks(p);
  const auto& index = p.index;
  const int group = blockIdx.x / index.segments, segment = blockIdx.x % index.segments;
  const int b = group / n.groups, g = group % n.groups, blocks = p.names();
  int* mine = p.counts + (long long)blockIdx.x * blocks;
  for (int j = threadIdx.x; j < blocks; j += blockDim.x) mine[j] = 0;
  __syncthreads();
  const long long length = index.segment(n.queries), from = segment * length, to = min((long long)n.queries, from + length);
  for (long long t = from + threadIdx.x; t < to; t += blockDim.x) {
    const int* list = p.idx + mask.list(n, b, g, (int)t);
    const int first = p.first(b, (int)t);
    for (int i = 0, j; (j = mask.at(list, i, (int)t - first)) != nsa::Blocks::kNone; i++)
      if (i % 32 == 0 || j / p.count != list[i - 1] / p.count) atomicAdd(mine + p.name(j / p.count, first), 1);
  }
}

// Blocks of [32,32] threads: x for 32 blocks of tokens of a group, y for kRun segments each. Grid x is B*Hkv*ceil(J/32).
extern "C" __global__ void __launch_bounds__(1024) nsa_index_rank_i32(const __grid_constant__ nsa::AttentionParams p) {
  constexpr int kRun = 8;  // a block takes at most 32*kRun segments
  __shared__ int sums[32][32];
  const int blocks = p.names(), across = (blocks - 1) / 32 + 1, segments = p.index.segments;
  const long long group = blockIdx.x / across;
  const int j = blockIdx.x % across * 32 + threadIdx.x, first = threadIdx.y * kRun;
  int* counts = p.counts + (group * segments + first) * blocks + j;
  const auto in = [&](int i) { return j < blocks && first + i < segments; };
  int own[kRun], sum = 0;
#pragma unroll
  for (int i = 0; i < kRun; i++) sum += own[i] = in(i) ? counts[(long long)i * blocks] : 0;
  sums[threadIdx.y][threadIdx.x] = sum;
  __syncthreads();
  int before = 0, all = 0;
  for (int y = 0; y < 32; y++) {
    if (y == threadIdx.y) before = all;
    all += sums[y][threadIdx.x];
  }
#pragma unroll
  for (int i = 0; i < kRun; i++) {
    if (in(i)) counts[(long long)i * blocks] = before;
    before += own[i];
  }
  if (threadIdx.y == 0 && j < blocks) p.starts[group * 3 * (blocks + 1) + j] = all;
}

// Grid x is B*Hkv, blocks of kScan.
extern "C" __global__ void __launch_bounds__(nsa::kScan)
    nsa_index_scan_i32(const __grid_constant__ nsa::AttentionParams p) {
  const int blocks = p.names(), b = blockIdx.x / p.n.groups;
  int* list = p.starts + (long long)blockIdx.x * 3 * (blocks + 1);
  int *item = list + blocks + 1, *partial = item + blocks + 1;
  int lists = 0, items = 0, partials = 0;
  for (int from = 0; from <= blocks; from += nsa::kScan) {
    const int j = from + (int)threadIdx.x, length = j < blocks ? list[j] : 0;
    const nsa::Run block = j < blocks ? p.tokens(b, j) : nsa::Run{0, 0};
    const int chunks = block.lo < block.hi ? p.index.chunks(length) : 0;
    int total;
    const int first = nsa::exclusive_sum(length, &total) + lists;
    lists += total;
    const int i = nsa::exclusive_sum(chunks, &total) + items;
    items += total;
    const int sum = nsa::exclusive_sum(chunks > 1 ? chunks : 0, &total) + partials;
    partials += total;
    if (j <= blocks) list[j] = first, item[j] = i, partial[j] = sum;
  }
}

// A warp for each segment of each group, which takes the queries in their order and the blocks of one of them at once;
// grid x is ceil(B*Hkv*segments / 4), blocks of 128.
extern "C" __global__ void nsa_index_fill_i32(const __grid_constant__ nsa::AttentionParams p) {
  const auto& n = p.n;
  const nsa::Blocks mask = nsa::chosen_blocks(p);
  const auto& index = p.index;
  const long long warp = (long long)blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32, group = warp / index.segments;
  if (group >= (long long)n.batch * n.groups) return;
  const int b = (int)(group / n.groups), g = (int)(group % n.groups), blocks = p.names(), lane = threadIdx.x % 32;
  const nsa::Choosers all(p, (int)group);
  int* lists = p.queries + group * n.queries * mask.most;
  int* mine = p.counts + warp * blocks;
  const long long length = index.segment(n.queries), from = warp % index.segments * length;
  const long long to = min((long long)n.queries, from + length);
  const auto entry = [&](long long t, int i) { return mask.at(p.idx + mask.list(n, b, g, (int)t), i, (int)t - p.first(b, (int)t)); };
  int next = from < to ? entry(from, lane) : nsa::Blocks::kNone;
  for (long long t = from; t < to; t++) {
    int j = next;
    if (t + 1 < to) next = entry(t + 1, lane);  // it arrives while the counts of this query are read
    for (int first = 0;;) {
      const unsigned ended = __ballot_sync(0xffffffff, j == nsa::Blocks::kNone);
      const bool in = lane < (ended ? __ffs(ended) - 1 : 32);
      const int block = in ? j / p.count : nsa::Blocks::kNone;
      unsigned bits = 0;
      bool is = true;  // the first entry of its block
      if (p.count > 1) {
        bits = 1u << 28 + j % p.count;
        for (int i = 1; i < p.count; i++) {
          const unsigned other = __shfl_down_sync(0xffffffff, 1u << 28 + j % p.count, i);
          if (__shfl_down_sync(0xffffffff, block, i) == block) bits |= other;
        }
        is = __shfl_up_sync(0xffffffff, block, 1) != block || lane == 0;
      }
      if (is && in) {
        const int name = p.name(block, p.first(b, (int)t)), at = mine[name];
        lists[all.list[name] + at] = int(t | bits);
        mine[name] = at + 1;
      }
      if (ended || (first += 32) >= mask.most) break;
      __syncwarp();  // the next entry may be of the same block
      j = entry(t, first + lane);
    }
    __syncwarp();
  }
}
