// attention_forward.cu on matrix units, for bf16 and f16: q, k, v -> o, lse, the same contract.
//
//   nsa_span_forward_mma<C>      window, dense and compressed attention, by a Span
//   nsa_selected_forward_mma<C>  the blocks of idx int32 [B,S,Hkv,most], by Blocks; size is a multiple of 64, or T
//
// A block of 4 warps owns `count` <= 64 rows of a group, 16 a warp, and walks over the keys that any of them sees, 64 at a
// time; while it computes with some the next ones arrive. Probabilities are rounded to the storage type for their
// product with the values, sums are not. A warp leaves out tiles of which its rows see nothing. Grid x is
// B*Hkv*ceil(S*h/count). Shared memory: 5 tiles [64,C], and what the walk takes.
#include "attention_index.cuh"
#include "attention_softmax.cuh"
#include "attention_mma_walk.cuh"

namespace nsa {

// Returns whether one of this thread's results is NaN or Inf; see careful_if_needed.
template <bool Careful, typename T, int C, class Walk> __device__ bool mma_forward_pass(const AttentionParams& p) {
  constexpr int M = 16 * kWarps;
  const Sizes& n = p.n;
  const T* q = static_cast<const T*>(p.q);
  Carver carve{tiles_shared()};
  const uint32_t Q = shared_address(carve.floats(M * C / 2));
  const RowTile tile(n, p.count);
  const KeyTiles<T, C> keys(p, tile, carve);
  copy_rows<C, M>(Q, q, n.d, [&](int r) { return tile.has(r) ? n.row(tile.b, tile.g, tile.first + r, n.d) : -1; });
  Walk walk(p, tile, carve);
  int from = keys.next(walk, 1);

  const int mine = 16 * warp() + lane() / 4;  // and 8 further
  const typename Walk::Row rows[2] = {walk.row(n, tile, mine), walk.row(n, tile, mine + 8)};
  Softmax state[2];  // the sum: of this thread's columns
  float o[C / 8][4];
  state[0].start(), state[1].start();
  clear<C>(o);
  const Left<C> left(Q, 16 * warp());
  const float scale = n.scale * kLog2E;

  for (int stage = 0; from >= 0; stage ^= 1) {
    copies_arrived();
    __syncthreads();  // the keys are here, and those of the tile before have been read
    const int next = keys.next(walk, stage);
    const uint32_t K = keys.at(stage), V = K + keys.kBytes;
    if constexpr (Careful) take_out<T, C, kKeys>(V, [&](int row, int i) { store_shared(cell<C>(K, row, i), kNaNs); });
    const Run seen[2] = {walk.seen(rows[0], from), walk.seen(rows[1], from)};
    if (__any_sync(0xffffffff, meets(seen[0], from) || meets(seen[1], from))) {
      float s[kKeys / 8][4];
      multiply_rows<T, C, kKeys>(s, left, K, 0);
      if (!__all_sync(0xffffffff, covers(seen[0], from) && covers(seen[1], from)))
#pragma unroll
        for (int j = 0; j < kKeys / 8; j++)
#pragma unroll
          for (int i = 0; i < 4; i++)
            if (!seen[i / 2].has(from + 8 * j + 2 * (lane() % 4) + i % 2)) s[j][i] = -INFINITY;
      float factor[2];
#pragma unroll
      for (int r = 0; r < 2; r++) {
        float top = -INFINITY;
#pragma unroll
        for (int j = 0; j < kKeys / 8; j++) top = fmaxf(top, fmaxf(s[j][2 * r], s[j][2 * r + 1]));
        factor[r] = state[r].raise(max_of_four(top), scale);
        float base = state[r].base() * scale, sum = 0;
        if (__any_sync(0xffffffff, large(base))) {
          const float shift = large(base) ? state[r].top : 0;
#pragma unroll
          for (int j = 0; j < kKeys / 8; j++) s[j][2 * r] -= shift, s[j][2 * r + 1] -= shift;
          base = large(base) ? 0 : base;
        }
#pragma unroll
        for (int j = 0; j < kKeys / 8; j++)
#pragma unroll
          for (int i = 2 * r; i < 2 * r + 2; i++) sum += s[j][i] = power2(fmaf(s[j][i], scale, -base));
        state[r].sum += sum;
      }
      if (__any_sync(0xffffffff, factor[0] != 1 || factor[1] != 1))
#pragma unroll
        for (int j = 0; j < C / 8; j++) o[j][0] *= factor[0], o[j][1] *= factor[0], o[j][2] *= factor[1], o[j][3] *= factor[1];
      add_rows<T, C, kKeys>(o, s, V, 0);
    }
    from = next;
  }

  copies_arrived();
  __syncthreads();  // also where no key is seen
  const RowTile done(n, p.count);
#pragma unroll
  for (int r = 0; r < 2; r++) {
    state[r].sum = sum_of_four(state[r].sum);
    if (lane() % 4 == 0 && done.has(mine + 8 * r)) p.lse[n.stat(done.b, done.g, done.first + mine + 8 * r)] = state[r].lse(n.scale);
  }
  return store_rows16<T, C>(static_cast<T*>(p.o), o, state[0].norm(), state[1].norm(), Q, 16 * warp(), n.dv, [&](int r) {
    return done.has(r) ? n.row(done.b, done.g, done.first + r, n.dv) : -1;
  });
}

template <typename T, int C, class Walk> __device__ void mma_forward(const AttentionParams& p) {
  careful_if_needed<mma_forward_pass<false, T, C, Walk>, mma_forward_pass<true, T, C, Walk>>(p);
}

}  // namespace nsa

NSA_MMA_WALKS(forward)
