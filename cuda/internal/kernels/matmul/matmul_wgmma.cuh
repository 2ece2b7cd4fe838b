// Instructions of sm_90a for matrix products, beside those of attention_wgmma.cuh: copies to all blocks of a cluster and arrivals at their
// barriers, products of two tiles of either layout, and stores by tensor maps.
#pragma once

#include "../attention/attention_wgmma_tiles.cuh"
#include "../cluster.cuh"

#ifndef __CUDACC__
#include <matmul_wgmma_on_host.h>
#else
namespace nsa {

// meet_cluster is a barrier of all threads of a cluster that orders no memory accesses: for barriers that barriers_ready has made visible,
// and before blocks end.
__device__ __forceinline__ void meet_cluster() {
  asm volatile("barrier.cluster.arrive.relaxed.aligned;\nbarrier.cluster.wait.aligned;" ::: "memory");
}
// Arrives at the barrier that has the address `at` in another block of the cluster. It orders no writes to memory.
__device__ __forceinline__ void barrier_arrive_at(uint32_t at, int block) {
  asm volatile("{.reg .b32 to;\n"
               "mapa.shared::cluster.u32 to, %0, %1;\n"
               "mbarrier.arrive.shared::cluster.b64 _, [to];}" ::"r"(at), "r"(block) : "memory");
}

// copy_box to the same address in each of the first N blocks of the cluster. In each of them the barrier counts the bytes that arrive.
template <int N> __device__ __forceinline__ void copy_box_to_blocks(uint32_t to, const void* map, uint32_t barrier, int c, int g, int t, int b) {
  asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%0], [%1, {%2,%3,%4,%5}], [%6], %7;"
               ::"r"(to), "l"(map), "r"(c), "r"(g), "r"(t), "r"(b), "r"(barrier), "h"(uint16_t((1 << N) - 1)) : "memory");
}

// Begins to store a box from shared memory. store_commit closes a group of stores. store_wait_read waits until all groups of this thread
// except the newest N have read the shared memory.
__device__ __forceinline__ void store_box(const void* map, uint32_t from, int c, int g, int t, int b) {
  asm volatile("cp.async.bulk.tensor.4d.global.shared::cta.bulk_group [%0, {%1,%2,%3,%4}], [%5];"
               ::"l"(map), "r"(c), "r"(g), "r"(t), "r"(b), "r"(from) : "memory");
}
__device__ __forceinline__ void store_commit() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }
template <int N> __device__ __forceinline__ void store_wait_read() { asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(N) : "memory"); }

// store_matrices (stmatrix) writes four 8x8 matrices of 2-byte elements, which lanes hold in the layout of read_fragments. Lane l passes the
// address of row l%8 of matrix l/8.
__device__ __forceinline__ void store_matrices(uint32_t to, const uint32_t (&v)[4]) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1,%2,%3,%4};" ::"r"(to), "r"(v[0]), "r"(v[1]), "r"(v[2]), "r"(v[3]) : "memory");
}
__device__ __forceinline__ void store_shared(uint32_t to, float2 v) {
  asm volatile("st.shared.v2.f32 [%0], {%1,%2};" ::"r"(to), "f"(v.x), "f"(v.y) : "memory");
}

__device__ __forceinline__ float2 load_shared(uint32_t from) {
  float2 v;
  asm volatile("ld.shared.v2.f32 {%0,%1}, [%2];" : "=f"(v.x), "=f"(v.y) : "r"(from) : "memory");
  return v;
}

// WgmmaTiles<T, N> has the products of depth 16 of tiles a and b, with sums d [64,N] as in Wgmma. a is [64,16] or, with TransA, [16,64];
// b is [16,N] or, with TransB, [N,16]. With add = 0 the sums are overwritten.
template <typename T, int N> struct WgmmaTiles;
#define NSA_WGMMA_TILES(T, type, N, a_, b_, add_, ta_, tb_)                                                             \
  template <> struct WgmmaTiles<T, N> {                                                                                 \
    template <bool TransA, bool TransB>                                                                                 \
    static __device__ __forceinline__ void multiply(float (&d)[N / 8][4], uint64_t a, uint64_t b, int add) {            \
      asm volatile("{.reg .pred p; setp.ne.b32 p, " add_ ", 0;\n"                                                       \
                   "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." type "." type " {" NSA_NAMES_##N "}, " a_ ", " b_  \
                   ", p, 1, 1, " ta_ ", " tb_ ";}"                                                                      \
                   : NSA_SUMS_##N : "l"(a), "l"(b), "r"(add), "n"(TransA ? 1 : 0), "n"(TransB ? 0 : 1));                \
    }                                                                                                                   \
  };
NSA_WGMMA_TILES(bf16, "bf16", 128, "%64", "%65", "%66", "%67", "%68")

}  // namespace nsa
#endif
