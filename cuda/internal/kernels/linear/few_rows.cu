// Linear layers for few rows, as in decoding: x [rows,K], weights w_i [N_i,K] -> y_i [rows,N_i] = x w_iᵀ + bias_i. RMSNorm of x may come
// before the products, and SiLU, a sigmoid or a residual after them. Outputs are written with =. Weights go from global memory straight to
// registers, 16 bytes a lane; their loads begin before x is read.
//
// A block has 16*R rows of x and 8*F features of one layer, and reads their weights once. Rows of x are the rows of mma.m16n8k16,
// features its columns. The order of the dims within a chunk does not matter if both factors have the same: lane (g, t) = (lane/4, lane%4)
// takes dims 32c+8t to 32c+8t+7 of rows g and g+8, and of feature g. Warps take chunks c of 32 dims in turn; their sums are added in
// the order of the warps.
#include "../mma.cuh"
#include "../overlap.cuh"

namespace nsa {

constexpr int kFewParts = 12, kFewWarps = 16;

enum : int32_t { kNoActivation = 0, kSiLU = 1, kSigmoid = 2 };  // as linear.Activation

struct FewParams {
  const void* x;                // T; with RMSNorm T or float32
  const float* gain;            // the weight of RMSNorm, or null for no norm
  const void* w[kFewParts];
  const void* bias[kFewParts];  // null: none
  void* y[kFewParts];
  void* hidden;                 // if not null, also gets the argument of the SiLU of y_0
  const void* residual;         // of y_0's type, or null
  int32_t n[kFewParts];
  int32_t first[kFewParts];     // the first tile (of 8*F features) of each layer, which is its first blockIdx.x
  int32_t activation[kFewParts];
  int32_t parts, rows, k;
  int32_t wide, wide_x;         // whether y and residual are float32; whether x is
  float eps;
};

template <typename T> constexpr int32_t kFewType = kBF16;
template <> constexpr int32_t kFewType<f16> = kF16;

// few_cell returns 8 elements of a row of k elements, zeros beyond it or if `in` is false. With Cells it reads them by one access.
template <bool Cells, typename T> __device__ __forceinline__ uint4 few_cell(const T* row, bool in, int at, int k) {
  uint4 v = {0, 0, 0, 0};
  if constexpr (Cells) {
    if (in && at < k) v = *reinterpret_cast<const uint4*>(row + at);
  } else {
    uint16_t lanes[8] = {};
#pragma unroll
    for (int i = 0; i < 8; ++i)
      if (in && at + i < k) memcpy(lanes + i, row + at + i, sizeof *row);
    memcpy(&v, lanes, sizeof v);
  }
  return v;
}

// few_stride is the distance of rows of k elements in shared memory. It puts four lanes of one row and four of the next in different banks.
__device__ __forceinline__ int few_stride(int k) { return (k + 7) / 8 * 8 + 32; }

// few_norm writes RMSNorm of the rows of x to shared memory; each warp does whole rows. It writes nothing beyond k.
template <bool Cells, typename X, typename T>
__device__ __forceinline__ void few_norm(const FewParams& p, const X* x, int rows, const float* gain, T* to) {
  const int lane = threadIdx.x % 32;
  constexpr int W = Cells ? 8 : 1, N = Cells ? 4 : 1;
#pragma unroll 1
  for (int r = threadIdx.x / 32; r < rows; r += blockDim.x / 32) {
    const X* row = x + int64_t(r) * p.k;
    float squares = 0;
#pragma unroll 1
    for (int from = lane * W; from < p.k; from += 32 * W * N) {
      float v[N][W] = {};
#pragma unroll
      for (int i = 0; i < N; ++i)
        if (from + i * 32 * W < p.k) read<W>(row + from + i * 32 * W, v[i]);
#pragma unroll
      for (int i = 0; i < N * W; ++i) squares += v[i / W][i % W] * v[i / W][i % W];
    }
#pragma unroll
    for (int o = 16; o > 0; o >>= 1) squares += __shfl_xor_sync(0xffffffffu, squares, o);
    const float scale = 1.0f / sqrtf(squares / float(p.k) + p.eps);
#pragma unroll 1
    for (int at = lane * W; at < p.k; at += 32 * W) {
      float v[W];
      read<W>(row + at, v);
#pragma unroll
      for (int i = 0; i < W; ++i) v[i] *= scale * gain[at + i];
      write<W>(to + r * few_stride(p.k) + at, v);
    }
  }
}

// The work of a block. A warp has N chunks of weights and M chunks of x in flight. With Cells rows consist of aligned 16-byte cells.
template <typename T, int R, int F, int N, int M, bool Cells>
__device__ __forceinline__ void few_block(const FewParams& p, int part, float (*sums)[16 * R][8 * F + 1], char* shared) {
  constexpr int kOutputs = (R * F + 1) / 2;  // the most outputs of a thread
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32, g = lane / 4, t = lane % 4;
  const int feature = (blockIdx.x - p.first[part]) * 8 * F, row = blockIdx.y * 16 * R, n = p.n[part], rows = min(16 * R, p.rows - row);
  const T* w = static_cast<const T*>(p.w[part]) + int64_t(feature + g) * p.k;
  uint4 weights[N][F];
  const auto load = [&](int c) {
#pragma unroll
    for (int i = 0; i < N; ++i)
#pragma unroll
      for (int f = 0; f < F; ++f)
        weights[i][f] = few_cell<Cells>(w + int64_t(8 * f) * p.k, feature + 8 * f + g < n, (c + i * warps) * 32 + 8 * t, p.k);
  };
  load(warp);
  float bias[kOutputs] = {}, residual[kOutputs] = {};
  // Sets f and r to the feature and row, within the block, of output i of this thread; returns false if there is no such output.
  const auto output = [&](int i, int& f, int& r) {
    const int o = threadIdx.x + i * blockDim.x;
    f = o % (8 * F), r = o / (8 * F);
    return r < rows && feature + f < n;
  };
  int f, r;
  if (p.bias[part])
    for (int i = 0; i < kOutputs; ++i)
      if (output(i, f, r)) bias[i] = to_float(static_cast<const T*>(p.bias[part])[feature + f]);
  float* gain = reinterpret_cast<float*>(shared);
  T* normed = reinterpret_cast<T*>(shared + (p.k + 3) / 4 * 16);
  if (p.gain) {
    if constexpr (Cells) {
      for (int i = 4 * threadIdx.x; i < p.k; i += 4 * blockDim.x) copy_cell(shared_address(gain + i), p.gain + i, true);
      copy_commit();
    } else {
      for (int i = threadIdx.x; i < p.k; i += blockDim.x) gain[i] = p.gain[i];
    }
  }

  await_previous();
  if (p.residual)
    for (int i = 0; i < kOutputs; ++i)
      if (output(i, f, r)) residual[i] = load_as(p.residual, p.wide ? kF32 : kFewType<T>, int64_t(row + r) * n + feature + f);
  const T* x = static_cast<const T*>(p.x) + int64_t(row) * p.k;
  int stride = p.k;
  if (p.gain) {
    if constexpr (Cells) copy_wait<0>();
    __syncthreads();
    if (p.wide_x) few_norm<Cells>(p, static_cast<const float*>(p.x) + int64_t(row) * p.k, rows, gain, normed);
    else few_norm<Cells>(p, x, rows, gain, normed);
    __syncthreads();
    x = normed, stride = few_stride(p.k);
  }
  float sum[R][F][4] = {};
#pragma unroll 1
  for (int c = warp; c * 32 < p.k; c += warps * N) {
    if (c != warp) load(c);
#pragma unroll
    for (int i = 0; i < N; i += M) {
      uint4 cells[M][R][2];
#pragma unroll
      for (int j = 0; j < M; ++j)
#pragma unroll
        for (int q = 0; q < 2 * R; ++q)
          cells[j][q / 2][q % 2] = few_cell<Cells>(x + int64_t(8 * q + g) * stride, 8 * q + g < rows, (c + (i + j) * warps) * 32 + 8 * t, p.k);
#pragma unroll
      for (int j = 0; j < M; ++j)
#pragma unroll
        for (int q = 0; q < R; ++q) {
          const uint4 low = cells[j][q][0], high = cells[j][q][1];
          const uint32_t a[2][4] = {{low.x, high.x, low.y, high.y}, {low.z, high.z, low.w, high.w}};
#pragma unroll
          for (int f = 0; f < F; ++f) {
            multiply_fragments<T>(sum[q][f], a[0], weights[i + j][f].x, weights[i + j][f].y);
            multiply_fragments<T>(sum[q][f], a[1], weights[i + j][f].z, weights[i + j][f].w);
          }
        }
    }
  }
#pragma unroll
  for (int i = 0; i < R * F * 4; ++i) {
    const int q = i / (4 * F), f = i / 4 % F, e = i % 4;
    sums[warp][16 * q + g + e / 2 * 8][8 * f + 2 * t + e % 2] = sum[q][f][e];
  }
  __syncthreads();
  for (int i = 0; i < kOutputs; ++i) {
    if (!output(i, f, r)) continue;
    float v = 0;
#pragma unroll 4
    for (int j = 0; j < warps; ++j) v += sums[j][r][f];
    v += bias[i];
    const int64_t at = int64_t(row + r) * n + feature + f;
    if (p.hidden) {
      const T h = from_float<T>(v);
      static_cast<T*>(p.hidden)[at] = h;
      v = to_float(h);
    }
    if (p.activation[part] != kNoActivation) {
      const float s = sigmoid_of<T>(v);
      v = p.activation[part] == kSiLU ? v * s : s;
    }
    store_as(p.y[part], p.wide ? kF32 : kFewType<T>, at, v + residual[i]);
  }
}

template <typename T, int R, int F, int N, int M> __device__ __forceinline__ void few(const FewParams& p) {
  __shared__ float sums[kFewWarps][16 * R][8 * F + 1];
  extern __shared__ float4 nsa_dynamic_shared[];  // with RMSNorm: gain [k] float32, then the normalised rows of x
  next_may_start();
  int part = p.parts - 1;
  while (part > 0 && int(blockIdx.x) < p.first[part]) --part;
  char* shared = reinterpret_cast<char*>(nsa_dynamic_shared);
  if (__builtin_expect(p.k % 8 == 0 && aligned(p.x, p.w[part], p.gain), 1)) few_block<T, R, F, N, M, true>(p, part, sums, shared);
  else few_block<T, R, F, 1, 1, false>(p, part, sums, shared);
}

// Grid [tiles of 8 features of all layers, 1], for up to 16 rows.
template <typename T> __device__ void linear_few(const FewParams& p) { few<T, 1, 1, 6, 3>(p); }
// Grid [tiles of 16 features of all layers, ceil(rows/32)].
template <typename T> __device__ void linear_rows(const FewParams& p) { few<T, 2, 2, 3, 3>(p); }

}  // namespace nsa

// Blocks have 256 or 512 threads. The bound of 768 makes the compiler leave registers for three blocks of 256 on a multiprocessor.
NSA_ENTRY(linear_few, bf16, nsa::bf16, nsa::FewParams, 768)
NSA_ENTRY(linear_few, f16, nsa::f16, nsa::FewParams, 768)
NSA_ENTRY(linear_rows, bf16, nsa::bf16, nsa::FewParams, 512)
NSA_ENTRY(linear_rows, f16, nsa::f16, nsa::FewParams, 512)
