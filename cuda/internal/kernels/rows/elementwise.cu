// Elementwise ops of any shape, n elements.
//
//   silu          x -> y = x sigmoid(x)                     silu_grad     x, dy -> dx = dy s (1 + x (1 - s)), s = sigmoid(x)
//   sigmoid       x -> y = 1/(1 + exp(-x))                  sigmoid_grad  y, dy -> dx = dy y (1 - y)
//   add           x0 + x1 + ... -> y, 1 to 8 terms, in this order, rounded once; each of them and y is T or float32
//
// y = and dx =. An output may be one of the inputs. Nothing is saved.
#include "common.cuh"

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

constexpr int kTerms = 8;

struct AddParams {
  const void* x[8];
  void* y;
  int64_t n;
  int32_t terms;
  int32_t float32; // bit k for x[k], bit kTerms for y: whether it is float32 where T is half precision
};

// In half precision an exponential and a quotient of a few 1e-6: with the exact ones silu takes longer than its memory.
template <typename T> __device__ __forceinline__ float sigmoid_of(float x) {
  if constexpr (sizeof(T) == 2) return __fdividef(1.0f, 1.0f + __expf(-x));
  return 1.0f / (1.0f + expf(-x));
}

constexpr int kTogether = 4; // packs that a thread has under way

// y = f(x, z) of arrays of n elements: {x, z}, or {x} where z is x.
template <typename T, int N, typename F> __device__ __forceinline__ void map(const T* const (&x)[N], T* y, int64_t n, bool wide, F f) {
  const int64_t thread = blockIdx.x * int64_t(blockDim.x) + threadIdx.x, threads = int64_t(gridDim.x) * blockDim.x;
  constexpr int W = kLanes<T>;
  const int64_t packs = wide ? n / W : 0;
  for (int64_t first = thread; first < packs; first += kTogether * threads) {
    Pack<T> in[kTogether][N];
#pragma unroll
    for (int u = 0; u < kTogether; ++u)
#pragma unroll
      for (int k = 0; k < N; ++k) in[u][k] = load_pack<W>(x[k] + min(first + u * threads, packs - 1) * W);
#pragma unroll
    for (int u = 0; u < kTogether; ++u) {
      if (first + u * threads >= packs) break;
      float v[N][W];
#pragma unroll
      for (int k = 0; k < N; ++k) in[u][k].get(v[k]);
#pragma unroll
      for (int j = 0; j < W; ++j) v[0][j] = f(v[0][j], v[N - 1][j]);
      write<W>(y + (first + u * threads) * W, v[0]);
    }
  }
  for (int64_t i = packs * W + thread; i < n; i += threads) y[i] = from_float<T>(f(to_float(x[0][i]), to_float(x[N - 1][i])));
}

template <typename T, typename F> __device__ __forceinline__ void unary(const UnaryParams& p, F f) {
  const T* x = static_cast<const T*>(p.x);
  T* y = static_cast<T*>(p.y);
  map<T, 1>({x}, y, p.n, aligned(x, y), [&](float x, float) { return f(x); });
}

template <typename T, typename F> __device__ __forceinline__ void binary(const BinaryParams& p, F f) {
  const T *a = static_cast<const T*>(p.a), *b = static_cast<const T*>(p.b);
  T* y = static_cast<T*>(p.y);
  map<T, 2>({a, b}, y, p.n, aligned(a, b, y), f);
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
NSA_KERNEL(add, AddParams, 256)
