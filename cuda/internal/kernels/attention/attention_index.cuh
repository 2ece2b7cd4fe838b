// The inverse of a choice of blocks: for each block of each group the queries that chose it and see some of it,
// ascending, and the work of the kernel that owns the blocks. Built by attention_index.cu, read by attention_dkv.cu.
#pragma once

#include "attention_mask.cuh"

namespace nsa {

// Index says where the parts of the inverse lie. All of it is int32, of each of the B*Hkv groups:
//
//   queries [S*most]          the lists, one after the other
//   counts  [segments, J]     of J blocks by their names, see AttentionParams: queries of a segment of the sequence that
//                             chose a block; then where in the block's list they begin
//   starts  [3, J+1]          where a block's list begins; its first item of work; its first partial sum
//
// A list is cut into chunks of `chunk` queries, which are its items of work; an empty one has one item, and that of a name
// without a block none. The chunks of a
// list of several are summed from partial sums, of which a group has at most `partials`.
struct Index {
  int segments, chunk, items, partials;  // items: the most that a group can have

  __device__ int segment(int queries) const { return (queries - 1) / segments + 1; }  // queries of a segment
  __device__ int chunks(int length) const { return max(1, (length - 1) / chunk + 1); }
};

// AttentionParams is the argument of all attention kernels; a kernel's comment names the arrays that it uses. q, k, v, o,
// dout, dq, dk and dv are of the storage type.
struct AttentionParams {
  const void *q, *k, *v;  // [B,S,Hq,D], [B,T,Hkv,D], [B,T,Hkv,Dv]
  const int32_t* idx;     // [B,S,Hkv,most]
  void* o;                // [B,S,Hq,Dv]
  float* lse;             // [B,Hq,S]
  const void* dout;       // [B,S,Hq,Dv]
  float* delta;           // [B,Hq,S]
  void *dq, *dk, *dv;     // as q, k, v
  int32_t *counts, *starts, *queries;
  float* partial;
  const Document* documents;  // [B,S], null where each row is one
  Sizes n;
  Span span;
  Blocks blocks;
  Index index;
  int32_t count;          // rows that a block owns

  __device__ const Document& document(int b, int t) const { return documents[(long long)b * n.queries + t]; }
  // The first token of the document of token t of row b.
  __device__ int first(int b, int t) const { return documents ? document(b, t).first : 0; }

  // The keys that query t of row b sees under the span. Neither end falls from one query to the next.
  __device__ Run keys(int b, int t) const {
    if (!documents) return span.keys(t);
    const Document& of = document(b, t);
    const int begin = span.l == 1 ? of.first : of.keys;
    const Run run = span.keys(t - of.first);
    return {begin + run.lo, begin + run.hi};
  }
  // A run of queries that holds all those that see any of the keys [lo,hi) of row b.
  __device__ Run seeing(int b, int lo, int hi) const {
    if (!documents) return span.queries(lo, hi, n.queries);
    if (span.l == 1) return {lo, (int)min((long long)hi - 1 + span.w, (long long)document(b, hi - 1).end)};
    const int from = document(b, lo).block;
    if (from < 0) return {0, 0};
    int last = document(b, hi - 1).block < 0 ? lo : hi - 1;
    for (int none = hi; none - last > 1;) {  // key `last` has a block, `none` has none
      const int mid = (last + none) / 2;
      (document(b, mid).block < 0 ? none : last) = mid;
    }
    return {from + span.l - 1, document(b, document(b, last).block).end};
  }

  // The inverse of a choice names a block by its number. With documents, which begin anywhere, it does by the block's first token in
  // the row; other tokens are names without a block.
  __device__ int names() const { return documents ? n.keys : blocks.count(n); }
  // The name of block j of the document that begins at token `first`.
  __device__ int name(int j, int first) const { return documents ? first + j * blocks.size : j; }
  // The tokens of a block of row b, by its name; none where there is no block.
  __device__ Run tokens(int b, int name) const {
    const int at = documents ? name : name * blocks.size, end = documents ? document(b, name).end : n.keys;
    return {at, (at - first(b, at)) % blocks.size ? at : at + min(blocks.size, end - at)};
  }
};

// Choosers is the inverse for one group.
struct Choosers {
  const int *list, *item, *partial;  // starts [J+1]
  const int* queries;

  __device__ Choosers(const AttentionParams& p, int group) {
    const int blocks = p.names() + 1;
    list = p.starts + (long long)group * 3 * blocks, item = list + blocks, partial = item + blocks;
    queries = p.queries + (long long)group * p.n.queries * p.blocks.most;
  }
  // The block that has the i-th item; i is less than item[blocks].
  __device__ int block(int i, int blocks) const {
    int lo = 0, hi = blocks;  // item[lo] <= i < item[hi]
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
