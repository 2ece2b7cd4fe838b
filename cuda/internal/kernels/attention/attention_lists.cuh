// Reads the lists of idx int32 [B,S,Hkv,top_n], the selected blocks, by whole warps.
#pragma once

#include "attention_params.cuh"
#include "attention_tile.cuh"

namespace nsa {

// Calls f(q, i, j) for each entry i, block j, in the list of each of the `queries` queries from `first` on, and end(q, length) once for
// each list. q counts from `first`. This warp, number `warp` of `warps`, does its share of the queries: lists of up to 16 entries several
// at a time.
template <class F, class G>
__device__ __forceinline__ void each_entry(
    const AttentionParams& p, const Blocks& mask, int b, int g, int first, int queries, int warp, int warps, F f, G end) {
  constexpr int kAtOnce = 4;
  int lanes_per_query = 1;
  while (lanes_per_query < min(32, mask.top_n)) lanes_per_query *= 2;
  const int query_in_warp = lane() / lanes_per_query, first_entry = lane() % lanes_per_query, step = warps * (32 / lanes_per_query);
  const unsigned lane_mask = 0xffffffffu >> (32 - lanes_per_query);
  const int32_t* lists = p.idx + mask.list(p.n, b, g, first);
  const auto entry = [&](int q, int i) -> const int& { return lists[(long long)q * p.n.groups * mask.top_n + i]; };
  const auto load = [&](int q, int i) { return q < queries && i < mask.top_n ? max(-1, entry(q, i)) : -1; };
#pragma unroll 1
  for (int from = warp * (32 / lanes_per_query); from < queries; from += kAtOnce * step) {
    int ahead[kAtOnce][2];  // this lane's first two entries of each query: all loads begin before the first use
#pragma unroll
    for (int k = 0; k < kAtOnce; k++) {
      const int q = from + k * step + query_in_warp;
      ahead[k][0] = load(q, first_entry), ahead[k][1] = load(q, first_entry + 32);
    }
#pragma unroll
    for (int k = 0; k < kAtOnce; k++) {
      const int q = from + k * step + query_in_warp;
      if (from + k * step >= queries) break;
      int i = first_entry, j = ahead[k][0];
#pragma unroll 1
      for (bool more = true; more; j = !more ? j : i < 64 ? ahead[k][1] : load(q, i)) {
        int previous = __shfl_up_sync(0xffffffff, j, 1);
        if (first_entry == 0) previous = i > 0 && j >= 0 ? entry(q, i - 1) : -1;
        const int t = p.documents && q < queries ? first + q - p.first(b, first + q) : first + q;  // within the document
        const unsigned end_votes = __ballot_sync(0xffffffff, mask.ends(j, previous, t)) >> query_in_warp * lanes_per_query & lane_mask;
        const int length = i - first_entry + (end_votes ? __ffs(end_votes) - 1 : lanes_per_query);
        if (i < length) f(q, i, j);
        i += 32;
        more = lanes_per_query == 32 && end_votes == 0 && i - first_entry < mask.top_n;
        if (!more && first_entry == 0 && q < queries) end(q, length);
      }
    }
  }
}

}  // namespace nsa
