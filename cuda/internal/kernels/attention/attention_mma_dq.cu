// dq by mma.sync, for bf16 and f16: q, k, v, lse, do, delta -> dq, with the contract of attention_dq.cu.
//
//   nsa_span_dq_mma<C>          window, dense and compressed attention; the mask is a Span
//   nsa_selected_dq_mma<C>      selected attention, idx int32 [B,S,Hkv,top_n]; the block size is a multiple of 64, or T
//   nsa_selected<N>_dq_mma<C>   the same if the block size is a multiple of N = 32 or 16
//   nsa_<branch>_dq_tall_mma64  the same with up to 128 rows a block, 32 a warp
//
// Grid, rows, keys and their order are those of attention_mma_forward.cu. A warp of a tall kernel uses each fragment of keys and
// values for two products, because reading shared memory takes longer than the products. ds is rounded to the storage type for its
// product with the keys, and scaled after it. Shared memory: the rows of q and do, 4 tiles [64,C], 16 bytes a row, and what the
// loop takes.
#include "attention_params.cuh"
#include "attention_mma_key_loop.cuh"

namespace nsa {

// One pass over the block's rows. Returns whether the careful pass is needed; see careful_if_needed.
template <bool Careful, typename T, int C, int R, class Loop> __device__ bool mma_dq_pass(const AttentionParams& p) {
  constexpr int M = 16 * R * kWarps, kPart = Careful || Loop::kPiece == 16 ? 16 : 32;  // keys whose logits are in registers at once
  const Sizes& n = p.n;
  Carver carve{tiles_shared()};
  const uint32_t Q = shared_address(carve.floats(M * C / 2));
  const uint32_t DO = shared_address(carve.floats(M * C / 2));
  const RowTile tile(n, p.owned_rows());
  const KeyTiles<T, C> keys(p, tile, carve);
  copy_tile<C, M>(Q, static_cast<const T*>(p.q), n.d, n, tile);
  copy_tile<C, M>(DO, static_cast<const T*>(p.dout), n.dv, n, tile);
  auto* rows = reinterpret_cast<typename Loop::Row*>(carve.floats(2 * M));
  float2* stats = reinterpret_cast<float2*>(carve.floats(2 * M));  // of each row: lse*log2(e), or lse if Careful; delta
  Loop loop(p, tile, carve);
  keys.next(loop, keys.tiles);

  static_assert(M <= kThreads, "a thread for each row");
  if (const int r = threadIdx.x; r < M) {
    const long long at = tile.has(r) ? n.stat(tile.b, tile.g, tile.first + r) : -1;
    const float lse = at < 0 ? INFINITY : lse_for_gradient(p.lse[at]);
    rows[r] = loop.row(n, tile, r);
    stats[r] = make_float2(Careful ? lse : lse * kLog2E, at < 0 ? 0 : p.delta[at]);
  }
  const int first = 16 * R * warp(), first_row = first + lane() / 4;  // this thread's rows: first_row + 8*r
  float dq[R][C / 8][4];
  clear<C>(dq);
  const Left<C> left(Q, first);  // the rows of do lie M rows below

  for (uint32_t K = keys.tiles; loop.more(); K = keys.other(K)) {
    copies_arrived();
    __syncthreads();  // the keys have arrived, and all warps have read the previous tile
    keys.next(loop, keys.other(K));
    if constexpr (Careful) take_out<T, C, kKeys>(K, [&](int row, int i) { store_shared(cell<C>(K + keys.kBytes, row, i), kNaNs); });
    const Seen<R, Loop> seen{loop, shared_address(rows + first_row)};
    const unsigned some = seen.some();
#pragma unroll 1
    for (int piece = 0; piece < seen.kPieces; piece++) {
      if (!(some >> piece & 1)) continue;
      const bool all = seen.all(piece);
#pragma unroll 1
      for (int part = 0; part < Loop::kPiece; part += kPart) {
        const int key = piece * Loop::kPiece + part;  // within the tile
        float s[R][kPart / 8][4], dp[R][kPart / 8][4];
        multiply_transposed<T, C, kPart>(s, left, K, key);
        multiply_transposed<T, C, kPart, M>(dp, left, K + keys.kBytes, key);
#pragma unroll
        for (int r = 0; r < 2 * R; r++) {
          const auto [lse, delta] = stats[first_row + 8 * r];
          const bool shift = Careful && large(lse);
          const float base = Careful ? shift ? 0 : lse * kLog2E : lse;
#pragma unroll
          for (int j = 0; j < kPart / 8; j++)
#pragma unroll
            for (int i = r % 2 * 2; i < r % 2 * 2 + 2; i++) {
              float& x = s[r / 2][j][i];
              if (shift) x = shifted(x, n.scale, lse);
              x = power2(fmaf(x, n.scale_log2, -base)) * (dp[r / 2][j][i] - delta);
            }
        }
        if (!all) seen.template hide<kPart>(s, piece, part, 0);
        multiply_add<T, C, kPart>(dq, s, K, key);
      }
    }
  }

  copies_arrived();
  __syncthreads();  // Q is free for store_rows16, and complete even if no key is seen
  const RowTile done(n, p.owned_rows());
  bool any_large = threadIdx.x < M && large(stats[threadIdx.x].x / kLog2E);
#pragma unroll
  for (int r = 0; r < R; r++)
    any_large |= store_rows16<T, C>(static_cast<T*>(p.dq), dq[r], n.scale, n.scale, Q, first + 16 * r, n.d, [&](int r) {
      return done.has(r) ? n.row(done.b, done.g, done.first + r, n.d) : -1;
    });
  return any_large;
}

template <typename T, int C, int R, class Loop> __device__ void mma_dq(const AttentionParams& p) {
  careful_if_needed<mma_dq_pass<false, T, C, R, Loop>, mma_dq_pass<true, T, C, R, Loop>>(p);
}

}  // namespace nsa

NSA_MMA_KEY_LOOP(dq, dq, 64, 1, 4)
NSA_MMA_KEY_LOOP(dq_tall, dq, 64, 2, 3)
NSA_MMA_KEY_LOOP(dq, dq, 128, 1, 2)
