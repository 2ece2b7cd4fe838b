// The rows that may see the keys of a tile, for kernels that own keys (dk and dv).
#pragma once

#include "attention_index.cuh"

namespace nsa {

// The rows that may see some keys under a Span; see span_rows.
struct SpanRows {
  static constexpr bool kListed = false;
  const AttentionParams& p;
  int b, from, all;
  __device__ int count() const { return all; }
  __device__ int row(int i) const { return from + i; }
  __device__ Run keys(int t) const { return p.keys(b, t); }
};

// All rows that may see the keys [first,end) of row b of the batch. They are consecutive.
__device__ inline SpanRows span_rows(const AttentionParams& p, int b, int first, int end) {
  const Run seen = p.seeing(b, first, end);
  return {p, b, seen.lo * p.n.h, max(0, seen.hi - seen.lo) * p.n.h};
}

// The rows of listed queries: those that selected the block of the keys.
struct ListRows {
  static constexpr bool kListed = true;
  const int* queries;
  int h, all;
  __device__ int count() const { return all; }
  __device__ int row(int i) const { return queries[i / h] * h + i % h; }
  __device__ Run keys(int t) const { return {0, t + 1}; }
};

}  // namespace nsa
