// Storage types, 16-byte accesses, and reductions in a fixed order, for all kernels.
//
// A kernel has one argument: a struct <Something>Params, whose twin in Go has the same fields. T is the storage type: float, bf16 or
// f16. Arithmetic is float32, or wider where a comment says so. Unless its header says otherwise, a kernel writes every element of its
// outputs with =, reads none of them first, and gives the same bits in every run.
#pragma once

#include <cstdint>
#include <cuda_bf16.h>
#include <cuda_fp16.h>

// NSA_KERNEL defines the entry points nsa_<op>_f32, _bf16 and _f16, which call nsa::op<T>(p), for blocks of up to `threads` threads.
#define NSA_ENTRY(op, suffix, T, Params, threads)                                                                      \
  extern "C" __global__ void __launch_bounds__(threads) nsa_##op##_##suffix(const __grid_constant__ Params p) {        \
    nsa::op<T>(p);                                                                                                     \
  }
#define NSA_KERNEL(op, Params, threads)                                                                                \
  NSA_ENTRY(op, f32, float, nsa::Params, threads)                                                                      \
  NSA_ENTRY(op, bf16, nsa::bf16, nsa::Params, threads)                                                                 \
  NSA_ENTRY(op, f16, nsa::f16, nsa::Params, threads)

namespace nsa {

using bf16 = __nv_bfloat16;
using f16 = __half;

// Codes of storage types, equal to kernels.Type in Go.
enum : int32_t { kF32 = 0, kBF16 = 1, kF16 = 2 };

__device__ __forceinline__ float to_float(float v) { return v; }
__device__ __forceinline__ float to_float(bf16 v) { return __bfloat162float(v); }
__device__ __forceinline__ float to_float(f16 v) { return __half2float(v); }

template <typename T> __device__ __forceinline__ T from_float(float v);
template <> __device__ __forceinline__ float from_float<float>(float v) { return v; }
template <> __device__ __forceinline__ bf16 from_float<bf16>(float v) { return __float2bfloat16_rn(v); }
template <> __device__ __forceinline__ f16 from_float<f16>(float v) { return __float2half_rn(v); }

// load_as and store_as access element i of an array whose storage type is only known at run time.
__device__ __forceinline__ float load_as(const void* p, int32_t type, int64_t i) {
  if (type == kF32) return static_cast<const float*>(p)[i];
  if (type == kBF16) return to_float(static_cast<const bf16*>(p)[i]);
  return to_float(static_cast<const f16*>(p)[i]);
}
__device__ __forceinline__ void store_as(void* p, int32_t type, int64_t i, float v) {
  if (type == kF32) static_cast<float*>(p)[i] = v;
  else if (type == kBF16) static_cast<bf16*>(p)[i] = from_float<bf16>(v);
  else static_cast<f16*>(p)[i] = from_float<f16>(v);
}

// sigmoid_of is the logistic function. For half-precision T it uses a fast exponential and quotient, with a relative error of a few 1e-6:
// with exact ones SiLU would be limited by arithmetic, not by memory.
template <typename T> __device__ __forceinline__ float sigmoid_of(float x) {
  if constexpr (sizeof(T) == 2) return __fdividef(1.0f, 1.0f + __expf(-x));
  return 1.0f / (1.0f + expf(-x));
}

// kLanes is the number of elements in 16 bytes.
template <typename T> constexpr int kLanes = 16 / sizeof(T);

template <int W> struct Width { static constexpr int value = W; };

// Pack holds W consecutive elements as they lie in memory: a multiple of 16 bytes.
template <typename T, int W = kLanes<T>> struct Pack {
  static_assert(W % kLanes<T> == 0, "a multiple of 16 bytes");
  static constexpr int kParts = W / kLanes<T>;
  uint4 part[kParts];

  __device__ __forceinline__ void get(float (&v)[W]) const {
    T lane[W];
    memcpy(lane, part, sizeof lane);
#pragma unroll
    for (int i = 0; i < W; ++i) v[i] = to_float(lane[i]);
  }
  __device__ __forceinline__ void set(const float (&v)[W]) {
    T lane[W];
#pragma unroll
    for (int i = 0; i < W; ++i) lane[i] = from_float<T>(v[i]);
    memcpy(part, lane, sizeof lane);
  }
};
template <int W, typename T> __device__ __forceinline__ Pack<T, W> load_pack(const T* p) {
  Pack<T, W> x;
#pragma unroll
  for (int i = 0; i < x.kParts; ++i) x.part[i] = reinterpret_cast<const uint4*>(p)[i];
  return x;
}

// read and write move W elements at p: one, or those of a Pack; then p must be aligned to 16 bytes.
template <int W, typename T> __device__ __forceinline__ void read(const T* p, float (&v)[W]) {
  if constexpr (W == 1) {
    v[0] = to_float(*p);
  } else {
    load_pack<W>(p).get(v);
  }
}
template <int W, typename T> __device__ __forceinline__ void write(T* p, const float (&v)[W]) {
  if constexpr (W == 1) {
    *p = from_float<T>(v[0]);
  } else {
    Pack<T, W> x;
    x.set(v);
#pragma unroll
    for (int i = 0; i < x.kParts; ++i) reinterpret_cast<uint4*>(p)[i] = x.part[i];
  }
}

// opaque hides from the compiler how x was computed. What depends on x is then computed here, even if registers could keep the same
// numbers from another place; and x itself stays in a register.
template <typename V> __device__ __forceinline__ void opaque(V& x) { asm volatile("" : "+r"(x)); }

// aligned reports whether all pointers are multiples of 16 bytes. Only views that a user made may not be.
template <typename... P> __device__ __forceinline__ bool aligned(P... p) {
  return ((uint64_t(p) | ...) & 15) == 0;
}

// strided calls body(Width<W>, i) for the elements [i, i+W), of n, that thread `first` of `threads` owns. With `wide`, for which arrays
// must be aligned, it takes 16 bytes at a time and then the rest one by one.
template <typename T, typename Body>
__device__ __forceinline__ void strided(int64_t first, int64_t threads, int64_t n, bool wide, Body body) {
  const int64_t packs = wide ? n / kLanes<T> : 0;
  for (int64_t i = first; i < packs; i += threads) body(Width<kLanes<T>>{}, i * kLanes<T>);
  for (int64_t i = packs * kLanes<T> + first; i < n; i += threads) body(Width<1>{}, i);
}

// block_from_end is blockIdx.x, counted from the end of the grid. Blocks start in ascending order, and a product or attention leaves its
// last results in the L2 cache. A kernel behind it that starts with these results reads them from the cache. Of two such
// kernels in a row the second one gains nothing: the first one wrote the low indices last (see compress_mean).
__device__ __forceinline__ int64_t block_from_end() { return gridDim.x - 1 - blockIdx.x; }

// elementwise is strided over all threads of a one-dimensional grid.
template <typename T, typename Body> __device__ __forceinline__ void elementwise(int64_t n, bool wide, Body body) {
  strided<T>(block_from_end() * blockDim.x + threadIdx.x, int64_t(gridDim.x) * blockDim.x, n, wide, body);
}

// along_row is strided over one row and the threads that share threadIdx.y.
template <typename T, typename Body> __device__ __forceinline__ void along_row(int64_t cols, bool wide, Body body) {
  strided<T>(threadIdx.x, blockDim.x, cols, wide, body);
}

// each_row calls body(row) for the rows of this thread's group, which is the threads that share threadIdx.y. Blocks take the last rows
// first. If body calls group_reduce, a group must be a warp (blockDim.x = 32) or the whole block (blockDim.y = 1).
template <typename Body> __device__ __forceinline__ void each_row(int64_t rows, Body body) {
  for (int64_t r = block_from_end() * blockDim.y + threadIdx.y; r < rows; r += int64_t(gridDim.x) * blockDim.y) body(r);
}

struct Sum {
  static __device__ __forceinline__ float join(float a, float b) { return a + b; }
  static __device__ __forceinline__ double join(double a, double b) { return a + b; }
  static __device__ __forceinline__ int64_t join(int64_t a, int64_t b) { return a + b; }
};
// Max returns NaN if either argument is NaN.
struct Max {
  static __device__ __forceinline__ float join(float a, float b) { return (a > b || a != a) ? a : b; }
};

// group_reduce returns the reduction of v over a group of each_row to all its threads. It reduces within each warp by halves, then over
// the warps in ascending order.
template <typename Op, typename V> __device__ __forceinline__ V group_reduce(V v) {
#pragma unroll
  for (int o = 16; o > 0; o >>= 1) v = Op::join(v, V(__shfl_xor_sync(0xffffffffu, v, o)));
  if (blockDim.x > 32) {
    __shared__ V parts[32];
    __syncthreads(); // all threads have read the parts of the previous reduction
    if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = v;
    __syncthreads();
    v = parts[0];
    for (int w = 1; w < int(blockDim.x) / 32; ++w) v = Op::join(v, parts[w]);
  }
  return v;
}

} // namespace nsa
