// Lines: of an array [outer,along,inner], the line (o, i) is the elements [o,:,i]. A kernel over lines runs in blocks of 256
// threads, shared out by `columns`:
//
//   0       a line for each warp (inner = 1)
//   1       a line for the block (inner = 1)
//   4..256  a power of two: that many neighbouring lines of one o for the block, with 256/columns threads each
//
// The threads of a line take its elements in turn, ascending; join adds up what each has, in an order that the sizes fix.
#pragma once

#include "common.cuh"

namespace nsa {

constexpr int kStockThreads = 256;

struct StockLine {
  int64_t outer, inner; // which line
  int first, step;      // this thread's elements: first, first + step, ...
  bool live;            // the line exists; the threads of others take part in join alone
};

// each_stock_line calls body(line) for the lines of this thread. All threads of a block that may join come to each call.
template <typename Body>
__device__ __forceinline__ void each_stock_line(int64_t outer, int64_t inner, int columns, Body body) {
  const int t = threadIdx.x;
  if (columns == 0) {
    for (int64_t l = blockIdx.x * int64_t(kStockThreads / 32) + t / 32; l < outer; l += gridDim.x * int64_t(kStockThreads / 32)) {
      body(StockLine{l, 0, t % 32, 32, true});
    }
  } else if (columns == 1) {
    for (int64_t l = blockIdx.x; l < outer; l += gridDim.x) body(StockLine{l, 0, t, kStockThreads, true});
  } else {
    const int64_t tiles = (inner + columns - 1) / columns;
    for (int64_t w = blockIdx.x; w < outer * tiles; w += gridDim.x) {
      const int64_t i = w % tiles * columns + t % columns;
      body(StockLine{w / tiles, i, t / columns, kStockThreads / columns, i < inner});
    }
  }
}

// along_stock_line calls body(Width<W>, j) for this thread's elements j of count: packs where wide, which wants inner = 1.
template <typename Body>
__device__ __forceinline__ void along_stock_line(const StockLine& l, int64_t count, bool wide, Body body) {
  if (l.live) strided<float>(l.first, l.step, count, wide, body);
}

// stock_join_line returns the reduction of v over the threads of a line, to all of them.
template <typename Op> __device__ __forceinline__ float stock_join_line(float v, int columns) {
  if (columns <= 1) {
#pragma unroll
    for (int o = 16; o > 0; o >>= 1) v = Op::join(v, __shfl_xor_sync(0xffffffffu, v, o));
    if (columns == 0) return v;
  }
  __shared__ float cells[kStockThreads];
  const int t = threadIdx.x;
  __syncthreads(); // what was joined before has been read
  cells[t] = v;
  __syncthreads();
  if (columns == 1) {
    v = cells[0];
    for (int w = 32; w < kStockThreads; w += 32) v = Op::join(v, cells[w]);
    return v;
  }
  for (int o = kStockThreads / 2; o >= columns; o >>= 1) {
    if (t < o) cells[t] = Op::join(cells[t], cells[t + o]);
    __syncthreads();
  }
  return cells[t % columns];
}

} // namespace nsa
