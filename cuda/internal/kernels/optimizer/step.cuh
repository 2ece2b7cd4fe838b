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

// The elements of hyper, as adamw.cu describes them; their order is that of optimizer.Hyper.
enum AdamWHyper { kLR, kBeta1, kBeta2, kEps, kDecay, kClip, kC1, kC2, kUnscale, kMomentum };

// clip_of returns the factor that unscales and clips gradients. norm is that of all gradients.
__device__ __forceinline__ float clip_of(const double* hyper, double norm) {
  if (hyper[kClip] > 0) return float(hyper[kUnscale] * fmin(1.0, hyper[kClip] / (norm + 1e-6)));
  return float(hyper[kUnscale]);
}

} // namespace nsa
