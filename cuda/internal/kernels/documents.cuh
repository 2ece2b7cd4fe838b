// Documents that are packed into the rows of a batch: the table of spec.DocumentTable, as kernels read it.
#pragma once

#include "common.cuh"

namespace nsa {

// Entry t of the table [B,S]. Tokens and compressed keys count from the beginning of the batch row.
struct Document {
  int32_t first, end;  // the document of token t is the tokens [first,end)
  int32_t keys;        // the first compressed key of this document
  int32_t block;       // the first token of the block of compressed key t; -1 if there is no such key
};

// The number of compressed keys of n tokens, for blocks of l tokens that begin d apart; 0 if l is 0.
__device__ __forceinline__ int compressed_keys(int n, int l, int d) { return l < 1 || n < l ? 0 : (n - l) / d + 1; }

}  // namespace nsa
