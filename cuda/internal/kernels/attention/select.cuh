// What the kernels that select blocks share: their argument, scores, lists of the best blocks, and the writing of idx.
#pragma once

#include "attention_mask.cuh"
#include "attention_tile.cuh"

namespace nsa {

constexpr int kForcedBlocks = 3;  // block 0 and the two newest

struct SelectParams {
  const void *q, *kc;
  const float* lse;
  int32_t* idx;
  const Document* documents;  // [B,S]; null if each row of the batch is one document
  const int32_t* starts;      // as in Sizes
  Sizes n;               // keys is Nc; dv and starts are unused, so queries have the numbers 0 to S-1
  Span span;             // l, d of the compression
  int32_t l_strides, block_strides, size;  // l/d, l'/d and l': strides of a compression block; strides and tokens of a selection block
  //   top_n     blocks of a list in idx
  //   tokens    queries of a thread block
  //   tile      selection blocks that are scored at once
  //
  // The others are for kernels on tensor cores:
  //
  //   ring      keys of a ring
  //   pitch     floats from one query's sums to the next
  //   room      entries of a query's list
  //   earliest  the first query that has more than `top_n` blocks
  int32_t top_n, tokens, tile, ring, pitch, room, earliest;
  int32_t places;  // blocks that a query selects by score; 0 if all queries get all blocks
  int32_t sequence;  // tokens of the sequence: the number of every query is less

  // The document of query t of row b. A sequence whose first query is token s is a document that begins s tokens before the queries.
  __device__ Document document(int b, int t) const {
    if (documents) return documents[(long long)b * n.queries + t];
    return {starts ? -max(0, min(starts[b], n.last_start)) : 0, n.queries, 0};
  }
};

// Fold turns probabilities of compression blocks into scores of selection blocks: a selection block gets the probability of each
// compression block that shares tokens with it, times the number of strides that they share.
struct Fold {
  int l, block;  // strides of a compression block and of a selection block
  __device__ long long lo(long long j) const { return j * block - l + 1; }   // first compression block that meets block j
  __device__ long long hi(long long j) const { return j * block + block - 1; }  // and the last one
  // How many strides compression block x shares with block j, for x from lo(j) to hi(j).
  __device__ int weight(long long x, long long j) const {
    return (int)min(min(x - lo(j) + 1, hi(j) - x + 1), (long long)min(l, block));
  }
  // Adds to scores [queries,blocks] what the first N of `keys` contribute; sums [queries,N] are their probabilities, summed over heads.
  template <int N> __device__ void add(float* scores, const float* sums, int queries, Run blocks, Run keys) const {
    const int width = blocks.hi - blocks.lo;
    for (int i = threadIdx.x; i < queries * width; i += kThreads) {
      const long long j = blocks.lo + i % width;
      const int x0 = (int)max(lo(j), (long long)keys.lo), x1 = (int)min(min(hi(j) + 1, (long long)keys.hi), (long long)keys.lo + N);
      float score = scores[i];
      for (int x = x0; x < x1; x++) score = fmaf((float)weight(x, j), sums[i / width * N + x - keys.lo], score);
      scores[i] = score;
    }
  }
};

// Best is a query's list of the best scores, descending. Equal scores stay in the order in which they came.
struct Best {
  float* score;
  int* block;
  int n, places;
  __device__ void take(float x, int j) {
    if (n == places) {
      if (n == 0 || !(x > score[n - 1])) return;
      n--;
    }
    int at = n++;
    for (; at > 0 && x > score[at - 1]; at--) score[at] = score[at - 1], block[at] = block[at - 1];
    score[at] = x, block[at] = j;
  }
};

// Writes the blocks of query t, whose document begins at token `first`: all blocks up to its own if there are at most `top_n`; else
// block 0, the best ones in ascending order, and the two newest.
__device__ inline void write_blocks(const SelectParams& p, int b, int g, int t, int first, const Best& best) {
  int* idx = p.idx + Blocks{p.size, p.top_n}.list(p.n, b, g, t);
  const int top_n = p.top_n, own = (t - first) / p.size;
  if (own < top_n) {
    for (int j = 0; j < top_n; j++) idx[j] = j <= own ? j : -1;
    return;
  }
  for (int i = 1; i < best.n; i++) {
    const int j = best.block[i];
    int at = i;
    for (; at > 0 && best.block[at - 1] > j; at--) best.block[at] = best.block[at - 1];
    best.block[at] = j;
  }
  idx[0] = 0;
  for (int i = 0; i < best.n; i++) idx[1 + i] = best.block[i];
  idx[top_n - 2] = own - 1, idx[top_n - 1] = own;
}

}  // namespace nsa
