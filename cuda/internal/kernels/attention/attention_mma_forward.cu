// Attention forward by mma.sync, for bf16 and f16: q, k, v -> o, lse, with the contract of attention_forward.cu.
//
//   nsa_span_forward_mma<C>         window, dense and compressed attention; the mask is a Span
//   nsa_selected_forward_mma<C>     selected attention, idx int32 [B,S,Hkv,top_n]; the block size is a multiple of 64, or T
//   nsa_selected<N>_forward_mma<C>  the same if the block size is a multiple of N = 32 or 16: a tile of keys is gathered from 64/N pieces
//
// Grid x is B*Hkv*ceil(S*h/count), blocks of 4 warps. A block owns `count` <= 64 rows of a group, 16 a warp. It goes through the keys
// that any of these rows sees, 64 at a time, and copies the next keys while it computes. A warp skips pieces of a tile that none of
// its rows sees. Probabilities are rounded to the storage type for the product with the values; sums stay float32. Shared memory:
// 5 tiles [64,C], 8 bytes a row, and what the loop takes.
#include "attention_params.cuh"
#include "attention_mma_key_loop.cuh"

namespace nsa {

// One pass over the block's rows. Returns whether the careful pass is needed; see careful_if_needed.
template <bool Careful, typename T, int C, int R, class Loop> __device__ bool mma_forward_pass(const AttentionParams& p) {
  constexpr int M = 16 * R * kWarps, kPart = Loop::kPiece / R;  // keys whose logits are in registers at once
  const Sizes& n = p.n;
  Carver carve{tiles_shared()};
  const uint32_t Q = shared_address(carve.floats(M * C / 2));
  const RowTile tile(n, p.owned_rows());
  const KeyTiles<T, C> keys(p, tile, carve);
  copy_tile<C, M>(Q, static_cast<const T*>(p.q), n.d, n, tile);
  auto* rows = reinterpret_cast<typename Loop::Row*>(carve.floats(2 * M));
  Loop loop(p, tile, carve);
  keys.next(loop, keys.tiles);
  if (threadIdx.x < M) rows[threadIdx.x] = loop.row(n, tile, threadIdx.x);

  const int first = 16 * R * warp(), first_row = first + lane() / 4;  // this thread's rows: first_row + 8*r
  Softmax state[2 * R];  // its sum covers only this thread's columns until the end
#pragma unroll
  for (int r = 0; r < 2 * R; r++) state[r].start();
  float o[R][C / 8][4];
  clear<C>(o);
  const Left<C> left(Q, first);

  for (uint32_t K = keys.tiles; loop.more(); K = keys.other(K)) {
    copies_arrived();
    __syncthreads();  // the keys have arrived, and all warps have read the previous tile
    keys.next(loop, keys.other(K));
    const uint32_t V = K + keys.kBytes;
    if constexpr (Careful) take_out<T, C, kKeys>(V, [&](int row, int i) { store_shared(cell<C>(K, row, i), kNaNs); });
    const Seen<R, Loop> seen{loop, shared_address(rows + first_row)};
    const unsigned some = seen.some();
#pragma unroll 1
    for (int piece = 0; piece < seen.kPieces; piece++) {
      if (!(some >> piece & 1)) continue;
      const bool all = seen.all(piece);
#pragma unroll 1
      for (int part = 0; part < Loop::kPiece; part += kPart) {
        const int key = piece * Loop::kPiece + part;  // within the tile
        float s[R][kPart / 8][4];
        multiply_transposed<T, C, kPart>(s, left, K, key);
        if (!all) seen.template hide<kPart>(s, piece, part, -INFINITY);
        float factor[2 * R];
        bool rescale = false;
#pragma unroll
        for (int r = 0; r < 2 * R; r++) {
          const int i0 = r % 2 * 2;
          float top = -INFINITY;
#pragma unroll
          for (int j = 0; j < kPart / 8; j++) top = fmaxf(top, fmaxf(s[r / 2][j][i0], s[r / 2][j][i0 + 1]));
          factor[r] = state[r].raise(max_of_four(top), n.scale_log2);
          rescale |= factor[r] != 1;
          float base = state[r].base() * n.scale_log2, sum = 0;
          if (Careful && large(base)) {
#pragma unroll
            for (int j = 0; j < kPart / 8; j++) s[r / 2][j][i0] -= state[r].top, s[r / 2][j][i0 + 1] -= state[r].top;
            base = 0;
          }
#pragma unroll
          for (int j = 0; j < kPart / 8; j++)
#pragma unroll
            for (int i = i0; i < i0 + 2; i++) sum += s[r / 2][j][i] = power2(fmaf(s[r / 2][j][i], n.scale_log2, -base));
          state[r].sum += sum;
        }
        if (__any_sync(0xffffffff, rescale))
#pragma unroll
          for (int r = 0; r < R; r++)
#pragma unroll
            for (int j = 0; j < C / 8; j++)
#pragma unroll
              for (int i = 0; i < 4; i++) o[r][j][i] *= factor[2 * r + i / 2];
        multiply_add<T, C, kPart>(o, s, V, key);
      }
    }
  }

  copies_arrived();
  __syncthreads();  // Q is free for store_rows16, and complete even if no key is seen
  const RowTile done(n, p.owned_rows());
  bool any_large = false;
#pragma unroll
  for (int r = 0; r < 2 * R; r++) {
    any_large |= large(state[r].base() * n.scale_log2);
    state[r].sum = sum_of_four(state[r].sum);
    if (lane() % 4 == 0 && done.has(first_row + 8 * r)) p.lse[n.stat(done.b, done.g, done.first + first_row + 8 * r)] = state[r].lse(n.scale);
  }
#pragma unroll
  for (int r = 0; r < R; r++)
    any_large |= store_rows16<T, C>(static_cast<T*>(p.o), o[r], state[2 * r].norm(), state[2 * r + 1].norm(), Q, first + 16 * r, n.dv, [&](int r) {
      return done.has(r) ? n.row(done.b, done.g, done.first + r, n.dv) : -1;
    });
  return any_large;
}

template <typename T, int C, int R, class Loop> __device__ void mma_forward(const AttentionParams& p) {
  careful_if_needed<mma_forward_pass<false, T, C, R, Loop>, mma_forward_pass<true, T, C, R, Loop>>(p);
}

}  // namespace nsa

NSA_MMA_KEY_LOOP(forward, forward, 64, 1, 4)
NSA_MMA_KEY_LOOP(forward, forward, 128, 1, 2)
