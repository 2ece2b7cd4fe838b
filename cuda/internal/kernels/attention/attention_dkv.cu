// Gradient of attention with respect to keys and values, general kernels. The block that owns a key sums over its queries in their order.
//
//   nsa_span_dkv         q, k, v, lse, do, delta -> dk [B,T,Hkv,D], dv [B,T,Hkv,Dv]; the mask is a Span
//   nsa_selected_dkv     the same; the mask is Blocks, the queries of a block come from the inverse (attention_index.cuh). If the
//                        list of a block has several chunks, they write partial sums, float32 [B*Hkv, partials, size, D+Dv]
//   nsa_selected_reduce  partial sums -> dk and dv of the blocks that have them, added in the order of the chunks
//
// A block of 128 threads owns M keys and goes through the rows (queries with the h heads of the group) that may see them, N at a
// time: dv = sum p*do and dk = sum ds*q, with p and ds as in attention_dq.cu (arXiv 2307.08691). There are no atomics. Exactly one
// kernel writes each element of dk and dv, with =. Keys that nobody sees get zeros.
#include "attention_index.cuh"
#include "attention_rows.cuh"
#include "attention_softmax.cuh"
#include "attention_tile.cuh"

namespace nsa {

// Computes DK and DV of the keys [first,end) and leaves them in shared memory for the caller to write.
template <typename T, int R, int C, class Rows>
__device__ void key_gradient(const AttentionParams& a, int b, int g, int first, int end, const Rows& rows, bool careful,
                             float*& DK, float*& DV) {
  constexpr int M = R * kDown, N = C * kAcross;
  const Sizes& n = a.n;
  const T *q = static_cast<const T*>(a.q), *k = static_cast<const T*>(a.k), *v = static_cast<const T*>(a.v);
  const T* dout = static_cast<const T*>(a.dout);
  Carver carve{dynamic_shared()};
  float* K = carve.tile(M, n.d);
  DK = carve.tile(M, n.d);
  float* V = carve.tile(M, n.dv);
  DV = carve.tile(M, n.dv);
  float* Q = carve.tile(N, n.d);
  float* DO = carve.tile(N, n.dv);
  float* P = carve.tile(M, N);  // p, then ds
  float* lses = carve.floats(N);
  float* deltas = carve.floats(N);
  int* los = reinterpret_cast<int*>(carve.floats(N));  // the keys that each row sees
  int* his = reinterpret_cast<int*>(carve.floats(N));

  load_rows(K, k, M, n.d, [&](int i) { return first + i < end ? n.key(b, g, first + i, n.d) : -1; });
  load_rows(V, v, M, n.dv, [&](int i) { return first + i < end ? n.key(b, g, first + i, n.dv) : -1; });
  clear_rows(DK, M, n.d);
  clear_rows(DV, M, n.dv);
  float one[R];
  for (int i = 0; i < R; i++) one[i] = 1;

  const int all = rows.count();
  for (int from = 0; from < all; from += N) {
    __syncthreads();  // all threads have read the rows of the last tile
    load_rows(Q, q, N, n.d, [&](int c) { return from + c < all ? n.row(b, g, rows.row(from + c), n.d) : -1; });
    load_rows(DO, dout, N, n.dv, [&](int c) { return from + c < all ? n.row(b, g, rows.row(from + c), n.dv) : -1; });
    if (const int c = threadIdx.x; c < N) {
      const bool in = from + c < all;
      const int row = in ? rows.row(from + c) : 0;
      const long long at = n.stat(b, g, row);
      const Run seen = in ? rows.keys(row / n.h) : Run{0, 0};
      lses[c] = in ? lse_for_gradient(a.lse[at]) : INFINITY;
      deltas[c] = in ? a.delta[at] : 0;
      los[c] = seen.lo, his[c] = min(seen.hi, end);
    }
    __syncthreads();
    if (careful) {
      const auto spoil = [&](int c) { lses[c] = NAN; };
      take_out(Q, N, n.d, spoil);
      take_out(DO, N, n.dv, spoil);
    }
    float p[R][C], ds[R][C];
    multiply_transposed<R, C>(p, K, Q, n.d);
    multiply_transposed<R, C>(ds, V, DO, n.dv);
#pragma unroll
    for (int j = 0; j < C; j++) {
      const int c = across() + kAcross * j;
      const Run seen{los[c], his[c]};
#pragma unroll
      for (int i = 0; i < R; i++) {
        const bool sees = seen.has(first + down() + kDown * i);
        p[i][j] = sees ? probability(p[i][j], n.scale, lses[c]) : 0;
        ds[i][j] = sees ? p[i][j] * (ds[i][j] - deltas[c]) * n.scale : 0;
      }
    }
    put<R, C>(P, p);
    __syncthreads();
    multiply_add<R, N>(DV, P, DO, n.dv, one);
    __syncthreads();
    put<R, C>(P, ds);
    __syncthreads();
    multiply_add<R, N>(DK, P, Q, n.d, one);
  }
  __syncthreads();  // DK and DV are complete; if no row sees a key, clear_rows has finished
}

// Writes a tile of c columns to the keys [first,end) of an array [B,T,Hkv,c]; returns as store_rows.
template <int R, typename T>
__device__ bool store_keys(void* x, const float* tile, const Sizes& n, int b, int g, int first, int end, int c) {
  return store_rows<R>(
      static_cast<T*>(x), tile, c, [&](int i) { return first + i < end ? n.key(b, g, first + i, c) : -1; },
      [](int) { return 1.0f; });
}

// Grid x is B*Hkv*ceil(T/M). For the two passes see careful_if_needed.
template <typename T, int R, int C> __device__ bool span_dkv_pass(const AttentionParams& p, bool careful) {
  constexpr int M = R * kDown;
  const Sizes& n = p.n;
  int block = blockIdx.x;
  opaque(block);  // the second pass computes this again rather than keep it in registers
  const int tiles = (n.keys - 1) / M + 1, group = block / tiles, b = group / n.groups, g = group % n.groups;
  const int first = block % tiles * M, end = min(n.keys, first + M);
  const SpanRows rows = span_rows(p, b, first, end);
  float *DK, *DV;
  key_gradient<T, R, C>(p, b, g, first, end, rows, careful, DK, DV);
  return store_keys<R, T>(p.dk, DK, n, b, g, first, end, n.d) | store_keys<R, T>(p.dv, DV, n, b, g, first, end, n.dv);
}

// Grid x is B*Hkv*items*ceil(size/M). An item is a chunk of the list of a block.
template <typename T, int R, int C> __device__ bool selected_dkv_pass(const AttentionParams& p, bool careful) {
  constexpr int M = R * kDown;
  const Sizes& n = p.n;
  const int size = p.blocks.size, parts = (size - 1) / M + 1, names = p.names();
  const int part = blockIdx.x % parts, item = blockIdx.x / parts % p.index.items, group = blockIdx.x / parts / p.index.items;
  const int b = group / n.groups, g = group % n.groups;
  const InverseIndex inverse(p, group);
  if (item >= inverse.item[names]) return false;
  const int j = inverse.name(item, names), chunk = item - inverse.item[j];
  const Run block = p.tokens(b, j);
  if (part * M >= block.hi - block.lo) return false;
  const int first = block.lo + part * M, end = min(first + M, block.hi);
  const int from = chunk * p.index.chunk, count = min(inverse.length(j) - from, p.index.chunk);
  const ListRows rows{inverse.queries + inverse.list[j] + from, n.h, count * n.h};
  float *DK, *DV;
  key_gradient<T, R, C>(p, b, g, first, end, rows, careful, DK, DV);
  if (inverse.chunks(j) == 1)
    return store_keys<R, T>(p.dk, DK, n, b, g, first, end, n.d) | store_keys<R, T>(p.dv, DV, n, b, g, first, end, n.dv);
  const int c = n.d + n.dv;
  float* sums = p.partial + (((long long)group * p.index.partials + inverse.partial[j] + chunk) * size + part * M) * c;
  const auto offset = [&](int i) { return first + i < end ? (long long)i * c : -1; };
  const auto one = [](int) { return 1.0f; };
  return store_rows<R>(sums, DK, n.d, offset, one) | store_rows<R>(sums + n.d, DV, n.dv, offset, one);
}

// Grid x is ceil(B*T*Hkv / 4), blocks of 128 threads. A warp has one key of one group.
template <typename T> __device__ void selected_reduce(const AttentionParams& p) {
  const Sizes& n = p.n;
  const long long at = (long long)blockIdx.x * kWarps + threadIdx.x / 32;
  if (at >= (long long)n.batch * n.groups * n.keys) return;
  const int group = (int)(at / n.keys), s = (int)(at % n.keys), size = p.blocks.size, first = p.first(group / n.groups, s);
  const int place = (s - first) % size, j = p.name((s - first) / size, first);
  const InverseIndex inverse(p, group);
  const int chunks = inverse.chunks(j), c = n.d + n.dv;
  if (chunks == 1) return;
  const float* sums = p.partial + (((long long)group * p.index.partials + inverse.partial[j]) * size + place) * c;
  T* dk = static_cast<T*>(p.dk) + n.key(group / n.groups, group % n.groups, s, n.d);
  T* dv = static_cast<T*>(p.dv) + n.key(group / n.groups, group % n.groups, s, n.dv) - n.d;
  for (int i = threadIdx.x % 32; i < c; i += 32) {
    float sum = 0;
    for (int x = 0; x < chunks; x++) sum += sums[(long long)x * size * c + i];
    (i < n.d ? dk : dv)[i] = from_float<T>(sum);
  }
}

template <typename T, int R, int C> __device__ void span_dkv(const AttentionParams& p) {
  careful_if_needed([&](bool careful) { return span_dkv_pass<T, R, C>(p, careful); });
}
template <typename T, int R, int C> __device__ void selected_dkv(const AttentionParams& p) {
  careful_if_needed([&](bool careful) { return selected_dkv_pass<T, R, C>(p, careful); });
}

}  // namespace nsa

NSA_TILES(span_dkv, 64, 4)
NSA_TILES(span_dkv, 32, 4)
NSA_TILES(span_dkv, 16, 2)
NSA_TILES(selected_dkv, 64, 4)
NSA_TILES(selected_dkv, 32, 4)
NSA_TILES(selected_dkv, 16, 2)
NSA_KERNEL(selected_reduce, AttentionParams, nsa::kThreads)
