// Sums and maxima of lines, float32: x [outer,along,inner] -> y [outer,splits,inner], written with =. Split s reduces the elements
// [s*run, (s+1)*run) of a line. With weights [along] the elements are multiplied by the weights first: a matrix times a vector.
//
// stock_lines.cuh describes the order of additions and `share`. With several splits a second launch reduces y along the splits.
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

template <typename Op, bool Weighted> __device__ __forceinline__ void stock_reduce(const StockReduceParams& p, float empty) {
  const bool wide = p.inner == 1 && p.along % 4 == 0 && p.run % 4 == 0 && aligned(p.x) && (!Weighted || aligned(p.weights));
  each_stock_line(p.outer * p.splits, p.inner, p.share, [&](const StockLine& l) {
    const int64_t o = l.outer / p.splits, first = (l.outer - o * p.splits) * p.run;
    const float* x = p.x + (o * p.along + first) * p.inner + l.inner;
    const float* weights = Weighted ? p.weights + first : nullptr;
    float v = empty;
    along_stock_line(
        l, min(p.run, p.along - first), wide,
        [&](int64_t j, auto& u) {
          constexpr int W = kStockWidth<decltype(u)>;
          read<W>(x + j * p.inner, u);
          if constexpr (Weighted) {
            float w[W];
            read<W>(weights + j, w);
#pragma unroll
            for (int k = 0; k < W; ++k) u[k] *= w[k];
          }
        },
        [&](int64_t, auto& u) {
#pragma unroll
          for (float e : u) v = Op::join(v, e);
        });
    v = stock_join_line<Op>(v, p.share);
    if (l.live && l.first == 0) p.y[l.outer * p.inner + l.inner] = v;
  });
}

} // namespace nsa

extern "C" __global__ void __launch_bounds__(256) nsa_stock_reduce_f32(const __grid_constant__ nsa::StockReduceParams p) {
  if (p.max) nsa::stock_reduce<nsa::Max, false>(p, -INFINITY);
  else if (p.weights == nullptr) nsa::stock_reduce<nsa::Sum, false>(p, 0);
  else nsa::stock_reduce<nsa::Sum, true>(p, 0);
}
