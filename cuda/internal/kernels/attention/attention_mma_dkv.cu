// dk and dv by mma.sync, for bf16 and f16: q, k, v, lse, do, delta -> dk, dv, with the contract of attention_dkv.cu.
//
//   nsa_span_dkv_mma<C>         the mask is a Span. If the rows of some keys are cut into several chunks, the chunks write partial
//                               sums, float32 [B*Hkv, items, T, D+Dv]
//   nsa_span_reduce             partial sums -> dk and dv of the keys that have them, added in the order of the chunks
//   nsa_selected_dkv_mma<C>     the mask is Blocks, rows come from the inverse index; partial sums are those of nsa_selected_reduce
//   nsa_selected<M>_dkv_mma<C>  the same for blocks of at most M = 32 or 16 keys
//
// A block of 4 warps owns M = 64 keys, 16 a warp, and goes through the rows that may see them, in order. If M is 32 or 16, two or four
// warps own the same 16 keys: each takes a part of the rows of every tile, and their sums are added up at the end. Keys are the rows
// of the products and queries the columns, so p and ds are left factors without leaving their registers. Both are rounded to the
// storage type for this, ds before it is scaled. RowFacts are fetched two tiles ahead, the rows of q and do one tile ahead.
// Shared memory: 2 tiles [M,C], 4 tiles [kRows,C], and 24 bytes for each of 3*kRows rows.
#include "attention_store_keys.cuh"
#include "attention_rows.cuh"

namespace nsa {

// Rows of a tile. The ends lo and hi of the keys that they see do not decrease from row to row.
template <int C, int M> constexpr int kRows = C == 64 || M < 64 ? 64 : 32;

// The first of the warp's 16 keys among the M of the block, and which of the 64/M parts of the rows the warp takes.
template <int M> __device__ inline int own_keys() { return 16 * (M < 64 ? warp() % (M / 16) : warp()); }
template <int M> __device__ inline int own_part() {
  int part = M < 64 ? warp() / (M / 16) : 0;
  if (M < 64) opaque(part);  // addresses are computed again rather than kept in registers
  return part;
}

// RowFacts holds what the block must know about each row, for three tiles of N rows.
template <int N> struct RowFacts {
  long long* at;       // its index in [B,S,Hq]; -1 for no row
  float *lse, *delta;  // as saved by the forward
  int *lo, *hi;        // it sees the keys [lo,hi)

  __device__ explicit RowFacts(Carver& carve) {
    at = reinterpret_cast<long long*>(carve.floats(6 * N));
    lse = carve.floats(3 * N), delta = carve.floats(3 * N);
    lo = reinterpret_cast<int*>(carve.floats(3 * N)), hi = reinterpret_cast<int*>(carve.floats(3 * N));
  }
};

// Adds up x over the warps that own the same keys, in the order of their parts. The warps of part 0 get the sums. The numbers go
// through the shared memory of the rows.
template <int C, int M> __device__ inline void add_parts(float (&x)[1][C / 8][4]) {
  float* mine = tiles_shared() + (M + 16 * warp()) * C + lane();
  __syncthreads();  // all warps have read what this memory held
#pragma unroll
  for (int j = 0; j < C / 8; j++)
#pragma unroll
    for (int i = 0; i < 4; i++) mine[32 * (4 * j + i)] = x[0][j][i];
  __syncthreads();
  if (own_part<M>() > 0) return;
#pragma unroll 1
  for (int part = 1; part < 64 / M; part++) {
    mine += M * C;
#pragma unroll
    for (int j = 0; j < C / 8; j++)
#pragma unroll
      for (int i = 0; i < 4; i++) x[0][j][i] += mine[32 * (4 * j + i)];
  }
}

// Computes dv and the unscaled dk of the keys [first,end). The warps of part 0 have the results. Returns whether a row is large.
template <bool Careful, typename T, int C, int M, class Rows>
__device__ bool mma_key_gradient(const AttentionParams& a, int b, int g, int first, int end, const Rows& rows,
                                 float (&dk)[1][C / 8][4], float (&dv)[1][C / 8][4]) {
  constexpr int N = kRows<C, M>, kOwn = N * M / (16 * kWarps), kPart = Careful || kOwn == 16 ? 16 : 32;
  static_assert(N <= kThreads, "a thread for each row of a tile");
  const Sizes& n = a.n;
  const T *q = static_cast<const T*>(a.q), *k = static_cast<const T*>(a.k), *v = static_cast<const T*>(a.v);
  const T* dout = static_cast<const T*>(a.dout);
  Carver carve{tiles_shared()};
  const uint32_t K = shared_address(carve.floats(M * C / 2));
  const uint32_t V = shared_address(carve.floats(M * C / 2));
  const uint32_t QDO = shared_address(carve.floats(4 * N * C / 2));  // two stages of rows of q and of do
  constexpr uint32_t kTile = N * C * 2;
  RowFacts<N> ring(carve);

  const int all = rows.count();
  // The row of this thread in the tile that begins at row `from` of the list; -1 for none.
  const auto row_of = [&](int from) {
    const int i = from + (int)threadIdx.x;
    return threadIdx.x < N && i < all ? rows.row(i) : -1;
  };
  // Begins to fetch the facts about the row; copies_arrived waits for them.
  const auto fetch = [&](int row, int slot) {
    if (threadIdx.x >= N) return;
    const int i = slot * N + threadIdx.x;
    if (row < 0) {
      ring.at[i] = -1, ring.lse[i] = -INFINITY, ring.delta[i] = 0, ring.lo[i] = ring.hi[i] = 0;
      return;
    }
    const long long stat = n.stat(b, g, row);
    const Run seen = rows.keys(row / n.h);
    copy_number(ring.lse + i, a.lse + stat);
    copy_number(ring.delta + i, a.delta + stat);
    ring.at[i] = n.row(b, g, row, 1), ring.lo[i] = seen.lo, ring.hi[i] = min(seen.hi, end);
  };
  const auto copy = [&](int slot, int stage) {
    const uint32_t to = QDO + 2 * stage * kTile;
    const long long* at = ring.at + slot * N;
    copy_rows<C, N>(to, q, n.d, [&](int i) { return at[i] < 0 ? -1 : at[i] * n.d; });
    copy_rows<C, N>(to + kTile, dout, n.dv, [&](int i) { return at[i] < 0 ? -1 : at[i] * n.dv; });
  };
  copy_rows<C, M>(K, k, n.d, [&](int i) { return first + i < end ? n.key(b, g, first + i, n.d) : -1; });
  copy_rows<C, M>(V, v, n.dv, [&](int i) { return first + i < end ? n.key(b, g, first + i, n.dv) : -1; });
  fetch(row_of(0), 0), fetch(row_of(N), 1);
  int row = rows.kListed ? row_of(2 * N) : -1;
  __syncthreads();
  copy(0, 0);

  clear<C>(dk), clear<C>(dv);
  const Left<C> left(K, own_keys<M>());  // the values lie M rows below
  const int key = first + own_keys<M>() + lane() / 4;  // this thread's keys: key and key + 8
  int slot = 0, stage = 0;
  bool any_large = false;
  for (int from = 0; from < all; from += N) {
    copies_arrived();
    __syncthreads();  // these rows and the facts about the next ones have arrived, and all warps have read the previous tile
    const int soon = slot == 2 ? 0 : slot + 1, later = soon == 2 ? 0 : soon + 1;
    if (from + N < all) copy(soon, stage ^ 1);
    fetch(rows.kListed ? row : row_of(from + 2 * N), later);
    if (rows.kListed) row = row_of(from + 3 * N);  // loaded early: the list is in global memory

    const uint32_t Q = QDO + 2 * stage * kTile, DO = Q + kTile;
    const float *lse = ring.lse + slot * N, *delta = ring.delta + slot * N;
    const int *lo = ring.lo + slot * N, *hi = ring.hi + slot * N;
    if constexpr (Careful) {
      const auto spoil = [&](int row, int) { ring.lse[slot * N + row] = NAN; };
      take_out<T, C, N>(Q, spoil);
      take_out<T, C, N>(DO, spoil);
    }
    any_large |= large(lse[lane()]) || large(lse[lane() + N - 32]);
    const bool full = min(hi[0], hi[N - 1]) >= first + M && lo[N - 1] <= first;
#pragma unroll 1
    for (int part = own_part<M>() * kOwn, stop = part + kOwn; part < stop; part += kPart) {
      float scores[1][kPart / 8][4], gradients[1][kPart / 8][4];
      multiply_transposed<T, C, kPart>(scores, left, Q, part);
      multiply_transposed<T, C, kPart, M>(gradients, left, DO, part);
      float(&p)[kPart / 8][4] = scores[0], (&ds)[kPart / 8][4] = gradients[0];
#pragma unroll
      for (int j = 0; j < kPart / 8; j++) {
        const int c = part + 8 * j + 2 * (lane() % 4);
        const float2 d = load_pair(delta + c);
        float2 l = load_pair(lse + c);
        if constexpr (Careful) {
          l.x = lse_for_gradient(l.x), l.y = lse_for_gradient(l.y);
#pragma unroll
          for (int i = 0; i < 4; i++)
            if (large(i % 2 ? l.y : l.x)) p[j][i] = shifted(p[j][i], n.scale, i % 2 ? l.y : l.x);
          l.x = large(l.x) ? 0 : l.x, l.y = large(l.y) ? 0 : l.y;
        }
        l.x *= kLog2E, l.y *= kLog2E;
#pragma unroll
        for (int i = 0; i < 4; i++) {
          p[j][i] = power2(fmaf(p[j][i], n.scale_log2, -(i % 2 ? l.y : l.x)));
          ds[j][i] = p[j][i] * (ds[j][i] - (i % 2 ? d.y : d.x));
        }
        if (!full) {
          const int2 l = *reinterpret_cast<const int2*>(lo + c), h = *reinterpret_cast<const int2*>(hi + c);
#pragma unroll
          for (int i = 0; i < 4; i++) {
            const Run seen = i % 2 ? Run{l.y, h.y} : Run{l.x, h.x};
            if (!seen.has(key + i / 2 * 8)) p[j][i] = ds[j][i] = 0;
          }
        }
      }
      multiply_add<T, C, kPart>(dv, scores, DO, part);
      multiply_add<T, C, kPart>(dk, gradients, Q, part);
    }
    slot = soon, stage ^= 1;
  }
  copies_arrived();
  if constexpr (M < 16 * kWarps) add_parts<C, M>(dk), add_parts<C, M>(dv);
  return any_large;
}

// Grid x is B*Hkv*ceil(T/M)*items. Item i of a tile of keys takes the i-th chunk of index.chunk rows. For the two passes see
// careful_if_needed.
template <bool Careful, typename T, int C> __device__ bool span_dkv_pass(const AttentionParams& p) {
  constexpr int M = 16 * kWarps;
  const Sizes& n = p.n;
  const int tiles = (n.keys - 1) / M + 1, item = blockIdx.x % p.index.items, at = blockIdx.x / p.index.items;
  const int group = at / tiles, b = group / n.groups, g = group % n.groups;
  const int first = at % tiles * M, end = min(n.keys, first + M);
  SpanRows rows = span_rows(p, b, first, end);
  const int chunks = p.index.chunks(rows.all);
  if (item >= chunks) return false;
  rows.from += item * p.index.chunk, rows.all = min(rows.all - item * p.index.chunk, p.index.chunk);
  const long long row = ((long long)group * p.index.items + item) * n.keys + first;
  float* sums = chunks == 1 ? nullptr : p.partial + row * (n.d + n.dv);
  const int key = first + 16 * warp() + lane() / 4;
  float dk[1][C / 8][4], dv[1][C / 8][4];
  const bool any_large = mma_key_gradient<Careful, T, C, M>(p, b, g, first, end, rows, dk, dv);
  return any_large | (sums ? store_partial<C>(sums, n, first, key, end, dk[0], dv[0]) : store_gradients<T, C>(p, b, g, key, end, dk[0], dv[0]));
}

// Grid x is ceil(B*T*Hkv / 4), blocks of 128 threads. A warp has one key of one group. p.count is the number of keys that the
// kernel before it gave a block, on which the number of chunks depends.
template <typename T> __device__ void span_reduce(const AttentionParams& p) {
  const Sizes& n = p.n;
  const long long at = (long long)blockIdx.x * kWarps + warp();
  if (at >= (long long)n.batch * n.groups * n.keys) return;
  const int group = (int)(at / n.keys), s = (int)(at % n.keys), first = s / p.owned_keys() * p.owned_keys();
  const int chunks = p.index.chunks(span_rows(p, group / n.groups, first, min(n.keys, first + p.owned_keys())).all), c = n.d + n.dv;
  if (chunks == 1) return;
  const float* sums = p.partial + ((long long)group * p.index.items * n.keys + s) * c;
  T* dk = static_cast<T*>(p.dk) + n.key(group / n.groups, group % n.groups, s, n.d);
  T* dv = static_cast<T*>(p.dv) + n.key(group / n.groups, group % n.groups, s, n.dv) - n.d;
  for (int i = lane(); i < c; i += 32) {
    float sum = 0;
    for (int x = 0; x < chunks; x++) sum += sums[(long long)x * n.keys * c + i];
    (i < n.d ? dk : dv)[i] = from_float<T>(sum);
  }
}

// Grid x is B*Hkv*items*ceil(size/M). An item is a chunk of the list of a block.
template <bool Careful, typename T, int C, int M> __device__ bool selected_dkv_pass(const AttentionParams& p) {
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
  const long long row = ((long long)group * p.index.partials + inverse.partial[j] + chunk) * size + part * M;
  float* sums = inverse.chunks(j) == 1 ? nullptr : p.partial + row * (n.d + n.dv);
  int key = first + own_keys<M>() + lane() / 4;
  float dk[1][C / 8][4], dv[1][C / 8][4];
  const bool any_large = mma_key_gradient<Careful, T, C, M>(p, b, g, first, end, rows, dk, dv);
  if (own_part<M>() > 0) key = end;  // writes nothing
  return any_large | (sums ? store_partial<C>(sums, n, first, key, end, dk[0], dv[0]) : store_gradients<T, C>(p, b, g, key, end, dk[0], dv[0]));
}

template <typename T, int C> __device__ void span_dkv(const AttentionParams& p) {
  careful_if_needed<span_dkv_pass<false, T, C>, span_dkv_pass<true, T, C>>(p);
}
template <typename T, int C, int M> __device__ void mma_selected_dkv(const AttentionParams& p) {
  careful_if_needed<selected_dkv_pass<false, T, C, M>, selected_dkv_pass<true, T, C, M>>(p);
}

}  // namespace nsa

NSA_MMA(span_dkv, 64, 3)
NSA_MMA(span_dkv, 128, 2)
#define NSA_MMA_SELECTED(name, C, M, blocks)                                   \
  NSA_MMA_ENTRY(name, C, blocks, bf16, nsa::mma_selected_dkv<nsa::bf16, C, M>) \
  NSA_MMA_ENTRY(name, C, blocks, f16, nsa::mma_selected_dkv<nsa::f16, C, M>)
NSA_MMA_SELECTED(selected_dkv, 64, 64, 3)
NSA_MMA_SELECTED(selected_dkv, 128, 64, 2)
NSA_MMA_SELECTED(selected32_dkv, 64, 32, 3)
NSA_MMA_SELECTED(selected32_dkv, 128, 32, 2)
NSA_MMA_SELECTED(selected16_dkv, 64, 16, 3)
NSA_MMA_SELECTED(selected16_dkv, 128, 16, 2)
NSA_ENTRY(span_reduce, bf16, nsa::bf16, nsa::AttentionParams, nsa::kThreads)
NSA_ENTRY(span_reduce, f16, nsa::f16, nsa::AttentionParams, nsa::kThreads)
