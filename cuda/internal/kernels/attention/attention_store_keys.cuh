// How kernels on tensor cores that own keys (dk and dv) write their sums: a warp has 16 keys, as fragments.
#pragma once

#include "attention_params.cuh"
#include "attention_mma.cuh"

namespace nsa {

// Writes f*x to dst + offset(key), c elements a key. The keys of this thread are `key` and key + 8; it skips those from `end` on.
// Returns whether one of this thread's numbers is NaN or Inf.
template <typename T, int C, class Offset>
__device__ bool store_keys16(T* dst, const float (&x)[C / 8][4], float f, int key, int end, int c, Offset offset) {
  uint32_t zeros = 0;
  float zero = 0;
#pragma unroll
  for (int r = 0; r < 2; r++) {
    if (key + 8 * r >= end) continue;
    T* row = dst + offset(key + 8 * r) + 2 * (lane() % 4);
#pragma unroll
    for (int j = 0; j < C / 8; j++)
      if (8 * j < c) {
        const float x0 = f * x[j][2 * r], x1 = f * x[j][2 * r + 1];
        if constexpr (sizeof(T) == 4) {
          *reinterpret_cast<float2*>(row + 8 * j) = make_float2(x0, x1);
          zero = fmaf(x1, 0, fmaf(x0, 0, zero));
        } else {
          const uint32_t x = pair<T>(x0, x1);
          *reinterpret_cast<uint32_t*>(row + 8 * j) = x;
          keep_nan<T>(zeros, x);
        }
      }
  }
  return zeros != 0 || zero != 0;
}

template <typename T, int C>
__device__ bool store_gradients(const AttentionParams& p, int b, int g, int key, int end, const float (&dk)[C / 8][4],
                                const float (&dv)[C / 8][4]) {
  const Sizes& n = p.n;
  return store_keys16<T, C>(static_cast<T*>(p.dk), dk, n.scale, key, end, n.d, [&](int s) { return n.key(b, g, s, n.d); }) |
         store_keys16<T, C>(static_cast<T*>(p.dv), dv, 1, key, end, n.dv, [&](int s) { return n.key(b, g, s, n.dv); });
}

// Writes the gradients to partial sums. `sums` points to the row of key `first`; a row has D+Dv numbers.
template <int C>
__device__ bool store_partial(float* sums, const Sizes& n, int first, int key, int end, const float (&dk)[C / 8][4],
                              const float (&dv)[C / 8][4]) {
  const int c = n.d + n.dv;
  const auto offset = [&](int s) { return (long long)(s - first) * c; };
  return store_keys16<float, C>(sums, dk, n.scale, key, end, n.d, offset) |
         store_keys16<float, C>(sums + n.d, dv, 1, key, end, n.dv, offset);
}

}  // namespace nsa
