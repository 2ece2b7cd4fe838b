// Instructions for kernels on tensor cores, from sm_80 on: asynchronous copies to shared memory, reads of fragments, products of two
// fragments, and conversions of their results. Addresses in shared memory are 32-bit. In matrix layouts l is the lane.
#pragma once

#include "common.cuh"

#ifndef __CUDACC__
#include <mma_on_host.h>
#else
namespace nsa {

__device__ __forceinline__ uint32_t shared_address(const void* p) { return uint32_t(__cvta_generic_to_shared(p)); }

// copy_async begins to copy the first `bytes`, 0 to 16, of 16 aligned bytes to shared memory; the rest of the 16 becomes 0. With
// bytes = 0 nothing is read. The surrounding 128 bytes are prefetched to the L2 cache.
__device__ __forceinline__ void copy_async(uint32_t to, const void* from, int bytes) {
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(bytes) : "memory");
}
// copy_cell is copy_async of 16 bytes if `in`, else of none, without the prefetch.
__device__ __forceinline__ void copy_cell(uint32_t to, const void* from, bool in) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(in ? 16 : 0) : "memory");
}
// copy_cell_once is copy_cell for numbers that are read once: what else lies in the L2 cache stays there longer.
__device__ __forceinline__ void copy_cell_once(uint32_t to, const void* from, bool in) {
  uint64_t policy;
  asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
  asm volatile("cp.async.cg.shared.global.L2::cache_hint [%0], [%1], 16, %2, %3;" ::"r"(to), "l"(from), "r"(in ? 16 : 0), "l"(policy) : "memory");
}
// copy_number begins to copy 4 bytes.
__device__ __forceinline__ void copy_number(float* to, const float* from) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(shared_address(to)), "l"(from) : "memory");
}
// copy_pair begins to copy 8 bytes.
__device__ __forceinline__ void copy_pair(float2* to, const float2* from) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 8;" ::"r"(shared_address(to)), "l"(from) : "memory");
}
// copy_commit closes a group of copies. copy_wait waits until all groups of this thread except the newest N are complete.
__device__ __forceinline__ void copy_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int N> __device__ __forceinline__ void copy_wait() { asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory"); }

__device__ __forceinline__ uint32_t shared_word(uint32_t at) {
  uint32_t v;
  asm volatile("ld.shared.b32 %0, [%1];" : "=r"(v) : "r"(at) : "memory");
  return v;
}
__device__ __forceinline__ uint2 shared_pair(uint32_t at) {
  uint2 v;
  asm volatile("ld.shared.v2.b32 {%0,%1}, [%2];" : "=r"(v.x), "=r"(v.y) : "r"(at) : "memory");
  return v;
}
__device__ __forceinline__ uint4 shared_cell(uint32_t at) {
  uint4 v;
  asm volatile("ld.shared.v4.b32 {%0,%1,%2,%3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "r"(at) : "memory");
  return v;
}
__device__ __forceinline__ void store_shared(uint32_t to, uint32_t v) {
  asm volatile("st.shared.b32 [%0], %1;" ::"r"(to), "r"(v) : "memory");
}
__device__ __forceinline__ void store_shared(uint32_t to, uint4 v) {
  asm volatile("st.shared.v4.b32 [%0], {%1,%2,%3,%4};" ::"r"(to), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w) : "memory");
}

// read_fragments (ldmatrix) reads four 8x8 matrices of 2-byte elements. Lane l passes the address of row l%8 of matrix l/8. It gets the
// elements (l/4, 2*(l%4)) and (l/4, 2*(l%4) + 1) of matrix i in v[i]; with Transposed, those of its transpose.
template <bool Transposed> __device__ __forceinline__ void read_fragments(uint32_t (&v)[4], uint32_t from) {
  if constexpr (Transposed) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(v[0]), "=r"(v[1]), "=r"(v[2]), "=r"(v[3]) : "r"(from) : "memory");
  } else {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(v[0]), "=r"(v[1]), "=r"(v[2]), "=r"(v[3]) : "r"(from) : "memory");
  }
}

// transpose_fragment (movmatrix) transposes an 8x8 matrix of 2-byte elements, which lanes hold in the layout of read_fragments.
__device__ __forceinline__ uint32_t transpose_fragment(uint32_t v) {
  uint32_t w;
  asm("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(w) : "r"(v));
  return w;
}

// multiply_fragments (mma.m16n8k16): c [16,8] += a [16,16] · b [16,8], with float32 sums. A lane has row l/4 of c in c[0] and c[1], row
// l/4 + 8 in c[2] and c[3]; columns 2*(l%4) and 2*(l%4) + 1.
template <typename T>
__device__ __forceinline__ void multiply_fragments(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1);
template <>
__device__ __forceinline__ void multiply_fragments<bf16>(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
template <>
__device__ __forceinline__ void multiply_fragments<f16>(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// pair rounds two numbers to T and packs them into one register, the first in the lower half.
template <typename T> __device__ __forceinline__ uint32_t pair(float x, float y);
template <> __device__ __forceinline__ uint32_t pair<bf16>(float x, float y) {
  uint32_t v;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(v) : "f"(y), "f"(x));
  return v;
}
template <> __device__ __forceinline__ uint32_t pair<f16>(float x, float y) {
  uint32_t v;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(v) : "f"(y), "f"(x));
  return v;
}

// keep_nan adds 0 times each number of a pair to the halves of sum. They start at 0, stay 0 while all numbers are finite, and become NaN
// with the first NaN or Inf.
template <typename T> __device__ __forceinline__ void keep_nan(uint32_t& sum, uint32_t pair);
template <> __device__ __forceinline__ void keep_nan<bf16>(uint32_t& sum, uint32_t pair) {
  asm("fma.rn.bf16x2 %0, %1, %2, %0;" : "+r"(sum) : "r"(pair), "r"(0));
}
template <> __device__ __forceinline__ void keep_nan<f16>(uint32_t& sum, uint32_t pair) {
  asm("fma.rn.f16x2 %0, %1, %2, %0;" : "+r"(sum) : "r"(pair), "r"(0));
}

// power2 is 2^x with a relative error of 2^-22; results below 2^-126 are 0.
__device__ __forceinline__ float power2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

} // namespace nsa
#endif

namespace nsa {

// transpose_quad transposes words among the four lanes of a quad: y[i] of lane j becomes y[j] of lane i.
__device__ inline void transpose_quad(uint32_t (&y)[4]) {
#pragma unroll
  for (int bit = 1; bit < 4; bit *= 2)
#pragma unroll
    for (int i = 0; i < 4; i++) {
      if (i & bit) continue;
      const bool upper = threadIdx.x & bit;
      const uint32_t other = __shfl_xor_sync(0xffffffff, upper ? y[i] : y[i + bit], bit);
      (upper ? y[i] : y[i + bit]) = other;
    }
}

}  // namespace nsa
