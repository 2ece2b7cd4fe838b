// select_mma.cu for compute capability 9.0, where l is 2 d, l' is `Per` d and a query has at most 32 heads: the same contract.
//
//   nsa_select_blocks_wgmma<C>_<Per>
//
// A team of 128 threads goes through the keys alone: keys come by a tensor map into kStages tiles, which barriers hand to the teams
// and back, and teams wait for each other no more than for a tile. A team folds its own queries, for two tiles of keys together, while
// the next product runs; their sums lie in a ring of two such halves, each behind kBefore cells, of which the last one is for the key
// before.
//
// Shared memory: columns [kTeam*Teams,C], kStages tiles of keys [64,C], and what Carver says.
#include "attention_wgmma_span.cuh"
#include "select_team.cuh"

namespace nsa {

struct SelectMapParams {
  alignas(64) uint8_t kc[128];  // map of boxes [1,64,1,64] of kc [B,Nc,Hkv,D]
  SelectParams p;
};

#if defined(__CUDA_ARCH_FEAT_SM90_ALL) || !defined(__CUDACC__)
template <typename T, int C, int Teams, int kStages, int Per> __device__ void select_blocks(const SelectMapParams& maps) {
  constexpr int kAll = Teams * kTeam, kTile = kKeys * C * 2, kMine = kColumns * C * 2, kHalf = 2 * kKeys, kBefore = 4;
  constexpr int kWidth = kHalf / Per < 32 ? kHalf / Per : 32, kSteps = kHalf / Per / kWidth;  // blocks of a step of the fold
  const SelectParams& p = maps.p;
  const Sizes& n = p.n;
  const int places = (n.queries - 1) / p.size < p.most ? 0 : p.most - kForced;  // 0 where all queries get all blocks
  const Columns columns(n.each, p.tokens / Teams);
  Carver carve{tiles_shared()};
  const uint32_t Q = shared_address(carve.floats(kAll * C / 2)), K = shared_address(carve.floats(kStages * kTile / 4));
  float* lses = carve.floats(kAll);
  float* bases = carve.floats(kAll);
  float* sums = carve.floats(p.tokens * p.pitch);
  int* lists = reinterpret_cast<int*>(carve.floats(2 * p.tokens * p.room));
  ListState* states = reinterpret_cast<ListState*>(carve.floats(2 * p.tokens));
  unsigned long long* barriers = reinterpret_cast<unsigned long long*>(carve.floats(4 * kStages));  // kStages full, kStages free

  const int tiles = (n.queries - 1) / p.tokens + 1, group = blockIdx.x / tiles, b = group / n.groups, g = group % n.groups;
  const int t0 = (tiles - 1 - blockIdx.x % tiles) * p.tokens, t1 = min(n.queries, t0 + p.tokens);
  const int newest = (t1 - 1) / p.size;
  const int last = newest < p.most || places == 0 ? 0 : newest - 1;  // candidates are the blocks [1,last)
  const int keys = (int)(((long long)last * Per + kKeys - 1) / kKeys);  // tiles of them
  const int team = warp() / 4, c = lane() % 4, own = p.tokens / Teams;  // queries of a team
  const int first = team * own, end = min(t1 - t0, first + own);

  bool any_large = false;
  if (keys > 0) {
    for (int i = threadIdx.x; i < p.tokens; i += kAll) states[i] = {kNone, 0};
    if (threadIdx.x == 0) {
      for (int i = 0; i < kStages; i++) barrier_init(barrier_at(barriers[i]), 1), barrier_init(barrier_at(barriers[kStages + i]), 4 * Teams);
      barriers_ready();
    }
    any_large = load_columns<T, C, Teams>(p, columns, b, g, t0, Q, lses, bases, reinterpret_cast<int*>(sums));
    tiles_arrived();
    __syncthreads();
  }
  // Begins to copy a tile of keys, zeros behind the last one. One thread calls it.
  const auto load = [&](int tile, int stage) {
    const uint32_t full = barrier_at(barriers[stage]);
    barrier_arrive_expecting(full, kTile);
#pragma unroll
    for (int i = 0; i < C / 64; i++) copy_box(K + stage * kTile + i * kKeys * 128, maps.kc, full, 64 * i, g, tile * kKeys, b);
  };
  // Gives the lists the scores of the blocks whose keys are in a half of the ring, from block j0 on.
  const auto fold = [&](int half, int j0) {
    const int at = half == 0 ? kBefore : 2 * kBefore + kHalf, other = 3 * kBefore + kHalf - at;
#pragma unroll 1
    for (int step = 0; step < kSteps; step++) {
      const int j = j0 + step * kWidth + lane(), from = at + (step * kWidth + lane()) * Per;
      const int since = (lane() < kWidth && 1 <= j && j < last ? max(p.earliest, (j + 2) * p.size) : n.queries) - t0;
#pragma unroll 1
      for (int i = first + warp() % 4; i < end; i += 4) {
        float* r = sums + i * p.pitch;
        const ListState state = states[i];
        float sum = 0, newest = 0;
        if (kWidth == 32 || lane() < kWidth) {
          float x[Per];
          if constexpr (Per % 4 == 0) {
#pragma unroll
            for (int e = 0; e < Per; e += 4) {
              const float4 y = *reinterpret_cast<const float4*>(r + from + e);
              x[e] = y.x, x[e + 1] = y.y, x[e + 2] = y.z, x[e + 3] = y.w;
            }
          } else {
#pragma unroll
            for (int e = 0; e < Per; e++) x[e] = r[from + e];
          }
#pragma unroll
          for (int e = 0; e + 1 < Per; e++) sum += x[e];
          newest = x[Per - 1];
          sum = r[from - 1] + 2 * sum + newest;
        }
        if (step == kSteps - 1 && lane() == kWidth - 1) r[other - 1] = newest;
        const int score = bits_of(fmaxf(sum, 0));  // not NaN
        enter(lists + i * 2 * p.room, states[i], state, p.room, places, score, j, i >= since && score > state.bar);
      }
    }
  };

  if (keys > 0) {
    if (threadIdx.x == 0)
      for (int i = 0; i < kStages - 1 && i < keys; i++) load(i, i);
    const float* const base = bases + team * kColumns + 2 * c;
    float* const to = sums + (team * 4 + c) * columns.queries * p.pitch + kBefore + warp() % 4 * 16 + lane() / 4;
    const auto meet = [&] { named_sync(1 + team, kTeam); };
    Ring<kStages> k;
#pragma unroll 1
    for (int tile = 0; tile < keys; tile++) {
      float s[16][4];
      barrier_wait(barrier_at(barriers[k.stage]), k.parity);
      begin_product<T, C>(s, K + k.stage * kTile, Q + team * kMine);
      if (tile > 0 && tile % 2 == 0) {
        meet();  // the sums of both tiles are there
        fold(tile / 2 % 2 ^ 1, (tile - 2) * kKeys / Per);
      }
      end_product(s);
      if (lane() == 0) barrier_arrive(barrier_at(barriers[kStages + k.stage]));
      if (threadIdx.x == 0 && tile + kStages - 1 < keys) {
        const int stage = (k.stage + kStages - 1) % kStages;  // that of the tile before this one
        if (tile > 0) barrier_wait(barrier_at(barriers[kStages + stage]), k.stage == 0 ? k.parity ^ 1 : k.parity);
        load(tile + kStages - 1, stage);
      }
      __syncwarp();
      sum_heads<8>(s, n, columns.queries, any_large, base, base - kAll, to + (tile % 2 * kKeys + tile / 2 % 2 * (kHalf + kBefore)), p.pitch);
      k.next();
    }
    meet();
    fold((keys - 1) / 2 % 2, (keys - 1) / 2 * kHalf / Per);
  }
  for (int i = first + warp() % 4; i < end; i += 4) write_choice(p, b, g, t0 + i, lists + i * 2 * p.room, states[i], places);
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
NSA_SELECT_WGMMA_SIZES(64, 2, 3, 2)
NSA_SELECT_WGMMA_SIZES(128, 4, 3, 1)
NSA_SELECT_WGMMA_SIZES(192, 2, 3, 1)
NSA_SELECT_WGMMA_SIZES(256, 2, 2, 1)
