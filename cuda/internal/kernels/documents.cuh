// The documents that are packed into the rows of a batch: the table of ops.DocumentTableOp, as kernels read it.
#pragma once

#include "common.cuh"

namespace nsa {

// Row t of the table [B,S]. All are places in the row of the batch.
struct Document {
  int32_t first, end;  // of the document of token t: its first token, and behind its last one
  int32_t keys;        // and its first compressed key
  int32_t block;       // of compressed key t: the first token of its block, -1 if there is no such key
};

// The number of compressed keys of n tokens, of blocks of l, d apart; none without an l.
__device__ __forceinline__ int compressed_keys(int n, int l, int d) { return l < 1 || n < l ? 0 : (n - l) / d + 1; }

}  // namespace nsa
