// The instructions of mma.cuh for a host compiler: see cuda_on_host.h.
#pragma once

#include "cuda_on_host.h"

#define nsa_tiles_shared nsa_dynamic_shared  // which is aligned for tiles

namespace nsa {

inline uint32_t shared_address(const void* p) { return host_shared_address(p); }

inline void copy_async(uint32_t to, const void* from, int bytes) { host_copy(to, 16, from, bytes); }
inline void copy_cell(uint32_t to, const void* from, bool in) { host_copy(to, 16, from, in ? 16 : 0); }
inline void copy_cell_once(uint32_t to, const void* from, bool in) { copy_cell(to, from, in); }
inline void copy_number(float* to, const float* from) { host_copy(shared_address(to), 4, from, 4); }
inline void copy_pair(float2* to, const float2* from) { host_copy(shared_address(to), 8, from, 8); }
inline void copy_commit() { host_copy_commit(); }
template <int N> void copy_wait() { host_copy_wait(N); }

template <typename V> V host_load(uint32_t at) {
  V v;
  memcpy(&v, host_read(at, sizeof v), sizeof v);
  return v;
}
inline uint32_t shared_word(uint32_t at) { return host_load<uint32_t>(at); }
inline uint2 shared_pair(uint32_t at) { return host_load<uint2>(at); }
inline uint4 shared_cell(uint32_t at) { return host_load<uint4>(at); }
template <typename V> void store_shared(uint32_t to, V v) { memcpy(host_write(to, sizeof v), &v, sizeof v); }

struct HostMatrices { uint32_t* v; uint32_t from; };

// ldmatrix.x4: four 8x8 matrices of 2-byte elements, transposed or not.
template <bool Transposed> void read_fragments(uint32_t (&v)[4], uint32_t from) {
  HostMatrices mine{v, from};
  host_warp(&mine, [](void* const* lanes) {
    for (int i = 0; i < 4; i++) {
      uint16_t x[8][8];
      for (int r = 0; r < 8; r++) memcpy(x[r], host_read(static_cast<HostMatrices*>(lanes[8 * i + r])->from, 16), 16);
      for (int l = 0; l < 32; l++) {
        const int g = l / 4, t = l % 4;
        const uint16_t two[2] = {Transposed ? x[2 * t][g] : x[g][2 * t], Transposed ? x[2 * t + 1][g] : x[g][2 * t + 1]};
        memcpy(static_cast<HostMatrices*>(lanes[l])->v + i, two, 4);
      }
    }
  });
}

// movmatrix: an 8x8 matrix of 2-byte elements, transposed.
inline uint32_t transpose_fragment(uint32_t v) {
  host_warp(&v, [](void* const* lanes) {
    uint16_t x[8][8];
    for (int l = 0; l < 32; l++) memcpy(&x[l / 4][l % 4 * 2], lanes[l], 4);
    for (int l = 0; l < 32; l++) {
      const uint16_t two[2] = {x[l % 4 * 2][l / 4], x[l % 4 * 2 + 1][l / 4]};
      memcpy(lanes[l], two, 4);
    }
  });
  return v;
}

struct HostProduct { float* c; const uint32_t* a; uint32_t b[2]; };
template <typename T> void host_product(void* const* lanes);  // products.cc, since it takes more time than all else

// mma.m16n8k16: c [16,8] += a [16,16] b [16,8], one rounding a product, k ascending.
template <typename T> void multiply_fragments(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  HostProduct mine{c, a, {b0, b1}};
  host_warp(&mine, host_product<T>);
}

template <typename T> uint32_t pair(float x, float y) {
  const T both[2] = {from_float<T>(x), from_float<T>(y)};
  uint32_t v;
  memcpy(&v, both, sizeof v);
  return v;
}
template <typename T> void keep_nan(uint32_t& sum, uint32_t pair) {
  T s[2], x[2];
  memcpy(s, &sum, sizeof sum), memcpy(x, &pair, sizeof pair);
  for (int i = 0; i < 2; i++) s[i] = from_float<T>(fmaf(to_float(x[i]), 0, to_float(s[i])));
  memcpy(&sum, s, sizeof sum);
}
inline float power2(float x) { return x < -126 ? 0 : exp2f(x); }

}  // namespace nsa
