// What the forward kernel needs to go over the forced blocks of selected attention by pairs and to add the results of the pairs
// (attention_pairs.cuh; compute capability 9.0): its tiles of rows, its keys, and the sums.
#pragma once

#include "attention_pairs.cuh"
#include "attention_wgmma_tiles.cuh"

namespace nsa {

// Calls f(tile, round) for the block's tiles of M rows of the units of a launch, which are every gridDim.x-th one. If `redo` is given, only
// for the tiles that are marked there.
template <int M, class F> __device__ inline void each_tile(const PairParams& a, const unsigned* redo, F f) {
  const Pairs& x = a.pairs;
  const int heads = a.p.n.h, tiles = (x.queries * heads - 1) / M + 1;
#pragma unroll 1
  for (int i = blockIdx.x, round = 0; i < (x.end - x.first) * tiles; i += gridDim.x, round++) {
    const Unit unit(a, x.first + i / tiles);
    const int first = unit.first * heads + i % tiles * M, end = (unit.first + unit.queries) * heads;
    if (first < end && in_pass(redo, round)) f(RowTile(unit.b, unit.g, first, min(end, first + M)), round);
  }
}

// TileKeys for forced blocks. The keys [0,first) are those of block 0, and from `first` on come the keys from `near` on. A block is a multiple
// of the keys of a step, so no step has keys of both.
template <> struct TileKeys<Mask::kForced> : Run {
  int first, near;
  __device__ TileKeys(const AttentionParams& p, const RowTile& tile) {
    const int size = p.blocks.size, newest = (tile.end - 1) / p.n.h;
    near = max(0, tile.first / p.n.h / size - 1) * size, first = newest / size >= 2 ? size : 0;
    lo = 0, hi = first + newest + 1 - near;
  }
  static __device__ Run of_all(const AttentionParams&, const RowTile&) { return {0x7fffffff, 0}; }
  __device__ int key(int i) const { return i < first ? i : i - first + near; }
};

template <Mask of> using ParamsOf = std::conditional_t<of == Mask::kForced, PairParams, WgmmaParams>;

// What must be known about a row of a tile:
//
//   first   how many keys of block 0 it sees apart from its run of keys
//   count   the number of results of its pairs
//   copied  how many rows a copy of a result brings. The first row of a query among the warp's 16 rows brings all of the query's rows there,
//           the others bring none
//   at      the place of the first result, times h, plus the row's head
struct RowPairs {
  int first, count, copied;
  long long at;
};
struct NoPairs {};

// Sets what is known of row r of a tile, and the run of keys that it sees.
__device__ inline void set_row(const PairParams& a, const RowTile& tile, int r, Run& keys, RowPairs& pairs) {
  keys = {0, 0}, pairs = {0, 0, 0, 0};
  if (!tile.has(r)) return;
  const Pairs& x = a.pairs;
  const AttentionParams& p = a.p;
  const int heads = p.n.h, t = (tile.first + r) / heads, head = (tile.first + r) % heads;
  const int number = t - p.n.start(tile.b), q = number % x.queries, unit = (tile.b * p.n.groups + tile.g) * x.units + number / x.queries;
  const Forced forced(p.blocks, p.idx + p.blocks.list(p.n, tile.b, tile.g, t), x.lengths[(long long)unit * x.queries + q], t);
  keys = forced.near;
  pairs.first = forced.first, pairs.count = (forced.end - forced.from) * x.parts;
  pairs.at = (((long long)(unit - x.first) * x.queries + q) * p.blocks.top_n + forced.from) * x.parts * heads + head;
  if (head == 0 || r % 16 == 0) pairs.copied = min(min(heads - head, 16 - r % 16), tile.end - tile.first - r);
}

// Results brings the results of the pairs of a tile's rows to shared memory: C columns, of which c are in use. Each computing warp has 16 rows
// and a ring of Stages stages of its own, each of one result of each row. The warp starts bulk copies itself, and takes the results in the
// order of the lists, some of them after each step over keys.
template <typename T, int C, int W, int Stages> struct Results {
  static constexpr int kStage = 16 * 2 * C, kRings = 4 * W * Stages * kStage;  // bytes
  struct Shared {
    float2 stats[4 * W][Stages][16];
    unsigned long long full[4 * W][Stages];
  };

  const PairParams& a;
  Shared& smem;
  const int w, bytes;     // the number of this warp; bytes of a row
  const uint32_t stages;  // address of its first stage
  int stage = 0, next = 0, most = 0;  // of the next result; its number; how many the warp's rows have
  uint32_t parity = 0;
  const char* from;       // of row `lane`: where its first result lies, its place, and what a copy brings
  long long place;
  int copied, count;

  static __device__ void init(Shared& smem) {  // by one thread
    for (int w = 0; w < 4 * W; w++)
      for (int i = 0; i < Stages; i++) barrier_init(barrier_at(smem.full[w][i]), 33);
  }
  __device__ Results(const PairParams& a, Shared& smem, uint32_t rings, int w, int c)
      : a(a), smem(smem), w(w), bytes(2 * result_width(c)), stages(rings + w * Stages * kStage) {}

  __device__ __forceinline__ void copy(int i, int to) const {  // result i to a stage
    const int n = i < count ? copied : 0;
    const uint32_t full = barrier_at(smem.full[w][to]);
    const int all = __reduce_add_sync(0xffffffff, n);
    if (lane() == 0) barrier_arrive_expecting(full, all * bytes);
    __syncwarp();
    if (n > 0) copy_bytes(stages + to * kStage + lane() * bytes, from + (long long)i * a.p.n.h * bytes, n * bytes, full);
    if (lane() < 16 && i < count) copy_pair(&smem.stats[w][to][lane()], a.pairs.stats + place + (long long)i * a.p.n.h);
    barrier_arrive_copied(full);
  }
  // Begins with a tile. rows: what is known of the warp's 16 rows.
  template <class Row> __device__ __forceinline__ void begin(const Row* rows) {
    const RowPairs& mine = rows[lane() % 16];
    place = mine.at, from = static_cast<const char*>(a.pairs.results) + place * bytes, copied = lane() < 16 ? mine.copied : 0, count = mine.count;
    most = __reduce_max_sync(0xffffffff, count), next = 0;
#pragma unroll
    for (int i = 0; i < Stages; i++) {
      const int to = stage + i;
      if (i < most) copy(i, to < Stages ? to : to - Stages);
    }
  }
  // Takes the results up to number `end`. For each one it calls weigh(r, base, sum) with its stats, which returns the factor of the result
  // of row r, then scale(), and adds the results to `to`, which has the layout of wgmma.
  template <class Weigh, class Scale> __device__ __forceinline__ void take(int end, float (&to)[C / 8][4], Weigh weigh, Scale scale) {
    const int row = lane() / 4, counts[2] = {__shfl_sync(0xffffffff, count, row), __shfl_sync(0xffffffff, count, row + 8)};
#pragma unroll 1
    for (end = min(end, most); next < end; next++) {
      const uint32_t at = stages + stage * kStage + row * bytes;
      barrier_wait(barrier_at(smem.full[w][stage]), parity);
      float factor[2];
#pragma unroll
      for (int r = 0; r < 2; r++) {
        float2 stat = {-INFINITY, 0};
        if (next < counts[r]) stat = smem.stats[w][stage][row + 8 * r];
        factor[r] = weigh(r, stat.x, stat.y);
      }
      scale();
#pragma unroll
      for (int r = 0; r < 2; r++)
#pragma unroll
        for (int j = 0; j < C / 32; j++) {
          const bool has = next < counts[r] && 64 * j < bytes;  // else the stage holds anything
          float v[8];
          Pack<f16>{has ? shared_cell(at + 8 * r * bytes + 64 * j + 16 * (lane() % 4)) : uint4{0, 0, 0, 0}}.get(v);
#pragma unroll
          for (int e = 0; e < 8; e++) {
            float& sum = to[4 * j + e / 2][2 * r + e % 2];
            sum = fmaf(factor[r], v[e], sum);
          }
        }
      fence_async();  // a copy does not wait for this lane's reads
      __syncwarp();
      if (next + Stages < most) copy(next + Stages, stage);
      if (++stage == Stages) stage = 0, parity ^= 1;
    }
  }
};
// For kernels without pairs.
struct NoResults {
  static constexpr int kRings = 0;
  struct Shared {};
  template <class... X> __device__ NoResults(const X&...) {}
};
template <Mask mask, typename T, int C, int W, int Stages>
using ResultsOf = std::conditional_t<mask == Mask::kForced, Results<T, C, W, Stages>, NoResults>;

}  // namespace nsa
