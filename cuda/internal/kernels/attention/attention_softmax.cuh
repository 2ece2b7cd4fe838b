// Online softmax (arXiv 1805.02867): the softmax of a row that gets its keys in parts. Logits here are the products q·k, not yet
// scaled. The scale multiplies the difference of two logits: scaling each one first would round it by 2^-24 of itself, an error
// that is too large for an exponent when logits are large. Two rules treat rows that see nothing, and only this file has them:
//
//   1. Forward: o = 0 and lse = -Inf. While the maximum is -Inf, exponentials are taken relative to 0 instead.
//   2. Backward: lse_for_gradient turns an lse of -Inf into +Inf, so that exp(logit - lse) = 0.
//
// A logit of -Inf counts as not seen. A NaN logit makes the sum NaN.
#pragma once

namespace nsa {

constexpr float kLog2E = 1.44269504088896340736f;

// Kernels on tensor cores raise the maximum of a row seldom, since they must rescale its sums then: if exponentials would exceed
// 2^kRescaleSlack. They round exponentials for the product with the values, so the weight of a value is off by up to 2^-9 of itself in
// bf16. Where one key has nearly all the weight, that must not show in the output. So a kernel divides by the sum of the rounded ones, or
// raises the maximum earlier, to keep the largest exponential exact, as 1: see rise_limit.
constexpr float kRescaleSlack = 6;

// The binary logarithm of the exponential above which the maximum is raised: of twice the sum of one of the row's four threads, which is
// about half of the row's, and at most kRescaleSlack.
__device__ __forceinline__ float rise_limit(float sum) { return fmaxf(0, fminf(kRescaleSlack, __log2f(sum) + 1)); }

struct Softmax {
  float top, sum;  // the largest logit so far; the sum of the exponentials relative to it

  __device__ void start() { top = -INFINITY, sum = 0; }

  // The logit that exponentials are relative to: exp2f((x - base()) * scale), where scale contains log2(e).
  __device__ float base() const { return top == -INFINITY ? 0 : top; }

  // Raises the maximum to x if x is larger. Returns the factor by which the caller must scale what it has accumulated so far.
  __device__ float raise(float x, float scale) {
    const float before = top;
    top = fmaxf(top, x);
    const float factor = before == -INFINITY ? 1 : exp2f((before - top) * scale);
    sum *= factor;
    return factor;
  }

  // The final factor of the accumulated values, whose weights have this sum.
  static __device__ float norm(float sum) { return sum == 0 ? 0 : 1 / sum; }
  __device__ float norm() const { return norm(sum); }
  // The natural log of the sum of exp(scale * logit). It rounds the product exactly as exponent() does.
  __device__ float lse(float scale) const {
    return sum == 0 ? -INFINITY : __fadd_rn(__fmul_rn(top, scale), logf(sum));
  }
};

__device__ inline float lse_for_gradient(float lse) { return lse == -INFINITY ? INFINITY : lse; }

// exponent returns min(0, x*scale - lse) for a logit x of a row with this lse. Since lse is rounded to float32, all probabilities of
// a row share one error factor of at most exp(2^-24 |lse|). Each also has its own relative error of 2^-24 |x*scale|. The exponent of
// the largest logit is -log(sum), as precisely as lse holds it. It is exactly 0 for the only key of a row.
__device__ inline float exponent(float x, float scale, float lse) {
  const float y = __fsub_rn(__fmul_rn(x, scale), lse);
  return y > 0 ? 0 : y;
}

// The probability exp(x*scale - lse).
__device__ inline float probability(float x, float scale, float lse) { return exp2f(exponent(x, scale, lse) * kLog2E); }

// Kernels on tensor cores compute exp2 of one fma, x*scale - base. The rounding of base is its error: at most 2^-17 of the result
// while |base| is below kLarge. Rows with a larger base subtract first and use a base of 0. An infinite base is not large: such a
// row sees nothing, and its exponents are -Inf anyway.
constexpr float kLarge = 128;
__device__ inline bool large(float x) { return fabsf(x) >= kLarge && fabsf(x) < INFINITY; }

// exponent() of x, divided by the scale. Multiplied by scale_log2 it gives the power of two of the probability.
__device__ inline float shifted(float x, float scale, float lse) { return exponent(x, scale, lse) / scale; }

}  // namespace nsa
