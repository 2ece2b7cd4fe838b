// Half-precision tiles in shared memory and their products on tensor cores, with float32 sums. The attention kernels for bf16 and
// f16 are built of these. Dims must be multiples of 8, up to the compiled width C of 64 or 128, and arrays must be aligned to 16
// bytes. Columns from the dim up to C hold zeros.
//
// A tile has rows of C elements. A cell is 8 elements, 16 bytes. Cells are swizzled: cell i of a row lies at place i ^ (row % 8), so
// that the eight rows of one ldmatrix lie in different banks. Tiles begin at multiples of 1024 bytes. Therefore one operation leads
// from a cell to a cell whose number differs in some bits, or to the same cell a multiple of 8 rows below (moved).
//
// Fragments have the layout of mma.m16n8k16. Of a result, a thread has the rows lane/4 and lane/4 + 8, and in each group of 8
// columns the columns 2*(lane%4) and 2*(lane%4) + 1.
#pragma once

#include "attention_softmax.cuh"
#include "attention_tile.cuh"
#include "mma.cuh"

namespace nsa {

constexpr int kKeys = 64;  // keys of a tile

// Waits until all copies that this thread has begun are complete.
__device__ inline void copies_arrived() { copy_commit(), copy_wait<0>(); }

// The dynamic shared memory, aligned for tiles.
__device__ inline float* tiles_shared() {
  extern __shared__ __align__(1024) float4 nsa_tiles_shared[];
  return reinterpret_cast<float*>(nsa_tiles_shared);
}

// The address of cell i of a row of a tile.
template <int C> __device__ inline uint32_t cell(uint32_t tile, int row, int i) {
  return tile + row * (2 * C) + ((i ^ (row & 7)) << 4);
}

// The address of the cell that lies `rows` rows, a multiple of 8, below the one at `place`, and whose number is XORed with `cells`.
template <int C> __device__ inline uint32_t moved(uint32_t place, int cells, int rows) {
  return (place ^ (cells << 4)) + rows * (2 * C);
}

// Begins to copy rows of c elements at src + offset(row) to a tile. Rows with a negative offset and columns from c on become zeros.
template <int C, int Rows, typename T, class Offset>
__device__ inline void copy_rows(uint32_t tile, const T* src, int c, Offset offset) {
  constexpr int kCells = C / 8, kStep = kThreads / kCells;
  static_assert(kThreads % kCells == 0 && Rows % kStep == 0, "each thread copies the same cell of several rows");
  const int i = threadIdx.x % kCells;
#pragma unroll
  for (int row = threadIdx.x / kCells, u = 0; u < Rows / kStep; u++, row += kStep) {
    const long long at = offset(row);
    const bool in = at >= 0 && 8 * i < c;
    copy_cell(cell<C>(tile, row, i), in ? src + at + 8 * i : src, in);
  }
}

// Begins to copy the rows [from,from+Rows) of src, which lie `step` elements apart, to a tile. Rows from `end` on become zeros.
template <int C, int Rows, typename T>
__device__ inline void copy_run(uint32_t tile, const T* src, long long step, int from, int end, int c) {
  constexpr int kCells = C / 8, kStep = kThreads / kCells;
  const int i = threadIdx.x % kCells, first = threadIdx.x / kCells;
  const T* at = src + (from + first) * step + 8 * i;
  end = 8 * i < c ? end - from : 0;
#pragma unroll
  for (int row = first, u = 0; u < Rows / kStep; u++, row += kStep, at += kStep * step)
    copy_cell(cell<C>(tile, row, i), at, row < end);  // no read where row >= end
}

// Left reads 16 rows of a tile as the left factor of products over the C columns of the tile.
template <int C> struct Left {
  uint32_t place;

  __device__ Left(uint32_t tile, int row) : place(cell<C>(tile, row + lane() % 16, lane() / 16)) {
    opaque(place);  // stays in a register: to compute it again takes several registers
  }
  // The fragment of columns 16*k to 16*k+15, `further` rows below.
  __device__ void get(int k, uint32_t (&a)[4], int further) const {
    read_fragments<false>(a, moved<C>(place, 2 * k, further));
  }
};

// out [16*R,N] = a·bᵀ. a [16*R,C] are the rows that begin Further rows below those of `left`, b [N,C] the rows [row,row+N) of
// `tile`. With R = 2 each fragment of b that is read serves two products.
template <typename T, int C, int N, int Further = 0, int R>
__device__ inline void multiply_transposed(float (&out)[R][N / 8][4], const Left<C>& left, uint32_t tile, int row) {
  const uint32_t place = cell<C>(tile, row + lane() / 16 * 8 + lane() % 8, lane() / 8 % 2);
#pragma unroll
  for (int r = 0; r < R; r++)
#pragma unroll
    for (int j = 0; j < N / 8; j++)
#pragma unroll
      for (int i = 0; i < 4; i++) out[r][j][i] = 0;
#pragma unroll
  for (int k = 0; k < C / 16; k++) {
    uint32_t a[R][4];
#pragma unroll
    for (int r = 0; r < R; r++) left.get(k, a[r], Further + 16 * r);
#pragma unroll
    for (int j = 0; j < N / 16; j++) {
      uint32_t b[4];
      read_fragments<false>(b, moved<C>(place, 2 * k, 16 * j));
#pragma unroll
      for (int r = 0; r < R; r++) {
        multiply_fragments<T>(out[r][2 * j], a[r], b[0], b[1]);
        multiply_fragments<T>(out[r][2 * j + 1], a[r], b[2], b[3]);
      }
    }
  }
}

// sum [16*R,C] += x·b, where x [16*R,N] is rounded to T and b [N,C] are the rows [row,row+N) of `tile`.
template <typename T, int C, int N, int R>
__device__ inline void multiply_add(float (&sum)[R][C / 8][4], const float (&x)[R][N / 8][4], uint32_t tile, int row) {
  const uint32_t place = cell<C>(tile, row + lane() % 16, lane() / 16);
#pragma unroll
  for (int k = 0; k < N / 16; k++) {
    uint32_t a[R][4];
#pragma unroll
    for (int r = 0; r < R; r++)
#pragma unroll
      for (int i = 0; i < 4; i++) a[r][i] = pair<T>(x[r][2 * k + i / 2][i % 2 * 2], x[r][2 * k + i / 2][i % 2 * 2 + 1]);
#pragma unroll
    for (int j = 0; j < C / 16; j++) {
      uint32_t b[4];
      read_fragments<true>(b, moved<C>(place, 2 * j, 16 * k));
#pragma unroll
      for (int r = 0; r < R; r++) {
        multiply_fragments<T>(sum[r][2 * j], a[r], b[0], b[1]);
        multiply_fragments<T>(sum[r][2 * j + 1], a[r], b[2], b[3]);
      }
    }
  }
}

// The exponent bits of T. All of them are set only in NaN and Inf.
template <typename T> constexpr uint32_t kExponent = 0;
template <> constexpr uint32_t kExponent<bf16> = 0x7f80;
template <> constexpr uint32_t kExponent<f16> = 0x7c00;

template <typename T> __device__ inline bool has_nan_or_inf(uint32_t pair) {
  return (pair & kExponent<T>) == kExponent<T> || (pair >> 16 & kExponent<T>) == kExponent<T>;
}
template <typename T> __device__ inline bool has_nan_or_inf(uint4 cell) {
  return has_nan_or_inf<T>(cell.x) || has_nan_or_inf<T>(cell.y) || has_nan_or_inf<T>(cell.z) || has_nan_or_inf<T>(cell.w);
}

// careful_if_needed of attention_tile.cuh with two functions for the two passes. The first pass also ignores large rows, and returns
// true if there are any. The careful pass is not inlined, so that it does not take registers from the first.
template <auto Careful, class Params> __device__ __attribute__((noinline)) void run_careful(const Params& p) { Careful(p); }
template <auto Pass, auto Careful, class Params> __device__ __forceinline__ void careful_if_needed(const Params& p) {
  if (__syncthreads_or(Pass(p))) run_careful<Careful>(p);
}

constexpr uint4 kNaNs{0x7fff7fff, 0x7fff7fff, 0x7fff7fff, 0x7fff7fff};  // NaN in bf16 and in f16

// take_out of attention_tile.cuh for half-precision tiles: zeroes rows with NaN or Inf, and calls also(row, i) for each cell i of them.
template <typename T, int C, int Rows, class Also> __device__ inline void take_out(uint32_t tile, Also also) {
  constexpr int kCells = C / 8, kStep = 32 / kCells;
  const int i = lane() % kCells, r = lane() / kCells;
#pragma unroll 1
  for (int row = warp() * kStep + r; row < Rows; row += kWarps * kStep) {
    const uint32_t at = cell<C>(tile, row, i);
    const unsigned votes = __ballot_sync(0xffffffff, has_nan_or_inf<T>(shared_cell(at)));
    if (votes >> r * kCells & ((1u << kCells) - 1)) store_shared(at, uint4{0, 0, 0, 0}), also(row, i);
  }
  __syncthreads();
}

// A warp writes x [16,C] to dst + offset(row), c elements a row, unless the offset is negative. Rows lane/4 are multiplied by f0, rows
// lane/4 + 8 by f1. The data go through the 16 rows from `row` on of `tile`, which no other warp may be using. Returns whether one of
// this thread's numbers is NaN or Inf.
template <typename T, int C, class Offset>
__device__ inline bool store_rows16(T* dst, const float (&x)[C / 8][4], float f0, float f1, uint32_t tile, int row, int c,
                                    Offset offset) {
  __syncwarp();
  uint32_t zero = 0;
#pragma unroll
  for (int j = 0; j < C / 8; j++) {
    const uint32_t at = cell<C>(tile, row + lane() / 4, j) + 4 * (lane() % 4);
    const uint32_t lo = pair<T>(f0 * x[j][0], f0 * x[j][1]), hi = pair<T>(f1 * x[j][2], f1 * x[j][3]);
    store_shared(at, lo), store_shared(at + 8 * 2 * C, hi);
    keep_nan<T>(zero, lo), keep_nan<T>(zero, hi);
  }
  __syncwarp();
  constexpr int kCells = C / 8;
  const int i = lane() % kCells;
#pragma unroll
  for (int r = lane() / kCells; r < 16; r += 32 / kCells) {
    const long long at = offset(row + r);
    if (at < 0 || 8 * i >= c) continue;
    *reinterpret_cast<uint4*>(dst + at + 8 * i) = shared_cell(cell<C>(tile, row + r, i));
  }
  return zero != 0;
}

template <int C, int R> __device__ inline void clear(float (&x)[R][C / 8][4]) {
#pragma unroll
  for (int r = 0; r < R; r++)
#pragma unroll
    for (int j = 0; j < C / 8; j++)
#pragma unroll
      for (int i = 0; i < 4; i++) x[r][j][i] = 0;
}

// The maximum and the sum over the four threads that share rows; all four get the result.
__device__ inline float max_of_four(float x) {
  x = fmaxf(x, __shfl_xor_sync(0xffffffff, x, 1));
  return fmaxf(x, __shfl_xor_sync(0xffffffff, x, 2));
}
__device__ inline float sum_of_four(float x) {
  x += __shfl_xor_sync(0xffffffff, x, 1);
  return x + __shfl_xor_sync(0xffffffff, x, 2);
}

}  // namespace nsa

// The blocks that share a multiprocessor; the compiler limits registers accordingly. Code for devices before sm_90 needs a few more
// registers, so there the number is at most 3.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900
#define NSA_MMA_BLOCKS(blocks) ((blocks) > 3 ? 3 : (blocks))
#else
#define NSA_MMA_BLOCKS(blocks) (blocks)
#endif

// NSA_MMA defines the entry points nsa_<op>_mma<C>_<storage>, which call nsa::op<T, C>(p), for `blocks` blocks on a multiprocessor.
// NSA_MMA_ENTRY defines one entry point, which calls the given function.
#define NSA_MMA_ENTRY(op, C, blocks, suffix, ...)                                                                      \
  extern "C" __global__ void __launch_bounds__(nsa::kThreads, NSA_MMA_BLOCKS(blocks))                                  \
      nsa_##op##_mma##C##_##suffix(const __grid_constant__ nsa::AttentionParams p) {                                   \
    __VA_ARGS__(p);                                                                                                    \
  }
#define NSA_MMA(op, C, blocks)                                                                                         \
  NSA_MMA_ENTRY(op, C, blocks, bf16, nsa::op<nsa::bf16, C>)                                                            \
  NSA_MMA_ENTRY(op, C, blocks, f16, nsa::op<nsa::f16, C>)
