// The argument of all attention kernels.
#pragma once

#include "attention_mask.cuh"

namespace nsa {

// Index describes the layout of the inverse index (attention_index.cuh). Each of the B*Hkv groups has these int32 arrays; J is the number of block names
// (AttentionParams::names):
//
//   queries [S*top_n]          the lists, one after the other
//   counts  [segments, J]     first how many queries of a segment selected a block, then the place in the block's list where the
//                             queries of the segment begin
//   starts  [3, J+1]          where the list of a block begins; its first item of work; its first partial sum
//
// A list is cut into chunks of `chunk` queries; each chunk is an item of work. An empty list has one item, which writes zeros. A name
// without a block has none. If a list has several chunks, they write partial sums; a group has at most `partials` of them.
//
// Kernels on tensor cores that own keys under a Span have no lists. There two numbers have another meaning: the rows that may see a tile of
// keys are cut into `items` chunks of `chunk` rows.
struct Index {
  int segments, chunk, items, partials;  // items: the most that a group can have

  __device__ int segment(int queries) const { return (queries - 1) / segments + 1; }  // queries of a segment
  __device__ int chunks(int length) const { return max(1, (length - 1) / chunk + 1); }
};

// AttentionParams is the argument of all attention kernels. A kernel uses only the arrays that its comment names. q, k, v, o, dout,
// dq, dk and dv have the storage type. The meaning of count depends on the kernel:
//
//   owns rows            the rows that a block owns
//   builds the inverse   the selection blocks that a block of the inverse stands for; also in nsa_joined_dkv
//   nsa_span_reduce      the keys that a block of the kernel before it owned
struct AttentionParams {
  const void *q, *k, *v;  // [B,S,Hq,D], [B,T,Hkv,D], [B,T,Hkv,Dv]
  const int32_t* idx;     // [B,S,Hkv,top_n]
  void* o;                // [B,S,Hq,Dv]
  float* lse;             // [B,Hq,S]
  const void* dout;       // [B,S,Hq,Dv]
  float* delta;           // [B,Hq,S]
  void *dq, *dk, *dv;     // shapes of q, k, v
  int32_t *counts, *starts, *queries;
  float* partial;
  const Document* documents;  // [B,S]; null if each row of the batch is one document
  Sizes n;
  Span span;
  Blocks blocks;
  Index index;
  int32_t count;          // see above; these name it

  __device__ int owned_rows() const { return count; }
  __device__ int joined_blocks() const { return count; }
  __device__ int owned_keys() const { return count; }

  __device__ const Document& document(int b, int t) const { return documents[(long long)b * n.queries + t]; }
  // The first token of the document of token t of row b.
  __device__ int first(int b, int t) const { return documents ? document(b, t).first : 0; }

  // The keys that query t of row b sees under the span. Neither end decreases from one query to the next.
  __device__ Run keys(int b, int t) const {
    if (!documents) return span.keys(t);
    const Document& of = document(b, t);
    const int begin = span.l == 1 ? of.first : of.keys;
    const Run run = span.keys(t - of.first);
    return {begin + run.lo, begin + run.hi};
  }
  // A run that contains every query that sees any of the keys [lo,hi) of row b.
  __device__ Run seeing(int b, int lo, int hi) const {
    if (!documents) return span.queries(lo, hi, {n.start(b), n.start(b) + n.queries});
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

  // The inverse names a block by its number. With documents, which may begin at any token, it names a block by its first token in
  // the row instead; the other tokens are names without a block.
  __device__ int names() const { return documents ? n.keys : blocks.count(n); }
  // The name of block j of the document that begins at token `first`.
  __device__ int name(int j, int first) const { return documents ? first + j * blocks.size : j; }
  // The tokens of the block with this name in row b; empty if the name has no block.
  __device__ Run tokens(int b, int name) const {
    const int at = documents ? name : name * blocks.size, end = documents ? document(b, name).end : n.keys;
    return {at, (at - first(b, at)) % blocks.size ? at : at + min(blocks.size, end - at)};
  }
};

// block_number numbers the blocks that the queries of a tile selected, ascending with their tokens. It returns the number of block 0 of the
// document that begins at token `own`. `first` is the tile's first query, `begin` the first token of its document, `size` the tokens of a
// block. Documents never share a number: own - first grows by at least one from one document to the next, and the quotients of the lengths
// of documents add up to at most the quotient of the sum.
__device__ inline int block_number(int own, int begin, int first, int size) { return (own - begin) / size + max(0, own - first); }

}  // namespace nsa
