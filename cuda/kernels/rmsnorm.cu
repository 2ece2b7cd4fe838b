// RMSNorm over the last axis (arXiv 1910.07467): x [rows,dim], weight [dim] -> y = x r weight, r = 1/sqrt(mean(x²) + eps).
//
// The gradient, with u = dy weight: dx = r u - x r³ (u·x)/dim, and dweight = the sum over the rows of dy x r. y =, dx =; nothing
// is saved: r is computed anew, since the row is read in any case.
// dweight is summed in two stages. Block k adds its `run` rows, ascending, and writes partial[k] (float32 [blocks,dim]); then
// sum_blocks adds the blocks in its fixed order.
#include "common.cuh"

namespace nsa {

struct RMSNormParams {
  const void* x;
  const void* weight;
  void* y;
  int64_t rows;
  int64_t dim;
  float eps;
  int32_t pad;
};

struct RMSNormGradParams {
  const void* x;
  const void* weight;
  const void* dy;
  void* dx;
  float* partial;
  int64_t rows;
  int64_t dim;
  int64_t run; // rows of a block
  float eps;
  int32_t pad;
};

template <typename T> __device__ void rmsnorm(const RMSNormParams& p) {
  const bool wide = p.dim % kLanes<T> == 0 && aligned(p.x, p.weight, p.y);
  const T* weight = static_cast<const T*>(p.weight);
  each_row(p.rows, [&](int64_t r) {
    const T* x = static_cast<const T*>(p.x) + r * p.dim;
    T* y = static_cast<T*>(p.y) + r * p.dim;
    float squares = 0;
    along_row<T>(p.dim, wide, [&](auto width, int64_t i) {
      constexpr int W = decltype(width)::value;
      float v[W];
      read<W>(x + i, v);
#pragma unroll
      for (int j = 0; j < W; ++j) squares += v[j] * v[j];
    });
    squares = group_reduce<Sum>(squares);
    const float scale = 1.0f / sqrtf(squares / float(p.dim) + p.eps);
    along_row<T>(p.dim, wide, [&](auto width, int64_t i) {
      constexpr int W = decltype(width)::value;
      float v[W], w[W];
      read<W>(x + i, v);
      read<W>(weight + i, w);
#pragma unroll
      for (int j = 0; j < W; ++j) v[j] *= scale * w[j];
      write<W>(y + i, v);
    });
  });
}

// One block for `run` rows, one after the other. The sum of dweight lies in dynamic shared memory, float32 [dim]: each thread
// adds to its own columns.
template <typename T> __device__ void rmsnorm_grad(const RMSNormGradParams& p) {
  extern __shared__ float dweight[];
  const bool wide = p.dim % kLanes<T> == 0 && aligned(p.x, p.weight, p.dy, p.dx);
  const T* weight = static_cast<const T*>(p.weight);
  along_row<T>(p.dim, wide, [&](auto width, int64_t i) {
#pragma unroll
    for (int j = 0; j < decltype(width)::value; ++j) dweight[i + j] = 0;
  });
  const int64_t first = blockIdx.x * p.run, end = min(p.rows, first + p.run);
  for (int64_t r = first; r < end; ++r) {
    const T* x = static_cast<const T*>(p.x) + r * p.dim;
    const T* dy = static_cast<const T*>(p.dy) + r * p.dim;
    T* dx = static_cast<T*>(p.dx) + r * p.dim;
    float squares = 0, dot = 0;
    along_row<T>(p.dim, wide, [&](auto width, int64_t i) {
      constexpr int W = decltype(width)::value;
      float v[W], w[W], d[W];
      read<W>(x + i, v);
      read<W>(weight + i, w);
      read<W>(dy + i, d);
#pragma unroll
      for (int j = 0; j < W; ++j) {
        squares += v[j] * v[j];
        dot += d[j] * w[j] * v[j];
      }
    });
    squares = group_reduce<Sum>(squares);
    dot = group_reduce<Sum>(dot);
    const float scale = 1.0f / sqrtf(squares / float(p.dim) + p.eps);
    const float slope = scale * scale * (dot / float(p.dim));
    along_row<T>(p.dim, wide, [&](auto width, int64_t i) {
      constexpr int W = decltype(width)::value;
      float v[W], w[W], d[W];
      read<W>(x + i, v);
      read<W>(weight + i, w);
      read<W>(dy + i, d);
#pragma unroll
      for (int j = 0; j < W; ++j) {
        dweight[i + j] += d[j] * v[j] * scale;
        d[j] = scale * (d[j] * w[j] - v[j] * slope);
      }
      write<W>(dx + i, d);
    });
  }
  float* partial = p.partial + blockIdx.x * p.dim;
  along_row<T>(p.dim, wide, [&](auto width, int64_t i) {
#pragma unroll
    for (int j = 0; j < decltype(width)::value; ++j) partial[i + j] = dweight[i + j];
  });
}

} // namespace nsa

NSA_KERNEL(rmsnorm, RMSNormParams, 512)
NSA_KERNEL(rmsnorm_grad, RMSNormGradParams, 512)
