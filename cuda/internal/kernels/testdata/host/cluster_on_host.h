// What ../../cluster.cuh has, on the host: see cuda_on_host.h. The blocks of a cluster run together, in one thread of the host.
#pragma once

#include <cstddef>

void host_cluster_arrive();
void host_cluster_wait();
std::ptrdiff_t host_apart();  // bytes from the dynamic shared memory of a block to that of the next one

namespace nsa {

template <typename V> char* shared_of_block(V* shared) { return reinterpret_cast<char*>(shared) + blockIdx.x * host_apart(); }
inline void cluster_arrive() { host_cluster_arrive(); }
inline void cluster_wait() { host_cluster_wait(); }
template <typename V> V* peer(V* p, int block) {
  return reinterpret_cast<V*>(reinterpret_cast<char*>(p) + (block - int(blockIdx.x)) * host_apart());
}

}  // namespace nsa
