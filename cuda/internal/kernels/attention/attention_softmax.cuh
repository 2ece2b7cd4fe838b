// The softmax of a row that sees its keys part by part (online softmax, arXiv 1805.02867). Logits are products q·k, before
// the scale: the scale is applied to the difference of two of them, as scaling both first would round each by 2^-24 of
// itself, which is more than the exponent may be off where logits are large. The two rules of rows that see nothing are here
// and nowhere else:
//
//   1. forward: o = 0 and lse = -Inf. No exponential is taken below a maximum of -Inf.
//   2. backward: such an lse is loaded as +Inf, so that exp(logit - lse) = 0.
//
// Logits of -Inf are as if not seen; a NaN stays one.
#pragma once

namespace nsa {

constexpr float kLog2E = 1.44269504088896340736f;

struct Softmax {
  float top, sum;  // the largest logit so far, the sum of the exponentials below it

  __device__ void start() { top = -INFINITY, sum = 0; }

  // What exponentials are taken below: exp2f((x - base()) * scale), with a scale for powers of two.
  __device__ float base() const { return top == -INFINITY ? 0 : top; }

  // Raises the maximum to that of new logits; returns the factor of what was accumulated before.
  __device__ float raise(float x, float scale) {
    const float before = top;
    top = fmaxf(top, x);
    const float factor = before == -INFINITY ? 1 : exp2f((before - top) * scale);
    sum *= factor;
    return factor;
  }

  // The factor of the accumulated values at the end.
  __device__ float norm() const { return sum == 0 ? 0 : 1 / sum; }
  // The natural log of the sum of exp(scale * logit). The product is rounded as exponent() does it.
  __device__ float lse(float scale) const {
    return sum == 0 ? -INFINITY : __fadd_rn(__fmul_rn(top, scale), logf(sum));
  }
};

__device__ inline float load_lse(float lse) { return lse == -INFINITY ? INFINITY : lse; }

// exponent returns x*scale - lse for a logit x of a row with this lse, at most 0. A row's lse is rounded to float32, so that all
// of its probabilities are off by one factor, at most exp(2^-24 |lse|), and each by 2^-24 |x*scale| more. The largest logit
// has the exponent -log(sum) as far as lse holds it: exactly 0 where it is the only one.
__device__ inline float exponent(float x, float scale, float lse) {
  const float y = __fsub_rn(__fmul_rn(x, scale), lse);
  return y > 0 ? 0 : y;
}

// The probability exp(x*scale - lse).
__device__ inline float probability(float x, float scale, float lse) { return exp2f(exponent(x, scale, lse) * kLog2E); }

// The kernels on matrix units take exp2 of one fma, x*scale - base, which is off by the rounding of base: at most 2^-17 of
// the result below kLarge. Rows from kLarge on take the difference first, and a base of 0; not those with a base of Inf, which see
// nothing: their exponents are -Inf as they are.
constexpr float kLarge = 128;
__device__ inline bool large(float x) { return fabsf(x) >= kLarge && fabsf(x) < INFINITY; }

// The logit whose product with the scale is the exponent of x.
__device__ inline float shifted(float x, float scale, float lse) { return exponent(x, scale, lse) / scale; }

}  // namespace nsa
