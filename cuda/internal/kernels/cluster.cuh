// Clusters (compute capability 9.0): blocks that run at the same time and can write to each other's shared memory. Here a cluster is all
// blocks of the grid with the same blockIdx.y and blockIdx.z.
#pragma once

#include "common.cuh"

// NSA_CLUSTERS is defined if code for clusters is compiled. In code for other devices these kernels are empty.
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
#define NSA_CLUSTERS 1
#endif

#ifdef __CUDACC__
namespace nsa {

// The beginning of the block's shared memory. The twin for tests on the host returns the part that belongs to the block.
template <typename V> __device__ __forceinline__ char* shared_of_block(V* shared) { return reinterpret_cast<char*>(shared); }

#ifdef NSA_CLUSTERS
// The two halves of a barrier of all threads of a cluster. Writes before cluster_arrive, also to the shared memory of other blocks, are
// visible to all threads after cluster_wait.
__device__ __forceinline__ void cluster_arrive() { asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory"); }
__device__ __forceinline__ void cluster_wait() { asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory"); }

// peer returns the address, in the shared memory of another block, that corresponds to p in this block. It may be written from a cluster
// barrier on, which shows that all blocks have begun, until that block ends.
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
