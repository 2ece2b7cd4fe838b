// Embedding: weight [V,dim], ids int32 [n] -> y [n,dim], the rows that ids name; a row of NaN for an id outside [0,V).
//
// The gradient: dy [n,dim] -> dweight [V,dim]. For each id it adds the rows of dy at the places of this id, ascending. sort.cu has sorted
// the places by id (`keys`); the sorted list is cut into chunks of 64:
//
//   embedding_chunks   keys, places, ids, dy -> dweight of ids whose places all lie in one chunk; and partial, float32 [chunks,2,dim]:
//                      the chunk's sum for an id that began in an earlier chunk; its sum for an id that begins in it and continues
//   embedding_rows     keys, partial -> dweight of all other rows: the sum of their partials, ascending, or zeros
//
// Outputs are written with =; each row of dweight by one of the two kernels. Ids outside [0,V) add nothing. Nothing is saved.
#include "common.cuh"

namespace nsa {

constexpr int64_t kChunk = 64;
constexpr int kRowsAhead = 4; // rows of dy that a thread loads at once

struct EmbeddingParams {
  const void* weight;
  const int32_t* ids;
  void* y;
  int64_t n;
  int64_t vocab;
  int64_t dim;
};

struct EmbeddingGradParams {
  const int32_t* keys;   // sorted
  const int32_t* places; // sorted
  const int32_t* ids;    // not clamped, in their original order
  const void* dy;
  float* partial;
  void* dweight;
  int64_t n;
  int64_t vocab;
  int64_t dim;
  int32_t out_type;
  int32_t pad;
};

template <typename T> __device__ void embedding(const EmbeddingParams& p) {
  const bool wide = p.dim % kLanes<T> == 0 && aligned(p.weight, p.y);
  each_row(p.n, [&](int64_t r) {
    const int64_t id = p.ids[r];
    const bool known = id >= 0 && id < p.vocab;
    const T* from = static_cast<const T*>(p.weight) + (known ? id : 0) * p.dim;
    T* to = static_cast<T*>(p.y) + r * p.dim;
    along_row<T>(p.dim, wide, [&](auto width, int64_t i) {
      constexpr int W = decltype(width)::value;
      float v[W];
      read<W>(from + i, v);
#pragma unroll
      for (int j = 0; j < W; ++j) v[j] = known ? v[j] : NAN;
      write<W>(to + i, v);
    });
  });
}

template <typename T> __device__ void embedding_chunks(const EmbeddingGradParams& p) {
  const bool wide = p.dim % kLanes<T> == 0 && aligned(p.dy);
  const T* dy = static_cast<const T*>(p.dy);
  for (int64_t first = blockIdx.x * kChunk; first < p.n; first += gridDim.x * kChunk) {
    const int64_t end = min(p.n, first + kChunk);
    const bool cut_before = first > 0 && p.keys[first - 1] == p.keys[first];
    const bool cut_behind = end < p.n && p.keys[end - 1] == p.keys[end];
    float* partial = p.partial + first / kChunk * 2 * p.dim;
    along_row<T>(p.dim, wide, [&](auto width, int64_t i) {
      constexpr int W = decltype(width)::value;
      float sum[W] = {};
      bool head = cut_before;
      for (int64_t from = first; from < end; from += kRowsAhead) {
        int32_t key[kRowsAhead];
        float v[kRowsAhead][W];
#pragma unroll
        for (int u = 0; u < kRowsAhead; ++u) {
          const int64_t at = min(from + u, end - 1), place = p.places[at];
          key[u] = p.keys[at];
          if (p.ids[place] == key[u]) {
            read<W>(dy + place * p.dim + i, v[u]);
          } else {
#pragma unroll
            for (int j = 0; j < W; ++j) v[u][j] = 0;
          }
        }
#pragma unroll
        for (int u = 0; u < kRowsAhead; ++u) {
          const int64_t at = from + u;
          if (at >= end) break;
#pragma unroll
          for (int j = 0; j < W; ++j) sum[j] += v[u][j];
          const bool last = at + 1 == end;
          if (!last && p.keys[at + 1] == key[u]) continue;
          const bool tail = last && cut_behind;
#pragma unroll
          for (int j = 0; j < W; ++j) {
            if (head) partial[i + j] = sum[j];
            else if (tail) partial[p.dim + i + j] = sum[j];
            else store_as(p.dweight, p.out_type, key[u] * p.dim + i + j, sum[j]);
            sum[j] = 0;
          }
          head = false;
        }
      }
    });
  }
}

// lower_bound returns the index of the first of n sorted keys that is at least `key`. The lanes of a warp try 32 indices at once.
__device__ __forceinline__ int64_t lower_bound(const int32_t* keys, int64_t n, int64_t key) {
  const int64_t lane = threadIdx.x % 32;
  int64_t lo = 0;
  while (n > 0) {
    const int64_t part = (n - 1) / 32 + 1, last = min(n, (lane + 1) * part) - 1;
    // below: the keys of all parts that end below `key`
    const int64_t below = __popc(__ballot_sync(0xffffffffu, lane * part < n && keys[lo + last] < key)) * part;
    lo += min(n, below);
    n = min(part, n - below) - 1;
  }
  return lo;
}

} // namespace nsa

extern "C" __global__ void __launch_bounds__(512) nsa_embedding_rows_f32(const __grid_constant__ nsa::EmbeddingGradParams p) {
  using namespace nsa;
  each_row(p.vocab, [&](int64_t row) {
    const int64_t first = lower_bound(p.keys, p.n, row), end = lower_bound(p.keys, p.n, row + 1);
    const int64_t from = first / kChunk, to = (end - 1) / kChunk;
    if (first < end && from == to) return;
    for (int64_t i = threadIdx.x; i < p.dim; i += blockDim.x) {
      float sum = 0;
      if (first < end) {
        sum = p.partial[(from * 2 + 1) * p.dim + i];
        for (int64_t c = from + 1; c <= to; ++c) sum += p.partial[c * 2 * p.dim + i];
      }
      store_as(p.dweight, p.out_type, row * p.dim + i, sum);
    }
  });
}

NSA_ENTRY(embedding, f32, float, nsa::EmbeddingParams, 512)
NSA_KERNEL(embedding_chunks, EmbeddingGradParams, 512)
