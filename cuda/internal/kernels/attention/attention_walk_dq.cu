// Selected attention by a walk, dq (compute capability 9.0): q, k, v, do, lse, delta, blocks of tiles (Walks) -> dq [B,S,Hq,D]. The warp
// that owns a row writes all its elements with =.
//
//   nsa_walk_dq_mma<D>     pieces of 64 keys; D as in attention_wgmma_forward.cu
//   nsa_walk<P>_dq_mma<D>  pieces of P = 32 or 16 keys
//
// attention_walk_tiles.cuh has the grid, the roles of warps and the loads. Large rows subtract first; see kLarge.
#include "attention_walk_tiles.cuh"

namespace nsa {

#if defined(__CUDA_ARCH_FEAT_SM90_ALL) || !defined(__CUDACC__)
// A piece has P keys; a warp multiplies at most Most of them at once. q stays in registers if KeptQ, do if KeptDO, else in shared memory.
template <typename T, int C, int Cv, int P, int W, int Stages, int Most, bool KeptQ, bool KeptDO, int Loader, int Computer>
struct WalkQueryGradient {
  static constexpr int kOwnQ = KeptQ ? 0 : 32 * C;
  using Tiles = WalkTiles<T, C, Cv, P, W, Stages, kOwnQ + (KeptDO ? 0 : 32 * Cv), true>;
  static constexpr int N = Most < P ? Most : P;
  const Tiles tiles;
  __device__ WalkQueryGradient(const WalkParams& a) : tiles(a) {}

  __device__ void run() const {
    tiles.template run<Loader, Computer>([&](int w) { compute(w); });
  }

  __device__ void compute(int w) const {
    const AttentionParams& p = tiles.p;
    const Sizes& n = p.n;
    typename Tiles::ThreadRows own;
    WalkLeft<C, KeptQ> q;
    WalkLeft<Cv, KeptDO> dout;
    float dq[C / 8][4], lse[2], delta[2];
    uint32_t parities = 0;
    tiles.each(
        [&](int i) {
          const typename Tiles::Tile tile(tiles.a, i);
          own = tiles.thread_rows(tile, typename Tiles::Rows(tiles.a, w));
          const T *from[2], *gradient[2];
#pragma unroll
          for (int r = 0; r < 2; r++) {
            const bool in = own.head[r] >= 0;
            const int row = own.t[r] * n.h + own.head[r];
            from[r] = in ? static_cast<const T*>(p.q) + n.row(tile.b, tile.g, row, n.d) : nullptr;
            gradient[r] = in ? static_cast<const T*>(p.dout) + n.row(tile.b, tile.g, row, n.dv) : nullptr;
            lse[r] = in ? lse_for_gradient(p.lse[n.stat(tile.b, tile.g, row)]) : INFINITY;
            delta[r] = in ? p.delta[n.stat(tile.b, tile.g, row)] : 0;
          }
          q.load(from, n.d, tiles.own(w));
          dout.load(gradient, n.dv, tiles.own(w) + kOwnQ);
#pragma unroll
          for (int j = 0; j < C / 8; j++)
#pragma unroll
            for (int e = 0; e < 4; e++) dq[j][e] = 0;
        },
        [&](const TileBlock& piece, int, int fill) {
          tiles.consume(piece, own.bits, fill, parities, [&](uint32_t keys, int key, unsigned queries) {
            const bool all = own.see_all(key, queries);
#pragma unroll 1
            for (int part = 0; part < P; part += N) {
              float s[N / 8][4], ds[N / 8][4];
              walk_multiply_transposed<T, C, N>(s, q, keys, part);
              walk_multiply_transposed<T, Cv, N>(ds, dout, keys + Tiles::kKeyTile, part);
              float base[2];
#pragma unroll
              for (int r = 0; r < 2; r++) base[r] = lse[r] * kLog2E;
              if (large(lse[0]) || large(lse[1]))
#pragma unroll
                for (int r = 0; r < 2; r++) {
                  if (!large(lse[r])) continue;
#pragma unroll
                  for (int j = 0; j < N / 8; j++)
#pragma unroll
                    for (int i = 2 * r; i < 2 * r + 2; i++) s[j][i] = shifted_logit(n, s[j][i], lse[r]);
                  base[r] = 0;
                }
#pragma unroll
              for (int j = 0; j < N / 8; j++)
#pragma unroll
                for (int e = 0; e < 4; e++) ds[j][e] = power2(fmaf(s[j][e], n.scale_log2, -base[e / 2])) * (ds[j][e] - delta[e / 2]);
              if (!all) walk_hide<N>(ds, own, key, part, queries, 0);
              walk_multiply_add<T, C, N>(dq, ds, keys, part);
            }
          });
        },
        [&](int i) {
          const typename Tiles::Tile tile(tiles.a, i);
#pragma unroll
          for (int r = 0; r < 2; r++) {
            T* to = own.head[r] < 0 ? nullptr : static_cast<T*>(p.dq) + n.row(tile.b, tile.g, own.t[r] * n.h + own.head[r], n.d);
            walk_store<T, C>(to, dq, r, n.scale, n.d);
          }
        });
  }
};
#endif

}  // namespace nsa

NSA_WALK(dq, 64, WalkQueryGradient, 64, 64, 8, 12, 64, true, true, 72, 216)
NSA_WALK(dq, 128, WalkQueryGradient, 128, 128, 8, 6, 64, true, false, 72, 216)
NSA_WALK(dq, 192x128, WalkQueryGradient, 192, 128, 8, 3, 32, false, false, 72, 216)
NSA_WALK(dq, 192, WalkQueryGradient, 192, 192, 8, 2, 32, false, false, 72, 216)
NSA_WALK(dq, 256x128, WalkQueryGradient, 256, 128, 4, 3, 16, false, false, 104, 240)
NSA_WALK(dq, 256x192, WalkQueryGradient, 256, 192, 4, 3, 16, false, false, 104, 240)
