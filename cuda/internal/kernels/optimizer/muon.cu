// The parts of a step of Muon other than matrix products. ops/spec/optimizer/muon.go has the equations and their sources.
//
//   muon_momentum     tensors, runs, hyper, norm -> m in place, u:  g = grad clip;  m = mu m + (1-mu) g;  u = mu m + (1-mu) g
//   muon_norm         gram [count,side,side] -> norms, float64 [count]; gram in place, each matrix divided by its norm
//   muon_polynomial   gram, square [count,side,side] -> p = a I + b gram + c square
//   muon_update       tensors, runs, hyper, norm -> weight, in place, and its half-precision copy, if there is one:
//                       weight = weight (1 - lr decay) - lr size/sqrt(gram_norm) update
//
// hyper and norm are those of adamw.cu. If the norm is not finite, u becomes zeros and weights and m do not change. Arrays are float32,
// except gradients and copies, which may be half precision. Norms are summed in float64 in a fixed order.
#include "step.cuh"

namespace nsa {

struct MuonTensor {
  float* weight;
  const void* grad;
  float* m;
  float* u;
  const float* update;
  const double* gram_norm;
  void* half; // half-precision copy of weight, or null
  int32_t grad_type;
  int32_t half_type;
  int32_t decay; // nonzero: the decay of hyper applies
  float size;    // 0.2 sqrt(max(rows, cols))
};

struct MuonParams {
  const MuonTensor* tensors;
  const AdamWRun* runs;
  const double* hyper;
  const double* norm;
  int64_t count; // number of runs
};

struct MuonNormParams {
  float* gram;
  double* norms;
  int64_t count;
  int64_t elements; // elements of one matrix
};

struct MuonPolynomialParams {
  const float* gram;
  const float* square;
  float* p;
  int64_t n; // elements of all matrices
  int64_t side;
  float a, b, c, pad;
};

} // namespace nsa

extern "C" __global__ void __launch_bounds__(256) nsa_muon_momentum_f32(const __grid_constant__ nsa::MuonParams p) {
  using namespace nsa;
  const double norm = *p.norm;
  const bool finite = isfinite(norm);
  const float mu = float(p.hyper[kMomentum]), grad_factor = finite ? float(1 - p.hyper[kMomentum]) * clip_of(p.hyper, norm) : 0.0f;
  for (int64_t r = block_from_end(); r < p.count; r += gridDim.x) {
    const AdamWRun run = p.runs[r];
    const MuonTensor t = p.tensors[run.tensor];
    for (int64_t i = run.first + threadIdx.x; i < run.first + run.n; i += blockDim.x) {
      if (!finite) {
        t.u[i] = 0;
        continue;
      }
      const float g = grad_factor * load_as(t.grad, t.grad_type, i), m = mu * t.m[i] + g;
      t.m[i] = m;
      t.u[i] = mu * m + g;
    }
  }
}

extern "C" __global__ void __launch_bounds__(1024) nsa_muon_norm_f32(const __grid_constant__ nsa::MuonNormParams p) {
  for (int64_t b = blockIdx.x; b < p.count; b += gridDim.x) {
    float* gram = p.gram + b * p.elements;
    double sum = 0;
    for (int64_t i = threadIdx.x; i < p.elements; i += blockDim.x) sum += double(gram[i]) * double(gram[i]);
    const double norm = fmax(sqrt(nsa::group_reduce<nsa::Sum>(sum)), 1e-38); // at least 1e-38, so that a matrix of zeros stays zeros
    if (threadIdx.x == 0) p.norms[b] = norm;
    const float scale = float(1 / norm);
    for (int64_t i = threadIdx.x; i < p.elements; i += blockDim.x) gram[i] *= scale;
  }
}

extern "C" __global__ void __launch_bounds__(256) nsa_muon_polynomial_f32(const __grid_constant__ nsa::MuonPolynomialParams p) {
  const int64_t elements = p.side * p.side;
  for (int64_t i = int64_t(blockIdx.x) * blockDim.x + threadIdx.x; i < p.n; i += int64_t(gridDim.x) * blockDim.x) {
    const float diagonal = i % elements % (p.side + 1) == 0 ? p.a : 0.0f;
    p.p[i] = p.c * p.square[i] + p.b * p.gram[i] + diagonal;
  }
}

extern "C" __global__ void __launch_bounds__(256) nsa_muon_update_f32(const __grid_constant__ nsa::MuonParams p) {
  using namespace nsa;
  if (!isfinite(*p.norm)) return;
  const double lr = p.hyper[kLR];
  for (int64_t r = block_from_end(); r < p.count; r += gridDim.x) {
    const AdamWRun run = p.runs[r];
    const MuonTensor t = p.tensors[run.tensor];
    const float keep = t.decay != 0 ? float(1 - lr * p.hyper[kDecay]) : 1.0f, scale = float(lr * double(t.size) / sqrt(*t.gram_norm));
    for (int64_t i = run.first + threadIdx.x; i < run.first + run.n; i += blockDim.x) {
      const float w = t.weight[i] * keep - scale * t.update[i];
      t.weight[i] = w;
      if (t.half != nullptr) store_as(t.half, t.half_type, i, w);
    }
  }
}
