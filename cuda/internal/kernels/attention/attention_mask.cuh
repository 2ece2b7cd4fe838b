// Which keys a query sees, as functors on indices, and what of it an operand needs. Everything that an attention kernel
// knows of a branch is here.
#pragma once

#include "documents.cuh"

namespace nsa {

// Sizes of an attention op; the scale of the logits is 1/sqrt(d).
struct Sizes {
  int batch, queries, keys;    // B, S, T
  int heads, groups, each;     // Hq, Hkv, and h = Hq / Hkv heads of a group
  int d, dv;                   // key dim, value dim
  float scale, scale_log2;     // of logits: 1/sqrt(D), and that times log2(e)

  // Offset in an array [B,S,Hq,c] of row r of group g: the rows of a group are its h heads at query 0, at query 1, ...
  __device__ long long row(int b, int g, int r, int c) const {
    return (((long long)b * queries + r / each) * heads + g * each + r % each) * c;
  }
  // Offset in an array [B,T,Hkv,c] of key s.
  __device__ long long key(int b, int g, int s, int c) const { return (((long long)b * keys + s) * groups + g) * c; }
  // Offset in an array [B,Hq,S] of row r.
  __device__ long long stat(int b, int g, int r) const {
    return ((long long)b * heads + g * each + r % each) * queries + r / each;
  }
};

// A run of keys or queries, [lo,hi); empty where lo >= hi.
struct Run {
  int lo, hi;
  __device__ bool has(int i) const { return lo <= i && i < hi; }
};

// Span is the mask of window, dense and compressed attention. Key i stands for the tokens [i*d, i*d+l) and is seen from
// its last token on; of those a query sees the w newest. Tokens are keys with l = d = 1, and a w of S hides nothing.
struct Span {
  int l, d, w;

  __device__ int visible(int t) const { return t + 1 < l ? 0 : (t + 1 - l) / d + 1; }
  __device__ Run keys(int t) const { return {max(0, t + 1 - w), visible(t)}; }
  // A run of queries, of s, that holds all those that see any of the keys [lo,hi).
  __device__ Run queries(int lo, int hi, int s) const {
    const long long from = (long long)lo * d + l - 1, to = (long long)hi - 1 + w;
    return {(int)min(from, (long long)s), (int)min(to, (long long)s)};
  }
};

// Blocks is the mask of selected attention: of the blocks of `size` tokens that idx [B,S,Hkv,most] names for a query,
// ascending and padded with -1, the tokens up to the query's own. A list ends at its first entry that is negative, not above
// the one before it, or in the future: whatever idx holds, no entry leads out of the keys and none counts twice.
// With documents blocks and t count from a document's first token.
struct Blocks {
  int size, most;

  static constexpr int kNone = 0x7fffffff;

  // Offset in idx of the list of query t.
  __device__ long long list(const Sizes& n, int b, int g, int t) const {
    return (((long long)b * n.queries + t) * n.groups + g) * most;
  }
  // Entry i of the list of query t, kNone where it ends; what comes after is not part of it.
  __device__ int at(const int* list, int i, int t) const {
    if (i >= most) return kNone;
    const int j = list[i];
    return j < 0 || (long long)j * size > t || (i > 0 && j <= list[i - 1]) ? kNone : j;
  }
  __device__ int count(const Sizes& n) const { return (n.keys + size - 1) / size; }
};

}  // namespace nsa
