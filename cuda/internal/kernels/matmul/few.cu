// Linear layers of few rows, such as one token of each of a few sequences: x [rows,K] and weights w_i [N_i,K] -> y_i [rows,N_i] = x w_iᵀ +
// bias_i, with SiLU or a residual behind it. The weights go from memory to registers, 16 bytes a lane, and are read once for 8 rows.
//
// Features are the rows of mma.m16n8k16 and rows of x its columns. Dims are permuted alike on both sides: lane (g, t) = (lane/4, lane%4)
// has features g and g+8, or row g of x, dims 32c+8t .. +7. Warps take chunks of 32 dims in turn; their sums are added in their order.
#include "../mma.cuh"

namespace nsa {

constexpr int kFewParts = 12, kFewWarps = 8, kFewFeatures = 16, kFewRows = 8;

struct FewParams {
  const void* x;
  const void* w[kFewParts];
  const void* bias[kFewParts];  // null: none
  void* y[kFewParts];
  void* hidden;                 // what SiLU reads, if not null: y_0 is silu of it
  const void* residual;         // of y_0's type, or null
  int32_t n[kFewParts];
  int32_t first[kFewParts];     // tile of 16 features of a layer
  int32_t parts, rows, k;
  int32_t wide;                 // y and residual are float32
};

// grid [tiles, rows/8]
template <typename T> __device__ void linear_few(const FewParams& p) {
  __shared__ float sums[kFewWarps][kFewFeatures][kFewRows + 1];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, t = lane % 4;
  int part = p.parts - 1;
  while (part > 0 && int(blockIdx.x) < p.first[part]) --part;
  const int feature = (blockIdx.x - p.first[part]) * kFewFeatures, row = blockIdx.y * kFewRows, n = p.n[part];
  const T *x = static_cast<const T*>(p.x) + int64_t(row + g) * p.k, *w = static_cast<const T*>(p.w[part]) + int64_t(feature + g) * p.k;
  const bool in[3] = {feature + g < n, feature + g + 8 < n, row + g < p.rows};
  const bool cells = p.k % kLanes<T> == 0 && aligned(p.x, p.w[part]);
  const auto cell = [&](const T* from, bool in, int at) {
    if (in && at < p.k && cells) return *reinterpret_cast<const uint4*>(from + at);
    uint16_t lanes[kLanes<T>] = {};
    for (int i = 0; i < kLanes<T> && in && !cells; ++i)
      if (at + i < p.k) memcpy(lanes + i, from + at + i, sizeof *from);
    uint4 v;
    memcpy(&v, lanes, sizeof v);
    return v;
  };
  constexpr int kAtOnce = 4; // chunks that are under way
  float sum[4] = {};
  for (int c = warp; c * 32 < p.k; c += kFewWarps * kAtOnce) {
    uint4 low[kAtOnce], high[kAtOnce], rows[kAtOnce];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const int at = (c + i * kFewWarps) * 32 + 8 * t;
      low[i] = cell(w, in[0], at), high[i] = cell(w + int64_t(8) * p.k, in[1], at), rows[i] = cell(x, in[2], at);
    }
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const uint32_t a[2][4] = {{low[i].x, high[i].x, low[i].y, high[i].y}, {low[i].z, high[i].z, low[i].w, high[i].w}};
      multiply_fragments<T>(sum, a[0], rows[i].x, rows[i].y);
      multiply_fragments<T>(sum, a[1], rows[i].z, rows[i].w);
    }
  }
  for (int i = 0; i < 4; ++i) sums[warp][g + i / 2 * 8][2 * t + i % 2] = sum[i];
  __syncthreads();
  const int f = threadIdx.x % kFewFeatures, r = threadIdx.x / kFewFeatures;
  if (r >= kFewRows || row + r >= p.rows || feature + f >= n) return;
  float v = 0;
  for (int i = 0; i < kFewWarps; ++i) v += sums[i][f][r];
  const int64_t at = int64_t(row + r) * n + feature + f;
  if (p.bias[part]) v += to_float(static_cast<const T*>(p.bias[part])[feature + f]);
  if (p.hidden) {
    const T h = from_float<T>(v);
    static_cast<T*>(p.hidden)[at] = h;
    v = to_float(h) * sigmoid_of<T>(to_float(h));
  }
  if (p.wide) {
    static_cast<float*>(p.y[part])[at] = p.residual ? v + static_cast<const float*>(p.residual)[at] : v;
  } else {
    static_cast<T*>(p.y[part])[at] = from_float<T>(p.residual ? v + to_float(static_cast<const T*>(p.residual)[at]) : v);
  }
}

}  // namespace nsa

NSA_ENTRY(linear_few, bf16, nsa::bf16, nsa::FewParams, 256)
NSA_ENTRY(linear_few, f16, nsa::f16, nsa::FewParams, 256)
