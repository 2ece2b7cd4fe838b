// attention_dq.cu on matrix units, for bf16 and f16: q, k, v, lse, do, delta -> dq, the same contract.
//
//   nsa_span_dq_mma<C>      for a Span
//   nsa_selected_dq_mma<C>  with idx int32 [B,S,Hkv,most], for Blocks; size is a multiple of 64, or T
//
// Rows, keys and their order are those of attention_mma_forward.cu. Gradients of logits are rounded to the storage type for
// their product with the keys, before the scale. Shared memory: 6 tiles [64,C], and what the walk takes.
#include "attention_index.cuh"
#include "attention_softmax.cuh"
#include "attention_mma_walk.cuh"

namespace nsa {

// Returns whether one of this thread's results is NaN or Inf; see careful_if_needed.
template <bool Careful, typename T, int C, class Walk> __device__ bool mma_dq_pass(const AttentionParams& p) {
  constexpr int M = 16 * kWarps, kPart = Careful ? 16 : 32;  // keys whose logits are in registers at once
  const Sizes& n = p.n;
  const T *q = static_cast<const T*>(p.q), *dout = static_cast<const T*>(p.dout);
  Carver carve{tiles_shared()};
  const uint32_t Q = shared_address(carve.floats(M * C / 2));
  const uint32_t DO = shared_address(carve.floats(M * C / 2));
  const RowTile tile(n, p.count);
  const KeyTiles<T, C> keys(p, tile, carve);
  copy_rows<C, M>(Q, q, n.d, [&](int r) { return tile.has(r) ? n.row(tile.b, tile.g, tile.first + r, n.d) : -1; });
  copy_rows<C, M>(DO, dout, n.dv, [&](int r) { return tile.has(r) ? n.row(tile.b, tile.g, tile.first + r, n.dv) : -1; });
  Walk walk(p, tile, carve);
  int from = keys.next(walk, 1);

  const int mine = 16 * warp() + lane() / 4;  // and 8 further
  const typename Walk::Row rows[2] = {walk.row(n, tile, mine), walk.row(n, tile, mine + 8)};
  float lse[2], base[2], delta[2];
#pragma unroll
  for (int r = 0; r < 2; r++) {
    const bool in = tile.has(mine + 8 * r);
    const long long at = in ? n.stat(tile.b, tile.g, tile.first + mine + 8 * r) : 0;
    lse[r] = in ? load_lse(p.lse[at]) : INFINITY;
    delta[r] = in ? p.delta[at] : 0;
    base[r] = large(lse[r]) ? 0 : lse[r] * kLog2E;
  }
  const bool any_large = __any_sync(0xffffffff, large(lse[0]) || large(lse[1]));
  float dq[C / 8][4];
  clear<C>(dq);
  const Left<C> left(Q, 16 * warp());  // the gradients are M rows down
  const float scale = n.scale * kLog2E;

  for (int stage = 0; from >= 0; stage ^= 1) {
    copies_arrived();
    __syncthreads();  // the keys are here, and those of the tile before have been read
    const int next = keys.next(walk, stage);
    const uint32_t K = keys.at(stage);
    if constexpr (Careful) take_out<T, C, kKeys>(K, [&](int row, int i) { store_shared(cell<C>(K + keys.kBytes, row, i), kNaNs); });
    const Run seen[2] = {walk.seen(rows[0], from), walk.seen(rows[1], from)};
    if (__any_sync(0xffffffff, meets(seen[0], from) || meets(seen[1], from))) {
      const bool all = __all_sync(0xffffffff, covers(seen[0], from) && covers(seen[1], from));
#pragma unroll 1
      for (int part = 0; part < kKeys; part += kPart) {
        float s[kPart / 8][4], dp[kPart / 8][4];
        multiply_rows<T, C, kPart>(s, left, K, part);
        multiply_rows<T, C, kPart, M>(dp, left, K + keys.kBytes, part);
        if (any_large)
#pragma unroll
          for (int j = 0; j < kPart / 8; j++)
#pragma unroll
            for (int i = 0; i < 4; i++)
              if (large(lse[i / 2])) s[j][i] = shifted(s[j][i], n.scale, lse[i / 2]);
#pragma unroll
        for (int j = 0; j < kPart / 8; j++)
#pragma unroll
          for (int i = 0; i < 4; i++) {
            const float ds = power2(fmaf(s[j][i], scale, -base[i / 2])) * (dp[j][i] - delta[i / 2]);
            s[j][i] = all || seen[i / 2].has(from + part + 8 * j + 2 * (lane() % 4) + i % 2) ? ds : 0;
          }
        add_rows<T, C, kPart>(dq, s, K, part);
      }
    }
    from = next;
  }

  copies_arrived();
  __syncthreads();  // also where no key is seen
  const RowTile done(n, p.count);
  return store_rows16<T, C>(static_cast<T*>(p.dq), dq, n.scale, n.scale, Q, 16 * warp(), n.d, [&](int r) {
    return done.has(r) ? n.row(done.b, done.g, done.first + r, n.d) : -1;
  });
}

template <typename T, int C, class Walk> __device__ void mma_dq(const AttentionParams& p) {
  careful_if_needed<mma_dq_pass<false, T, C, Walk>, mma_dq_pass<true, T, C, Walk>>(p);
}

}  // namespace nsa

NSA_MMA_WALKS(dq)
