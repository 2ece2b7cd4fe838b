// The inverse index of idx. It lists for each block of each group the queries that selected it, ascending, and divides the work of the
// kernels that own keys. Index has its layout. attention_index.cu builds it; the kernels for dk and dv of selected attention read it.
#pragma once

#include "attention_params.cuh"

namespace nsa {

// If a block of the inverse stands for several selection blocks, the bits of a list entry from kJoinedShift on say which of them the query
// selected; those below hold the query.
constexpr int kJoinedShift = 28;

// InverseIndex is the inverse of one group.
struct InverseIndex {
  const int *list, *item, *partial;  // the three rows of starts, [J+1] each
  const int* queries;

  __device__ InverseIndex(const AttentionParams& p, int group) {
    const int ends = p.names() + 1;
    list = p.starts + (long long)group * 3 * ends, item = list + ends, partial = item + ends;
    queries = p.queries + (long long)group * p.n.queries * p.blocks.top_n;
  }
  // The name of the block that item i belongs to; i must be less than item[names].
  __device__ int name(int i, int names) const {
    int lo = 0, hi = names;  // item[lo] <= i < item[hi]
    while (hi - lo > 1) {
      const int mid = (lo + hi) / 2;
      (item[mid] <= i ? lo : hi) = mid;
    }
    return lo;
  }
  __device__ int length(int j) const { return list[j + 1] - list[j]; }
  __device__ int chunks(int j) const { return item[j + 1] - item[j]; }
};

}  // namespace nsa
