// Selected attention by pairs, forward, on warp groups (compute capability 9.0): q, k, v, list, items, count -> sums, stats of each pair
// (attention_pairs.cuh).
//
//   nsa_pairs_forward_wgmma<D>, D as in attention_wgmma_forward.cu
//
// attention_wgmma_pairs.cuh has the grid, the roles of warp groups and the loads. A row with its 64 keys is done in one step: its largest
// logit is known before any exponential. Large rows subtract first; see kLarge.
#include "attention_wgmma_pairs.cuh"

namespace nsa {

#if defined(__CUDA_ARCH_FEAT_SM90_ALL) || !defined(__CUDACC__)
template <typename T, int C, int Cv, int L, int W, int Rows, int Keys, int Loader, int Computer> struct PairForward {
  using Tiles = PairTiles<T, C, Cv, L, W, Rows, Keys, 1>;
  static constexpr int kBlock = Tiles::kBlock, kShared = Tiles::kShared;
  const Tiles tiles;
  __device__ PairForward(const PairParams& a) : tiles(a) {}

  __device__ void run() const {
    tiles.template run<Loader, Computer>([&](const typename Tiles::Tile& tile, int, const typename Tiles::Pair& rows, uint32_t q, uint32_t k, auto done) {
      const float scale = tiles.p.n.scale_log2;
      const bool all = tile.all;
      float s[8][4], norm[2];
      Tiles::begin_product(Width<C>{}, s, q, k);
      wgmma_wait<0>();
      hold(s);
      done();
      if (!all) Tiles::hide(s, rows, -INFINITY);
#pragma unroll
      for (int r = 0; r < 2; r++) {
        Softmax state;
        state.start();
#pragma unroll
        for (int j = 0; j < 8; j++) state.top = fmaxf(state.top, fmaxf(s[j][2 * r], s[j][2 * r + 1]));
        state.top = max_of_four(state.top);
        float base = state.base() * scale;
        if (large(base)) {
#pragma unroll
          for (int j = 0; j < 8; j++) s[j][2 * r] -= state.top, s[j][2 * r + 1] -= state.top;
          base = 0;
        }
#pragma unroll
        for (int j = 0; j < 8; j++)
#pragma unroll
          for (int i = 2 * r; i < 2 * r + 2; i++) state.sum += s[j][i] = power2(fmaf(s[j][i], scale, -base));
        state.sum = sum_of_four(state.sum);
        if (lane() % 4 == 0 && rows.to[r] >= 0) tiles.x.stats[rows.to[r]] = make_float2(state.top, state.sum);
        norm[r] = state.norm();
      }
      tiles.write_product(Width<Cv>{}, s, k + Tiles::kTile, rows, norm, tiles.p.n.dv);
    });
  }
};
#endif

}  // namespace nsa

#define NSA_PAIR_FORWARD(D, C, Cv, L, W, ...)                                                                             \
  NSA_PAIRS(pairs_forward, D, bf16, L, W, nsa::PairForward<nsa::bf16, C, Cv, L, W, __VA_ARGS__>)                             \
  NSA_PAIRS(pairs_forward, D, f16, L, W, nsa::PairForward<nsa::f16, C, Cv, L, W, __VA_ARGS__>)
NSA_PAIR_FORWARD(64, 64, 64, 1, 4, 12, 4, 64, 104)
NSA_PAIR_FORWARD(128, 128, 128, 1, 4, 8, 2, 64, 104)
NSA_PAIR_FORWARD(192x128, 192, 128, 1, 4, 4, 3, 64, 104)
NSA_PAIR_FORWARD(192, 192, 192, 1, 4, 4, 2, 64, 104)
NSA_PAIR_FORWARD(256x128, 256, 128, 1, 4, 4, 2, 64, 104)
NSA_PAIR_FORWARD(256x192, 256, 192, 1, 3, 3, 2, 64, 104)
