// The maximum of a row and the sum of its exponentials, for softmax and cross entropy. A group of threads owns a row, as in each_row. A
// thread sums over its own columns, ascending; group_reduce adds up the threads.
#pragma once

#include "common.cuh"

namespace nsa {

template <typename T> __device__ __forceinline__ float row_max(const T* x, int64_t cols, bool wide) {
  float top = -INFINITY;
  along_row<T>(cols, wide, [&](auto width, int64_t i) {
    constexpr int W = decltype(width)::value;
    float v[W];
    read<W>(x + i, v);
#pragma unroll
    for (int j = 0; j < W; ++j) top = Max::join(top, v[j]);
  });
  return group_reduce<Max>(top);
}

// row_exp_sum returns the sum of exp(x - top).
template <typename T> __device__ __forceinline__ float row_exp_sum(const T* x, int64_t cols, bool wide, float top) {
  float sum = 0;
  along_row<T>(cols, wide, [&](auto width, int64_t i) {
    constexpr int W = decltype(width)::value;
    float v[W];
    read<W>(x + i, v);
#pragma unroll
    for (int j = 0; j < W; ++j) sum += expf(v[j] - top);
  });
  return group_reduce<Sum>(sum);
}

} // namespace nsa
