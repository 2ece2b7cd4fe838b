// The instructions of attention_mma.cuh for a host compiler: see cuda_on_host.h.
#pragma once

#include "tensor_on_host.h"

#define nsa_tiles_shared nsa_dynamic_shared  // which is aligned for tiles

namespace nsa {

template <typename V> V host_load(uint32_t at) {
  V x;
  memcpy(&x, host_read(at, sizeof x), sizeof x);
  return x;
}
inline unsigned shared_word(uint32_t at) { return host_load<unsigned>(at); }
inline uint4 shared_cell(uint32_t at) { return host_load<uint4>(at); }
inline void store_word(uint32_t at, unsigned x) { memcpy(host_write(at, sizeof x), &x, sizeof x); }

inline void copy_cell(uint32_t to, const void* from, bool in) { host_copy(to, 16, from, in ? 16 : 0); }
inline void copy_number(float* to, const float* from) { host_copy(shared_address(to), 4, from, 4); }
inline void copies_arrived() {
  host_copy_commit();
  host_copy_wait(0);
}

inline void ldmatrix(unsigned (&x)[4], uint32_t at) { host_read_matrices<false>(x, at); }
inline void ldmatrix_transposed(unsigned (&x)[4], uint32_t at) { host_read_matrices<true>(x, at); }
template <typename T> void mma(float (&sum)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
  host_multiply<T>(sum, a, b0, b1);
}

template <typename T> unsigned pair(float x, float y) {
  const T both[2] = {from_float<T>(x), from_float<T>(y)};
  unsigned u;
  memcpy(&u, both, sizeof u);
  return u;
}
inline float power2(float x) { return x < -126 ? 0 : exp2f(x); }

}  // namespace nsa
