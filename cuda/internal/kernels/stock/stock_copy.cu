// Strided copies, float32: y[sum of i_d y_strides[d]] = x[sum of i_d x_strides[d]] for all i_d in [0,sizes[d]), d < rank. Axis 0 is the
// innermost. A stride of 0 in x repeats elements.
//
//   stock_copy        any strides; 16 bytes at a time if axis 0 is contiguous in both and everything else is a multiple of 4
//   stock_transpose   y contiguous along axis 0, x along axis 1; by tiles of 32 x 32 in shared memory
//
// The named elements of y are written with =; the others do not change. x and y do not overlap.
#include "common.cuh"

namespace nsa {

struct StockCopyParams {
  const float* x;
  float* y;
  int64_t n;
  int64_t sizes[6];
  int64_t x_strides[6];
  int64_t y_strides[6];
  int32_t rank;
  int32_t packs; // whether sizes and strides allow packs of 4 elements along axis 0
};

// Copies packs of W elements. I is an unsigned type that holds n.
template <typename I, int W> __device__ __forceinline__ void stock_copy_by(const StockCopyParams& p) {
  const I n = I(p.n / W), step = I(gridDim.x) * blockDim.x, row = I(p.sizes[0] / W);
  for (I i = I(blockIdx.x) * blockDim.x + threadIdx.x; i < n; i += step) {
    I rest = i / row;
    const int64_t first = int64_t(i - rest * row) * W;
    int64_t from = first * p.x_strides[0], to = first * p.y_strides[0];
#pragma unroll
    for (int d = 1; d < 6; ++d) {
      if (d < p.rank) {
        const I size = I(p.sizes[d]), outer = rest / size;
        const int64_t at = int64_t(rest - outer * size);
        from += at * p.x_strides[d];
        to += at * p.y_strides[d];
        rest = outer;
      }
    }
    float v[W];
    read<W>(p.x + from, v);
    write<W>(p.y + to, v);
  }
}

__device__ __forceinline__ void stock_copy(const StockCopyParams& p) {
  const bool wide = p.packs && aligned(p.x, p.y), small = p.n <= INT32_MAX;
  if (wide && small) stock_copy_by<uint32_t, 4>(p);
  else if (wide) stock_copy_by<uint64_t, 4>(p);
  else if (small) stock_copy_by<uint32_t, 1>(p);
  else stock_copy_by<uint64_t, 1>(p);
}

// Blocks of 256 threads: 32 along the contiguous axis, 8 along the other. A block does every gridDim.x-th tile.
__device__ __forceinline__ void stock_transpose(const StockCopyParams& p) {
  __shared__ float tile[32][33];
  const int tx = threadIdx.x % 32, ty = threadIdx.x / 32;
  const int64_t tiles0 = (p.sizes[0] + 31) / 32, tiles1 = (p.sizes[1] + 31) / 32;
  const int64_t tiles = tiles0 * tiles1 * (p.n / (p.sizes[0] * p.sizes[1]));
  for (int64_t t = blockIdx.x; t < tiles; t += gridDim.x) {
    const int64_t i0 = t % tiles0 * 32, i1 = t / tiles0 % tiles1 * 32;
    int64_t rest = t / (tiles0 * tiles1), from = 0, to = 0;
#pragma unroll
    for (int d = 2; d < 6; ++d) {
      if (d < p.rank) {
        const int64_t at = rest % p.sizes[d];
        from += at * p.x_strides[d];
        to += at * p.y_strides[d];
        rest /= p.sizes[d];
      }
    }
    const float* x = p.x + from + i1 + tx;
    for (int k = ty; k < 32; k += 8) {
      if (i0 + k < p.sizes[0] && i1 + tx < p.sizes[1]) tile[k][tx] = x[(i0 + k) * p.x_strides[0]];
    }
    __syncthreads();
    float* y = p.y + to + i0 + tx;
    for (int k = ty; k < 32; k += 8) {
      if (i0 + tx < p.sizes[0] && i1 + k < p.sizes[1]) y[(i1 + k) * p.y_strides[1]] = tile[tx][k];
    }
    __syncthreads();
  }
}

} // namespace nsa

extern "C" __global__ void __launch_bounds__(256) nsa_stock_copy_f32(const __grid_constant__ nsa::StockCopyParams p) {
  nsa::stock_copy(p);
}
extern "C" __global__ void __launch_bounds__(256) nsa_stock_transpose_f32(const __grid_constant__ nsa::StockCopyParams p) {
  nsa::stock_transpose(p);
}
