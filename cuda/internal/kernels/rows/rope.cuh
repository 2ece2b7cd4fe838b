// The rotations of rotary position embedding: the pair (2j, 2j+1) of a head [D] turns by the angle position * base^(-2j/D).
//
// The angle is a number of turns in float64, of which only the fraction goes on in float32: at position 2^20 it is as exact as
// at 0.
#pragma once

#include "documents.cuh"

namespace nsa {

// turns_of returns the turns of pair j from one position to the next.
__device__ __forceinline__ double turns_of(int j, int dim, double log2_base) {
  return exp2(-(2.0 * j / dim) * log2_base) * 0.15915494309189533577; // 1/(2 pi)
}

// fill_turns sets turns [dim/2], in shared memory, to those of each pair.
__device__ __forceinline__ void fill_turns(double* turns, int dim, double log2_base) {
  for (int j = threadIdx.x; j < dim / 2; j += blockDim.x) turns[j] = turns_of(j, dim, log2_base);
  __syncthreads();
}

// rotation_at returns cos and sin of the angle of a pair at a position; of the angle back with inverse.
__device__ __forceinline__ float2 rotation_at(double position, double turns, bool inverse) {
  const double turn = position * turns;
  float c, s;
  sincospif(2.0f * float(turn - rint(turn)), &s, &c);
  return {c, inverse ? -s : s};
}

// position_of returns the place t in its row of token i of all, or that in its document.
__device__ __forceinline__ int64_t position_of(const Document* documents, int64_t i, int64_t t) {
  return documents ? t - documents[i].first : t;
}

__device__ __forceinline__ void turn_pair(float& a, float& b, float2 rotation) {
  const float x = a;
  a = x * rotation.x - b * rotation.y;
  b = x * rotation.y + b * rotation.x;
}

} // namespace nsa
