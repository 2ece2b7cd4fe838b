// What the kernels on tensor cores that choose blocks share: products are transposed, keys are rows, and columns are the heads of
// queries, so that the sum over the heads is a sum of registers; each query has a list of the best blocks.
#pragma once

#include <type_traits>

#include "select.cuh"
#include "team_product.cuh"

namespace nsa {

// Which query and head each column of a block is. Of a product a thread has the pairs of columns 8*i + 2*(lane%4): heads of `queries`
// queries, one after the other, `pairs` pairs for each. A query with more than 32 heads has two threads.
struct Columns {
  int each, threads, queries, pairs;

  __device__ Columns(int each, int queries_of_team)
      : each(each), threads(each > 32 ? 2 : 1), queries(queries_of_team * threads / 4), pairs(16 / queries) {}
  // The first query of the threads lane%4 = c of a team.
  __device__ int first(int team, int c) const { return (team * 4 + c) / threads * queries; }
  __device__ int query(int i) const { return first(i / kColumns, i % 8 / 2) + i % kColumns / 8 / pairs; }
  // The head of column i, -1 where there is none.
  __device__ int head(int i) const {
    const int pair = i % kColumns / 8, h = 2 * (i % 8 / 2 % threads * pairs + pair % pairs) + i % 2;
    return pair / pairs < queries && h < each ? h : -1;
  }
};

// A list of a query: first the bits of the scores of its entries, which order as the scores do since none is negative, then their
// blocks. Of equal scores the one of the lower block comes first. No score is kNone.
constexpr int kNone = -1;
// What the bits of a score must exceed to come to a list, and how many have come.
struct __align__(8) ListState { int bar, count; };
__device__ inline int bits_of(float x) {
  int bits;
  memcpy(&bits, &x, sizeof bits);
  return bits;
}

// How many of 32 ints exceed x.
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

// Sorts the best `places` of a list to its begin; Room is 32 or 64. All lanes of a warp call it.
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
      const int mine = x[e] - (i / 32 < e);  // equal ones before this half are better
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

// Makes a thread's products probabilities and sums those of each of its queries, of two keys, into rows of sums, `Apart` apart. base:
// of each column lse*log2(e).
template <int Queries, int Apart, int N>
__device__ __forceinline__ void sum_heads(float (&s)[N][4], float scale, const float* base, float* to, int pitch) {
  constexpr int kPairs = 16 / Queries;
  static_assert(N >= kPairs * Queries);
  float2 x[Queries];  // stored last: loads of base do not go before stores
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

// If some of a block's rows are large, bases are 0 and exponents, with a scale of 1, are made of lse.
template <int N> __device__ __forceinline__ void to_exponents(float (&s)[N][4], float scale, const float* lse) {
#pragma unroll
  for (int j = 0; j < N; j++)
#pragma unroll
    for (int i = 0; i < 4; i++) s[j][i] = exponent(s[j][i], scale, lse[8 * j + i % 2]) * kLog2E;
}

// Calls f(std::integral_constant) with the number of queries of a thread.
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

// Gives a query's list the scores of the lanes that are `in`, of a block each, the lower ones in the lower lanes. Returns whether there
// are some. All lanes of a warp call it, and all know the state.
__device__ __forceinline__ bool enter(int* list, ListState& state, int room, int places, int score, int block, bool in) {
  unsigned chosen = __ballot_sync(0xffffffff, in);
  if (chosen == 0) return false;
  for (;;) {
    const int at = state.count + __popc(chosen & ((1u << lane()) - 1));
    if (in && at < room) list[at] = score, list[room + at] = block;
    state.count += __popc(chosen);
    __syncwarp();
    if (state.count <= room) return true;
    cut(list, room, places);
    state = {list[places - 1], places};
    in = in && at >= room && score > state.bar;
    chosen = __ballot_sync(0xffffffff, in);
  }
}

// Writes the blocks of query t of group g, whose list and state are given: all up to its own where they fit, or block 0, the best,
// and the two newest.
__device__ __forceinline__ void write_choice(const SelectParams& p, int b, int g, int t, int* list, const ListState& state, int places) {
  int* idx = p.idx + Blocks{p.size, p.most}.list(p.n, b, g, t);
  const int own = t / p.size;
  if (own < p.most) {
    for (int j = lane(); j < p.most; j += 32) idx[j] = j <= own ? j : -1;
    return;
  }
  if (places > 0) {
    for (int j = state.count + lane(); j < p.room; j += 32) list[j] = kNone;
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
  if (lane() == 0) idx[0] = 0, idx[p.most - 2] = own - 1, idx[p.most - 1] = own;
}

// Copies the columns of a block, q of the queries from t0 on, of group g of batch b, and notes their lse, Inf where there is none, and
// lse*log2(e). rows: room for as many words, which are read until the next barrier. Returns whether some row is large; then the latter
// are 0.
template <typename T, int C, int Teams>
__device__ __forceinline__ bool load_columns(const SelectParams& p, const Columns& columns, int b, int g, int t0, uint32_t Q, float* lses,
                                             float* bases, int* rows) {
  constexpr int kAll = Teams * kTeam, kMine = kColumns * C * 2;
  constexpr int kCells = kAll % (C / 8) == 0 ? C / 8 : 8, kStep = kAll / kCells;  // a thread copies one cell of rows, or of their panels
  const Sizes& n = p.n;
  const T* q = static_cast<const T*>(p.q);
  const int own = threadIdx.x, query = columns.query(own), head = columns.head(own);
  const bool in = head >= 0 && query < p.tokens && t0 + query < n.queries;
  const float lse = in ? load_lse(p.lse[((long long)b * n.heads + g * n.each + head) * n.queries + t0 + query]) : INFINITY;
  rows[own] = in ? query << 8 | head : -1;
  const bool any_large = __syncthreads_or(large(lse));
  lses[own] = lse, bases[own] = any_large ? 0 : lse * kLog2E;
  const T* from = q + (((long long)b * n.queries + t0) * n.heads + g * n.each) * n.d;
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
