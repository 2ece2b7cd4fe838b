// Rotations of rotary position embedding: the pair (2j, 2j+1) of a head [D] is rotated by the angle position * base^(-2j/D), which a Scaling
// may divide.
//
// The angle is computed as a number of full turns in float64, and only its fraction is rounded to float32. So it is as exact at position
// 2^20 as at 0.
#pragma once

#include "documents.cuh"

namespace nsa {

// The base of the angles and the terms of pointwise.RoPEScaling.
struct Rotary {
  double log2_base, a, n, low, b;
};

// turns_of returns the full turns of pair j from one position to the next.
__device__ __forceinline__ double turns_of(int j, int dim, const Rotary& rotary) {
  const double turns = exp2(-(2.0 * j / dim) * rotary.log2_base) * 0.15915494309189533577; // 1/(2 pi)
  const double t = fmin(fmax((rotary.n * turns - rotary.low) * rotary.b, 0.0), 1.0);
  return turns * (t + (1 - t) * rotary.a);
}

// fill_turns sets turns [dim/2], in shared memory, to turns_of each pair. All threads call it; it ends with a barrier.
__device__ __forceinline__ void fill_turns(double* turns, int dim, const Rotary& rotary) {
  for (int j = threadIdx.x; j < dim / 2; j += blockDim.x) turns[j] = turns_of(j, dim, rotary);
  __syncthreads();
}

// rotation_at returns cos and sin of the angle of a pair at a position; with `inverse` of minus this angle.
__device__ __forceinline__ float2 rotation_at(double position, double turns, bool inverse) {
  const double turn = position * turns;
  float c, s;
  sincospif(2.0f * float(turn - rint(turn)), &s, &c);
  return {c, inverse ? -s : s};
}

// position_of returns the position of token i within its document; without documents that is t, its place in the batch row.
__device__ __forceinline__ int64_t position_of(const Document* documents, int64_t i, int64_t t) {
  return documents ? t - documents[i].first : t;
}

__device__ __forceinline__ void rotate_pair(float& a, float& b, float2 rotation) {
  const float x = a;
  a = x * rotation.x - b * rotation.y;
  b = x * rotation.y + b * rotation.x;
}

} // namespace nsa
