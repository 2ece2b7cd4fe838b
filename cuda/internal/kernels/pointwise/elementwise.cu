// Elementwise ops on n elements.
//
//   silu          x -> y = x sigmoid(x)                     silu_grad     x, dy -> dx = dy s (1 + x (1 - s)), s = sigmoid(x)
//   sigmoid       x -> y = 1/(1 + exp(-x))                  sigmoid_grad  y, dy -> dx = dy y (1 - y)
//   swiglu        gate, up -> y = up gate sigmoid(gate)     swiglu_grad   gate, up, dy -> dgate, dup
//   add           x0 + x1 + ... -> y, 1 to 8 terms, added in this order and rounded once; each term and y is T or float32
//
// Outputs are written with =. An output may be one of the inputs. Nothing is saved.
#include "common.cuh"
#include "overlap.cuh"

namespace nsa {

struct UnaryParams {
  const void* x;
  void* y;
  int64_t n;
};

struct BinaryParams {
  const void* a;
  const void* b;
  void* y;
  int64_t n;
};

struct SwigluGradParams {
  const void* gate;
  const void* up;
  const void* dy;
  void* dgate;
  void* dup;
  int64_t n;
};

constexpr int kTerms = 8;

struct AddParams {
  const void* x[kTerms];
  void* y;
  int64_t n;
  int32_t terms;
  int32_t float32; // bit k: x[k] is float32 though T is half precision; bit kTerms: y is
};

template <typename T, typename F> __device__ __forceinline__ void unary(const UnaryParams& p, F f) {
  const T* x = static_cast<const T*>(p.x);
  T* y = static_cast<T*>(p.y);
  elementwise<T>(p.n, aligned(x, y), [&](auto width, int64_t i) {
    constexpr int W = decltype(width)::value;
    float v[W];
    read<W>(x + i, v);
#pragma unroll
    for (int j = 0; j < W; ++j) v[j] = f(v[j]);
    write<W>(y + i, v);
  });
}

template <typename T, typename F> __device__ __forceinline__ void binary(const BinaryParams& p, F f) {
  const T* a = static_cast<const T*>(p.a);
  const T* b = static_cast<const T*>(p.b);
  T* y = static_cast<T*>(p.y);
  elementwise<T>(p.n, aligned(a, b, y), [&](auto width, int64_t i) {
    constexpr int W = decltype(width)::value;
    float u[W], v[W];
    read<W>(a + i, u);
    read<W>(b + i, v);
#pragma unroll
    for (int j = 0; j < W; ++j) u[j] = f(u[j], v[j]);
    write<W>(y + i, u);
  });
}

template <typename T> __device__ void silu(const UnaryParams& p) {
  unary<T>(p, [](float x) { return x * sigmoid_of<T>(x); });
}

template <typename T> __device__ void sigmoid(const UnaryParams& p) {
  unary<T>(p, [](float x) { return sigmoid_of<T>(x); });
}

template <typename T> __device__ void silu_grad(const BinaryParams& p) {
  binary<T>(p, [](float x, float dy) {
    const float s = sigmoid_of<T>(x);
    return dy * s * (1.0f + x * (1.0f - s));
  });
}

template <typename T> __device__ void sigmoid_grad(const BinaryParams& p) {
  binary<T>(p, [](float y, float dy) { return dy * y * (1.0f - y); });
}

template <typename T> __device__ void swiglu(const BinaryParams& p) {
  next_may_start();
  await_previous();
  binary<T>(p, [](float gate, float up) { return gate * sigmoid_of<T>(gate) * up; });
}

template <typename T> __device__ void swiglu_grad(const SwigluGradParams& p) {
  const T* gate = static_cast<const T*>(p.gate);
  const T* up = static_cast<const T*>(p.up);
  const T* dy = static_cast<const T*>(p.dy);
  T* dgate = static_cast<T*>(p.dgate);
  T* dup = static_cast<T*>(p.dup);
  elementwise<T>(p.n, aligned(gate, up, dy, dgate, dup), [&](auto width, int64_t i) {
    constexpr int W = decltype(width)::value;
    float g[W], u[W], d[W];
    read<W>(gate + i, g);
    read<W>(up + i, u);
    read<W>(dy + i, d);
#pragma unroll
    for (int j = 0; j < W; ++j) {
      const float s = sigmoid_of<T>(g[j]);
      u[j] *= d[j] * s * (1.0f + g[j] * (1.0f - s));
      d[j] *= g[j] * s;
    }
    write<W>(dgate + i, u);
    write<W>(dup + i, d);
  });
}

template <typename T> __device__ void add(const AddParams& p) {
  bool wide = aligned(p.y);
  for (int k = 0; k < p.terms; ++k) wide = wide && aligned(p.x[k]);
  const auto is_float32 = [&](int k) { return sizeof(T) == 2 && (p.float32 >> k & 1) != 0; };
  elementwise<T>(p.n, wide, [&](auto width, int64_t i) {
    constexpr int W = decltype(width)::value;
    const auto term = [&](int k, float(&v)[W]) {
      if (is_float32(k)) read<W>(static_cast<const float*>(p.x[k]) + i, v);
      else read<W>(static_cast<const T*>(p.x[k]) + i, v);
    };
    float sum[W];
    term(0, sum);
#pragma unroll
    for (int k = 1; k < kTerms; ++k) {
      if (k < p.terms) {
        float v[W];
        term(k, v);
#pragma unroll
        for (int j = 0; j < W; ++j) sum[j] += v[j];
      }
    }
    if (is_float32(kTerms)) write<W>(static_cast<float*>(p.y) + i, sum);
    else write<W>(static_cast<T*>(p.y) + i, sum);
  });
}

} // namespace nsa

NSA_KERNEL(silu, UnaryParams, 256)
NSA_KERNEL(sigmoid, UnaryParams, 256)
NSA_KERNEL(silu_grad, BinaryParams, 256)
NSA_KERNEL(sigmoid_grad, BinaryParams, 256)
NSA_KERNEL(swiglu, BinaryParams, 256)
NSA_KERNEL(swiglu_grad, SwigluGradParams, 256)
NSA_KERNEL(add, AddParams, 256)
