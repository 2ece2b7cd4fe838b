// Softmax over the last axis, [rows,cols].
//
//   softmax       x -> y; a row of only -Inf gives zeros
//   softmax_grad  y, dy -> dx = y (dy - sum(y dy))
//
// Outputs are written with =. A group of threads owns a row: a warp, or the block for long rows. A thread sums over its own columns,
// ascending; group_reduce adds up the threads.
#include "row_softmax.cuh"

namespace nsa {

struct SoftmaxParams {
  const void* x;
  void* y;
  int64_t rows;
  int64_t cols;
};

struct SoftmaxGradParams {
  const void* y;
  const void* dy;
  void* dx;
  int64_t rows;
  int64_t cols;
};

template <typename T> __device__ void softmax(const SoftmaxParams& p) {
  const bool wide = p.cols % kLanes<T> == 0 && aligned(p.x, p.y);
  each_row(p.rows, [&](int64_t r) {
    const T* x = static_cast<const T*>(p.x) + r * p.cols;
    T* y = static_cast<T*>(p.y) + r * p.cols;
    const float top = row_max(x, p.cols, wide), sum = row_exp_sum(x, p.cols, wide, top);
    const bool empty = top == -INFINITY;
    const float scale = 1.0f / sum;
    along_row<T>(p.cols, wide, [&](auto width, int64_t i) {
      constexpr int W = decltype(width)::value;
      float v[W];
      read<W>(x + i, v);
#pragma unroll
      for (int j = 0; j < W; ++j) v[j] = empty ? 0.0f : expf(v[j] - top) * scale;
      write<W>(y + i, v);
    });
  });
}

template <typename T> __device__ void softmax_grad(const SoftmaxGradParams& p) {
  const bool wide = p.cols % kLanes<T> == 0 && aligned(p.y, p.dy, p.dx);
  each_row(p.rows, [&](int64_t r) {
    const T* y = static_cast<const T*>(p.y) + r * p.cols;
    const T* dy = static_cast<const T*>(p.dy) + r * p.cols;
    T* dx = static_cast<T*>(p.dx) + r * p.cols;
    float sum = 0;
    along_row<T>(p.cols, wide, [&](auto width, int64_t i) {
      constexpr int W = decltype(width)::value;
      float u[W], v[W];
      read<W>(y + i, u);
      read<W>(dy + i, v);
#pragma unroll
      for (int j = 0; j < W; ++j) sum += u[j] * v[j];
    });
    sum = group_reduce<Sum>(sum);
    along_row<T>(p.cols, wide, [&](auto width, int64_t i) {
      constexpr int W = decltype(width)::value;
      float u[W], v[W];
      read<W>(y + i, u);
      read<W>(dy + i, v);
#pragma unroll
      for (int j = 0; j < W; ++j) u[j] *= v[j] - sum;
      write<W>(dx + i, u);
    });
  });
}

} // namespace nsa

NSA_KERNEL(softmax, SoftmaxParams, 512)
NSA_KERNEL(softmax_grad, SoftmaxGradParams, 512)
