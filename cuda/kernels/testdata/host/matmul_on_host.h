// The instructions of matmul_mma.cuh for a host compiler: see cuda_on_host.h.
#pragma once

#include "tensor_on_host.h"

namespace nsa {

inline void copy_async(uint32_t to, const void* from, int bytes) { host_copy(to, 16, from, bytes); }
inline void copy_commit() { host_copy_commit(); }
template <int N> void copy_wait() { host_copy_wait(N); }
inline void store_shared(uint32_t to, uint4 v) { memcpy(host_write(to, sizeof v), &v, sizeof v); }
template <bool Transposed> void read_fragments(uint32_t (&v)[4], uint32_t from) { host_read_matrices<Transposed>(v, from); }
template <typename T> void multiply_fragments(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  host_multiply<T>(c, a, b0, b1);
}

}  // namespace nsa
