// Lines of an array [outer,along,inner]: line (o, i) is the elements [o,:,i]. Kernels over lines have blocks of 256 threads. `share` says
// how lines and threads are matched; its absolute value is a power of two:
//
//   -1 .. -32, -256   each line has -share threads; lines are in the order of memory
//   4 .. 32           a block has `share` neighbouring lines with the same o, with 256/share threads each
//
// The threads of a line take its elements in turn, ascending. stock_join_line reduces over the threads, in an order that depends only on
// the sizes.
#pragma once

#include "common.cuh"

namespace nsa {

constexpr int kStockThreads = 256;

struct StockLine {
  int64_t outer, inner; // the line (o, i)
  int first, step;      // this thread's elements: first, first + step, ...
  bool live;            // whether the line exists; if not, its threads only take part in stock_join_line
};

// each_stock_line calls body(line) for the lines of this thread. All threads of a block make the same number of calls.
template <typename Body>
__device__ __forceinline__ void each_stock_line(int64_t outer, int64_t inner, int share, Body body) {
  const int t = threadIdx.x;
  if (share < 0) {
    const int64_t lines = outer * inner, tile = kStockThreads / -share;
    for (int64_t base = blockIdx.x * tile; base < lines; base += gridDim.x * tile) {
      const int64_t l = base + t / -share, o = inner == 1 ? l : l / inner;
      body(StockLine{o, l - o * inner, t % -share, -share, l < lines});
    }
  } else {
    const int64_t tiles = (inner + share - 1) / share;
    for (int64_t w = blockIdx.x; w < outer * tiles; w += gridDim.x) {
      const int64_t i = w % tiles * share + t % share;
      body(StockLine{w / tiles, i, t / share, kStockThreads / share, i < inner});
    }
  }
}

// along_stock_packs is along_stock_line for packs of Width elements at first, first + step, ...; it loads Ahead packs before it uses them.
template <int Width, int Ahead, typename Load, typename Use>
__device__ __forceinline__ void along_stock_packs(int64_t first, int64_t step, int64_t count, Load load, Use use) {
  int64_t j = first;
  for (; j + (Ahead - 1) * step < count; j += Ahead * step) {
    float v[Ahead][Width];
#pragma unroll
    for (int k = 0; k < Ahead; ++k) load(j + k * step, v[k]);
#pragma unroll
    for (int k = 0; k < Ahead; ++k) use(j + k * step, v[k]);
  }
  for (; j < count; j += step) {
    float v[Width];
    load(j, v);
    use(j, v);
  }
}

// along_stock_line calls load(j, v) and use(j, v), ascending, for this thread's elements j of a line of `count`. v is float[4] if `wide`,
// which needs inner = 1 and a multiple of 4 as count; else float[1]. Several loads come before the first use.
template <typename Load, typename Use>
__device__ __forceinline__ void along_stock_line(const StockLine& l, int64_t count, bool wide, Load load, Use use) {
  if (!l.live) return;
  if (wide) along_stock_packs<4, 2>(l.first * 4ll, l.step * 4ll, count, load, use);
  else along_stock_packs<1, 4>(l.first, l.step, count, load, use);
}

// kStockWidth is the number of elements of v in load and use of along_stock_line.
template <typename V> constexpr int kStockWidth = sizeof(V) / sizeof(float);

// stock_join_line returns the reduction of v over the threads of a line, to all of them. All threads of the block must call it.
template <typename Op> __device__ __forceinline__ float stock_join_line(float v, int share) {
  if (share < 0) {
    for (int o = min(-share, 32) / 2; o > 0; o >>= 1) v = Op::join(v, __shfl_xor_sync(0xffffffffu, v, o));
    if (share >= -32) return v;
  }
  __shared__ float cells[kStockThreads];
  const int t = threadIdx.x;
  __syncthreads(); // all threads have read the cells of the previous call
  cells[t] = v;
  __syncthreads();
  if (share < 0) {
    v = cells[0];
    for (int w = 32; w < kStockThreads; w += 32) v = Op::join(v, cells[w]);
    return v;
  }
  for (int o = kStockThreads / 2; o >= share; o >>= 1) {
    if (t < o) cells[t] = Op::join(cells[t], cells[t + o]);
    __syncthreads();
  }
  return cells[t % share];
}

} // namespace nsa
