// The rows that may see the keys of a tile, for the kernels that own keys (dk, dv).
#pragma once

#include "attention_index.cuh"

namespace nsa {

// The rows that may see the keys [first,end) of a block under a Span.
struct SpanRows {
  static constexpr bool kListed = false;
  Span mask;
  int from, all;
  __device__ int count() const { return all; }
  __device__ int row(int i) const { return from + i; }
  __device__ Run keys(int t) const { return mask.keys(t); }
};

// All rows that may see the keys [first,end).
__device__ inline SpanRows span_rows(const AttentionParams& p, int first, int end) {
  const Run seen = p.span.queries(first, end, p.n.queries);
  return {p.span, seen.lo * p.n.each, max(0, seen.hi - seen.lo) * p.n.each};
}

// The rows of the listed queries, which have chosen the block of the keys.
struct ListRows {
  static constexpr bool kListed = true;
  const int* queries;
  int each, all;
  __device__ int count() const { return all; }
  __device__ int row(int i) const { return queries[i / each] * each + i % each; }
  __device__ Run keys(int t) const { return {0, t + 1}; }
};

}  // namespace nsa
