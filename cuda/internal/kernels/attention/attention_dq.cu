// Gradient of attention with respect to the queries, general kernels, and delta, which dq, dk and dv need.
//
//   nsa_attention_delta  o, do [B,S,Hq,Dv] -> delta [B,Hq,S] float32 = rowsum(do*o)
//   nsa_pairs_delta      the same, and PairGradients::reach
//   nsa_span_dq          q, k, v, lse, do, delta -> dq [B,S,Hq,D]; the mask is a Span
//   nsa_selected_dq      the same with idx int32 [B,S,Hkv,top_n]; the mask is Blocks
//
// The forward saved lse. With p = exp(q·k*scale - lse), at most 1, the gradient of a logit is ds = p*(do·v - delta)*scale, and
// dq = sum ds*k (arXiv 2307.08691). A block owns `count` rows of dq, goes through their keys as the forward does, and writes every
// element with =. A row that sees nothing gets dq = 0. Grid x of the dq kernels is B*Hkv*ceil(S*h/count), blocks of 128 threads.
#include "attention_params.cuh"
#include "attention_softmax.cuh"
#include "attention_key_loop.cuh"
#include "attention_pairs.cuh"

namespace nsa {

constexpr int kDeltaRows = 16;  // rows of a warp

// A warp sets delta of the rows [first,first+kDeltaRows). `lanes` lanes share a row, W elements each, so the warp has 32/lanes rows
// at once. It returns at least the largest finite sum of |do| over one of the rows, at most `lanes` times as much.
template <int W, typename T> __device__ float deltas(const AttentionParams& p, long long first, int lanes) {
  const Sizes& n = p.n;
  const T *o = static_cast<const T*>(p.o), *dout = static_cast<const T*>(p.dout);
  const int lane = threadIdx.x % 32, step = 32 / lanes;
  const long long rows = (long long)n.batch * n.queries * n.heads;
  float most = 0;
#pragma unroll 4
  for (int i = lane / lanes; i < kDeltaRows; i += step) {
    const long long row = first + i;
    float sum = 0, size = 0;
    for (int j = lane % lanes * W; j < n.dv && row < rows; j += lanes * W) {
      float x[W], y[W];
      read<W>(o + row * n.dv + j, x);
      read<W>(dout + row * n.dv + j, y);
#pragma unroll
      for (int k = 0; k < W; k++) sum = fmaf(x[k], y[k], sum), size += fabsf(y[k]);
    }
    if (size < INFINITY) most = fmaxf(most, size);
    for (int m = lanes / 2; m > 0; m /= 2) sum += __shfl_xor_sync(0xffffffff, sum, m);
    const long long head = row % n.heads, t = row / n.heads % n.queries, b = row / n.heads / n.queries;
    if (lane % lanes == 0 && row < rows) p.delta[(b * n.heads + head) * n.queries + t] = sum;
  }
  return most_of_warp(most) * lanes;  // no part of a row is more than the largest one
}

// Grid x is ceil(B*S*Hq / (4*kDeltaRows)), blocks of 128 threads.
template <typename T> __device__ float attention_delta(const AttentionParams& p) {
  const long long first = ((long long)blockIdx.x * kWarps + threadIdx.x / 32) * kDeltaRows;
  if (p.n.dv % kLanes<T> != 0 || !aligned(p.o, p.dout)) return deltas<1, T>(p, first, 32);
  int lanes = 1;
  while (lanes < 32 && lanes * kLanes<T> < p.n.dv) lanes *= 2;
  return deltas<kLanes<T>, T>(p, first, lanes);
}

// One pass over the block's rows. Returns whether one of this thread's results is NaN or Inf; see careful_if_needed.
template <typename T, int R, int C, class Loop> __device__ bool query_gradient_pass(const AttentionParams& p, bool careful) {
  constexpr int M = R * kDown, N = C * kAcross;
  const Sizes& n = p.n;
  const T *q = static_cast<const T*>(p.q), *k = static_cast<const T*>(p.k), *v = static_cast<const T*>(p.v);
  const T* dout = static_cast<const T*>(p.dout);
  Carver carve{dynamic_shared()};
  float* Q = carve.tile(M, n.d);
  float* DQ = carve.tile(M, n.d);
  float* DO = carve.tile(M, n.dv);
  float* K = carve.tile(N, n.d);
  float* V = carve.tile(N, n.dv);
  float* DS = carve.tile(M, N);

  const RowTile tile(n, p.owned_rows());
  Loop loop(p, tile, carve);
  load_rows(Q, q, M, n.d, [&](int r) { return tile.has(r) ? n.row(tile.b, tile.g, tile.first + r, n.d) : -1; });
  load_rows(DO, dout, M, n.dv, [&](int r) { return tile.has(r) ? n.row(tile.b, tile.g, tile.first + r, n.dv) : -1; });
  clear_rows(DQ, M, n.d);
  typename Loop::Row rows[R];
  float lses[R], deltas[R], one[R];
  for (int i = 0; i < R; i++) {
    const int r = down() + kDown * i;
    const long long at = tile.has(r) ? n.stat(tile.b, tile.g, tile.first + r) : 0;
    rows[i] = loop.row(n, tile, r);
    lses[i] = tile.has(r) ? lse_for_gradient(p.lse[at]) : INFINITY;
    deltas[i] = tile.has(r) ? p.delta[at] : 0;
    one[i] = 1;
  }

  while (loop.next()) {
    __syncthreads();  // all threads have read K and DS of the last tile
    load_rows(K, k, N, n.d, [&](int c) { return loop.key(c) < 0 ? -1 : n.key(tile.b, tile.g, loop.key(c), n.d); });
    load_rows(V, v, N, n.dv, [&](int c) { return loop.key(c) < 0 ? -1 : n.key(tile.b, tile.g, loop.key(c), n.dv); });
    __syncthreads();
    if (careful)
      take_out(K, N, n.d, [&](int c) {
        for (int j = threadIdx.x % 32; j < n.dv; j += 32) V[c * stride(n.dv) + j] = NAN;
      });
    float s[R][C], dp[R][C];
    multiply_transposed<R, C>(s, Q, K, n.d);
    multiply_transposed<R, C>(dp, DO, V, n.dv);
#pragma unroll
    for (int i = 0; i < R; i++)
#pragma unroll
      for (int j = 0; j < C; j++) {
        const bool sees = Loop::sees(rows[i], loop.slot(across() + kAcross * j));
        s[i][j] = sees ? probability(s[i][j], n.scale, lses[i]) * (dp[i][j] - deltas[i]) * n.scale : 0;
      }
    put<R, C>(DS, s);
    __syncthreads();
    multiply_add<R, N>(DQ, DS, K, n.d, one);
  }

  __syncthreads();  // DQ is complete; if no key is seen, clear_rows has finished
  return store_rows<R>(
      static_cast<T*>(p.dq), DQ, n.d, [&](int r) { return tile.has(r) ? n.row(tile.b, tile.g, tile.first + r, n.d) : -1; },
      [](int) { return 1.0f; });
}

template <typename T, int R, int C, class Loop> __device__ void query_gradient(const AttentionParams& p) {
  careful_if_needed([&](bool careful) { return query_gradient_pass<T, R, C, Loop>(p, careful); });
}
template <typename T, int R, int C> __device__ void span_dq(const AttentionParams& p) {
  query_gradient<T, R, C, SpanLoop<kAcross * C>>(p);
}
template <typename T, int R, int C> __device__ void selected_dq(const AttentionParams& p) {
  query_gradient<T, R, C, BlocksLoop<kAcross * C>>(p);
}

}  // namespace nsa

NSA_KERNEL(attention_delta, AttentionParams, nsa::kThreads)
// The same grid.
extern "C" __global__ void __launch_bounds__(nsa::kThreads, 12) nsa_pairs_delta_bf16(const __grid_constant__ nsa::ListParams a) {
  const float most = nsa::attention_delta<nsa::bf16>(a.p);
  if (threadIdx.x % 32 == 0) a.pairs.reach[blockIdx.x * nsa::kWarps + threadIdx.x / 32] = most;
}
NSA_TILES(span_dq, 64, 4)
NSA_TILES(span_dq, 32, 4)
NSA_TILES(span_dq, 16, 2)
NSA_TILES(selected_dq, 64, 4)
NSA_TILES(selected_dq, 32, 4)
NSA_TILES(selected_dq, 16, 2)
