// The product keys·columnsᵀ of a tile of keys [64,C] and a tile of columns [128,C]. A team of four warps makes it together, by wgmma on
// sm_90a and by mma.sync elsewhere. A tile consists of panels of 64 elements of each row, one after the other. A row of a panel has
// 128 bytes, swizzled as in attention_mma.cuh, which is also the 128-byte swizzle of wgmma.
//
// c [64,8*N] holds the products with the first 8*N columns. Warp i of a team has the rows 16*i to 16*i+15 of c, as fragments of
// mma.m16n8k16.
#pragma once

#include "attention_wgmma.cuh"

namespace nsa {

constexpr int kTeam = 128, kColumns = 128;  // threads, columns

// The address of cell i of a row in a tile of Rows rows.
template <int Rows> __device__ inline uint32_t part_cell(uint32_t tile, int row, int i) {
  return cell<64>(tile + i / 8 * (Rows * 128), row, i % 8);
}

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

#define NSA_SUMS_120 NSA_SUMS_112, NSA_SUMS_4(14)
#define NSA_NAMES_120 NSA_NAMES_112 ",%56,%57,%58,%59"
NSA_WGMMA_TYPES(120, "%60", "%61", "%62", "%63", "%64", "%65")

// begin_product begins c = keys·columnsᵀ. No code may touch c before end_product.
template <typename T, int C, int N> __device__ __forceinline__ void begin_product(float (&c)[N][4], uint32_t keys, uint32_t columns) {
  const uint64_t a = describe(keys, 0), b = describe(columns, 0);
  wgmma_begin();
#pragma unroll
  for (int k = 0; k < C / 16; k++)
    Wgmma<T, 8 * N>::a_bt(c, a + (k / 4 * (kKeys * 128) + k % 4 * 32) / 16, b + (k / 4 * (kColumns * 128) + k % 4 * 32) / 16, k > 0);
  wgmma_end();
}
template <int N> __device__ __forceinline__ void end_product(float (&c)[N][4]) {
  wgmma_wait<0>();
  hold(c);
}

// tiles_arrived waits for this thread's copies. Products after the next barrier see them.
__device__ __forceinline__ void tiles_arrived() {
  copies_arrived();
  fence_async();
}

#else

template <typename T, int C, int N> __device__ __forceinline__ void begin_product(float (&c)[N][4], uint32_t keys, uint32_t columns) {
#pragma unroll
  for (int j = 0; j < N; j++)
#pragma unroll
    for (int i = 0; i < 4; i++) c[j][i] = 0;
  uint32_t left = cell<64>(keys, warp() % 4 * 16 + lane() % 16, lane() / 16);
  uint32_t right = cell<64>(columns, lane() / 16 * 8 + lane() % 8, lane() / 8 % 2);
#pragma unroll 1
  for (int part = 0; part < C / 64; part++, left += kKeys * 128, right += kColumns * 128)
#pragma unroll
    for (int k = 0; k < 4; k++) {
      uint32_t a[4];
      read_fragments<false>(a, moved<64>(left, 2 * k, 0));
#pragma unroll
      for (int j = 0; j < N; j += 2) {
        uint32_t b[4];
        read_fragments<false>(b, moved<64>(right, 2 * k, 8 * j));
        multiply_fragments<T>(c[j], a, b[0], b[1]);
        if (j + 1 < N) multiply_fragments<T>(c[j + 1], a, b[2], b[3]);
      }
    }
}
template <int N> __device__ __forceinline__ void end_product(float (&)[N][4]) {}
__device__ __forceinline__ void tiles_arrived() { copies_arrived(); }

#endif

}  // namespace nsa
