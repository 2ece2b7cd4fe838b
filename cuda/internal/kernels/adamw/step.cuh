// What the kernels of an optimizer's step share.
#pragma once

#include "common.cuh"

namespace nsa {

// AdamWRun is a run of up to 16384 elements of one tensor, for one block of threads.
struct AdamWRun {
  int64_t first; // element of the tensor
  int32_t tensor;
  int32_t n;
};

// clip_of returns the factor that unscales and clips gradients. hyper is described in adamw.cu; norm is that of all gradients.
__device__ __forceinline__ float clip_of(const double* hyper, double norm) {
  if (hyper[5] > 0) return float(hyper[8] * fmin(1.0, hyper[5] / (norm + 1e-6)));
  return float(hyper[8]);
}

} // namespace nsa
