// Block selection on warpgroups (compute capability 9.0), for l = 2d, l' = Per*d and at most 32 heads a group: the contract of
// select_blocks.cu.
//
//   nsa_select_blocks_wgmma<C>_<Per>
//
// A block has Teams teams of 128 threads. It takes one tile of `tokens` queries of a group after the other, as it gets free; tiles with
// late queries come first. Each team goes through the keys by itself. A tensor map copies keys into kStages tiles; barriers tell teams
// that a tile is full, and the loading thread that all teams have read it. Teams meet only through these. A team folds its own
// queries, two tiles of keys at a time, while its next product runs. Sums lie in a ring of two halves of two tiles each. Before each
// half lie kBefore floats; the last of them holds the key before the half. Scores go to global memory, a row for each query of the
// block. At the end of a tile of queries each warp selects for one query at a time.
//
// Shared memory: columns [kTeam*Teams,C], kStages tiles of keys [64,C], and what carve hands out in select_blocks.
#include "attention_wgmma_tiles.cuh"
#include "select_team.cuh"

namespace nsa {

struct SelectMapParams {
  alignas(64) uint8_t kc[128];  // tensor map of kc [B,Nc,Hkv,D], with boxes [1,64,1,64]
  SelectParams p;
  int32_t* scores;  // [gridDim.x,tokens,blocks]: bits of scores; kNoScore for blocks that a query may not select
  int32_t* more;    // counts the tiles of queries that were begun after the first one of each block; null if there are no more
  int32_t blocks;   // a multiple of 4
};

// Floats from the sums of one query to those of the next. `queries` is the number of queries of a thread. If that is odd or 2, the stores
// of a warp in sum_heads fall into different banks.
__host__ __device__ constexpr int sums_pitch(int queries) { return 4 * kKeys + 8 + 4 * ((queries + 1) % 2); }

#if defined(__CUDA_ARCH_FEAT_SM90_ALL) || !defined(__CUDACC__)
// Selects the blocks of query t by the scores of the first `count` blocks, a multiple of 4. All lanes of a warp must call it.
__device__ __forceinline__ void select_blocks(const SelectParams& p, int b, int g, int t, const int* scores, int count, int* list, int places) {
  ListState state{kNoScore, 0};
  if (count > 0 && t >= p.earliest && places <= 32) {
    constexpr int kAtOnce = 8, kStep = 128 * kAtOnce;
    int4 x[kAtOnce];  // of every 128 scores, the four of this lane
    const auto load = [&](int j0) {
#pragma unroll
      for (int i = 0; i < kAtOnce; i++) {
        const int j = j0 + 128 * i + 4 * lane();
        x[i] = {kNoScore, kNoScore, kNoScore, kNoScore};
        if (j < count) x[i] = *reinterpret_cast<const int4*>(scores + j);
      }
    };
    const auto best = [](const int4& y) { return max(max(y.x, y.y), max(y.z, y.w)); };
    // Each lane finds its largest score. The bar lies just below the `places`-th largest of these 32. At least `places` scores exceed the
    // bar, so no score at or below it can be selected.
    int largest = kNoScore;
#pragma unroll 1
    for (int j0 = 0; j0 < count; j0 += kStep) {
      load(j0);
#pragma unroll
      for (int i = 0; i < kAtOnce; i++) largest = max(largest, best(x[i]));
    }
    list[lane()] = largest;
    __syncwarp();
    state.bar = max(kNoScore, __reduce_min_sync(0xffffffff, larger(list, largest) < places ? largest : 0x7fffffff) - 1);
    __syncwarp();
    const unsigned before = (1u << lane()) - 1;
#pragma unroll 1
    for (int j0 = 0; j0 < count; j0 += kStep) {
      if (count > kStep) load(j0);
#pragma unroll
      for (int i = 0; i < kAtOnce; i++) {
        if (j0 + 128 * i >= count || !__any_sync(0xffffffff, best(x[i]) > state.bar)) continue;
        const int y[4] = {x[i].x, x[i].y, x[i].z, x[i].w};
        int at = state.count;
#pragma unroll
        for (int e = 0; e < 4; e++) {
          const unsigned in = __ballot_sync(0xffffffff, y[e] > state.bar);
          at += __popc(in & before), state.count += __popc(in);
        }
#pragma unroll
        for (int e = 0; e < 4; e++)
          if (y[e] > state.bar) {
            if (at < 32) list[at] = y[e], list[p.room + at] = j0 + 128 * i + 4 * lane() + e;
            at++;
          }
      }
    }
    if (state.count <= 32) {
      if (lane() >= state.count) list[lane()] = kNoScore;
      __syncwarp();
      const bool in_use = lane() < state.count;
      const int x = list[lane()];
      int better = larger(list, x);
      if (__popc(__reduce_or_sync(0xffffffff, in_use ? 1u << better : 0)) < state.count)  // among equal scores the earlier one is better
        better += __popc(__match_any_sync(0xffffffff, x) & before);
      const unsigned kept = __ballot_sync(0xffffffff, in_use && better < places);
      int* idx = p.idx + Blocks{p.size, p.top_n}.list(p.n, b, g, t);
      const int own = t / p.size;
      if (kept >> lane() & 1) idx[1 + __popc(kept & before)] = list[p.room + lane()];
      if (lane() == 0) idx[0] = 0, idx[p.top_n - 2] = own - 1, idx[p.top_n - 1] = own;
      __syncwarp();
      return;
    }
    state.count = 0;
    __syncwarp();
  }
  if (t >= p.earliest)
#pragma unroll 1
    for (int j = lane(); j - lane() < count; j += 32) {
      const int x = j < count ? scores[j] : kNoScore;
      enter(list, state, p.room, places, x, j, x > state.bar);
    }
  write_selection(p, b, g, t, list, state, places);
  __syncwarp();
}

template <typename T, int C, int Teams, int kStages, int Per> __device__ void select_blocks(const SelectMapParams& maps) {
  constexpr int kAll = Teams * kTeam, kTile = kKeys * C * 2, kMine = kColumns * C * 2, kHalf = 2 * kKeys, kBefore = 4;
  constexpr int kWidth = kHalf / Per < 32 ? kHalf / Per : 32, kSteps = kHalf / Per / kWidth;  // a step of the fold has kWidth blocks
  const SelectParams& p = maps.p;
  const Sizes& n = p.n;
  const int places = p.places;
  const Columns columns(n.h, p.tokens / Teams);
  Carver carve{tiles_shared()};
  const uint32_t Q = shared_address(carve.floats(kAll * C / 2)), K = shared_address(carve.floats(kStages * kTile / 4));
  float* lses = carve.floats(kAll);
  float* bases = carve.floats(kAll);
  // kStages full ones, then kStages free ones
  unsigned long long* barriers = reinterpret_cast<unsigned long long*>(carve.floats(4 * kStages));
  int* list = reinterpret_cast<int*>(carve.floats(4 * Teams * 2 * 64)) + warp() * 2 * 64;  // of this warp
  int* begun = reinterpret_cast<int*>(carve.floats(4));  // the block's next tile of queries
  float* sums = carve.floats(p.tokens * sums_pitch(p.tokens / Teams / 4));

  // the team's queries begin at `first`
  const int team = __shfl_sync(0xffffffff, warp() / 4, 0), c = lane() % 4, own = p.tokens / Teams, first = team * own;
  int* const scores = maps.scores + ((long long)blockIdx.x * p.tokens + first) * maps.blocks;
  if (threadIdx.x == 0) {
    for (int i = 0; i < kStages; i++) barrier_init(barrier_at(barriers[i]), 1), barrier_init(barrier_at(barriers[kStages + i]), 4 * Teams);
    barriers_ready();
  }
  Ring<kStages> k;

  const int tiles = (n.queries - 1) / p.tokens + 1, groups = n.batch * n.groups, items = tiles * groups;
  // Selects the blocks of the queries [start,start+count) of group g of batch row b, which belong to one document. With `ask` it also gets
  // the block's next tile of queries.
  const auto take = [&](int b, int g, const Document& of, int start, int count, bool ask) {
    // From here on, queries t count from the first token of the document, and keys from its first key.
    const int t0 = start - of.first, t1 = t0 + count;
    const int newest = (t1 - 1) / p.size;
    const int last = newest < p.top_n || places == 0 ? 0 : newest - 1;  // candidates are the blocks [1,last)
    const int keys = (int)(((long long)last * Per + kKeys - 1) / kKeys);  // tiles of keys
    // Waits until all warps have read the stage that lies `ahead` stages after k's. Then begins to copy a tile of keys to it. Rows after the
    // last key of the batch row become zeros. One thread calls it.
    const auto load = [&](int tile, int ahead) {
      const int at = k.stage + ahead, stage = at % kStages;
      const uint32_t full = barrier_at(barriers[stage]);
      barrier_wait(barrier_at(barriers[kStages + stage]), at < kStages ? k.parity ^ 1 : k.parity);
      barrier_arrive_expecting(full, kTile);
#pragma unroll
      for (int i = 0; i < C / 64; i++) copy_box(K + stage * kTile + i * kKeys * 128, maps.kc, full, 64 * i, g, of.keys + tile * kKeys, b);
    };
    const auto meet = [&] { named_sync(1 + team, kTeam); };
    if (keys > 0) {
      if (threadIdx.x == 0)
        for (int i = 0; i < kStages - 1 && i < keys; i++) load(i, i);
      const bool any_large = load_columns<T, C, Teams>(p, columns, b, g, start, Q, lses, bases, reinterpret_cast<int*>(sums));
      tiles_arrived();
      __syncthreads();

      with_queries(columns.queries, [&](auto queries) {
        constexpr int kQueries = decltype(queries)::value, kPairs = 16 / kQueries, kPitch = sums_pitch(kQueries);
        constexpr int kMost = Per == 8 ? 2 : 5, kChunk = kQueries < kMost ? kQueries : kMost;
        const float* const base = bases + team * kColumns + 2 * c;
        float* const to = sums + (team * 4 + c) * kQueries * kPitch + kBefore + warp() % 4 * 16 + lane() / 4;
        // Writes the scores of the blocks whose keys are in this half of the ring; j0 is the first of them.
        const auto fold = [&](int half, int j0) {
          const int at = half == 0 ? kBefore : 2 * kBefore + kHalf, other = 3 * kBefore + kHalf - at;
#pragma unroll 1
          for (int step = 0; step < kSteps; step++) {
            const int j = j0 + step * kWidth + lane(), from = at + (step * kWidth + lane() % kWidth) * Per;
            // the first query that may select block j, which must not be among its two newest; after all if there is none
            const int since = (1 <= j && j < last ? max(p.earliest, (j + 2) * p.size) : p.sequence) - t0;
#pragma unroll 1
            for (int u0 = 0; u0 < kQueries; u0 += kChunk) {
              float sum[kChunk], newest[kChunk];
#pragma unroll
              for (int u = 0; u < kChunk; u++) {
                const int i = min(u0 + u, kQueries - 1) * 4 + warp() % 4;
                const float* r = sums + (first + i) * kPitch + from;
                float x[Per];
                if constexpr (Per % 4 == 0) {
#pragma unroll
                  for (int e = 0; e < Per; e += 4) {
                    const float4 y = *reinterpret_cast<const float4*>(r + e);
                    x[e] = y.x, x[e + 1] = y.y, x[e + 2] = y.z, x[e + 3] = y.w;
                  }
                } else {
#pragma unroll
                  for (int e = 0; e < Per; e++) x[e] = r[e];
                }
                float twice = 0;
#pragma unroll
                for (int e = 0; e + 1 < Per; e++) twice += x[e];
                newest[u] = x[Per - 1];
                sum[u] = r[-1] + 2 * twice + newest[u];
              }
#pragma unroll
              for (int u = 0; u < kChunk; u++) {
                const int i = min(u0 + u, kQueries - 1) * 4 + warp() % 4;
                if (step == kSteps - 1 && lane() == kWidth - 1) sums[(first + i) * kPitch + other - 1] = newest[u];
                // fmaxf turns NaN into 0
                if (lane() < kWidth) scores[i * maps.blocks + j] = first + i >= since ? bits_of(fmaxf(sum[u], 0)) : kNoScore;
              }
            }
          }
        };
#pragma unroll 1
        for (int tile = 0; tile < keys; tile++) {
          float s[kPairs * kQueries][4];
          barrier_wait(barrier_at(barriers[k.stage]), k.parity);
          begin_product<T, C>(s, K + k.stage * kTile, Q + team * kMine);
          if (tile > 0 && tile % 2 == 0) {
            meet();  // the sums of both tiles are written
            fold(tile / 2 % 2 ^ 1, (tile - 2) * kKeys / Per);
          }
          end_product(s);
          if (lane() == 0) barrier_arrive(barrier_at(barriers[kStages + k.stage]));
          if (threadIdx.x == 0 && tile + kStages - 1 < keys) load(tile + kStages - 1, kStages - 1);
          __syncwarp();
          if (any_large) to_exponents(s, n.scale, base - kAll);
          sum_heads<kQueries, 8>(s, any_large ? 1 : n.scale_log2, base, to + (tile % 2 * kKeys + tile / 2 % 2 * (kHalf + kBefore)), kPitch);
          k.next();
        }
        meet();
        fold((keys - 1) / 2 % 2, (keys - 1) / 2 * kHalf / Per);
        meet();
      });
    } else {
      __syncthreads();  // all threads have read *begun
    }
    const int scored = (keys + 1) / 2 * kHalf / Per;
    int ahead = items;
    if (ask && threadIdx.x == 0 && maps.more) ahead = gridDim.x + atomicAdd(maps.more, 1);
    SelectParams of_document = p;  // its queries count from the first token of the document
    of_document.idx += (long long)of.first * n.groups * p.top_n;
#pragma unroll 1
    for (int i = warp() % 4; i < own && first + i < count; i += 4)
      select_blocks(of_document, b, g, t0 + first + i, scores + i * maps.blocks, scored, list, places);
    if (ask && threadIdx.x == 0) *begun = ahead;
    __syncthreads();  // *begun is written, and the next queries may reuse shared memory
  };

#pragma unroll 1
  for (int item = blockIdx.x; item < items; item = *begun) {
    const int group = item % groups, from = (tiles - 1 - item / groups) * p.tokens, to = min(n.queries, from + p.tokens);
#pragma unroll 1
    for (int next = from; next < to;) {
      const Document of = p.document(group / n.groups, next);
      const int start = next;
      next = min(to, max(start + 1, of.end));
      take(group / n.groups, group % n.groups, of, start, next - start, next == to);
    }
  }
}
#endif

}  // namespace nsa

#define NSA_SELECT_WGMMA(C, teams, stages, blocks, per, suffix)                                                        \
  extern "C" __global__ void __launch_bounds__(nsa::kTeam * teams, blocks)                                             \
      nsa_select_blocks_wgmma##C##_##per##_##suffix(const __grid_constant__ nsa::SelectMapParams p) {                  \
    NSA_WGMMA_BODY((nsa::select_blocks<nsa::suffix, C, teams, stages, per>(p));)                                       \
  }
#define NSA_SELECT_WGMMA_TYPES(...)                                                                                    \
  NSA_SELECT_WGMMA(__VA_ARGS__, bf16)                                                                                  \
  NSA_SELECT_WGMMA(__VA_ARGS__, f16)
#define NSA_SELECT_WGMMA_SIZES(...)                                                                                    \
  NSA_SELECT_WGMMA_TYPES(__VA_ARGS__, 1)                                                                               \
  NSA_SELECT_WGMMA_TYPES(__VA_ARGS__, 2)                                                                               \
  NSA_SELECT_WGMMA_TYPES(__VA_ARGS__, 4)                                                                               \
  NSA_SELECT_WGMMA_TYPES(__VA_ARGS__, 8)
//                     C  Teams, kStages, blocks of a multiprocessor; the same numbers are in widths.go
NSA_SELECT_WGMMA_SIZES(64, 2, 3, 2)
NSA_SELECT_WGMMA_SIZES(128, 4, 3, 1)
NSA_SELECT_WGMMA_SIZES(192, 2, 3, 1)
NSA_SELECT_WGMMA_SIZES(256, 2, 2, 1)
