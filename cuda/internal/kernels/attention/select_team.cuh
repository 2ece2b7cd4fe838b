// What the kernels on tensor cores that select blocks share. Products are transposed: keys are rows, and columns are the heads of
// queries. So a thread sums over heads in registers. Each query has a list of the best blocks.
#pragma once

#include <type_traits>

#include "select.cuh"
#include "team_product.cuh"

namespace nsa {

// Columns maps the columns of a block to queries and heads. Of a product a thread has the column pairs 8*i + 2*(lane%4), i < 16. They
// hold the heads of `queries` queries, one query after the other, `pairs` pairs each. Two threads share a query of more than 32 heads.
struct Columns {
  int heads, threads, queries, pairs;

  __device__ Columns(int heads, int queries_of_team)
      : heads(heads), threads(heads > 32 ? 2 : 1), queries(queries_of_team * threads / 4), pairs(16 / queries) {}
  // The first query of the threads of a team with lane%4 = c.
  __device__ int first(int team, int c) const { return (team * 4 + c) / threads * queries; }
  __device__ int query(int i) const { return first(i / kColumns, i % 8 / 2) + i % kColumns / 8 / pairs; }
  // The head of column i; -1 if the column is unused.
  __device__ int head(int i) const {
    const int pair = i % kColumns / 8, h = 2 * (i % 8 / 2 % threads * pairs + pair % pairs) + i % 2;
    return pair / pairs < queries && h < heads ? h : -1;
  }
};

// The list of a query holds the bits of its scores, then their blocks. Scores are not negative, so their bits order as they do. Of equal
// scores the lower block comes first. kNoScore stands for no score and is less than all bits.
constexpr int kNoScore = -1;
// bar: only scores whose bits exceed it enter the list. count: entries of the list.
struct __align__(8) ListState { int bar, count; };
__device__ inline int bits_of(float x) {
  int bits;
  memcpy(&bits, &x, sizeof bits);
  return bits;
}

// The number of ints among 32 that exceed x.
__device__ __forceinline__ int larger(const int* list, int x) {
  int n = 0;
#pragma unroll
  for (int i = 0; i < 32; i += 4) {
    const int4 y = *reinterpret_cast<const int4*>(list + i);
    n += (uint32_t)(x - y.x) >> 31, n += (uint32_t)(x - y.y) >> 31;
    n += (uint32_t)(x - y.z) >> 31, n += (uint32_t)(x - y.w) >> 31;
  }
  return n;
}

// Moves the best `places` of the Room = 32 or 64 entries of a list to its beginning, sorted. All lanes of a warp must call it.
template <int Room> __device__ __forceinline__ void cut(int* list, int places) {
  int x[Room / 32], block[Room / 32], better[Room / 32];
#pragma unroll
  for (int e = 0; e < Room / 32; e++) {
    x[e] = list[lane() + 32 * e], block[e] = list[Room + lane() + 32 * e];
    better[e] = __popc(__match_any_sync(0xffffffff, x[e]) & ((1u << lane()) - 1));
  }
#pragma unroll 8
  for (int i = 0; i < Room; i += 4) {
    const int4 y = *reinterpret_cast<const int4*>(list + i);
#pragma unroll
    for (int e = 0; e < Room / 32; e++) {
      const int mine = x[e] - (i / 32 < e);  // equal entries of an earlier half are better
      better[e] += (uint32_t)(mine - y.x) >> 31, better[e] += (uint32_t)(mine - y.y) >> 31;
      better[e] += (uint32_t)(mine - y.z) >> 31, better[e] += (uint32_t)(mine - y.w) >> 31;
    }
  }
  __syncwarp();
#pragma unroll
  for (int e = 0; e < Room / 32; e++)
    if (better[e] < places) list[better[e]] = x[e], list[Room + better[e]] = block[e];
  __syncwarp();
}
__device__ __forceinline__ void cut(int* list, int room, int places) { room == 32 ? cut<32>(list, places) : cut<64>(list, places); }

// Turns a thread's products into probabilities and sums them over the heads, for each of its queries and its two keys. base is
// lse*log2(e) of each column. The sums of the two keys go to two places of a query's row, Apart apart; rows are `pitch` apart.
template <int Queries, int Apart, int N>
__device__ __forceinline__ void sum_heads(float (&s)[N][4], float scale, const float* base, float* to, int pitch) {
  constexpr int kPairs = 16 / Queries;
  static_assert(N >= kPairs * Queries);
  float2 x[Queries];  // stored at the end: the compiler moves no load of base across a store
#pragma unroll
  for (int j = 0; j < kPairs * Queries; j++) {
    const float2 y = load_pair(base + 8 * j);
#pragma unroll
    for (int i = 0; i < 4; i++) s[j][i] = power2(fmaf(s[j][i], scale, -(i % 2 ? y.y : y.x)));
    float2& sum = x[j / kPairs];
    if (j % kPairs == 0)
      sum = {s[j][0] + s[j][1], s[j][2] + s[j][3]};
    else
      sum.x += s[j][0] + s[j][1], sum.y += s[j][2] + s[j][3];
  }
#pragma unroll
  for (int u = 0; u < Queries; u++, to += pitch)
    if constexpr (Apart == 1)
      *reinterpret_cast<float2*>(to) = x[u];
    else
      to[0] = x[u].x, to[Apart] = x[u].y;
}

// Turns logits into exponents of 2, by lse. Used if some row of the block is large; then bases are 0 and the scale of sum_heads is 1.
template <int N> __device__ __forceinline__ void to_exponents(float (&s)[N][4], float scale, const float* lse) {
#pragma unroll
  for (int j = 0; j < N; j++)
#pragma unroll
    for (int i = 0; i < 4; i++) s[j][i] = exponent(s[j][i], scale, lse[8 * j + i % 2]) * kLog2E;
}

// Calls f with the number of queries of a thread as a std::integral_constant.
template <class F> __device__ __forceinline__ void with_queries(int queries, F f) {
  switch (queries) {
    case 1: return f(std::integral_constant<int, 1>());
    case 2: return f(std::integral_constant<int, 2>());
    case 3: return f(std::integral_constant<int, 3>());
    case 4: return f(std::integral_constant<int, 4>());
    case 5: return f(std::integral_constant<int, 5>());
    case 8: return f(std::integral_constant<int, 8>());
    default: return f(std::integral_constant<int, 16>());
  }
}

// Adds the scores of the lanes with `in`, a block each, to the list of a query. Lower lanes must have lower blocks. Returns whether there
// were any. All lanes of a warp must call it, with the same state.
__device__ __forceinline__ bool enter(int* list, ListState& state, int room, int places, int score, int block, bool in) {
  unsigned kept = __ballot_sync(0xffffffff, in);
  if (kept == 0) return false;
  for (;;) {
    const int at = state.count + __popc(kept & ((1u << lane()) - 1));
    if (in && at < room) list[at] = score, list[room + at] = block;
    state.count += __popc(kept);
    __syncwarp();
    if (state.count <= room) return true;
    cut(list, room, places);
    state = {list[places - 1], places};
    in = in && at >= room && score > state.bar;
    kept = __ballot_sync(0xffffffff, in);
  }
}

// Writes the blocks of query t of group g: all blocks up to its own if there are at most `top_n`; else block 0, the best ones of its
// list, and the two newest. All lanes of a warp must call it.
__device__ __forceinline__ void write_selection(const SelectParams& p, int b, int g, int t, int* list, const ListState& state, int places) {
  int* idx = p.idx + Blocks{p.size, p.top_n}.list(p.n, b, g, t);
  const int own = t / p.size;
  if (own < p.top_n) {
    for (int j = lane(); j < p.top_n; j += 32) idx[j] = j <= own ? j : -1;
    return;
  }
  if (places > 0) {
    for (int j = state.count + lane(); j < p.room; j += 32) list[j] = kNoScore;
    __syncwarp();
    cut(list, p.room, places);
  }
  for (int j = lane(); j < places; j += 32) {
    const int block = list[p.room + j];
    int at = 1;
#pragma unroll 4
    for (int k = 0; k < places; k++) at += list[p.room + k] < block;
    idx[at] = block;
  }
  if (lane() == 0) idx[0] = 0, idx[p.top_n - 2] = own - 1, idx[p.top_n - 1] = own;
}

// Begins to copy the columns of a block: q of the queries from t0 on, of group g of batch row b. Writes the lse of each column, Inf for
// an unused one, to lses, and lse*log2(e) to bases. Returns whether some row is large; then it writes zeros to bases. `rows` is room for
// a word for each column, which threads read until the next barrier.
template <typename T, int C, int Teams>
__device__ __forceinline__ bool load_columns(const SelectParams& p, const Columns& columns, int b, int g, int t0, uint32_t Q, float* lses,
                                             float* bases, int* rows) {
  constexpr int kAll = Teams * kTeam, kMine = kColumns * C * 2;
  // a thread copies the same cell of several rows, or of their panels
  constexpr int kCells = kAll % (C / 8) == 0 ? C / 8 : 8, kStep = kAll / kCells;
  const Sizes& n = p.n;
  const T* q = static_cast<const T*>(p.q);
  const int own = threadIdx.x, query = columns.query(own), head = columns.head(own);
  const bool in = head >= 0 && query < p.tokens && t0 + query < n.queries;
  const float lse = in ? lse_for_gradient(p.lse[((long long)b * n.heads + g * n.h + head) * n.queries + t0 + query]) : INFINITY;
  rows[own] = in ? query << 8 | head : -1;
  const bool any_large = __syncthreads_or(large(lse));
  lses[own] = lse, bases[own] = any_large ? 0 : lse * kLog2E;
  const T* from = q + (((long long)b * n.queries + t0) * n.heads + g * n.h) * n.d;
#pragma unroll 4
  for (int u = 0; u < kCells; u++) {
    const int row = own / kCells + u * kStep, first = own % kCells, at = rows[row];
#pragma unroll
    for (int m = 0; m < C / 8; m += kCells) {
      const int i = m + first;
      const bool in = at >= 0 && 8 * i < n.d;
      copy_cell(part_cell<kColumns>(Q + row / kColumns * kMine, row % kColumns, i),
                in ? from + ((long long)(at >> 8) * n.heads + (at & 255)) * n.d + 8 * i : q, in);
    }
  }
  return any_large;
}

}  // namespace nsa
