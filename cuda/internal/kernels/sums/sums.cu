// Sums of columns, x [rows,cols].
//
//   column_sum   x -> partial, float32 [blocks,cols]: row k is the sum of the rows [k*run, (k+1)*run) of x
//   sum_blocks   partial [blocks,cols], bias [bias_cols] or none -> y [cols] = the sum of the blocks + bias[col % bias_cols]
//
// column_sum and then sum_blocks give the gradient of a bias. Outputs are written with =. The order of additions is fixed: lane l of 8
// (of blockDim.y in sum_blocks) adds rows l, l+8, ... of its run, ascending; then the lanes are added in ascending order.
#include "common.cuh"

namespace nsa {

struct ColumnSumParams {
  const void* x;
  float* partial;
  int64_t rows;
  int64_t cols;
  int64_t run; // rows of a block
};

struct SumBlocksParams {
  const float* partial;
  const void* bias; // or null
  void* y;
  int64_t blocks;
  int64_t cols;
  int64_t bias_cols;
  int32_t out_type;
  int32_t bias_type;
};

// Blocks of [32,8] threads: 32 columns and 8 lanes. Grid x goes over the columns, y over the runs.
template <typename T> __device__ void column_sum(const ColumnSumParams& p) {
  __shared__ float lanes[8][33];
  const T* x = static_cast<const T*>(p.x);
  const int64_t first = blockIdx.y * p.run, end = min(p.rows, first + p.run);
  for (int64_t tile = blockIdx.x * 32ll; tile < p.cols; tile += gridDim.x * 32ll) {
    const int64_t col = tile + threadIdx.x;
    float sum = 0;
    if (col < p.cols) {
#pragma unroll 8
      for (int64_t r = first + threadIdx.y; r < end; r += 8) sum += to_float(x[r * p.cols + col]);
    }
    lanes[threadIdx.y][threadIdx.x] = sum;
    __syncthreads();
    if (threadIdx.y == 0 && col < p.cols) {
      for (int l = 1; l < 8; ++l) sum += lanes[l][threadIdx.x];
      p.partial[blockIdx.y * p.cols + col] = sum;
    }
    __syncthreads();
  }
}

} // namespace nsa

// Blocks of 32 columns and blockDim.y = 1 to 32 lanes. Grid x goes over the columns.
extern "C" __global__ void __launch_bounds__(1024) nsa_sum_blocks_f32(const __grid_constant__ nsa::SumBlocksParams p) {
  __shared__ float lanes[32][33];
  for (int64_t tile = blockIdx.x * 32ll; tile < p.cols; tile += gridDim.x * 32ll) {
    const int64_t col = tile + threadIdx.x;
    float sum = 0;
    if (col < p.cols) {
#pragma unroll 8
      for (int64_t b = threadIdx.y; b < p.blocks; b += blockDim.y) sum += p.partial[b * p.cols + col];
    }
    lanes[threadIdx.y][threadIdx.x] = sum;
    __syncthreads();
    if (threadIdx.y == 0 && col < p.cols) {
      for (int l = 1; l < int(blockDim.y); ++l) sum += lanes[l][threadIdx.x];
      if (p.bias != nullptr) sum += nsa::load_as(p.bias, p.bias_type, col % p.bias_cols);
      nsa::store_as(p.y, p.out_type, col, sum);
    }
    __syncthreads();
  }
}

NSA_KERNEL(column_sum, ColumnSumParams, 256)
