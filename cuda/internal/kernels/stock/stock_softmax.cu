// Softmax along the middle axis of x [outer,along,inner] float32, and its gradient from the result y. With `log`, y is the logarithm of
// the softmax.
//
//   stock_softmax        y = e / sum(e), e = exp(x - max(x))        log: y = x - max(x) - log(sum(e))
//   stock_softmax_grad   dx = y (dy - sum(y dy))                    log: dx = dy - exp(y) sum(dy)
//
// Outputs are written with =. A line of only -Inf gives NaN, as in Gorgonia. stock_lines.cuh describes the order of additions and `share`.
#include "stock_lines.cuh"

namespace nsa {

struct StockSoftmaxParams {
  const float* x;
  float* y;
  int64_t outer;
  int64_t along;
  int64_t inner;
  int32_t log;
  int32_t share;
};

struct StockSoftmaxGradParams {
  const float* y;
  const float* dy;
  float* dx;
  int64_t outer;
  int64_t along;
  int64_t inner;
  int32_t log;
  int32_t share;
};

__device__ __forceinline__ void stock_softmax(const StockSoftmaxParams& p) {
  const bool wide = p.inner == 1 && p.along % 4 == 0 && aligned(p.x, p.y);
  each_stock_line(p.outer, p.inner, p.share, [&](const StockLine& l) {
    const int64_t base = l.outer * p.along * p.inner + l.inner;
    const float* x = p.x + base;
    float* y = p.y + base;
    auto load = [&](int64_t j, auto& v) { read<kStockWidth<decltype(v)>>(x + j * p.inner, v); };
    float top = -INFINITY;
    along_stock_line(l, p.along, wide, load, [&](int64_t, auto& v) {
#pragma unroll
      for (float e : v) top = Max::join(top, e);
    });
    top = stock_join_line<Max>(top, p.share);
    float sum = 0;
    along_stock_line(l, p.along, wide, load, [&](int64_t, auto& v) {
#pragma unroll
      for (float e : v) sum += expf(e - top);
    });
    sum = stock_join_line<Sum>(sum, p.share);
    const float scale = 1.0f / sum, less = logf(sum);
    along_stock_line(l, p.along, wide, load, [&](int64_t j, auto& v) {
#pragma unroll
      for (float& e : v) e = p.log ? e - top - less : expf(e - top) * scale;
      write<kStockWidth<decltype(v)>>(y + j * p.inner, v);
    });
  });
}

__device__ __forceinline__ void stock_softmax_grad(const StockSoftmaxGradParams& p) {
  const bool wide = p.inner == 1 && p.along % 4 == 0 && aligned(p.y, p.dy, p.dx);
  each_stock_line(p.outer, p.inner, p.share, [&](const StockLine& l) {
    const int64_t base = l.outer * p.along * p.inner + l.inner;
    const float* y = p.y + base;
    const float* dy = p.dy + base;
    float* dx = p.dx + base;
    float sum = 0;
    along_stock_line(
        l, p.along, wide,
        [&](int64_t j, auto& v) {
          constexpr int W = kStockWidth<decltype(v)>;
          read<W>(dy + j * p.inner, v);
          if (p.log) return;
          float u[W];
          read<W>(y + j * p.inner, u);
#pragma unroll
          for (int k = 0; k < W; ++k) v[k] *= u[k];
        },
        [&](int64_t, auto& v) {
#pragma unroll
          for (float e : v) sum += e;
        });
    sum = stock_join_line<Sum>(sum, p.share);
    along_stock_line(
        l, p.along, wide,
        [&](int64_t j, auto& v) {
          constexpr int W = kStockWidth<decltype(v)>;
          float u[W];
          read<W>(y + j * p.inner, u);
          read<W>(dy + j * p.inner, v);
#pragma unroll
          for (int k = 0; k < W; ++k) v[k] = p.log ? v[k] - expf(u[k]) * sum : u[k] * (v[k] - sum);
        },
        [&](int64_t j, auto& v) { write<kStockWidth<decltype(v)>>(dx + j * p.inner, v); });
  });
}

} // namespace nsa

extern "C" __global__ void __launch_bounds__(256) nsa_stock_softmax_f32(const __grid_constant__ nsa::StockSoftmaxParams p) {
  nsa::stock_softmax(p);
}
extern "C" __global__ void __launch_bounds__(256) nsa_stock_softmax_grad_f32(const __grid_constant__ nsa::StockSoftmaxGradParams p) {
  nsa::stock_softmax_grad(p);
}
