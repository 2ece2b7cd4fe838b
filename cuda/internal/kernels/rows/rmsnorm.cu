// RMSNorm over the last axis (arXiv 1910.07467): x [rows,dim], weight [dim] -> y = x r weight, r = 1/sqrt(mean(x²) + eps).
//
// The gradient, with u = dy weight: dx = r u - x r³ (u·x)/dim + residual, if there is one, and dweight = the sum over the rows of dy x r. y =, dx =; nothing
// is saved: r is computed anew, since the row is read in any case.
// dweight is summed in two stages. Group g of the G of block k adds rows g, g+G, ... of the block's `run`, ascending; the groups are
// added in ascending order to partial[k] (float32 [blocks,dim]). Then sum_blocks adds the blocks in its fixed order.
#include "mma.cuh"

namespace nsa {

struct RMSNormParams {
  const void* x;
  const void* weight;
  void* y;
  int64_t rows;
  int64_t dim;
  float eps;
  int32_t pad;
};

struct RMSNormGradParams {
  const void* x;
  const void* weight;
  const void* dy;
  const void* residual; // what comes around the block that begins with the norm, or null
  void* dx;
  float* partial;
  int64_t rows;
  int64_t dim;
  int64_t run; // rows of a block
  float eps;
  int32_t held; // the rows fit the registers and the shared memory of a warp
};

// Held is a row of at most 32*E elements in the registers of a warp, 16 bytes of a lane at a time; zeros beyond its end.
template <typename T, int E> struct Held {
  static constexpr int W = kLanes<T>, kPacks = E / W;
  uint4 raw[kPacks];

  static __device__ __forceinline__ int64_t column(int i) { return int64_t(i * 32 + threadIdx.x) * W; }

  __device__ __forceinline__ void load(const void* row, int64_t dim) {
#pragma unroll
    for (int i = 0; i < kPacks; ++i) raw[i] = column(i) < dim ? reinterpret_cast<const uint4*>(row)[i * 32 + threadIdx.x] : uint4{};
  }
  // copy begins to copy a row to 32*E elements of shared memory; take reads what the same lane has copied.
  static __device__ __forceinline__ void copy(uint32_t to, const void* row, int64_t dim) {
#pragma unroll
    for (int i = 0; i < kPacks; ++i) {
      const int at = 16 * (i * 32 + threadIdx.x);
      copy_cell(to + at, static_cast<const char*>(row) + at, column(i) < dim);
    }
  }
  __device__ __forceinline__ void take(uint32_t from) {
#pragma unroll
    for (int i = 0; i < kPacks; ++i) raw[i] = shared_cell(from + 16 * (i * 32 + threadIdx.x));
  }
};

// with_held calls body(Held) for rows of dim elements; it returns false where registers do not hold them.
template <typename T, typename Body> __device__ __forceinline__ bool with_held(int64_t dim, Body body) {
  if (dim <= 256) body(Held<T, 8>{});
  else if (dim <= 512) body(Held<T, 16>{});
  else if (dim <= 768) body(Held<T, 24>{});
  else if (dim <= 1024 && sizeof(T) == 2) body(Held<T, 32>{});
  else return false;
  return true;
}

__device__ __forceinline__ float rmsnorm_scale(float squares, int64_t dim, float eps) {
  return 1.0f / sqrtf(group_reduce<Sum>(squares) / float(dim) + eps);
}

template <typename T> __device__ void rmsnorm(const RMSNormParams& p) {
  const bool wide = p.dim % kLanes<T> == 0 && aligned(p.x, p.weight, p.y);
  const auto held = [&](auto x) {
    using Row = decltype(x);
    each_row(p.rows, [&](int64_t r) {
      x.load(static_cast<const T*>(p.x) + r * p.dim, p.dim);
      float v[Row::W], w[Row::W], squares = 0;
#pragma unroll
      for (int i = 0; i < Row::kPacks; ++i) {
        unpack<T>(x.raw[i], v);
#pragma unroll
        for (int j = 0; j < Row::W; ++j) squares += v[j] * v[j];
      }
      const float scale = rmsnorm_scale(squares, p.dim, p.eps);
#pragma unroll
      for (int i = 0; i < Row::kPacks; ++i) {
        if (Row::column(i) >= p.dim) continue;
        unpack<T>(x.raw[i], v);
        read<Row::W>(static_cast<const T*>(p.weight) + Row::column(i), w);
#pragma unroll
        for (int j = 0; j < Row::W; ++j) v[j] *= scale * w[j];
        write<Row::W>(static_cast<T*>(p.y) + r * p.dim + Row::column(i), v);
      }
    });
  };
  if (wide && blockDim.x == 32 && with_held<T>(p.dim, held)) return;
  const T* weight = static_cast<const T*>(p.weight);
  each_row(p.rows, [&](int64_t r) {
    const T* x = static_cast<const T*>(p.x) + r * p.dim;
    T* y = static_cast<T*>(p.y) + r * p.dim;
    float squares = 0;
    along_row<T>(p.dim, wide, [&](auto width, int64_t i) {
      constexpr int W = decltype(width)::value;
      float v[W];
      read<W>(x + i, v);
#pragma unroll
      for (int j = 0; j < W; ++j) squares += v[j] * v[j];
    });
    const float scale = rmsnorm_scale(squares, p.dim, p.eps);
    along_row<T>(p.dim, wide, [&](auto width, int64_t i) {
      constexpr int W = decltype(width)::value;
      float v[W], w[W];
      read<W>(x + i, v);
      read<W>(weight + i, w);
#pragma unroll
      for (int j = 0; j < W; ++j) v[j] *= scale * w[j];
      write<W>(y + i, v);
    });
  });
}

// Some elements of a row of x, the weight, and of dy. Zeros add nothing.
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

// The gradient of a row from its two sums.
struct RMSNormRow {
  float scale, slope;

  __device__ __forceinline__ RMSNormRow(const RMSNormGradParams& p, float squares, float dot) {
    scale = rmsnorm_scale(squares, p.dim, p.eps);
    dot = group_reduce<Sum>(dot);
    slope = scale * scale * (dot / float(p.dim));
  }
  // dweight += what the row adds; dx =.
  template <int W> __device__ __forceinline__ void gradient(const RMSNormTerms<W>& t, float* dweight, float (&dx)[W]) const {
#pragma unroll
    for (int j = 0; j < W; ++j) {
      dweight[j] += t.dy[j] * t.x[j] * scale;
      dx[j] = scale * (t.dy[j] * t.weight[j] - t.x[j] * slope);
    }
  }
};

// A warp a row. While it computes with one, which it holds, the next one arrives in `rows`, shared memory of 4*32*E elements of
// each warp: x, dy, and the residuals of this row and the next; the longest rows leave no registers for that. dweight [dim] is what the warp's rows add.
template <typename T, int E>
__device__ __forceinline__ void rmsnorm_grad_held(Held<T, E>, const RMSNormGradParams& p, int64_t first, int64_t end, float* dweight, float* rows) {
  using Row = Held<T, E>;
  constexpr int W = Row::W, kPacks = Row::kPacks;
  constexpr uint32_t kBytes = 32 * E * sizeof(T);
  constexpr bool kAhead = E < 32;
  const uint32_t place = shared_address(rows) + threadIdx.y * 4 * kBytes;
  uint32_t residual = place + 2 * kBytes;
  const auto fetch = [&](int64_t r) {
    if (!kAhead || r >= end) return;
    Row::copy(place, static_cast<const T*>(p.x) + r * p.dim, p.dim);
    Row::copy(place + kBytes, static_cast<const T*>(p.dy) + r * p.dim, p.dim);
    if (p.residual != nullptr) Row::copy(residual, static_cast<const T*>(p.residual) + r * p.dim, p.dim);
  };
  float sum[kPacks][W] = {};
  fetch(first + threadIdx.y);
  for (int64_t r = first + threadIdx.y; r < end; r += blockDim.y) {
    Row x, dy;
    if constexpr (kAhead) {
      copy_commit(), copy_wait<0>();
      x.take(place), dy.take(place + kBytes);
    } else {
      x.load(static_cast<const T*>(p.x) + r * p.dim, p.dim), dy.load(static_cast<const T*>(p.dy) + r * p.dim, p.dim);
    }
    const uint32_t around = residual + 16 * threadIdx.x;
    residual = 2 * place + 5 * kBytes - residual; // the other one
    fetch(r + blockDim.y);
    const auto terms = [&](int i) {
      RMSNormTerms<W> t;
      unpack<T>(x.raw[i], t.x);
      unpack<T>(Row::column(i) < p.dim ? *reinterpret_cast<const uint4*>(static_cast<const T*>(p.weight) + Row::column(i)) : uint4{}, t.weight);
      unpack<T>(dy.raw[i], t.dy);
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
      if (p.residual != nullptr && Row::column(i) < p.dim) {
        float v[W];
        unpack<T>(kAhead ? shared_cell(around + 512 * i) : *reinterpret_cast<const uint4*>(static_cast<const T*>(p.residual) + r * p.dim + Row::column(i)), v);
#pragma unroll
        for (int j = 0; j < W; ++j) dx[j] += v[j];
      }
      if (Row::column(i) < p.dim) write<W>(static_cast<T*>(p.dx) + r * p.dim + Row::column(i), dx);
    }
  }
#pragma unroll
  for (int i = 0; i < kPacks; ++i) {
    if (Row::column(i) < p.dim) {
#pragma unroll
      for (int j = 0; j < W; ++j) dweight[Row::column(i) + j] = sum[i][j];
    }
  }
}

// A group a row, which it reads twice: any dim, any address.
template <typename T>
__device__ __forceinline__ void rmsnorm_grad_read(const RMSNormGradParams& p, int64_t first, int64_t end, bool wide, float* dweight) {
  along_row<T>(p.dim, wide, [&](auto width, int64_t i) {
#pragma unroll
    for (int j = 0; j < decltype(width)::value; ++j) dweight[i + j] = 0;
  });
  for (int64_t r = first + threadIdx.y; r < end; r += blockDim.y) {
    const auto terms = [&](auto width, int64_t i) {
      RMSNormTerms<decltype(width)::value> t;
      read(static_cast<const T*>(p.x) + r * p.dim + i, t.x);
      read(static_cast<const T*>(p.weight) + i, t.weight);
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

// Dynamic shared memory: float32 [groups,dim], what each group's rows add to dweight; then, if `held`, what rmsnorm_grad_held says.
template <typename T> __device__ void rmsnorm_grad(const RMSNormGradParams& p) {
  extern __shared__ float4 nsa_dynamic_shared[];
  float* sums = reinterpret_cast<float*>(nsa_dynamic_shared);
  const bool wide = p.dim % kLanes<T> == 0 && aligned(p.x, p.weight, p.dy, p.residual, p.dx);
  const int64_t first = blockIdx.x * p.run, end = min(p.rows, first + p.run);
  float* dweight = sums + threadIdx.y * p.dim;
  const auto held = [&](auto row) { rmsnorm_grad_held(row, p, first, end, dweight, sums + blockDim.y * p.dim); };
  if (!wide || !p.held || !with_held<T>(p.dim, held)) rmsnorm_grad_read<T>(p, first, end, wide, dweight);
  __syncthreads();
  for (int64_t i = threadIdx.y * blockDim.x + threadIdx.x; i < p.dim; i += blockDim.x * blockDim.y) {
    float sum = sums[i];
    for (int64_t g = 1; g < blockDim.y; ++g) sum += sums[g * p.dim + i];
    p.partial[blockIdx.x * p.dim + i] = sum;
  }
}

} // namespace nsa

NSA_KERNEL(rmsnorm, RMSNormParams, 512)

// Two blocks share a multiprocessor: rows of 1024 in registers would leave room for one.
#define NSA_RMSNORM_GRAD(suffix, T)                                                                                    \
  extern "C" __global__ void __launch_bounds__(256, 2)                                                                 \
    nsa_rmsnorm_grad_##suffix(const __grid_constant__ nsa::RMSNormGradParams p) {                                      \
    nsa::rmsnorm_grad<T>(p);                                                                                           \
  }
NSA_RMSNORM_GRAD(f32, float)
NSA_RMSNORM_GRAD(bf16, nsa::bf16)
NSA_RMSNORM_GRAD(f16, nsa::f16)
