// The masks of attention: functors on indices that say which keys a query sees, and which queries see a key. Here are Span and Blocks,
// without documents. With documents see AttentionParams::keys and seeing. The wgmma kernels have two more masks: SelectedBits
// (attention_wgmma_tiles.cuh) and Forced (attention_pairs.cuh).
#pragma once

#include "documents.cuh"

namespace nsa {

// The sizes of an attention op.
//
// Queries have the numbers of their tokens in the sequence of the keys: those of batch row b are start(b), start(b)+1, ..., S of them.
struct Sizes {
  const int32_t* starts;       // [B]: the first query of each batch row; null if that is 0
  int batch, queries, keys;    // B, S, T
  int heads, groups, h;        // Hq, Hkv, and Hq / Hkv heads of a group
  int d, dv;                   // key dim, value dim
  int last_start;              // the last start for which the keys suffice; a later one counts as this one
  float scale, scale_log2;     // 1/sqrt(D), the factor of logits; the same times log2(e)

  __device__ int start(int b) const { return starts ? max(0, min(starts[b], last_start)) : 0; }
  // Offset of row r of group g in an array [B,S,Hq,c]. The rows of a group are its h heads at query 0, then at query 1, ...
  __device__ long long row(int b, int g, int r, int c) const {
    return (((long long)b * queries + r / h - start(b)) * heads + g * h + r % h) * c;
  }
  // Offset of key s in an array [B,T,Hkv,c].
  __device__ long long key(int b, int g, int s, int c) const { return (((long long)b * keys + s) * groups + g) * c; }
  // Offset of row r in an array [B,Hq,S].
  __device__ long long stat(int b, int g, int r) const {
    return ((long long)b * heads + g * h + r % h) * queries + r / h - start(b);
  }
};

// A run [lo,hi) of keys or queries; empty if lo >= hi.
struct Run {
  int lo, hi;
  __device__ bool has(int i) const { return lo <= i && i < hi; }
};

// Span is the mask of window, dense and compressed attention. Key i stands for the tokens [i*d, i*d+l). Queries from its last
// token on can see it. With l = d = 1 keys are tokens, and a query sees the w newest. A w of all tokens hides nothing.
struct Span {
  int l, d, w;

  __device__ int visible(int t) const { return t + 1 < l ? 0 : (t + 1 - l) / d + 1; }
  __device__ Run keys(int t) const { return {max(0, t + 1 - w), visible(t)}; }
  // A run that contains every query, of those in `all`, that sees any of the keys [lo,hi).
  __device__ Run queries(int lo, int hi, Run all) const {
    const long long from = (long long)lo * d + l - 1, to = (long long)hi - 1 + w;
    return {max(all.lo, (int)min(from, (long long)all.hi)), (int)min(to, (long long)all.hi)};
  }
};

// Blocks is the mask of selected attention. idx [B,S,Hkv,top_n] lists for each query the selected blocks of `size` tokens, ascending
// and padded with -1. A query sees the tokens of these blocks up to its own token. A list ends at the first entry that is negative,
// not above its predecessor, or in the future. So no content of idx leads outside the keys or counts a block twice. With documents,
// blocks and t count from the first token of the document.
struct Blocks {
  int size, top_n;

  static constexpr int kNone = 0x7fffffff;

  // Offset of the list of query t in idx.
  __device__ long long list(const Sizes& n, int b, int g, int t) const {
    return (((long long)b * n.queries + t - n.start(b)) * n.groups + g) * top_n;
  }
  // Entry i of the list of query t; kNone if the list ends there. Entries after the first kNone must not be used.
  __device__ int at(const int* list, int i, int t) const {
    if (i >= top_n) return kNone;
    const int j = list[i];
    return j < 0 || (long long)j * size > t || (i > 0 && j <= list[i - 1]) ? kNone : j;
  }
  // The same rule for a warp that has read several entries: whether the list of query t ends at entry j. `before` is the entry before j,
  // -1 if j is the first one.
  __device__ bool ends(int j, int before, int t) const { return j <= before || (long long)j * size > t; }
  __device__ int count(const Sizes& n) const { return (n.keys + size - 1) / size; }
};

}  // namespace nsa
