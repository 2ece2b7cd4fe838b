// Kernels for bench that measure the most a device can do. Their results are of no use.
//
//   nsa_ceiling_read  every block reads the array `rounds` times from the L2 cache, bypassing L1
//   nsa_ceiling_exp   every thread computes kChains*rounds exponentials
#include "mma.cuh"

namespace nsa {

struct CeilingParams {
  const uint4* array;
  float* out; // written only for a result that never occurs, so that the compiler keeps the work
  int64_t cells; // 16-byte cells of the array, a multiple of 8*512
  int64_t rounds;
};

constexpr int kChains = 16;

}  // namespace nsa

extern "C" __global__ void __launch_bounds__(512) nsa_ceiling_read(const __grid_constant__ nsa::CeilingParams p) {
  uint32_t sum = 0;
  const int64_t tiles = p.cells / (8 * 512);
  for (int64_t i = 0; i < p.rounds * tiles; i++) {
    const uint4* from = p.array + (blockIdx.x * 7 + i) % tiles * (8 * 512) + threadIdx.x;  // blocks read different tiles
    uint4 x[8];
#pragma unroll
    for (int j = 0; j < 8; j++) x[j] = __ldcg(from + j * 512);
#pragma unroll
    for (int j = 0; j < 8; j++) sum |= x[j].x | x[j].y | x[j].z | x[j].w;
  }
  if (sum != 0) *p.out = 1;
}

extern "C" __global__ void __launch_bounds__(512) nsa_ceiling_exp(const __grid_constant__ nsa::CeilingParams p) {
  float x[nsa::kChains];
#pragma unroll
  for (int j = 0; j < nsa::kChains; j++) x[j] = -1.0f / float(1 + j + threadIdx.x);
  for (int64_t i = 0; i < p.rounds; i++)
#pragma unroll
    for (int j = 0; j < nsa::kChains; j++) x[j] = nsa::power2(-x[j]);
  float sum = 0;
#pragma unroll
  for (int j = 0; j < nsa::kChains; j++) sum += x[j];
  if (sum < 0) *p.out = sum;
}
