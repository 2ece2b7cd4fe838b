// Tiles in shared memory and their products, float32 for every storage type. General attention kernels are built of these; other
// kernels use some of the helpers.
//
// A block has 128 threads: 16 down and 8 across. In a tile of M = 16*R rows and N = 8*C columns each thread owns R*C elements:
// rows down() + 16*i, columns across() + 8*j. A row of c columns takes stride(c) floats, an odd number of groups of four, so that
// eight neighbouring rows lie in different banks.
#pragma once

#include "common.cuh"

namespace nsa {

constexpr int kThreads = 128, kDown = 16, kAcross = 8, kWarps = kThreads / 32;

// The blocks that share a multiprocessor if tiles have 16*R rows; the compiler limits registers accordingly.
constexpr int resident(int R) { return R == 4 ? 2 : R == 2 ? 3 : 4; }

__device__ inline int down() { return threadIdx.x / kAcross; }
__device__ inline int across() { return threadIdx.x % kAcross; }
__device__ inline int lane() { return threadIdx.x % 32; }
__device__ inline int warp() { return threadIdx.x / 32; }

__device__ inline int quads(int c) { return (c + 3) / 4; }
__host__ __device__ constexpr int stride(int c) { return 4 * (((c + 3) / 4) | 1); }

__device__ inline float* dynamic_shared() {
  extern __shared__ float4 nsa_dynamic_shared[];
  return reinterpret_cast<float*>(nsa_dynamic_shared);
}

// Carver hands out parts of the dynamic shared memory, aligned to 16 bytes.
struct Carver {
  float* next;
  __device__ float* floats(int n) {
    float* p = next;
    next += (n + 3) / 4 * 4;
    return p;
  }
  __device__ float* tile(int rows, int c) { return floats(rows * stride(c)); }
};

__device__ inline float2 load_pair(const float* p) { return *reinterpret_cast<const float2*>(p); }
__device__ inline float2 load_pair(const bf16* p) {
  return __bfloat1622float2(*reinterpret_cast<const __nv_bfloat162*>(p));
}
__device__ inline float2 load_pair(const f16* p) { return __half22float2(*reinterpret_cast<const __half2*>(p)); }

// Loads row i of the tile dst [rows,c] from src + offset(i). A row with a negative offset becomes zeros, as do columns from c up to
// the next multiple of four.
template <typename T, class Offset>
__device__ void load_rows(float* dst, const T* src, int rows, int c, Offset offset) {
  const int lane = threadIdx.x % 32, ld = stride(c), end = 4 * quads(c);
  const bool pairs = c % 2 == 0 && uint64_t(src) % (2 * sizeof(T)) == 0;
  if (pairs) {
#pragma unroll 1
    for (int j = 2 * lane; j < end; j += 64) {
#pragma unroll 8
      for (int i = threadIdx.x / 32; i < rows; i += kWarps) {  // eight loads in flight
        const long long at = offset(i);
        const float2 x = at >= 0 && j < c ? load_pair(src + at + j) : make_float2(0, 0);
        *reinterpret_cast<float2*>(dst + i * ld + j) = x;
      }
    }
    return;
  }
#pragma unroll 1
  for (int i = threadIdx.x / 32; i < rows; i += kWarps) {
    const long long at = offset(i);
#pragma unroll 1
    for (int j = lane; j < end; j += 32) dst[i * ld + j] = at >= 0 && j < c ? to_float(src[at + j]) : 0;
  }
}

__device__ inline void clear_rows(float* dst, int rows, int c) {
  const int n = rows * stride(c) / 4;
  for (int i = threadIdx.x; i < n; i += kThreads) reinterpret_cast<float4*>(dst)[i] = make_float4(0, 0, 0, 0);
}

// Products multiply whole tiles, so a NaN or Inf in a key would spoil rows that do not see this key, because 0*NaN is NaN.
// pass(false) ignores this and returns whether a result of this thread is NaN or Inf. If that is so in any thread of the block,
// pass(true) repeats all the work. It sets operand rows that hold NaN or Inf to zeros and marks them as NaN only where they
// are seen. So results that do not see them have the same bits as with finite operands.
template <class Pass> __device__ __forceinline__ void careful_if_needed(Pass pass) {
  bool careful = false;
#pragma unroll 1
  while (__syncthreads_or(pass(careful)) && !careful) careful = true;
}

// take_out zeroes each row i of a tile [rows,c] that holds a NaN or Inf, and a whole warp calls also(i) for it. All threads of a
// block must call it, after the barrier that completes the tile.
template <class Also> __device__ void take_out(float* tile, int rows, int c, Also also) {
  const int lane = threadIdx.x % 32, ld = stride(c);
#pragma unroll 1
  for (int i = threadIdx.x / 32; i < rows; i += kWarps) {
    bool bad = false;
    for (int j = lane; j < c; j += 32) bad |= !(fabsf(tile[i * ld + j]) < INFINITY);
    if (!__any_sync(0xffffffff, bad)) continue;
    for (int j = lane; j < c; j += 32) tile[i * ld + j] = 0;
    also(i);
  }
  __syncthreads();
}

// Writes row r of a tile [16*R,c], times a factor, to dst + offset(r), unless the offset is negative. factor(i) is that of this
// thread's i-th row. A thread writes the elements that it owns in multiply_add. Returns whether it wrote a NaN or Inf.
template <int R, typename T, class Offset, class Factor>
__device__ bool store_rows(T* dst, const float* src, int c, Offset offset, Factor factor) {
  const int ld = stride(c);
  float zero = 0;  // becomes NaN with the first NaN or Inf
#pragma unroll
  for (int i = 0; i < R; i++) {
    const int r = down() + kDown * i;
    const long long at = offset(r);
    if (at < 0) continue;
    const float f = factor(i);
    for (int q = across(); q < quads(c); q += kAcross)
      for (int j = 4 * q; j < min(c, 4 * q + 4); j++) {
        const float x = f * src[r * ld + j];
        dst[at + j] = from_float<T>(x);
        zero = fmaf(x, 0, zero);
      }
  }
  return zero != 0;
}

__device__ inline void fma4(float& sum, float4 x, float4 y) {
  sum = fmaf(x.x, y.x, sum), sum = fmaf(x.y, y.y, sum), sum = fmaf(x.z, y.z, sum), sum = fmaf(x.w, y.w, sum);
}

// out [M,N] = a·bᵀ for tiles a [M,c] and b [N,c].
template <int R, int C>
__device__ void multiply_transposed(float (&out)[R][C], const float* a, const float* b, int c) {
  const int ld = stride(c), end = 4 * quads(c);
  a += down() * ld, b += across() * ld;
#pragma unroll
  for (int i = 0; i < R; i++)
#pragma unroll
    for (int j = 0; j < C; j++) out[i][j] = 0;
#pragma unroll 2
  for (int k = 0; k < end; k += 4) {
    float4 x[R];
#pragma unroll
    for (int i = 0; i < R; i++) x[i] = *reinterpret_cast<const float4*>(a + i * kDown * ld + k);
#pragma unroll
    for (int j = 0; j < C; j++) {
      const float4 y = *reinterpret_cast<const float4*>(b + j * kAcross * ld + k);
#pragma unroll
      for (int i = 0; i < R; i++) fma4(out[i][j], x[i], y);
    }
  }
}

__device__ inline void axpy4(float4& sum, float a, float4 y) {
  sum.x = fmaf(a, y.x, sum.x), sum.y = fmaf(a, y.y, sum.y), sum.z = fmaf(a, y.z, sum.z), sum.w = fmaf(a, y.w, sum.w);
}

// Does the columns from + 32*u + [0,4), u < W, of multiply_add. A thread with mine = false computes, but writes nothing. The sum over
// a tile starts at 0: a sum that started at out would be rounded to out's exponent at every step.
template <int R, int N, int W>
__device__ void multiply_columns(float* out, const float* a, const float* b, int ld, int from, bool mine,
                                 const float (&factor)[R]) {
  constexpr int lda = stride(N);
  out += down() * ld + from, a += down() * lda, b += from;
  float4 sum[R][W];
#pragma unroll
  for (int i = 0; i < R; i++)
#pragma unroll
    for (int u = 0; u < W; u++) sum[i][u] = make_float4(0, 0, 0, 0);
#pragma unroll 1
  for (int k = 0; k < N; k += 4) {
    float4 x[R];
#pragma unroll
    for (int i = 0; i < R; i++) x[i] = *reinterpret_cast<const float4*>(a + i * kDown * lda + k);
#pragma unroll
    for (int u = 0; u < W; u++) {
      float4 y[4];
#pragma unroll
      for (int s = 0; s < 4; s++) y[s] = *reinterpret_cast<const float4*>(b + (k + s) * ld + 32 * u);
#pragma unroll
      for (int i = 0; i < R; i++) {
        axpy4(sum[i][u], x[i].x, y[0]), axpy4(sum[i][u], x[i].y, y[1]);
        axpy4(sum[i][u], x[i].z, y[2]), axpy4(sum[i][u], x[i].w, y[3]);
      }
    }
  }
  if (!mine) return;
#pragma unroll
  for (int i = 0; i < R; i++)
#pragma unroll
    for (int u = 0; u < W; u++) {
      float4& x = *reinterpret_cast<float4*>(out + i * kDown * ld + 32 * u);
      const float f = factor[i];
      const float4 s = sum[i][u];
      x = make_float4(fmaf(x.x, f, s.x), fmaf(x.y, f, s.y), fmaf(x.z, f, s.z), fmaf(x.w, f, s.w));
    }
}

// out [M,c] = factor*out + a·b for tiles a [M,N] and b [N,c], with a factor for each row. Each element of out belongs to one thread,
// the same one in every call.
template <int R, int N>
__device__ void multiply_add(float* out, const float* a, const float* b, int c, const float (&factor)[R]) {
  const int ld = stride(c), end = 4 * quads(c);
  int from = 0;
  for (; from + 32 < end; from += 64) {
    const int j = from + 4 * across();
    if (from + 64 <= end) {
      multiply_columns<R, N, 2>(out, a, b, ld, j, true, factor);
    } else {
      multiply_columns<R, N, 1>(out, a, b, ld, j, true, factor);
      const bool mine = j + 32 < end;
      multiply_columns<R, N, 1>(out, a, b, ld, mine ? j + 32 : 0, mine, factor);
    }
  }
  if (from < end) {
    const bool mine = from + 4 * across() < end;
    multiply_columns<R, N, 1>(out, a, b, ld, mine ? from + 4 * across() : 0, mine, factor);
  }
}

// Writes this thread's elements of a tile [M,N] to shared memory.
template <int R, int C>
__device__ void put(float* tile, const float (&x)[R][C]) {
  constexpr int ld = stride(C * kAcross);
#pragma unroll
  for (int i = 0; i < R; i++)
#pragma unroll
    for (int j = 0; j < C; j++) tile[(down() + kDown * i) * ld + across() + kAcross * j] = x[i][j];
}

// The maximum and the sum over the eight threads that share rows; all eight get the result.
__device__ inline float max_across(float x) {
  for (int m = kAcross / 2; m > 0; m /= 2) x = fmaxf(x, __shfl_xor_sync(0xffffffff, x, m));
  return x;
}
__device__ inline float sum_across(float x) {
  for (int m = kAcross / 2; m > 0; m /= 2) x += __shfl_xor_sync(0xffffffff, x, m);
  return x;
}

}  // namespace nsa

// Defines the entry points nsa_<op>_<M>_<storage>, which call nsa::op<T, R, C>(p), for tiles of M = 16*R rows and 8*C columns.
#define NSA_TILE_ENTRY(op, M, suffix, T, C)                                                                            \
  extern "C" __global__ void __launch_bounds__(nsa::kThreads, nsa::resident(M / nsa::kDown))                           \
      nsa_##op##_##M##_##suffix(const __grid_constant__ nsa::AttentionParams p) {                                      \
    nsa::op<T, M / nsa::kDown, C>(p);                                                                                  \
  }
#define NSA_TILES(op, M, C)                                                                                            \
  NSA_TILE_ENTRY(op, M, f32, float, C)                                                                                 \
  NSA_TILE_ENTRY(op, M, bf16, nsa::bf16, C)                                                                            \
  NSA_TILE_ENTRY(op, M, f16, nsa::f16, C)
