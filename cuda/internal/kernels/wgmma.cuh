// The product of two tiles in shared memory on the matrix units of sm_90a (wgmma), which four warps make together. The tiles lie as
// rows of 64 elements with their cells exchanged as in attention_mma.cuh (the 128-byte swizzle), 8 rows in 1024 bytes.
#pragma once

#include <type_traits>

#include "mma.cuh"

#ifdef __CUDA_ARCH_FEAT_SM90_ALL
namespace nsa {

constexpr bool kGroupProducts = true;

#define NSA_REGISTERS4(c, j) "+f"(c[j][0]), "+f"(c[j][1]), "+f"(c[j][2]), "+f"(c[j][3])
#define NSA_REGISTERS16(c, j) NSA_REGISTERS4(c, j), NSA_REGISTERS4(c, j + 1), NSA_REGISTERS4(c, j + 2), NSA_REGISTERS4(c, j + 3)
#define NSA_REGISTERS(c) NSA_REGISTERS16(c, 0), NSA_REGISTERS16(c, 4), NSA_REGISTERS16(c, 8), NSA_REGISTERS16(c, 12)

// What wgmma knows a tile by, but for constants; 2 more is 16 elements further.
__device__ __forceinline__ uint32_t group_tile(uint32_t address) { return address >> 4 | 1 << 16; }

// group_product begins c [64,128] = a [64,16] b [128,16]ᵀ, or += where `add`; c is that of multiply_fragments, a warp having 16 rows. It
// must not be touched before group_wait.
#define NSA_GROUP_PRODUCT(type)                                                                                        \
  asm volatile("{.reg .pred p;\n.reg .b64 a, b;\nsetp.ne.b32 p, %66, 0;\n"                                          \
               "mov.b64 a, {%64, 0x40000040};\nmov.b64 b, {%65, 0x40000040};\n"                                                              \
               "wgmma.mma_async.sync.aligned.m64n128k16.f32." type "." type " {%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,"     \
               "%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31,%32,%33,%34,%35,"  \
               "%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,"  \
               "%61,%62,%63}, a, b, p, 1, 1, 0, 0;}\n"                                                             \
               : NSA_REGISTERS(c) : "r"(a), "r"(b), "r"(int(add)))
template <typename T> __device__ __forceinline__ void group_product(float (&c)[16][4], uint32_t a, uint32_t b, bool add) {
  if constexpr (std::is_same_v<T, bf16>) NSA_GROUP_PRODUCT("bf16");
  else NSA_GROUP_PRODUCT("f16");
}
// group_begin comes before the products, group_commit behind them; group_wait waits until they are in c.
__device__ __forceinline__ void group_begin() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void group_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void group_wait(float (&c)[16][4]) {
  asm volatile("wgmma.wait_group.sync.aligned 0;" : NSA_REGISTERS(c)::"memory");
}
// What this thread has written to shared memory is seen by products behind the next barrier.
__device__ __forceinline__ void group_fence() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

}  // namespace nsa
#endif
