// Sums and maxima of lines, float32: x [outer,along,inner] -> y [outer,splits,inner]. Split s reduces the elements [s run,
// (s+1) run) of a line. With weights [along] it is the sum of their products with the line: a matrix times a vector.
//
// y =. See stock_lines.cuh for the order, and for share. With more splits than one, y is reduced again, along the splits.
#include "stock_lines.cuh"

namespace nsa {

struct StockReduceParams {
  const float* x;
  const float* weights; // or null
  float* y;
  int64_t outer;
  int64_t along;
  int64_t inner;
  int64_t run;
  int64_t splits;
  int32_t max;
  int32_t share;
};

template <typename Op> __device__ __forceinline__ void stock_reduce(const StockReduceParams& p, float empty) {
  const bool wide = p.inner == 1 && p.along % 4 == 0 && p.run % 4 == 0 && aligned(p.x) &&
                    (p.weights == nullptr || aligned(p.weights));
  each_stock_line(p.outer * p.splits, p.inner, p.share, [&](const StockLine& l) {
    const int64_t o = l.outer / p.splits, first = (l.outer - o * p.splits) * p.run;
    const float* x = p.x + (o * p.along + first) * p.inner + l.inner;
    const float* weights = p.weights == nullptr ? nullptr : p.weights + first;
    float v = empty;
    along_stock_line<4>(l, min(p.run, p.along - first), wide, [&](auto width, int64_t j) {
      constexpr int W = decltype(width)::value;
      float u[W];
      read<W>(x + j * p.inner, u);
      if (weights != nullptr) {
        float w[W];
        read<W>(weights + j, w);
#pragma unroll
        for (int k = 0; k < W; ++k) u[k] *= w[k];
      }
#pragma unroll
      for (int k = 0; k < W; ++k) v = Op::join(v, u[k]);
    });
    v = stock_join_line<Op>(v, p.share);
    if (l.live && l.first == 0) p.y[l.outer * p.inner + l.inner] = v;
  });
}

} // namespace nsa

extern "C" __global__ void __launch_bounds__(256) nsa_stock_reduce_f32(const __grid_constant__ nsa::StockReduceParams p) {
  if (p.max) nsa::stock_reduce<nsa::Max>(p, -INFINITY);
  else nsa::stock_reduce<nsa::Sum>(p, 0);
}
