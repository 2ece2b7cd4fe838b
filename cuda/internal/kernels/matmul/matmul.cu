// Matrix products of float32, for a batch: c [m,n] = op(a) op(b) + bias. op(a) is [m,k], op(b) [k,n], bias [n] or none. Rows lie ld
// elements apart and matrices of a batch a stride. A transposed a is stored as [k,m], a transposed b as [n,k]. Sums are float32,
// ascending in k. c is written with =.
//
// With splits > 1, split s sums only the products of [s*run, (s+1)*run). It writes them without the bias to partial s, float32
// [splits,batch,m,n], in place of c. Then sum_blocks adds up the partials.
//
// This kernel runs if cuBLASLt is missing, and tests compare cuBLASLt with it. It has tiles in shared memory and no tensor cores.
// matmul_tensor.cu has the products of half precision.
#include "common.cuh"

namespace nsa {

struct MatmulParams {
  const float* a;
  const float* b;
  const float* bias; // or null
  float* c;
  int64_t m;
  int64_t n;
  int64_t k;
  int64_t lda;
  int64_t ldb;
  int64_t ldc;
  int64_t stride_a;
  int64_t stride_b;
  int64_t stride_c;
  int64_t stride_split; // elements of c from one split to the next
  int64_t batch;
  int64_t run; // the k of one split
  int32_t trans_a;
  int32_t trans_b;
};

// Tile holds the sizes of a block's tile: kSide x kSide of c; each of 256 threads computes kEach x kEach.
template <int Side> struct Tile {
  static constexpr int kSide = Side;
  static constexpr int kDepth = 16; // the k that shared memory holds at once
  static constexpr int kEach = Side / 16;
  static constexpr int kLoads = Side * kDepth / 256; // elements of a, and of b, that a thread loads
  static constexpr int kPad = 4;
};

// Loader moves a thread's share of tiles [kDepth][kSide] from x to shared memory. Element (i, kk) lies at i*ld + kk, or with `across` at
// kk*ld + i. Neighbouring threads load neighbours in memory. Elements outside x become 0.
template <typename Z> struct Loader {
  static constexpr int kPitch = Z::kSide + Z::kPad;
  const float* from;     // this thread's first element of the tile at k = 0
  int64_t step, by_k;    // distances in x: from one element of the thread to the next; from one k to the next
  int i, kk, di, dk;     // place of the first element in the tile; steps to the next one
  int rows;              // rows of x from the tile's first on
  int to, to_step;       // place of the first element in shared memory; step to the next one
  float v[Z::kLoads];

  __device__ __forceinline__ Loader(const float* x, int64_t ld, bool across, int64_t first, int64_t end) {
    i = across ? threadIdx.x % Z::kSide : threadIdx.x / Z::kDepth;
    kk = across ? threadIdx.x / Z::kSide : threadIdx.x % Z::kDepth;
    di = across ? 0 : 256 / Z::kDepth;
    dk = across ? 256 / Z::kSide : 0;
    step = ld * (across ? 256 / Z::kSide : 256 / Z::kDepth);
    by_k = across ? ld : 1;
    from = x + (across ? kk * ld + first + i : (first + i) * ld + kk);
    rows = int(min(end - first, int64_t(Z::kSide)));
    to = kk * kPitch + i;
    to_step = across ? 256 / Z::kSide * kPitch : 256 / Z::kDepth;
  }
  __device__ __forceinline__ void fetch(int64_t k, int64_t k_end) {
    const float* x = from + k * by_k;
    const int depth = int(min(k_end - k, int64_t(Z::kDepth)));
#pragma unroll
    for (int l = 0; l < Z::kLoads; ++l) {
      v[l] = i + l * di < rows && kk + l * dk < depth ? x[l * step] : 0.0f;
    }
  }
  __device__ __forceinline__ void put(float* tile) const {
#pragma unroll
    for (int l = 0; l < Z::kLoads; ++l) tile[to + l * to_step] = v[l];
  }
};

// place returns the i-th row or column of thread t in a tile: a thread has groups of four, 64 apart.
__device__ __forceinline__ int place(int t, int i) { return i / 4 * 64 + t * 4 + i % 4; }

// Grid: x is the tiles of c, columns fastest; y the splits; z the batch.
template <typename Z> __device__ __forceinline__ void matmul(const MatmulParams& p) {
  __shared__ alignas(16) float as[Z::kDepth][Z::kSide + Z::kPad];
  __shared__ alignas(16) float bs[Z::kDepth][Z::kSide + Z::kPad];
  const int64_t across = (p.n + Z::kSide - 1) / Z::kSide;
  const int64_t m0 = blockIdx.x / across * Z::kSide, n0 = blockIdx.x % across * Z::kSide;
  const int64_t k0 = blockIdx.y * p.run, k_end = min(p.k, k0 + p.run);
  const int tx = threadIdx.x % 16, ty = threadIdx.x / 16;
  for (int64_t z = blockIdx.z; z < p.batch; z += gridDim.z) {
    Loader<Z> a(p.a + z * p.stride_a, p.lda, p.trans_a, m0, p.m);
    Loader<Z> b(p.b + z * p.stride_b, p.ldb, !p.trans_b, n0, p.n);
    float sum[Z::kEach][Z::kEach] = {};
    a.fetch(k0, k_end);
    b.fetch(k0, k_end);
    for (int64_t k = k0; k < k_end; k += Z::kDepth) {
      a.put(as[0]);
      b.put(bs[0]);
      __syncthreads();
      if (k + Z::kDepth < k_end) {
        a.fetch(k + Z::kDepth, k_end);
        b.fetch(k + Z::kDepth, k_end);
      }
#pragma unroll
      for (int kk = 0; kk < Z::kDepth; ++kk) {
        float x[Z::kEach], y[Z::kEach];
#pragma unroll
        for (int i = 0; i < Z::kEach; i += 4) {
          *reinterpret_cast<float4*>(x + i) = *reinterpret_cast<const float4*>(&as[kk][place(ty, i)]);
          *reinterpret_cast<float4*>(y + i) = *reinterpret_cast<const float4*>(&bs[kk][place(tx, i)]);
        }
#pragma unroll
        for (int i = 0; i < Z::kEach; ++i) {
#pragma unroll
          for (int j = 0; j < Z::kEach; ++j) sum[i][j] += x[i] * y[j];
        }
      }
      __syncthreads();
    }
    const int64_t at = z * p.stride_c + blockIdx.y * p.stride_split;
#pragma unroll
    for (int i = 0; i < Z::kEach; ++i) {
      const int64_t row = m0 + place(ty, i);
#pragma unroll
      for (int j = 0; j < Z::kEach; ++j) {
        const int64_t col = n0 + place(tx, j);
        if (row >= p.m || col >= p.n) continue;
        p.c[at + row * p.ldc + col] = p.bias != nullptr ? sum[i][j] + p.bias[col] : sum[i][j];
      }
    }
  }
}

template <typename T> __device__ void matmul64(const MatmulParams& p) { matmul<Tile<64>>(p); }
template <typename T> __device__ void matmul128(const MatmulParams& p) { matmul<Tile<128>>(p); }

} // namespace nsa

NSA_ENTRY(matmul64, f32, float, nsa::MatmulParams, 256)
NSA_ENTRY(matmul128, f32, float, nsa::MatmulParams, 256)
