// The elementwise functions of Gorgonia's own ops, float32, n elements.
//
//   stock_unary    x -> y = f(x)
//   stock_binary   a, b -> y = f(a, b); an operand of one element is combined with every element of the other. Comparisons give 1 or 0
//
// y is written with = and is none of the operands. Functions are numbered as in unaryNames and binaryNames in Go. Edge cases follow
// Gorgonia: the cut-offs of sigmoid and softplus, and the sign of 0.
#include "common.cuh"

namespace nsa {

struct StockUnaryParams {
  const float* x;
  float* y;
  int64_t n;
  int32_t function;
  int32_t pad;
};

struct StockBinaryParams {
  const float* a;
  const float* b;
  float* y;
  int64_t n;
  int32_t function;
  int32_t scalars; // bit 0: a is one element; bit 1: b is
};

template <typename F> __device__ __forceinline__ void stock_map(const StockUnaryParams& p, F f) {
  elementwise<float>(p.n, aligned(p.x, p.y), [&](auto width, int64_t i) {
    constexpr int W = decltype(width)::value;
    float v[W];
    read<W>(p.x + i, v);
#pragma unroll
    for (int j = 0; j < W; ++j) v[j] = f(v[j]);
    write<W>(p.y + i, v);
  });
}

template <typename F> __device__ __forceinline__ void stock_join(const StockBinaryParams& p, F f) {
  const bool one_a = p.scalars & 1, one_b = p.scalars & 2;
  const bool wide = aligned(p.y) && (one_a || aligned(p.a)) && (one_b || aligned(p.b));
  elementwise<float>(p.n, wide, [&](auto width, int64_t i) {
    constexpr int W = decltype(width)::value;
    float u[W], v[W];
    if (one_a) {
#pragma unroll
      for (int j = 0; j < W; ++j) u[j] = *p.a;
    } else {
      read<W>(p.a + i, u);
    }
    if (one_b) {
#pragma unroll
      for (int j = 0; j < W; ++j) v[j] = *p.b;
    } else {
      read<W>(p.b + i, v);
    }
#pragma unroll
    for (int j = 0; j < W; ++j) u[j] = f(u[j], v[j]);
    write<W>(p.y + i, u);
  });
}

// stock_join_one is stock_join with one element at a time, for functions that would need too many registers for four.
template <typename F> __device__ __forceinline__ void stock_join_one(const StockBinaryParams& p, F f) {
  const int64_t step = int64_t(gridDim.x) * blockDim.x;
  for (int64_t i = blockIdx.x * int64_t(blockDim.x) + threadIdx.x; i < p.n; i += step) {
    p.y[i] = f(p.a[p.scalars & 1 ? 0 : i], p.b[p.scalars & 2 ? 0 : i]);
  }
}

__device__ __forceinline__ float stock_sigmoid(float x) { return x < -88 ? 0.0f : x > 15 ? 1.0f : 1.0f / (1.0f + expf(-x)); }
__device__ __forceinline__ float stock_softplus(float x) { return x < -103 ? 0.0f : x > 14 ? x : log1pf(expf(x)); }

__device__ __forceinline__ void stock_unary(const StockUnaryParams& p) {
  switch (p.function) {
  case 0: return stock_map(p, [](float x) { return fabsf(x); });
  case 1: return stock_map(p, [](float x) { return x < 0 ? -1.0f : x > 0 ? 1.0f : x; });
  case 2: return stock_map(p, [](float x) { return ceilf(x); });
  case 3: return stock_map(p, [](float x) { return floorf(x); });
  case 4: return stock_map(p, [](float x) { return sinf(x); });
  case 5: return stock_map(p, [](float x) { return cosf(x); });
  case 6: return stock_map(p, [](float x) { return expf(x); });
  case 7: return stock_map(p, [](float x) { return logf(x); });
  case 8: return stock_map(p, [](float x) { return log2f(x); });
  case 9: return stock_map(p, [](float x) { return -x; });
  case 10: return stock_map(p, [](float x) { return x * x; });
  case 11: return stock_map(p, [](float x) { return sqrtf(x); });
  case 12: return stock_map(p, [](float x) { return 1.0f / x; });
  case 13: return stock_map(p, [](float x) { return 1.0f / sqrtf(x); });
  case 14: return stock_map(p, [](float x) { return x * x * x; });
  case 15: return stock_map(p, [](float x) { return tanhf(x); });
  case 16: return stock_map(p, [](float x) { return stock_sigmoid(x); });
  case 17: return stock_map(p, [](float x) { return log1pf(x); });
  case 18: return stock_map(p, [](float x) { return expm1f(x); });
  case 19: return stock_map(p, [](float x) { return stock_softplus(x); });
  case 20: return stock_map(p, [](float x) { return copysignf(1.0f, x); });
  }
}

__device__ __forceinline__ void stock_binary(const StockBinaryParams& p) {
  switch (p.function) {
  case 0: return stock_join(p, [](float a, float b) { return a + b; });
  case 1: return stock_join(p, [](float a, float b) { return a - b; });
  case 2: return stock_join(p, [](float a, float b) { return a * b; });
  case 3: return stock_join_one(p, [](float a, float b) { return a / b; });
  case 4: return stock_join_one(p, [](float a, float b) { return powf(a, b); });
  case 5: return stock_join(p, [](float a, float b) { return a < b ? 1.0f : 0.0f; });
  case 6: return stock_join(p, [](float a, float b) { return a > b ? 1.0f : 0.0f; });
  case 7: return stock_join(p, [](float a, float b) { return a <= b ? 1.0f : 0.0f; });
  case 8: return stock_join(p, [](float a, float b) { return a >= b ? 1.0f : 0.0f; });
  case 9: return stock_join(p, [](float a, float b) { return a == b ? 1.0f : 0.0f; });
  case 10: return stock_join(p, [](float a, float b) { return a != b ? 1.0f : 0.0f; });
  case 11: return stock_join(p, [](float a, float b) { return a < b ? a : b; });
  case 12: return stock_join(p, [](float a, float b) { return a > b ? a : b; });
  }
}

} // namespace nsa

extern "C" __global__ void __launch_bounds__(256) nsa_stock_unary_f32(const __grid_constant__ nsa::StockUnaryParams p) {
  nsa::stock_unary(p);
}
extern "C" __global__ void __launch_bounds__(256) nsa_stock_binary_f32(const __grid_constant__ nsa::StockBinaryParams p) {
  nsa::stock_binary(p);
}
