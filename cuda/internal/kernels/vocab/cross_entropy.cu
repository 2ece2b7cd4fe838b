// Mean cross entropy in nats over the rows whose target is not -1: logits [rows,V], targets int32 [rows].
//
//   cross_entropy        logits, targets -> lse [rows], row_loss [rows] (0 if the target is -1)
//   cross_entropy_mean   row_loss, targets -> loss [1] = sum(row_loss)/max(1, count)
//   cross_entropy_scale  targets, dloss [1] -> scale [1] = dloss/max(1, count)
//   cross_entropy_grad   logits, targets, lse, scale -> dlogits = (exp(logits - lse) - onehot(target)) scale; 0 if the target is -1
//
// Outputs are written with =. dlogits are T, all other arrays float32, because in bf16 a logit of 8 is off by up to 1/32. The forward saves
// lse. A target outside [-1,V) makes the loss and its row of dlogits NaN. One block sums the mean in float64; group_reduce adds up its
// threads.
//
// A large lse is too coarse in float32: at 1e6 it is off by up to 1/32. For rows with such an lse the gradient computes the maximum and
// the sum again.
#include "row_softmax.cuh"

namespace nsa {

struct CrossEntropyParams {
  const float* logits;
  const int32_t* targets;
  float* lse;
  float* row_loss;
  int64_t rows;
  int64_t vocab;
};

struct CrossEntropyMeanParams {
  const float* row_loss;
  const int32_t* targets;
  float* loss;
  int64_t rows;
};

struct CrossEntropyScaleParams {
  const int32_t* targets;
  const float* dloss;
  float* scale;
  int64_t rows;
};

struct CrossEntropyGradParams {
  const float* logits;
  const int32_t* targets;
  const float* lse;
  const float* scale;
  void* dlogits;
  int64_t rows;
  int64_t vocab;
};

constexpr float kLargeLSE = 64; // as `large` of package ops

template <typename T> __device__ void cross_entropy_grad(const CrossEntropyGradParams& p) {
  const bool wide = p.vocab % kLanes<T> == 0 && aligned(p.logits, p.dlogits);
  const float scale = *p.scale;
  each_row(p.rows, [&](int64_t r) {
    const float* x = p.logits + r * p.vocab;
    T* dx = static_cast<T*>(p.dlogits) + r * p.vocab;
    const int32_t target = p.targets[r];
    float lse = p.lse[r], norm = 1; // a probability is norm*exp(x - lse)
    if (fabsf(lse) > kLargeLSE && fabsf(lse) < INFINITY) {
      const bool floats = p.vocab % kLanes<float> == 0 && aligned(p.logits);
      lse = row_max(x, p.vocab, floats), norm = 1 / row_exp_sum(x, p.vocab, floats, lse);
    }
    const float by = target == -1 ? 0.0f : (target >= 0 && target < p.vocab) ? scale : NAN;
    along_row<T>(p.vocab, wide, [&](auto width, int64_t i) {
      constexpr int W = decltype(width)::value;
      float v[W];
      read<W>(x + i, v);
#pragma unroll
      for (int j = 0; j < W; ++j) {
        const float d = norm * expf(v[j] - lse) - (i + j == target ? 1.0f : 0.0f);
        v[j] = target == -1 ? 0.0f : d * by;
      }
      write<W>(dx + i, v);
    });
  });
}

__device__ __forceinline__ int64_t count_targets(const int32_t* targets, int64_t rows) {
  int64_t count = 0;
  for (int64_t i = threadIdx.x; i < rows; i += blockDim.x) count += targets[i] >= 0;
  return group_reduce<Sum>(count);
}

} // namespace nsa

extern "C" __global__ void __launch_bounds__(512) nsa_cross_entropy_f32(const __grid_constant__ nsa::CrossEntropyParams p) {
  using namespace nsa;
  const bool wide = p.vocab % kLanes<float> == 0 && aligned(p.logits);
  each_row(p.rows, [&](int64_t r) {
    const float* x = p.logits + r * p.vocab;
    const float top = row_max(x, p.vocab, wide), sum = row_exp_sum(x, p.vocab, wide, top);
    if (threadIdx.x == 0) {
      const float log_sum = logf(sum);
      const int32_t target = p.targets[r];
      p.lse[r] = top + log_sum;
      float loss = 0;
      if (target >= 0 && target < p.vocab) loss = (top - x[target]) + log_sum;
      else if (target != -1) loss = NAN;
      p.row_loss[r] = loss;
    }
  });
}

extern "C" __global__ void __launch_bounds__(1024)
    nsa_cross_entropy_mean_f32(const __grid_constant__ nsa::CrossEntropyMeanParams p) {
  double sum = 0;
  for (int64_t i = threadIdx.x; i < p.rows; i += blockDim.x) sum += double(p.row_loss[i]);
  sum = nsa::group_reduce<nsa::Sum>(sum);
  const int64_t count = nsa::count_targets(p.targets, p.rows);
  if (threadIdx.x == 0) *p.loss = float(sum / double(count > 1 ? count : 1));
}

extern "C" __global__ void __launch_bounds__(1024)
    nsa_cross_entropy_scale_f32(const __grid_constant__ nsa::CrossEntropyScaleParams p) {
  const int64_t count = nsa::count_targets(p.targets, p.rows);
  if (threadIdx.x == 0) *p.scale = *p.dloss / float(count > 1 ? count : 1);
}

NSA_KERNEL(cross_entropy_grad, CrossEntropyGradParams, 512)
