// Attention forward, general kernels: q [B,S,Hq,D], k [B,T,Hkv,D], v [B,T,Hkv,Dv] -> o [B,S,Hq,Dv] of the storage type and
// lse [B,Hq,S] float32, the natural log of the sum of exp(scaled logit). A row that sees nothing gets o = 0 and lse = -Inf.
// The block that owns a row writes every element of its o and lse with =.
//
//   nsa_span_forward      window, dense and compressed attention; the mask is a Span
//   nsa_selected_forward  selected attention, idx int32 [B,S,Hkv,top_n]; the mask is Blocks
//
// Grid x is B*Hkv*ceil(S*h/count), blocks of 128 threads. A block owns `count` <= M rows of one group (several queries with their
// h heads). It goes through the keys that any of these rows sees, N at a time, ascending, as FlashAttention does (arXiv 2307.08691).
// Shared memory: Q [M,D], O [M,Dv], KV [N,max(D,Dv)], P [M,N], and what the loop takes.
//
// Contract of all attention kernels for numbers that are not finite: a NaN or Inf in a row of q, k, v or do may turn every result
// of the rows and keys that are seen with it into NaN. It does not change a bit of any other result.
#include "attention_params.cuh"
#include "attention_softmax.cuh"
#include "attention_key_loop.cuh"

namespace nsa {

// One pass over the block's rows. Returns whether one of this thread's results is NaN or Inf; see careful_if_needed.
template <typename T, int R, int C, class Loop> __device__ bool forward_pass(const AttentionParams& p, bool careful) {
  constexpr int M = R * kDown, N = C * kAcross;
  const Sizes& n = p.n;
  const T *q = static_cast<const T*>(p.q), *k = static_cast<const T*>(p.k), *v = static_cast<const T*>(p.v);
  Carver carve{dynamic_shared()};
  float* Q = carve.tile(M, n.d);
  float* O = carve.tile(M, n.dv);
  float* KV = carve.tile(N, max(n.d, n.dv));  // the keys, then the values
  float* P = carve.tile(M, N);

  const RowTile tile(n, p.owned_rows());
  Loop loop(p, tile, carve);
  load_rows(Q, q, M, n.d, [&](int r) { return tile.has(r) ? n.row(tile.b, tile.g, tile.first + r, n.d) : -1; });
  clear_rows(O, M, n.dv);
  typename Loop::Row rows[R];
  Softmax state[R];
  for (int i = 0; i < R; i++) {
    rows[i] = loop.row(n, tile, down() + kDown * i);
    state[i].start();
  }

  while (loop.next()) {
    __syncthreads();  // all threads have read KV and P of the last tile
    load_rows(KV, k, N, n.d, [&](int c) { return loop.key(c) < 0 ? -1 : n.key(tile.b, tile.g, loop.key(c), n.d); });
    __syncthreads();
    float s[R][C], factor[R];
    multiply_transposed<R, C>(s, Q, KV, n.d);
#pragma unroll
    for (int i = 0; i < R; i++) {
      unsigned seen = 0;
      float top = -INFINITY, sum = 0;
#pragma unroll
      for (int j = 0; j < C; j++) {
        if (!Loop::sees(rows[i], loop.slot(across() + kAcross * j))) continue;
        seen |= 1u << j;
        top = fmaxf(top, s[i][j]);
      }
      factor[i] = state[i].raise(max_across(top), n.scale_log2);
      const float base = state[i].base();
#pragma unroll
      for (int j = 0; j < C; j++) {
        s[i][j] = seen >> j & 1 ? exp2f((s[i][j] - base) * n.scale_log2) : 0;
        sum += s[i][j];
      }
      state[i].sum += sum_across(sum);
    }
    put<R, C>(P, s);
    __syncthreads();
    load_rows(KV, v, N, n.dv, [&](int c) { return loop.key(c) < 0 ? -1 : n.key(tile.b, tile.g, loop.key(c), n.dv); });
    __syncthreads();
    if (careful)
      take_out(KV, N, n.dv, [&](int c) {
        for (int r = threadIdx.x % 32; r < M; r += 32)
          if (P[r * stride(N) + c] != 0) P[r * stride(N) + c] = NAN;
      });
    multiply_add<R, N>(O, P, KV, n.dv, factor);
  }

  __syncthreads();  // O is complete; if no key is seen, clear_rows has finished
  const bool bad = store_rows<R>(
      static_cast<T*>(p.o), O, n.dv, [&](int r) { return tile.has(r) ? n.row(tile.b, tile.g, tile.first + r, n.dv) : -1; },
      [&](int i) { return state[i].norm(); });
#pragma unroll
  for (int i = 0; i < R; i++) {
    const int r = down() + kDown * i;
    if (across() == 0 && tile.has(r)) p.lse[n.stat(tile.b, tile.g, tile.first + r)] = state[i].lse(n.scale);
  }
  return bad;
}

template <typename T, int R, int C, class Loop> __device__ void forward(const AttentionParams& p) {
  careful_if_needed([&](bool careful) { return forward_pass<T, R, C, Loop>(p, careful); });
}
template <typename T, int R, int C> __device__ void span_forward(const AttentionParams& p) {
  forward<T, R, C, SpanLoop<kAcross * C>>(p);
}
template <typename T, int R, int C> __device__ void selected_forward(const AttentionParams& p) {
  forward<T, R, C, BlocksLoop<kAcross * C>>(p);
}

}  // namespace nsa

NSA_TILES(span_forward, 64, 8)
NSA_TILES(span_forward, 32, 4)
NSA_TILES(span_forward, 16, 2)
NSA_TILES(selected_forward, 64, 8)
NSA_TILES(selected_forward, 32, 8)
NSA_TILES(selected_forward, 16, 2)
