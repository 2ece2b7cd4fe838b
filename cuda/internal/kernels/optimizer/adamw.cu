// One step of AdamW (arXiv 1711.05101) over all tensors, after clipping by the global norm of the gradients.
//
//   adamw_squares   tensors, runs -> squares, float64 [runs]: the sum of squares of each run of a gradient
//   adamw_norm      squares, hyper -> norm, float64 [1]: the norm of all gradients, times unscale
//   adamw_update    tensors, updates, hyper, norm -> weight, m, v, in place, and the half-precision copy of weight, if there is one:
//                     g = grad unscale min(1, clip/(norm + 1e-6));  m = beta1 m + (1-beta1) g;  v = beta2 v + (1-beta2) g²
//                     weight -= lr (m c1/(sqrt(v c2) + eps) + decay weight)
//
// hyper is float64 [10]: lr, beta1, beta2, eps, decay, clip (0: none), c1, c2, unscale, momentum of Muon. If the norm is not finite,
// adamw_update changes nothing. `runs` covers all tensors; `updates` covers the tensors that take no step of Muon (muon.cu). Weights
// and moments are float32, gradients float32 or half precision. A run is up to 16384 elements of one tensor, for one block of threads.
// Squares are summed in float64 in a fixed order: by each thread, ascending; over the block by group_reduce; over the runs likewise.
#include "step.cuh"

namespace nsa {

struct AdamWTensor {
  float* weight;
  const void* grad;
  float* m;
  float* v;
  void* half; // half-precision copy of weight, or null
  int64_t n;
  int32_t grad_type;
  int32_t half_type;
  int32_t decay; // nonzero: the decay of hyper applies
  int32_t pad;
};

struct AdamWParams {
  const AdamWTensor* tensors;
  const AdamWRun* runs;
  const AdamWRun* updates;
  const double* hyper;
  double* squares;
  double* norm;
  int64_t count; // number of runs
  int64_t update_count;
};

template <typename T> __device__ __forceinline__ double squares_of(const T* g, int64_t n) {
  double sum = 0;
  strided<T>(threadIdx.x, blockDim.x, n, aligned(g), [&](auto width, int64_t i) {
    constexpr int W = decltype(width)::value;
    float v[W];
    read<W>(g + i, v);
#pragma unroll
    for (int j = 0; j < W; ++j) sum += double(v[j]) * double(v[j]);
  });
  return sum;
}

struct AdamWStep {
  float lr, beta1, beta2, eps, decay, clip, c1, c2;

  __device__ __forceinline__ void apply(float& weight, float grad, float& m, float& v) const {
    const float g = grad * clip;
    m = beta1 * m + (1.0f - beta1) * g;
    v = beta2 * v + (1.0f - beta2) * g * g;
    weight -= lr * (m * c1 / (sqrtf(v * c2) + eps) + decay * weight);
  }
};

} // namespace nsa

extern "C" __global__ void __launch_bounds__(256) nsa_adamw_squares_f32(const __grid_constant__ nsa::AdamWParams p) {
  using namespace nsa;
  for (int64_t r = blockIdx.x; r < p.count; r += gridDim.x) {
    const AdamWRun run = p.runs[r];
    const AdamWTensor& t = p.tensors[run.tensor];
    double sum;
    if (t.grad_type == kF32) sum = squares_of(static_cast<const float*>(t.grad) + run.first, run.n);
    else if (t.grad_type == kBF16) sum = squares_of(static_cast<const bf16*>(t.grad) + run.first, run.n);
    else sum = squares_of(static_cast<const f16*>(t.grad) + run.first, run.n);
    sum = group_reduce<Sum>(sum);
    if (threadIdx.x == 0) p.squares[r] = sum;
  }
}

extern "C" __global__ void __launch_bounds__(1024) nsa_adamw_norm_f64(const __grid_constant__ nsa::AdamWParams p) {
  double sum = 0;
  for (int64_t i = threadIdx.x; i < p.count; i += blockDim.x) sum += p.squares[i];
  sum = nsa::group_reduce<nsa::Sum>(sum);
  if (threadIdx.x == 0) *p.norm = sqrt(sum) * p.hyper[nsa::kUnscale];
}

extern "C" __global__ void __launch_bounds__(256) nsa_adamw_update_f32(const __grid_constant__ nsa::AdamWParams p) {
  using namespace nsa;
  const double norm = *p.norm;
  if (!isfinite(norm)) return;
  const double* h = p.hyper;
  AdamWStep step{float(h[kLR]), float(h[kBeta1]), float(h[kBeta2]), float(h[kEps]), 0, clip_of(h, norm), float(h[kC1]), float(h[kC2])};
  const float decay = float(h[kDecay]);
  for (int64_t r = block_from_end(); r < p.update_count; r += gridDim.x) {
    const AdamWRun run = p.updates[r];
    const AdamWTensor t = p.tensors[run.tensor];
    step.decay = t.decay != 0 ? decay : 0.0f;
    const bool wide = aligned(t.weight, t.m, t.v);
    strided<float>(threadIdx.x, blockDim.x, run.n, wide, [&](auto width, int64_t at) {
      constexpr int W = decltype(width)::value;
      const int64_t i = run.first + at;
      float w[W], m[W], v[W];
      read<W>(t.weight + i, w);
      read<W>(t.m + i, m);
      read<W>(t.v + i, v);
#pragma unroll
      for (int j = 0; j < W; ++j) step.apply(w[j], load_as(t.grad, t.grad_type, i + j), m[j], v[j]);
      write<W>(t.weight + i, w);
      write<W>(t.m + i, m);
      write<W>(t.v + i, v);
      if (t.half != nullptr) {
#pragma unroll
        for (int j = 0; j < W; ++j) store_as(t.half, t.half_type, i + j, w[j]);
      }
    });
  }
}
