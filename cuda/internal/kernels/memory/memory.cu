// Casts, fills and copies. Outputs are written with =.
//
//   cast_to              x [n] float32 -> y T, rounded to nearest even
//   cast_from            x [n] T -> y float32
//   fill_b16, fill_b32   value -> y [n], words of 16 or 32 bits
//   copy                 up to 24 arrays of bytes x -> y; a null x stands for zeros. Grid x is arrays*blocks
#include "common.cuh"

namespace nsa {

struct CastParams {
  const void* x;
  void* y;
  int64_t n;
};

struct FillParams {
  void* y;
  int64_t n;
  uint32_t value;
  int32_t pad;
};

constexpr int kMaxCopies = 24;

struct CopyParams {
  const void* x[kMaxCopies];
  void* y[kMaxCopies];
  int64_t bytes[kMaxCopies];
  int64_t blocks; // thread blocks of each array
};

// A thread converts four elements at a time: 16 bytes of float32, 8 of T.
template <typename T> __device__ void cast_to(const CastParams& p) {
  const float* x = static_cast<const float*>(p.x);
  T* y = static_cast<T*>(p.y);
  elementwise<float>(p.n, aligned(x, y), [&](auto width, int64_t i) {
    constexpr int W = decltype(width)::value;
    float v[W];
    read<W>(x + i, v);
    T t[W];
#pragma unroll
    for (int j = 0; j < W; ++j) t[j] = from_float<T>(v[j]);
    if constexpr (W == 1) {
      y[i] = t[0];
    } else {
      uint2 raw;
      memcpy(&raw, t, sizeof raw);
      *reinterpret_cast<uint2*>(y + i) = raw;
    }
  });
}

template <typename T> __device__ void cast_from(const CastParams& p) {
  const T* x = static_cast<const T*>(p.x);
  float* y = static_cast<float*>(p.y);
  elementwise<float>(p.n, aligned(x, y), [&](auto width, int64_t i) {
    constexpr int W = decltype(width)::value;
    float v[W];
    if constexpr (W == 1) {
      v[0] = to_float(x[i]);
    } else {
      const uint2 raw = *reinterpret_cast<const uint2*>(x + i);
      T t[W];
      memcpy(t, &raw, sizeof raw);
#pragma unroll
      for (int j = 0; j < W; ++j) v[j] = to_float(t[j]);
    }
    write<W>(y + i, v);
  });
}

template <typename Word> __device__ void fill(const FillParams& p) {
  const int64_t step = int64_t(gridDim.x) * blockDim.x;
  Word* y = static_cast<Word*>(p.y);
  for (int64_t i = blockIdx.x * int64_t(blockDim.x) + threadIdx.x; i < p.n; i += step) y[i] = Word(p.value);
}

} // namespace nsa

NSA_ENTRY(cast_to, bf16, nsa::bf16, nsa::CastParams, 256)
NSA_ENTRY(cast_to, f16, nsa::f16, nsa::CastParams, 256)
NSA_ENTRY(cast_from, bf16, nsa::bf16, nsa::CastParams, 256)
NSA_ENTRY(cast_from, f16, nsa::f16, nsa::CastParams, 256)
NSA_ENTRY(fill, b16, uint16_t, nsa::FillParams, 256)
NSA_ENTRY(fill, b32, uint32_t, nsa::FillParams, 256)

extern "C" __global__ void __launch_bounds__(256) nsa_copy(const __grid_constant__ nsa::CopyParams p) {
  const int64_t a = blockIdx.x / p.blocks;
  const int64_t thread = blockIdx.x % p.blocks * blockDim.x + threadIdx.x, step = p.blocks * blockDim.x;
  const void* x = p.x[a];
  void* y = p.y[a];
  const int64_t packs = nsa::aligned(x, y) ? p.bytes[a] / 16 : 0;
  for (int64_t i = thread; i < packs; i += step) static_cast<uint4*>(y)[i] = x ? static_cast<const uint4*>(x)[i] : uint4{};
  for (int64_t i = packs * 16 + thread; i < p.bytes[a]; i += step) static_cast<char*>(y)[i] = x ? static_cast<const char*>(x)[i] : 0;
}
