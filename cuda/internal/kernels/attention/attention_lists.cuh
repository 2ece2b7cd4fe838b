// Reads the lists of idx int32 [B,S,Hkv,top_n], the choice of blocks, by whole warps.
#pragma once

#include "attention_index.cuh"
#include "attention_tile.cuh"

namespace nsa {

// Calls f(q, i, j) for each entry i, block j, in the list of each of the `queries` queries from `first` on, and end(q, length) once for
// each list. q counts from `first`. This warp, number `warp` of `warps`, does its share of the queries: lists of up to 16 entries several
// at a time.
template <class F, class G>
__device__ __forceinline__ void each_entry(
    const AttentionParams& p, const Blocks& mask, int b, int g, int first, int queries, int warp, int warps, F f, G end) {
  constexpr int kAtOnce = 4;
  int width = 1;  // lanes of a query
  while (width < min(32, mask.top_n)) width *= 2;
  const int mine = lane() / width, place = lane() % width, step = warps * (32 / width);
  const unsigned all = 0xffffffffu >> (32 - width);
  const auto entry = [&](int q, int i) -> const int& { return p.idx[mask.list(p.n, b, g, first + q) + i]; };
  const auto load = [&](int q, int i) { return q < queries && i < mask.top_n ? max(-1, entry(q, i)) : -1; };
#pragma unroll 1
  for (int from = warp * (32 / width); from < queries; from += kAtOnce * step) {
    int ahead[kAtOnce][2];
#pragma unroll
    for (int k = 0; k < kAtOnce; k++) ahead[k][0] = load(from + k * step + mine, place), ahead[k][1] = load(from + k * step + mine, place + 32);
#pragma unroll
    for (int k = 0; k < kAtOnce; k++) {
      const int q = from + k * step + mine;
      if (from + k * step >= queries) break;
      int i = place, j = ahead[k][0];
#pragma unroll 1
      for (bool more = true; more; j = !more ? j : i < 64 ? ahead[k][1] : load(q, i)) {
        int before = __shfl_up_sync(0xffffffff, j, 1);
        if (place == 0) before = i > 0 && j >= 0 ? entry(q, i - 1) : -1;
        const int t = p.documents && q < queries ? first + q - p.first(b, first + q) : first + q;  // within the document
        const unsigned ended = __ballot_sync(0xffffffff, mask.ends(j, before, t)) >> mine * width & all;
        const int length = i - place + (ended ? __ffs(ended) - 1 : width);
        if (i < length) f(q, i, j);
        i += 32;
        more = width == 32 && ended == 0 && i - place < mask.top_n;
        if (!more && place == 0 && q < queries) end(q, length);
      }
    }
  }
}

}  // namespace nsa
