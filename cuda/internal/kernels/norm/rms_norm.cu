// RMSNorm over the last axis (arXiv 1910.07467).
//
//   rms_norm       x [rows,dim], weight [dim] -> y = x r weight, with r = 1/sqrt(mean(x²) + eps)
//   rms_norm_grad  x, weight, dy, residual [rows,dim] or none -> dx = r u - x r³ (u·x)/dim + residual, with u = dy weight; and
//                  partial, float32 [blocks,dim]: what the rows of each block add to dweight = sum over rows of dy x r
//
// x is T or float32, weight is float32, all else is T. Outputs are written with =. Nothing is saved: the gradient computes r again, since
// it reads the row in any case. A group of threads owns a row; see each_row.
//
// dweight has two stages. Each block has `run` rows. Its group g of G adds rows g, g+G, ..., ascending; the groups are added in
// ascending order to the block's row of partial. Then sum_blocks adds the blocks in its fixed order.
#include "common.cuh"
#include "overlap.cuh"

namespace nsa {

struct RMSNormParams {
  const void* x;
  const float* weight;
  void* y;
  int64_t rows;
  int64_t dim;
  float eps;
  int32_t x_type;
};

struct RMSNormGradParams {
  const void* x;
  const float* weight;
  const void* dy;
  const void* residual; // the gradient that bypasses the norm through the residual connection, or null
  void* dx;
  float* partial;
  int64_t rows;
  int64_t dim;
  int64_t run; // rows of a block
  float eps;
  int32_t x_type;
};

// Held is the part of a row that a lane holds in registers if a warp owns the row: up to N elements, in packs of W; zeros beyond the row.
template <typename T, int N> struct Held {
  static constexpr int W = kLanes<T>, kPacks = N / W;

  static __device__ __forceinline__ int64_t column(int i) { return int64_t(i * 32 + threadIdx.x) * W; }
  template <typename E> static __device__ __forceinline__ Pack<E, W> load(const E* row, int64_t dim, int i) {
    return column(i) < dim ? load_pack<W>(row + column(i)) : Pack<E, W>{};
  }
};

__device__ __forceinline__ float norm_scale(float squares, int64_t dim, float eps) {
  return 1.0f / sqrtf(group_reduce<Sum>(squares) / float(dim) + eps);
}

// A warp owns a row and holds it in registers.
template <typename X, typename T, int N> __device__ __forceinline__ void rms_norm_held(const RMSNormParams& p) {
  using H = Held<T, N>;
  each_row(p.rows, [&](int64_t r) {
    Pack<X, H::W> x[H::kPacks];
#pragma unroll
    for (int i = 0; i < H::kPacks; ++i) x[i] = H::load(static_cast<const X*>(p.x) + r * p.dim, p.dim, i);
    float squares = 0;
#pragma unroll
    for (int i = 0; i < H::kPacks; ++i) {
      float v[H::W];
      x[i].get(v);
#pragma unroll
      for (int j = 0; j < H::W; ++j) squares += v[j] * v[j];
    }
    const float scale = norm_scale(squares, p.dim, p.eps);
#pragma unroll
    for (int i = 0; i < H::kPacks; ++i) {
      float v[H::W], w[H::W];
      x[i].get(v);
      H::load(p.weight, p.dim, i).get(w);
#pragma unroll
      for (int j = 0; j < H::W; ++j) v[j] *= scale * w[j];
      if (H::column(i) < p.dim) write<H::W>(static_cast<T*>(p.y) + r * p.dim + H::column(i), v);
    }
  });
}

// A group owns a row and reads it twice: any dim, any address.
template <typename X, typename T> __device__ __forceinline__ void rms_norm_read(const RMSNormParams& p, bool wide) {
  each_row(p.rows, [&](int64_t r) {
    const X* x = static_cast<const X*>(p.x) + r * p.dim;
    T* y = static_cast<T*>(p.y) + r * p.dim;
    float squares = 0;
    along_row<T>(p.dim, wide, [&](auto width, int64_t i) {
      constexpr int W = decltype(width)::value;
      float v[W];
      read<W>(x + i, v);
#pragma unroll
      for (int j = 0; j < W; ++j) squares += v[j] * v[j];
    });
    const float scale = norm_scale(squares, p.dim, p.eps);
    along_row<T>(p.dim, wide, [&](auto width, int64_t i) {
      constexpr int W = decltype(width)::value;
      float v[W], w[W];
      read<W>(x + i, v);
      read<W>(p.weight + i, w);
#pragma unroll
      for (int j = 0; j < W; ++j) v[j] *= scale * w[j];
      write<W>(y + i, v);
    });
  });
}

template <typename X, typename T> __device__ __forceinline__ void rms_norm_of(const RMSNormParams& p) {
  const bool wide = p.dim % kLanes<T> == 0 && aligned(p.x, p.weight, p.y);
  if (!wide || blockDim.x > 32 || p.dim > 1024) rms_norm_read<X, T>(p, wide);
  else if (p.dim <= 256) rms_norm_held<X, T, 8>(p);
  else if (p.dim <= 512) rms_norm_held<X, T, 16>(p);
  else if (p.dim <= 768) rms_norm_held<X, T, 24>(p);
  else rms_norm_held<X, T, 32>(p);
}

template <typename T> __device__ void rms_norm(const RMSNormParams& p) {
  next_may_start();
  await_previous();
  if (sizeof(T) == 2 && p.x_type == kF32) rms_norm_of<float, T>(p);
  else rms_norm_of<T, T>(p);
}

// Some elements of a row of x, of weight and of dy. Elements that are zeros add nothing to the sums.
template <int W> struct RMSNormTerms {
  float x[W], weight[W], dy[W];

  __device__ __forceinline__ void add(float& squares, float& dot) const {
#pragma unroll
    for (int j = 0; j < W; ++j) {
      squares += x[j] * x[j];
      dot += dy[j] * weight[j] * x[j];
    }
  }
};

// The gradient of a row, by its two sums.
struct RMSNormRow {
  float scale, slope;

  __device__ __forceinline__ RMSNormRow(const RMSNormGradParams& p, float squares, float dot) {
    squares = group_reduce<Sum>(squares);
    dot = group_reduce<Sum>(dot);
    scale = 1.0f / sqrtf(squares / float(p.dim) + p.eps);
    slope = scale * scale * (dot / float(p.dim));
  }
  // Adds the row's share to dweight, and sets dx.
  template <int W> __device__ __forceinline__ void gradient(const RMSNormTerms<W>& t, float* dweight, float (&dx)[W]) const {
#pragma unroll
    for (int j = 0; j < W; ++j) {
      dweight[j] += t.dy[j] * t.x[j] * scale;
      dx[j] = scale * (t.dy[j] * t.weight[j] - t.x[j] * slope);
    }
  }
};

// A warp owns a row and holds it in registers. Sets dweight [dim] to the sum over the warp's rows.
template <typename X, typename T, int N>
__device__ __forceinline__ void rms_norm_grad_held(const RMSNormGradParams& p, int64_t first, int64_t end, float* dweight) {
  using H = Held<T, N>;
  constexpr int W = H::W, kPacks = H::kPacks;
  constexpr bool kEarly = N < 32; // registers suffice to load the residual early
  float sum[kPacks][W] = {};
  for (int64_t r = first + threadIdx.y; r < end; r += blockDim.y) {
    Pack<X, W> x[kPacks];
    Pack<T> dy[kPacks], residual[kPacks];
    const T* around = static_cast<const T*>(p.residual) + r * p.dim;
#pragma unroll
    for (int i = 0; i < kPacks; ++i) {
      x[i] = H::load(static_cast<const X*>(p.x) + r * p.dim, p.dim, i);
      dy[i] = H::load(static_cast<const T*>(p.dy) + r * p.dim, p.dim, i);
      if (kEarly && p.residual != nullptr) residual[i] = H::load(around, p.dim, i);
    }
    const auto terms = [&](int i) {
      RMSNormTerms<W> t;
      x[i].get(t.x);
      H::load(p.weight, p.dim, i).get(t.weight);
      dy[i].get(t.dy);
      return t;
    };
    float squares = 0, dot = 0;
#pragma unroll
    for (int i = 0; i < kPacks; ++i) terms(i).add(squares, dot);
    const RMSNormRow row(p, squares, dot);
#pragma unroll
    for (int i = 0; i < kPacks; ++i) {
      float dx[W];
      row.gradient(terms(i), sum[i], dx);
      if (p.residual != nullptr) {
        float v[W];
        (kEarly ? residual[i] : H::load(around, p.dim, i)).get(v);
#pragma unroll
        for (int j = 0; j < W; ++j) dx[j] += v[j];
      }
      if (H::column(i) < p.dim) write<W>(static_cast<T*>(p.dx) + r * p.dim + H::column(i), dx);
    }
  }
#pragma unroll
  for (int i = 0; i < kPacks; ++i) {
    if (H::column(i) < p.dim) {
#pragma unroll
      for (int j = 0; j < W; ++j) dweight[H::column(i) + j] = sum[i][j];
    }
  }
}

// A group owns a row and reads it twice: any dim, any address. Sets dweight [dim] to the sum over the group's rows.
template <typename X, typename T>
__device__ __forceinline__ void rms_norm_grad_read(const RMSNormGradParams& p, int64_t first, int64_t end, bool wide, float* dweight) {
  along_row<T>(p.dim, wide, [&](auto width, int64_t i) {
#pragma unroll
    for (int j = 0; j < decltype(width)::value; ++j) dweight[i + j] = 0;
  });
  for (int64_t r = first + threadIdx.y; r < end; r += blockDim.y) {
    const auto terms = [&](auto width, int64_t i) {
      RMSNormTerms<decltype(width)::value> t;
      read(static_cast<const X*>(p.x) + r * p.dim + i, t.x);
      read(p.weight + i, t.weight);
      read(static_cast<const T*>(p.dy) + r * p.dim + i, t.dy);
      return t;
    };
    float squares = 0, dot = 0;
    along_row<T>(p.dim, wide, [&](auto width, int64_t i) { terms(width, i).add(squares, dot); });
    const RMSNormRow row(p, squares, dot);
    along_row<T>(p.dim, wide, [&](auto width, int64_t i) {
      float dx[decltype(width)::value];
      row.gradient(terms(width, i), dweight + i, dx);
      if (p.residual != nullptr) {
        float around[decltype(width)::value];
        read(static_cast<const T*>(p.residual) + r * p.dim + i, around);
#pragma unroll
        for (int j = 0; j < decltype(width)::value; ++j) dx[j] += around[j];
      }
      write(static_cast<T*>(p.dx) + r * p.dim + i, dx);
    });
  }
}

// Dynamic shared memory: float32 [groups,dim], what the rows of each group add to dweight.
template <typename X, typename T> __device__ __forceinline__ void rms_norm_grad_of(const RMSNormGradParams& p) {
  extern __shared__ float sums[];
  const bool wide = p.dim % kLanes<T> == 0 && aligned(p.x, p.weight, p.dy, p.residual, p.dx);
  const int64_t block = block_from_end(), first = block * p.run, end = min(p.rows, first + p.run);
  float* dweight = sums + threadIdx.y * p.dim;
  constexpr int kHeld = sizeof(X) == 2 ? 1024 : 768; // the longest row that registers can hold
  if (!wide || blockDim.x > 32 || p.dim > kHeld) {
    rms_norm_grad_read<X, T>(p, first, end, wide, dweight);
  } else if (p.dim <= 256) {
    rms_norm_grad_held<X, T, 8>(p, first, end, dweight);
  } else if (p.dim <= 512) {
    rms_norm_grad_held<X, T, 16>(p, first, end, dweight);
  } else if (p.dim <= 768) {
    rms_norm_grad_held<X, T, 24>(p, first, end, dweight);
  } else if constexpr (kHeld > 768) {
    rms_norm_grad_held<X, T, 32>(p, first, end, dweight);
  }
  __syncthreads();
  for (int64_t i = threadIdx.y * blockDim.x + threadIdx.x; i < p.dim; i += blockDim.x * blockDim.y) {
    float sum = sums[i];
    for (int64_t g = 1; g < blockDim.y; ++g) sum += sums[g * p.dim + i];
    p.partial[block * p.dim + i] = sum;
  }
}

template <typename T> __device__ void rms_norm_grad(const RMSNormGradParams& p) {
  if (sizeof(T) == 2 && p.x_type == kF32) rms_norm_grad_of<float, T>(p);
  else rms_norm_grad_of<T, T>(p);
}

} // namespace nsa

NSA_KERNEL(rms_norm, RMSNormParams, 512)

// Two blocks share a multiprocessor. Without this bound, rows of 1024 in registers would leave room for one block only.
#define NSA_RMS_NORM_GRAD(suffix, T)                                                                                   \
  extern "C" __global__ void __launch_bounds__(256, 2)                                                                 \
    nsa_rms_norm_grad_##suffix(const __grid_constant__ nsa::RMSNormGradParams p) {                                     \
    nsa::rms_norm_grad<T>(p);                                                                                          \
  }
NSA_RMS_NORM_GRAD(f32, float)
NSA_RMS_NORM_GRAD(bf16, nsa::bf16)
NSA_RMS_NORM_GRAD(f16, nsa::f16)
