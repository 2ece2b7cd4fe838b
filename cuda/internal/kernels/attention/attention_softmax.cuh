// The softmax of a row that sees its keys part by part (online softmax, arXiv 1805.02867), in powers of two: logits
// arrive times scale*log2(e). The two rules of rows that see nothing are here and nowhere else:
//
//   1. forward: o = 0 and lse = -Inf. No exponential is taken below a maximum of -Inf.
//   2. backward: such an lse is loaded as +Inf, so that exp(logit - lse) = 0.
//
// Logits of -Inf are as if not seen; a NaN stays one.
#pragma once

namespace nsa {

constexpr float kLog2E = 1.44269504088896340736f, kLn2 = 0.69314718055994530942f;

struct Softmax {
  float top, sum;  // the largest logit so far, the sum of the exponentials below it

  __device__ void start() { top = -INFINITY, sum = 0; }

  // What exponentials are taken below: exp2f(x - base()).
  __device__ float base() const { return top == -INFINITY ? 0 : top; }

  // Raises the maximum to that of new logits; returns the factor of what was accumulated before.
  __device__ float raise(float x) {
    const float before = top;
    top = fmaxf(top, x);
    const float factor = before == -INFINITY ? 1 : exp2f(before - top);
    sum *= factor;
    return factor;
  }

  // The factor of the accumulated values at the end.
  __device__ float norm() const { return sum == 0 ? 0 : 1 / sum; }
  __device__ float lse() const { return sum == 0 ? -INFINITY : top * kLn2 + logf(sum); }
};

// An lse for exp2f(x - load_lse(lse)), x as above.
__device__ inline float load_lse(float lse) { return lse == -INFINITY ? INFINITY : lse * kLog2E; }

}  // namespace nsa
