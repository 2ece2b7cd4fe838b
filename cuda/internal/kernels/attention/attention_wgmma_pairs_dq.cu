// Selected attention by pairs, dq, on warp groups (compute capability 9.0): q, k, v, do, lse, delta, list, items, count -> sums, what each
// pair adds to dq (attention_pairs.cuh).
//
//   nsa_pairs_dq_wgmma<D>, D as in attention_wgmma_forward.cu
//
// attention_wgmma_pairs.cuh has the grid, the roles of warp groups and the loads. Large rows subtract first; see kLarge.
#include "attention_wgmma_pairs.cuh"

namespace nsa {

#if defined(__CUDA_ARCH_FEAT_SM90_ALL) || !defined(__CUDACC__)
template <typename T, int C, int Cv, int L, int W, int Rows, int Keys, int Loader, int Computer> struct PairQueryGradient {
  using Tiles = PairTiles<T, C, Cv, L, W, Rows, Keys, 2>;
  static constexpr int kBlock = Tiles::kBlock, kShared = Tiles::kShared;
  const Tiles tiles;
  __device__ PairQueryGradient(const PairParams& a) : tiles(a) {}

  __device__ void run() const {
    tiles.template run<Loader, Computer>([&](const typename Tiles::Tile& tile, int mine, const typename Tiles::Pair& rows, uint32_t q, uint32_t k, auto done) {
      const Sizes& n = tiles.p.n;
      const bool all = tile.all;
      float s[8][4], ds[8][4];
      Tiles::begin_product(Width<C>{}, s, q, k);
      Tiles::begin_product(Width<Cv>{}, ds, q + Tiles::kTile, k + Tiles::kTile);
      float2 known[2];
#pragma unroll
      for (int r = 0; r < 2; r++) known[r] = rows.to[r] >= 0 ? make_float2(load_lse(tile.lse[mine + 8 * r]), tile.delta[mine + 8 * r]) : make_float2(INFINITY, 0);
      wgmma_wait<1>();
      hold(s);
#pragma unroll
      for (int r = 0; r < 2; r++) {
        const float lse = known[r].x, base = large(lse) ? 0 : lse * kLog2E;
        if (large(lse))
#pragma unroll
          for (int j = 0; j < 8; j++) s[j][2 * r] = shifted_logit(n, s[j][2 * r], lse), s[j][2 * r + 1] = shifted_logit(n, s[j][2 * r + 1], lse);
#pragma unroll
        for (int j = 0; j < 8; j++)
#pragma unroll
          for (int i = 2 * r; i < 2 * r + 2; i++) s[j][i] = power2(fmaf(s[j][i], n.scale_log2, -base));
      }
      wgmma_wait<0>();
      hold(ds);
      done();
#pragma unroll
      for (int j = 0; j < 8; j++)
#pragma unroll
        for (int i = 0; i < 4; i++) ds[j][i] = s[j][i] * (ds[j][i] - known[i / 2].y);
      if (!all) Tiles::hide(ds, rows, 0);
      const float scale[2] = {n.scale, n.scale};
      tiles.write_product(Width<C>{}, ds, k, rows, scale, n.d);
    });
  }
};
#endif

}  // namespace nsa

#define NSA_PAIR_DQ(D, C, Cv, L, W, ...)                                                                                  \
  NSA_PAIRS(pairs_dq, D, bf16, L, W, nsa::PairQueryGradient<nsa::bf16, C, Cv, L, W, __VA_ARGS__>)                            \
  NSA_PAIRS(pairs_dq, D, f16, L, W, nsa::PairQueryGradient<nsa::f16, C, Cv, L, W, __VA_ARGS__>)
NSA_PAIR_DQ(64, 64, 64, 2, 3, 6, 3, 48, 128)
NSA_PAIR_DQ(128, 128, 128, 1, 3, 3, 3, 80, 144)
NSA_PAIR_DQ(192x128, 192, 128, 1, 3, 3, 2, 80, 144)
NSA_PAIR_DQ(192, 192, 192, 1, 2, 2, 2, 80, 144)
NSA_PAIR_DQ(256x128, 256, 128, 1, 2, 2, 2, 80, 144)
NSA_PAIR_DQ(256x192, 256, 192, 1, 2, 2, 2, 80, 144)
