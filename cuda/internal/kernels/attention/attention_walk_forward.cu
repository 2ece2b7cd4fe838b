// Selected attention by a walk, forward (compute capability 9.0): q, k, v, blocks of tiles (Walks) -> o [B,S,Hq,Dv], lse [B,Hq,S]. The
// warp that owns a row writes all its elements with =.
//
//   nsa_walk_forward_mma<D>     pieces of 64 keys; D as in attention_wgmma_forward.cu
//   nsa_walk<P>_forward_mma<D>  pieces of P = 32 or 16 keys
//
// attention_walk_tiles.cuh has the grid, the roles of warps and the loads. Large rows subtract first; see kLarge.
#include "attention_walk_tiles.cuh"

namespace nsa {

#if defined(__CUDA_ARCH_FEAT_SM90_ALL) || !defined(__CUDACC__)
// A piece has P keys; a warp multiplies at most Most of them at once. Q stays in registers if Kept, else in shared memory.
template <typename T, int C, int Cv, int P, int W, int Stages, int Most, bool Kept, int Loader, int Computer> struct WalkForward {
  using Tiles = WalkTiles<T, C, Cv, P, W, Stages, Kept ? 0 : 32 * C, false>;
  static constexpr int N = Most < P ? Most : P;
  const Tiles tiles;
  __device__ WalkForward(const WalkParams& a) : tiles(a) {}

  __device__ void run() const {
    tiles.template run<Loader, Computer>([&](int w) { compute(w); });
  }

  // Raises the maxima of rows, and rescales their sums, if new logits are higher by more than kRescaleSlack.
  static __device__ __forceinline__ void raise(float (&o)[Cv / 8][4], float (&weights)[4], Softmax (&state)[2], const float (&top)[2],
                                               float scale) {
    bool far[2];
#pragma unroll
    for (int r = 0; r < 2; r++) far[r] = (top[r] - state[r].top) * scale > kRescaleSlack;
    if (!__any_sync(0xffffffff, far[0] || far[1])) return;
    float factor[2];
#pragma unroll
    for (int r = 0; r < 2; r++) factor[r] = far[r] ? state[r].raise(top[r], scale) : 1;
#pragma unroll
    for (int j = 0; j < Cv / 8; j++)
#pragma unroll
      for (int i = 0; i < 4; i++) o[j][i] *= factor[i / 2];
#pragma unroll
    for (int i = 0; i < 4; i++) weights[i] *= factor[i / 2];
  }

  __device__ void compute(int w) const {
    const AttentionParams& p = tiles.p;
    const Sizes& n = p.n;
    const float scale = n.scale_log2;
    typename Tiles::ThreadRows own;
    WalkLeft<C, Kept> q;
    float o[Cv / 8][4], weights[4];  // weights: the sums of the rounded exponentials, as add_row_sums makes them
    Softmax state[2];  // its sum covers only this thread's columns until the end
    uint32_t parities = 0;
    tiles.each(
        [&](int i) {
          const typename Tiles::Tile tile(tiles.a, i);
          own = tiles.thread_rows(tile, typename Tiles::Rows(tiles.a, w));
          const T* from[2];
#pragma unroll
          for (int r = 0; r < 2; r++) {
            from[r] = own.head[r] < 0 ? nullptr : static_cast<const T*>(p.q) + n.row(tile.b, tile.g, own.t[r] * n.h + own.head[r], n.d);
            state[r].start();
          }
          q.load(from, n.d, tiles.own(w));
#pragma unroll
          for (int j = 0; j < Cv / 8; j++)
#pragma unroll
            for (int e = 0; e < 4; e++) o[j][e] = 0;
#pragma unroll
          for (int e = 0; e < 4; e++) weights[e] = 0;
        },
        [&](const TileBlock& piece, int, int fill) {
          tiles.consume(piece, own.bits, fill, parities, [&](uint32_t keys, int key, unsigned queries) {
            const bool all = own.see_all(key, queries);
#pragma unroll 1
            for (int part = 0; part < P; part += N) {
              float s[N / 8][4];
              walk_multiply_transposed<T, C, N>(s, q, keys, part);
              if (!all) walk_hide<N>(s, own, key, part, queries, -INFINITY);
              float top[2] = {-INFINITY, -INFINITY}, base[2];
#pragma unroll
              for (int j = 0; j < N / 8; j++)
#pragma unroll
                for (int r = 0; r < 2; r++) top[r] = fmaxf(top[r], fmaxf(s[j][2 * r], s[j][2 * r + 1]));
#pragma unroll
              for (int r = 0; r < 2; r++) top[r] = max_of_four(top[r]);
              raise(o, weights, state, top, scale);
#pragma unroll
              for (int r = 0; r < 2; r++) base[r] = state[r].base() * scale;
              if (large(base[0]) || large(base[1]))
#pragma unroll
                for (int r = 0; r < 2; r++) {
                  if (!large(base[r])) continue;
#pragma unroll
                  for (int j = 0; j < N / 8; j++) s[j][2 * r] -= state[r].top, s[j][2 * r + 1] -= state[r].top;
                  base[r] = 0;
                }
              float sum[2] = {0, 0};
#pragma unroll
              for (int j = 0; j < N / 8; j++)
#pragma unroll
                for (int e = 0; e < 4; e++) sum[e / 2] += s[j][e] = power2(fmaf(s[j][e], scale, -base[e / 2]));
              state[0].sum += sum[0], state[1].sum += sum[1];
              walk_multiply_add<T, Cv, N>(o, s, keys + Tiles::kKeyTile, part, weights);
            }
          });
        },
        [&](int i) {
          const typename Tiles::Tile tile(tiles.a, i);
#pragma unroll
          for (int r = 0; r < 2; r++) {
            state[r].sum = sum_of_four(state[r].sum);
            const bool in = own.head[r] >= 0;
            const int row = own.t[r] * n.h + own.head[r];
            if (in && lane() % 4 == 0) p.lse[n.stat(tile.b, tile.g, row)] = state[r].lse(n.scale);
            walk_store<T, Cv>(in ? static_cast<T*>(p.o) + n.row(tile.b, tile.g, row, n.dv) : nullptr, o, r, Softmax::norm(weights[2 * r]), n.dv);
          }
        });
  }
};
#endif

}  // namespace nsa

NSA_WALK(forward, 64, WalkForward, 64, 64, 12, 12, 64, true, 80, 144)
NSA_WALK(forward, 128, WalkForward, 128, 128, 8, 7, 64, true, 72, 216)
NSA_WALK(forward, 192x128, WalkForward, 192, 128, 8, 4, 64, false, 72, 216)
NSA_WALK(forward, 192, WalkForward, 192, 192, 8, 3, 64, false, 72, 216)
NSA_WALK(forward, 256x128, WalkForward, 256, 128, 8, 3, 64, false, 72, 216)
NSA_WALK(forward, 256x192, WalkForward, 256, 192, 8, 2, 64, false, 72, 216)
