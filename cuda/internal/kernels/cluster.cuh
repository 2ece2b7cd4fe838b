// Clusters: blocks that run at the same time and write to each other's shared memory, from compute capability 9.0 on. A cluster is all
// blocks of the grid with the same blockIdx.y and .z.
#pragma once

#include "common.cuh"

// NSA_CLUSTERS tells whether code for clusters is compiled: kernels of other devices are empty.
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
#define NSA_CLUSTERS 1
#endif

#ifdef __CUDACC__
namespace nsa {

// What shared memory begins with: on a host each block has its own part of it.
template <typename V> __device__ __forceinline__ char* shared_of_block(V* shared) { return reinterpret_cast<char*>(shared); }

#ifdef NSA_CLUSTERS
// A barrier of all threads of a cluster in two halves: what threads have written before they arrive, their own block's and others' shared
// memory included, is there for all that have waited.
__device__ __forceinline__ void cluster_arrive() { asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory"); }
__device__ __forceinline__ void cluster_wait() { asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory"); }

// peer is the place in the shared memory of another block that p is in this one's. It can be written from when all blocks have begun, which a
// cluster barrier tells, until its block ends.
template <typename V> __device__ __forceinline__ V* peer(V* p, int block) {
  uint64_t at;
  asm("mapa.u64 %0, %1, %2;" : "=l"(at) : "l"(p), "r"(block));
  return reinterpret_cast<V*>(at);
}
#endif

}  // namespace nsa
#else
#include <cluster_on_host.h>
#endif
