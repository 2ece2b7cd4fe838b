// Matrix products of half precision on tensor cores, for a batch: c [m,n] = op(a) op(b) + bias. op(a) is [m,k], op(b) [k,n], bias [n] in
// the type of a, or none. Rows lie ld elements apart and matrices of a batch a stride, which may be 0 for a and b. A transposed a is
// stored as [k,m], a transposed b as [n,k]. a and b are T; out_type says whether c is T or float32. c is written with =.
//
// Sums are float32, ascending in k, 16 products at a time in the order of the tensor core. With splits > 1, split s sums only the
// products of [s*run, (s+1)*run). It writes them without the bias to partial s, float32 [splits,batch,m,pitch], in place of c. Then
// matmul_sum adds the partials in ascending order, then the bias.
//
// The grid is one-dimensional, of any size. A block goes through every gridDim.x-th tile of c. Tiles of a and b pass through a ring of
// stages in shared memory, copied 16 bytes at a time. If addresses or distances are not multiples of 16 bytes, the same tiles are
// filled element by element, and the results have the same bits.
#include "mma.cuh"

namespace nsa {

struct MatmulTensorParams {
  const void* a;
  const void* b;
  const void* bias; // or null
  void* c;
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
  int64_t splits;
  int64_t run; // the k of one split: a multiple of the depth of tiles, less than 2^31
  int32_t out_type;
  int32_t pad;
};

struct MatmulSumParams {
  const float* partial;
  const void* bias; // or null
  void* c;
  int64_t m;
  int64_t n;
  int64_t pitch; // elements from one row of a partial to the next, a multiple of 4
  int64_t ldc;
  int64_t stride_c;
  int64_t batch;
  int64_t splits;
  int32_t out_type;
  int32_t bias_type;
};

// Shape holds the sizes of a block's tile: kM x kN of c, of which a warp computes kWarpM x kWarpN. A stage holds kDepth of k.
template <int M, int N, int Depth, int Stages, int WarpM, int WarpN, int Resident> struct Shape {
  static constexpr int kM = M, kN = N, kDepth = Depth, kStages = Stages, kWarpM = WarpM, kWarpN = WarpN;
  static constexpr int kThreads = 32 * (M / WarpM) * (N / WarpN);
  static constexpr int kResident = Resident; // blocks that share a multiprocessor, which limits registers
};

// Side is the tile of an operand in shared memory. Without Across, a tile row is one of `Extent` rows or columns of c and runs along k.
// With Across, a tile row is one k and runs along c. The 16-byte chunks of a row are swizzled, so that eight chunks below each other, like
// eight beside each other, lie in different banks.
template <int Extent, bool Across, typename Z> struct Side {
  static constexpr int kChunks = (Across ? Extent : Z::kDepth) / 8; // chunks of a row
  static constexpr int kRows = Across ? Z::kDepth : Extent;
  static constexpr int kRowBytes = 16 * kChunks;
  static constexpr int kBytes = kRows * kRowBytes;
  static constexpr int kStep = Z::kThreads / kChunks; // rows from one chunk of a thread to the next
  static constexpr int kEach = kRows / kStep;         // chunks of a thread
  static_assert(kChunks >= 4 && kStep % 8 == 0 && kRows % kStep == 0, "chunks of a thread share their place in rows");

  static __device__ __forceinline__ int offset(int row, int chunk) {
    return row * kRowBytes + 16 * (chunk ^ (kChunks == 4 ? row >> 1 & 3 : row & 7));
  }
  // at returns the offset of the fragment that lies 16*i elements further along c and 16*kk further along k.
  static __device__ __forceinline__ int at(int offset, int i, int kk) {
    return Across ? (offset ^ 32 * i) + kk * 16 * kRowBytes : (offset ^ 32 * kk) + i * 16 * kRowBytes;
  }
};

// Copier fills the tiles of one operand, one after the other along k. Elements outside the operand become 0.
template <typename T, typename S, bool Across, bool Wide, typename Z> struct Copier {
  const T* from; // this thread's first chunk of the next tile
  int left;      // rows of the operand from this thread's first row on; with Across elements from the first of its chunk on

  __device__ __forceinline__ void begin(const T* x, int64_t ld, int64_t first, int64_t end, int64_t k) {
    const int row = threadIdx.x / S::kChunks, place = threadIdx.x % S::kChunks * 8;
    from = Across ? x + (k + row) * ld + first + place : x + (first + row) * ld + k + place;
    left = int(min(end - first, int64_t(1 << 20))) - (Across ? place : row);
  }
  // next fills the tile at `to` with the next elements along k, of which `depth` >= 1 are left; the rest of the tile becomes 0.
  __device__ __forceinline__ void next(uint32_t to, int64_t ld, int depth) {
    const int row = threadIdx.x / S::kChunks, chunk = threadIdx.x % S::kChunks;
    to += S::offset(row, chunk);
    const int deep = min(depth, Z::kDepth);
    const int along = min(8, max(0, Across ? left : deep - 8 * chunk));
    const int rows = Across ? deep - row : left;
    const T* x = from;
#pragma unroll(Wide ? S::kEach : 1)
    for (int j = 0; j < S::kEach; ++j) {
      const int elements = j * S::kStep < rows ? along : 0;
      if constexpr (Wide) {
        copy_async(to + j * S::kStep * S::kRowBytes, x, 2 * elements);
      } else {
        uint16_t lane[8];
#pragma unroll
        for (int e = 0; e < 8; ++e) lane[e] = e < elements ? reinterpret_cast<const uint16_t*>(x)[e] : uint16_t(0);
        uint4 v;
        memcpy(&v, lane, sizeof v);
        store_shared(to + j * S::kStep * S::kRowBytes, v);
      }
      x += S::kStep * ld;
    }
    from += Across ? Z::kDepth * ld : Z::kDepth;
  }
};

// Item is a tile of c in one split.
struct Item {
  int64_t split, z, m0, n0, k0;
  int depth; // of the split, along k
};

// item_of returns item i of splits x batch x tiles; tiles vary fastest. Tiles are taken in bands of eight rows of tiles, first downwards
// and then to the right. So tiles that run at the same time share rows of a and columns of b.
template <typename Z> __device__ __forceinline__ Item item_of(const MatmulTensorParams& p, int64_t i) {
  constexpr int64_t kBand = 8;
  const int64_t down = (p.m + Z::kM - 1) / Z::kM, across = (p.n + Z::kN - 1) / Z::kN;
  const int64_t tile = i % (down * across), matrix = i / (down * across);
  const int64_t band = tile / (kBand * across), in_band = tile % (kBand * across);
  const int64_t rows = min(kBand, down - band * kBand);
  Item it;
  it.split = matrix / p.batch;
  it.z = matrix % p.batch;
  it.m0 = (band * kBand + in_band % rows) * Z::kM;
  it.n0 = in_band / rows * Z::kN;
  it.k0 = it.split * p.run;
  it.depth = int(min(p.run, p.k - it.k0));
  return it;
}

// TensorProduct is the work of a block: the items blockIdx.x, blockIdx.x + gridDim.x, ..., as one sequence of tiles along k.
template <typename T, typename Z, bool TransA, bool TransB, bool Wide> struct TensorProduct {
  using A = Side<Z::kM, TransA, Z>;
  using B = Side<Z::kN, !TransB, Z>;
  static constexpr int kStageBytes = A::kBytes + B::kBytes;
  static constexpr int kTilesM = Z::kWarpM / 16, kTilesN = Z::kWarpN / 8, kSteps = Z::kDepth / 16;
  static_assert(kSteps % 2 == 0 && kTilesN % 4 == 0, "fragments alternate; a quad of lanes writes four tiles at once");

  // Fill begins to copy tiles, kStages - 1 tiles ahead of the products, also from one item to the next.
  struct Fill {
    Copier<T, A, TransA, Wide, Z> a;
    Copier<T, B, !TransB, Wide, Z> b;
    int64_t item;
    int depth; // how much of k is left of the item

    __device__ __forceinline__ void begin(const MatmulTensorParams& p, int64_t items) {
      if (item >= items) return;
      const Item it = item_of<Z>(p, item);
      a.begin(static_cast<const T*>(p.a) + it.z * p.stride_a, p.lda, it.m0, p.m, it.k0);
      b.begin(static_cast<const T*>(p.b) + it.z * p.stride_b, p.ldb, it.n0, p.n, it.k0);
      depth = it.depth;
    }
    __device__ __forceinline__ void next(const MatmulTensorParams& p, int64_t items, uint32_t stage) {
      if (item < items) {
        a.next(stage, p.lda, depth);
        b.next(stage + A::kBytes, p.ldb, depth);
        depth -= Z::kDepth;
        if (depth <= 0) {
          item += gridDim.x;
          begin(p, items);
        }
      }
      copy_commit();
    }
  };

  static __device__ __forceinline__ void read(uint32_t (&a)[kTilesM][4], uint32_t (&b)[kTilesN / 2][4], uint32_t stage,
                                              int offset_a, int offset_b, int kk) {
#pragma unroll
    for (int i = 0; i < kTilesM; ++i) read_fragments<TransA>(a[i], stage + A::at(offset_a, i, kk));
#pragma unroll
    for (int j = 0; j < kTilesN / 2; ++j) read_fragments<!TransB>(b[j], stage + A::kBytes + B::at(offset_b, j, kk));
  }

  // write writes a warp's part of a tile of c. A quad of lanes writes 64 bytes of a row at once if c is T, 32 if it is float32.
  static __device__ __forceinline__ void write(const MatmulTensorParams& p, const Item& it, float (&sum)[kTilesM][kTilesN][4],
                                               int warp_m, int warp_n) {
    const int lane = threadIdx.x % 32, t = lane % 4;
    const int64_t first = it.z * p.stride_c + it.split * p.stride_split;
    const int64_t row0 = it.m0 + warp_m + lane / 4, col0 = it.n0 + warp_n;
    if (p.bias != nullptr) {
#pragma unroll
      for (int j = 0; j < kTilesN; ++j) {
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          const int64_t col = col0 + 8 * j + 2 * t + e;
          const float bias = col < p.n ? to_float(static_cast<const T*>(p.bias)[col]) : 0.0f;
#pragma unroll
          for (int i = 0; i < kTilesM; ++i) sum[i][j][e] += bias, sum[i][j][2 + e] += bias;
        }
      }
    }
    if (p.out_type == kF32) {
      float* c = static_cast<float*>(p.c) + first;
      const bool pairs = (uint64_t(c) & 7) == 0 && p.ldc % 2 == 0;
#pragma unroll
      for (int i = 0; i < 2 * kTilesM; ++i) {
        const int64_t row = row0 + 8 * i;
        if (row >= p.m) continue;
#pragma unroll
        for (int j = 0; j < kTilesN; ++j) {
          const int64_t col = col0 + 8 * j + 2 * t;
          const float x = sum[i / 2][j][i % 2 * 2], y = sum[i / 2][j][i % 2 * 2 + 1];
          float* to = c + row * p.ldc + col;
          if (pairs && col + 1 < p.n) {
            *reinterpret_cast<float2*>(to) = make_float2(x, y);
          } else {
            if (col < p.n) to[0] = x;
            if (col + 1 < p.n) to[1] = y;
          }
        }
      }
      return;
    }
    T* c = static_cast<T*>(p.c) + first;
    const bool packs = aligned(c) && p.ldc % 8 == 0;
#pragma unroll
    for (int i = 0; i < 2 * kTilesM; ++i) {
      const int64_t row = row0 + 8 * i;
#pragma unroll
      for (int q = 0; q < kTilesN; q += 4) {
        uint32_t w[4];
#pragma unroll
        for (int j = 0; j < 4; ++j) w[j] = pair<T>(sum[i / 2][q + j][i % 2 * 2], sum[i / 2][q + j][i % 2 * 2 + 1]);
        transpose_quad(w);
        const int64_t col = col0 + 8 * (q + t);
        if (row >= p.m || col >= p.n) continue;
        T* to = c + row * p.ldc + col;
        if (packs && col + 8 <= p.n) {
          *reinterpret_cast<uint4*>(to) = uint4{w[0], w[1], w[2], w[3]};
        } else {
#pragma unroll
          for (int e = 0; e < 8; ++e) {
            const uint16_t bits = uint16_t(w[e / 2] >> 16 * (e % 2));
            if (col + e < p.n) memcpy(to + e, &bits, 2);
          }
        }
      }
    }
  }

  static __device__ __forceinline__ void run(const MatmulTensorParams& p) {
    extern __shared__ float4 nsa_dynamic_shared[];
    const uint32_t stages = shared_address(nsa_dynamic_shared);
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int warp_m = warp % (Z::kM / Z::kWarpM) * Z::kWarpM, warp_n = warp / (Z::kM / Z::kWarpM) * Z::kWarpN;
    // lane/8 picks one of the four 8x8 matrices of a fragment. They are numbered first along m, then k for a; first along k, then n for b.
    const int within = lane % 8, low = lane / 8 % 2 * 8, high = lane / 16 * 8;
    const int offset_a = TransA ? A::offset(within + high, (warp_m + low) / 8) : A::offset(warp_m + within + low, high / 8);
    const int offset_b = TransB ? B::offset(warp_n + within + high, low / 8) : B::offset(within + low, (warp_n + high) / 8);

    const int64_t items = p.splits * p.batch * ((p.m + Z::kM - 1) / Z::kM) * ((p.n + Z::kN - 1) / Z::kN);
    Fill fill;
    fill.item = blockIdx.x;
    fill.begin(p, items);
    uint32_t reading = stages, writing = stages;
    const uint32_t end = stages + Z::kStages * kStageBytes;
#pragma unroll 1
    for (int s = 0; s < Z::kStages - 1; ++s) {
      fill.next(p, items, writing);
      writing += kStageBytes;
    }
    uint32_t a[2][kTilesM][4], b[2][kTilesN / 2][4];
    copy_wait<Z::kStages - 2>();
    __syncthreads();
    read(a[0], b[0], reading, offset_a, offset_b, 0);
#pragma unroll 1
    for (int64_t item = blockIdx.x; item < items; item += gridDim.x) {
      float sum[kTilesM][kTilesN][4] = {};
#pragma unroll 1
      for (int depth = item_of<Z>(p, item).depth; depth > 0; depth -= Z::kDepth) {
#pragma unroll
        for (int kk = 0; kk < kSteps; ++kk) {
          if (kk == kSteps - 1) {
            // The next tile has arrived for all threads, and all have read this one for the last time.
            copy_wait<Z::kStages - 2>();
            __syncthreads();
            reading += kStageBytes;
            if (reading == end) reading = stages;
          }
          read(a[(kk + 1) % 2], b[(kk + 1) % 2], reading, offset_a, offset_b, (kk + 1) % kSteps);
          if (kk == 0) {
            fill.next(p, items, writing); // overwrites the tile before this one
            writing += kStageBytes;
            if (writing == end) writing = stages;
          }
#pragma unroll
          for (int i = 0; i < kTilesM; ++i) {
#pragma unroll
            for (int j = 0; j < kTilesN; ++j) {
              const int at = i % 2 ? kTilesN - 1 - j : j;
              multiply_fragments<T>(sum[i][at], a[kk % 2][i], b[kk % 2][at / 2][at % 2 * 2], b[kk % 2][at / 2][at % 2 * 2 + 1]);
            }
          }
        }
      }
      write(p, item_of<Z>(p, item), sum, warp_m, warp_n);
    }
  }
};

template <typename T, typename Z, bool TransA, bool TransB> __device__ __forceinline__ void matmul_tensor(const MatmulTensorParams& p) {
  int64_t apart = p.lda | p.ldb;
  if (p.batch > 1) apart |= p.stride_a | p.stride_b;
  if (apart % 8 == 0 && aligned(p.a, p.b)) TensorProduct<T, Z, TransA, TransB, true>::run(p);
  else TensorProduct<T, Z, TransA, TransB, false>::run(p);
}

using Large = Shape<128, 128, 32, 4, 64, 64, 2>;
using Small = Shape<64, 64, 32, 4, 32, 32, 3>;

} // namespace nsa

// matmul_sum: partial [splits,batch,m,pitch], bias -> c. A thread adds four columns, splits in ascending order, then the bias.
extern "C" __global__ void __launch_bounds__(256) nsa_matmul_sum_f32(const __grid_constant__ nsa::MatmulSumParams p) {
  const int64_t quads = p.pitch / 4, quads_per_split = p.batch * p.m * quads;
  const int64_t bytes = p.out_type == nsa::kF32 ? 4 : 2;
  const bool packs = p.ldc % 4 == 0 && (p.batch == 1 || p.stride_c % 4 == 0) && uint64_t(p.c) % (4 * bytes) == 0;
  for (int64_t i = blockIdx.x * 256ll + threadIdx.x; i < quads_per_split; i += gridDim.x * 256ll) {
    const float4* from = reinterpret_cast<const float4*>(p.partial) + i;
    float4 sum = from[0];
#pragma unroll 4
    for (int64_t s = 1; s < p.splits; ++s) {
      const float4 x = from[s * quads_per_split];
      sum.x += x.x, sum.y += x.y, sum.z += x.z, sum.w += x.w;
    }
    float v[4] = {sum.x, sum.y, sum.z, sum.w};
    const int64_t row = i / quads, col = i % quads * 4;
    if (p.bias != nullptr) {
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        if (col + j < p.n) v[j] += nsa::load_as(p.bias, p.bias_type, col + j);
      }
    }
    const int64_t to = p.batch == 1 ? row * p.ldc + col : row / p.m * p.stride_c + row % p.m * p.ldc + col;
    if (!packs || col + 4 > p.n) {
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        if (col + j < p.n) nsa::store_as(p.c, p.out_type, to + j, v[j]);
      }
    } else if (p.out_type == nsa::kF32) {
      *reinterpret_cast<float4*>(static_cast<float*>(p.c) + to) = make_float4(v[0], v[1], v[2], v[3]);
    } else {
      const bool is_bf16 = p.out_type == nsa::kBF16;
      uint2 w;
      w.x = is_bf16 ? nsa::pair<nsa::bf16>(v[0], v[1]) : nsa::pair<nsa::f16>(v[0], v[1]);
      w.y = is_bf16 ? nsa::pair<nsa::bf16>(v[2], v[3]) : nsa::pair<nsa::f16>(v[2], v[3]);
      *reinterpret_cast<uint2*>(static_cast<uint16_t*>(p.c) + to) = w;
    }
  }
}

// Defines the entry points nsa_matmul_<shape>_<transposes>_<storage>; transposes has n or t for a, then for b.
#define NSA_TENSOR(shape, Z, name, TransA, TransB, suffix, T)                                                          \
  extern "C" __global__ void __launch_bounds__(nsa::Z::kThreads, nsa::Z::kResident)                                    \
      nsa_matmul_##shape##_##name##_##suffix(const __grid_constant__ nsa::MatmulTensorParams p) {                      \
    nsa::matmul_tensor<T, nsa::Z, TransA, TransB>(p);                                                                  \
  }
#define NSA_TENSORS(shape, Z, suffix, T)                                                                               \
  NSA_TENSOR(shape, Z, nn, false, false, suffix, T)                                                                    \
  NSA_TENSOR(shape, Z, nt, false, true, suffix, T)                                                                     \
  NSA_TENSOR(shape, Z, tn, true, false, suffix, T)                                                                     \
  NSA_TENSOR(shape, Z, tt, true, true, suffix, T)

NSA_TENSORS(large, Large, bf16, nsa::bf16)
NSA_TENSORS(large, Large, f16, nsa::f16)
NSA_TENSORS(small, Small, bf16, nsa::bf16)
NSA_TENSORS(small, Small, f16, nsa::f16)
