// Gated sum of branches (arXiv 2502.11089, equation 5).
//
//   gated_sum       gates [rows,n], n = 1 to 8 branches [rows,dim] -> y [rows,dim], the sum of gate times branch, in their order
//   gated_sum_grad  gates, branches, dy [rows,dim] -> dgates [rows,n] = dy·branch; dbranch [rows,dim] = gate dy; and, if not null,
//                   delta [batch,heads,seq] float32 = dbranch·branch, for rows that are [batch,seq,heads]
//
// With `sigmoid`, gates are logits: the gate is their sigmoid, in float32, and dgates is the gradient with respect to the logits.
//
// The threads that share threadIdx.y own a row. Their number blockDim.x is a power of two up to 32, as many as read the row in 16-byte
// pieces. Outputs are written with =; nothing is saved. A thread adds its own columns, ascending; then threads are added by halves.
#include "common.cuh"

namespace nsa {

constexpr int kMaxBranches = 8;

struct GatedSumParams {
  const void* gates;
  const void* branch[kMaxBranches];
  void* y;
  int64_t rows;
  int64_t dim;
  int32_t n;
  int32_t sigmoid;
};

struct GatedSumGradParams {
  const void* gates;
  const void* branch[kMaxBranches];
  const void* dy;
  void* dgates;
  void* dbranch[kMaxBranches];
  float* delta[kMaxBranches];
  int64_t rows;
  int64_t dim;
  uint32_t seq;
  uint32_t heads;
  int32_t n;
  int32_t sigmoid;
};

// Both kernels have a version for the three branches of NSA, which loads all three at once, and one for any number of branches.
constexpr int kNSA = 3, kAny = 0;

// rounded returns x as if it had been stored as T.
template <typename T> __device__ __forceinline__ float rounded(float x) { return to_float(from_float<T>(x)); }

template <typename T> __device__ __forceinline__ float gate_of(T x, bool sigmoid) {
  return sigmoid ? sigmoid_of<T>(to_float(x)) : to_float(x);
}

template <int N, typename T> __device__ __forceinline__ void gated_sum_of(const GatedSumParams& p, bool wide) {
  const int n = N == kAny ? p.n : N;
  constexpr int kTogether = N == kAny ? 1 : N;
  each_row(p.rows, [&](int64_t r) {
    const T* gates = static_cast<const T*>(p.gates) + r * n;
    along_row<T>(p.dim, wide, [&](auto width, int64_t i) {
      constexpr int W = decltype(width)::value;
      float sum[W] = {};
      for (int first = 0; first < n; first += kTogether) {
        float v[kTogether][W];
#pragma unroll
        for (int k = 0; k < kTogether; ++k) read<W>(static_cast<const T*>(p.branch[first + k]) + r * p.dim + i, v[k]);
#pragma unroll
        for (int k = 0; k < kTogether; ++k) {
          const float gate = gate_of(gates[first + k], p.sigmoid);
#pragma unroll
          for (int j = 0; j < W; ++j) sum[j] += gate * v[k][j];
        }
      }
      write<W>(static_cast<T*>(p.y) + r * p.dim + i, sum);
    });
  });
}

template <typename T> __device__ void gated_sum(const GatedSumParams& p) {
  bool wide = p.dim % kLanes<T> == 0 && aligned(p.y);
  for (int k = 0; k < p.n; ++k) wide = wide && aligned(p.branch[k]);
  if (p.n == kNSA) {
    gated_sum_of<kNSA, T>(p, wide);
  } else {
    gated_sum_of<kAny, T>(p, wide);
  }
}

// team_sum adds each element of v over the threads that share threadIdx.y, which are part of a warp; all get the sums.
template <int N> __device__ __forceinline__ void team_sum(float (&v)[N]) {
  const unsigned team = blockDim.x, lane = (threadIdx.y * team + threadIdx.x) % 32;
  const unsigned all = team == 32 ? 0xffffffffu : ((1u << team) - 1) << (lane & ~(team - 1));
  for (int o = int(team) / 2; o > 0; o >>= 1) {
#pragma unroll
    for (int k = 0; k < N; ++k) v[k] += __shfl_xor_sync(all, v[k], o);
  }
}

template <int N, typename T> __device__ __forceinline__ void gated_sum_grad_of(const GatedSumGradParams& p, bool wide) {
  const int n = N == kAny ? p.n : N;
  constexpr int kTogether = N == kAny ? 1 : N;
  each_row(p.rows, [&](int64_t r) {
    const T* gates = static_cast<const T*>(p.gates) + r * n;
    T* dgates = static_cast<T*>(p.dgates) + r * n;
    for (int first = 0; first < n; first += kTogether) {
      float gate[kTogether], dot[kTogether] = {}, delta[kTogether] = {};
#pragma unroll
      for (int k = 0; k < kTogether; ++k) gate[k] = gate_of(gates[first + k], p.sigmoid);
      along_row<T>(p.dim, wide, [&](auto width, int64_t i) {
        constexpr int W = decltype(width)::value;
        float d[W], v[kTogether][W];
        read<W>(static_cast<const T*>(p.dy) + r * p.dim + i, d);
#pragma unroll
        for (int k = 0; k < kTogether; ++k) read<W>(static_cast<const T*>(p.branch[first + k]) + r * p.dim + i, v[k]);
#pragma unroll
        for (int k = 0; k < kTogether; ++k) {
          float x[W];
#pragma unroll
          for (int j = 0; j < W; ++j) {
            dot[k] += d[j] * v[k][j];
            x[j] = rounded<T>(gate[k] * d[j]);
            delta[k] += x[j] * v[k][j];
          }
          write<W>(static_cast<T*>(p.dbranch[first + k]) + r * p.dim + i, x);
        }
      });
      team_sum(dot);
      if (p.delta[first] != nullptr) team_sum(delta);
      if (threadIdx.x > 0) continue;
      const uint32_t token = uint32_t(r) / p.heads, batch = token / p.seq; // delta is used with fewer than 2^31 rows only
      const int64_t stat = (int64_t(batch) * p.heads + uint32_t(r) % p.heads) * p.seq + token % p.seq;
#pragma unroll
      for (int k = 0; k < kTogether; ++k) {
        dgates[first + k] = from_float<T>(p.sigmoid ? dot[k] * gate[k] * (1.0f - gate[k]) : dot[k]);
        if (p.delta[first + k] != nullptr) p.delta[first + k][stat] = delta[k];
      }
    }
  });
}

template <typename T> __device__ void gated_sum_grad(const GatedSumGradParams& p) {
  bool wide = p.dim % kLanes<T> == 0 && aligned(p.dy);
  for (int k = 0; k < p.n; ++k) wide = wide && aligned(p.branch[k], p.dbranch[k]);
  if (p.n == kNSA) {
    gated_sum_grad_of<kNSA, T>(p, wide);
  } else {
    gated_sum_grad_of<kAny, T>(p, wide);
  }
}

} // namespace nsa

NSA_KERNEL(gated_sum, GatedSumParams, 256)
NSA_KERNEL(gated_sum_grad, GatedSumGradParams, 256)
