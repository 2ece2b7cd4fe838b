// Gated sum of branches (arXiv 2502.11089, equation 5): gates [rows,n], n = 1 to 8 branches [rows,dim] -> y [rows,dim], the sum
// of gate times branch in the order of the branches.
//
// The gradient, from dy [rows,dim]: dgates [rows,n] = dy·branch, dbranch = gate dy. The threads that share
// threadIdx.y own a row: blockDim.x of them, a power of two up to 32, as many as read it in 16-byte pieces. All outputs =;
// nothing is saved; dy may be the dbranch of the last branch. dgates: each thread adds its own columns, ascending, then the
// threads are added by halves.
#include "common.cuh"

namespace nsa {

struct GatedSumParams {
  const void* gates;
  const void* branch[8];
  void* y;
  int64_t rows;
  int64_t dim;
  int32_t n;
  int32_t pad;
};

struct GatedSumGradParams {
  const void* gates;
  const void* branch[8];
  const void* dy;
  void* dgates;
  void* dbranch[8];
  int64_t rows;
  int64_t dim;
  int32_t n;
  int32_t pad;
};

template <typename T> __device__ void gated_sum(const GatedSumParams& p) {
  const T* gates = static_cast<const T*>(p.gates);
  T* y = static_cast<T*>(p.y);
  bool wide = p.dim % kLanes<T> == 0 && aligned(y);
  for (int k = 0; k < p.n; ++k) wide = wide && aligned(p.branch[k]);
  elementwise<T>(p.rows * p.dim, wide, [&](auto width, int64_t i) {
    constexpr int W = decltype(width)::value;
    const int64_t row = i / p.dim;
    float sum[W] = {};
    for (int k = 0; k < p.n; ++k) {
      const float gate = to_float(gates[row * p.n + k]);
      float v[W];
      read<W>(static_cast<const T*>(p.branch[k]) + i, v);
#pragma unroll
      for (int j = 0; j < W; ++j) sum[j] = k == 0 ? gate * v[j] : sum[j] + gate * v[j];
    }
    write<W>(y + i, sum);
  });
}

// team_sum returns the sum of v over the threads that share threadIdx.y, a part of a warp, to all of them.
__device__ __forceinline__ float team_sum(float v) {
  const unsigned team = blockDim.x, lane = (threadIdx.y * team + threadIdx.x) % 32;
  const unsigned all = team == 32 ? 0xffffffffu : ((1u << team) - 1) << (lane & ~(team - 1));
  for (int o = int(team) / 2; o > 0; o >>= 1) v += __shfl_xor_sync(all, v, o);
  return v;
}

template <typename T> __device__ void gated_sum_grad(const GatedSumGradParams& p) {
  const T* gates = static_cast<const T*>(p.gates);
  T* dgates = static_cast<T*>(p.dgates);
  bool wide = p.dim % kLanes<T> == 0 && aligned(p.dy);
  for (int k = 0; k < p.n; ++k) wide = wide && aligned(p.branch[k], p.dbranch[k]);
  each_row(p.rows, [&](int64_t r) {
    const T* dy = static_cast<const T*>(p.dy) + r * p.dim;
    for (int k = 0; k < p.n; ++k) {
      const T* x = static_cast<const T*>(p.branch[k]) + r * p.dim;
      T* dx = static_cast<T*>(p.dbranch[k]) + r * p.dim;
      const float gate = to_float(gates[r * p.n + k]);
      float dot = 0;
      along_row<T>(p.dim, wide, [&](auto width, int64_t i) {
        constexpr int W = decltype(width)::value;
        float d[W], v[W];
        read<W>(dy + i, d);
        read<W>(x + i, v);
#pragma unroll
        for (int j = 0; j < W; ++j) {
          dot += d[j] * v[j];
          d[j] *= gate;
        }
        write<W>(dx + i, d);
      });
      dot = team_sum(dot);
      if (threadIdx.x == 0) dgates[r * p.n + k] = from_float<T>(dot);
    }
  });
}

} // namespace nsa

NSA_KERNEL(gated_sum, GatedSumParams, 256)
NSA_KERNEL(gated_sum_grad, GatedSumGradParams, 256)
