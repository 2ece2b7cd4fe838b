// The product of a tile of keys [64,C] and a tile of columns [128,C], transposed, which four warps (a team) make together: by wgmma on
// sm_90a, else by mma.sync. A tile is parts of 64 elements of each row, one behind the other, in which rows are 128 bytes and cells
// are exchanged as in attention_mma.cuh: that is also the 128-byte swizzle of wgmma.
//
// Of c [64,128] warp i of a team has the rows 16*i to 16*i+15, as fragments of mma.m16n8k16.
#pragma once

#include "attention_mma.cuh"

namespace nsa {

constexpr int kTeam = 128, kColumns = 128;  // threads, columns

// The cell of a row of a tile of Rows rows.
template <int Rows> __device__ inline uint32_t part_cell(uint32_t tile, int row, int i) {
  return cell<64>(tile + i / 8 * (Rows * 128), row, i % 8);
}

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

#define NSA_REGISTERS4(c, j) "+f"(c[j][0]), "+f"(c[j][1]), "+f"(c[j][2]), "+f"(c[j][3])
#define NSA_REGISTERS16(c, j) NSA_REGISTERS4(c, j), NSA_REGISTERS4(c, j + 1), NSA_REGISTERS4(c, j + 2), NSA_REGISTERS4(c, j + 3)
#define NSA_REGISTERS(c) NSA_REGISTERS16(c, 0), NSA_REGISTERS16(c, 4), NSA_REGISTERS16(c, 8), NSA_REGISTERS16(c, 12)

// c = or += a [64,16] b [128,16]ᵀ. a and b are addresses over 16; the other half of what describes a tile says that 8 rows are 1024 bytes.
#define NSA_WGMMA(type)                                                                                                \
  asm volatile("{.reg .pred p;\n.reg .b64 a, b;\nsetp.ne.b32 p, %66, 0;\n"                                             \
               "mov.b64 a, {%64, 0x40000040};\nmov.b64 b, {%65, 0x40000040};\n"                                        \
               "wgmma.mma_async.sync.aligned.m64n128k16.f32." type "." type " {%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,"     \
               "%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31,%32,%33,%34,%35,"  \
               "%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,"  \
               "%61,%62,%63}, a, b, p, 1, 1, 0, 0;}\n"                                                                 \
               : NSA_REGISTERS(c) : "r"(a), "r"(b), "r"(add))
__device__ __forceinline__ void wgmma(float (&c)[16][4], uint32_t a, uint32_t b, int add, bf16) { NSA_WGMMA("bf16"); }
__device__ __forceinline__ void wgmma(float (&c)[16][4], uint32_t a, uint32_t b, int add, f16) { NSA_WGMMA("f16"); }

// begin_product begins c = keys · columnsᵀ. c must not be touched before end_product.
template <typename T, int C> __device__ __forceinline__ void begin_product(float (&c)[16][4], uint32_t keys, uint32_t columns) {
  const uint32_t a = keys >> 4 | 1 << 16, b = columns >> 4 | 1 << 16;
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#pragma unroll
  for (int k = 0; k < C / 16; k++)
    wgmma(c, a + (k / 4 * (kKeys * 8) + k % 4 * 2), b + (k / 4 * (kColumns * 8) + k % 4 * 2), k > 0, T());
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
__device__ __forceinline__ void end_product(float (&c)[16][4]) {
  asm volatile("wgmma.wait_group.sync.aligned 0;" : NSA_REGISTERS(c)::"memory");
}

// tiles_arrived makes tiles that this thread has copied visible to products behind the next barrier.
__device__ __forceinline__ void tiles_arrived() {
  copies_arrived();
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

#else

template <typename T, int C> __device__ __forceinline__ void begin_product(float (&c)[16][4], uint32_t keys, uint32_t columns) {
#pragma unroll
  for (int j = 0; j < 16; j++)
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
      for (int j = 0; j < 8; j++) {
        uint32_t b[4];
        read_fragments<false>(b, moved<64>(right, 2 * k, 16 * j));
        multiply_fragments<T>(c[2 * j], a, b[0], b[1]);
        multiply_fragments<T>(c[2 * j + 1], a, b[2], b[3]);
      }
    }
}
__device__ __forceinline__ void end_product(float (&)[16][4]) {}
__device__ __forceinline__ void tiles_arrived() { copies_arrived(); }

#endif

}  // namespace nsa
