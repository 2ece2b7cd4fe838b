// What the kernels for compute capability 9.0 of the branches with a Span have in common.
#pragma once

#include "attention_walk.cuh"
#include "attention_wgmma.cuh"

namespace nsa {

struct SpanParams {
  alignas(64) uint8_t k[128], v[128];  // maps of boxes [1,N,1,64] of k [B,T,Hkv,D] and v [B,T,Hkv,Dv]
  AttentionParams p;
};

// Whether the registers of a thread that loads and of those of W groups that compute are there: a block, of which a multiprocessor has
// some, gets them by launch, a multiple of 8 a thread.
constexpr bool registers_fit(int W, int loader, int computer, int blocks = 1) {
  return loader + W * computer <= (W + 1) * (65536 / blocks / (128 * (W + 1)) / 8 * 8);
}

// Ring is a place in a ring of stages; the parity is that of its fill.
template <int Stages> struct Ring {
  int stage = 0;
  uint32_t parity = 0;
  __device__ void next() {
    if (++stage == Stages) stage = 0, parity ^= 1;
  }
};

// Where cell i of a row of a tile of `rows` rows lies.
__device__ inline uint32_t cell_of(int rows, int row, int i) { return (i / 8 * rows + row) * 128 + ((i % 8 ^ row % 8) << 4); }

// Begins to copy boxes of `rows` rows of the map of an array [B,T,Hkv,c] to a tile of C columns, of group g, from key t of batch b on.
template <int C> __device__ inline void copy_boxes(uint32_t to, int rows, const void* map, uint32_t barrier, int g, int t, int b) {
#pragma unroll
  for (int i = 0; i < C / 64; i++) copy_box(to + i * rows * 128, map, barrier, 64 * i, g, t, b);
}

// take_out of attention_tile.cuh, of two tiles of `rows` rows, by a warp: rows of C columns with NaN or Inf become 0, and the others'
// first columns NaN.
template <typename T, int C> __device__ inline void take_out_rows(uint32_t tile, uint32_t other, int rows) {
  constexpr int kCells = C / 8, kLanes = kCells > 16 ? 32 : kCells;  // lanes of a row
  const int i = lane() % kLanes, first = lane() / kLanes * kLanes;
#pragma unroll 1
  for (int r = lane() / kLanes; r < rows; r += 32 / kLanes) {
    const uint32_t place = tile + cell_of(rows, r, i);
    const unsigned votes = __ballot_sync(0xffffffff, i < kCells && has_nan_or_inf<T>(shared_cell(place)));
    if (!(votes >> first & 0xffffffff >> (32 - kLanes))) continue;
    if (i < kCells) store_shared(place, uint4{0, 0, 0, 0});
    if (i == 0) store_shared(other + cell_of(rows, r, 0), kNaNs);
  }
  fence_async();
}

// Exchanges words of the four threads that share rows: y[i] of thread j becomes y[j] of thread i.
__device__ inline void turn_four(uint32_t (&y)[4]) {
#pragma unroll
  for (int bit = 1; bit < 4; bit *= 2)
#pragma unroll
    for (int i = 0; i < 4; i++) {
      if (i & bit) continue;
      const bool upper = lane() & bit;
      const uint32_t other = __shfl_xor_sync(0xffffffff, upper ? y[i] : y[i + bit], bit);
      (upper ? y[i] : y[i + bit]) = other;
    }
}

// Of the tiles of rows of a block it is noted which ones it must do again, by their number; from 32*kRoundWords on some share a bit.
constexpr int kRoundWords = 32;
__device__ inline void note_round(unsigned* again, int round) { atomicOr(again + round / 32 % kRoundWords, 1u << round % 32); }

// Calls f(tile, round) for the tiles of M rows of the block, every gridDim.x-th one; of those only for the ones noted in `again`, if
// that is given.
template <int M, class F> __device__ inline void each_tile(const AttentionParams& p, const unsigned* again, F f) {
  const int tiles = ((p.n.queries * p.n.each - 1) / M + 1) * p.n.batch * p.n.groups;
#pragma unroll 1
  for (int i = blockIdx.x, round = 0; i < tiles; i += gridDim.x, round++)
    if (!again || again[round / 32 % kRoundWords] >> round % 32 & 1) f(RowTile(p.n, M, i), round);
}

// The keys that some row of a tile sees, at least one; and those that all rows see.
__device__ inline Run keys_of(const AttentionParams& p, const RowTile& tile) {
  const int lo = min(p.n.keys - 1, p.keys(tile.b, tile.first / p.n.each).lo);
  return {lo, max(lo + 1, min(p.n.keys, p.keys(tile.b, (tile.end - 1) / p.n.each).hi))};
}
__device__ inline Run keys_of_all(const AttentionParams& p, const RowTile& tile) {
  return {p.keys(tile.b, (tile.end - 1) / p.n.each).lo, min(p.n.keys, p.keys(tile.b, tile.first / p.n.each).hi)};
}

// shifted of attention_softmax.cuh without its division, by 1/scale = scale*d.
__device__ inline float shifted_logit(const Sizes& n, float x, float lse) { return exponent(x, n.scale, lse) * (n.scale * n.d); }

// The selected branch as a Span of all keys, of which a row sees some tiles of 64: a bit for each that its query chose. There are at
// most 32; a block is a multiple of 64 keys, or all.
struct Chosen {
  // Sets bits(r) of every step-th row of a tile, of `rows`, from `first` on, and returns those that all of them have.
  template <class Bits> static __device__ int note(const AttentionParams& p, const RowTile& tile, int first, int step, int rows, Bits bits) {
    const int parts = (p.blocks.size - 1) / 64 + 1;
    int common = -1;
#pragma unroll 1
    for (int r = first; r < rows && tile.has(r); r += step) {
      const int t = (tile.first + r) / p.n.each, newest = t / p.blocks.size;
      const int* list = p.idx + p.blocks.list(p.n, tile.b, tile.g, t);
      uint32_t chosen = 0;
#pragma unroll 1
      for (int i = 0, last = -1; i < p.blocks.most; i++) {  // Blocks::at, with fewer registers
        const int j = list[i];
        if (j <= last || j > newest) break;
        chosen |= 0xffffffffu >> (32 - parts) << j * parts, last = j;
      }
      common &= bits(r) = int(chosen);
    }
    return common;
  }
  // The bits of the tiles that the keys [from,to) lie in.
  static __device__ uint32_t of(int from, int to) { return 0xffffffffu >> (31 - (to - 1) / 64) & 0xffffffffu << from / 64; }
};

// The address of a barrier in shared memory.
__device__ inline uint32_t barrier_at(const unsigned long long& barrier) { return shared_address(&barrier); }

}  // namespace nsa

// What a kernel does; nothing where it is compiled for other devices, on which it is not launched.
#if defined(__CUDA_ARCH_FEAT_SM90_ALL) || !defined(__CUDACC__)
#define NSA_WGMMA_BODY(...) __VA_ARGS__
#else
#define NSA_WGMMA_BODY(...)
#endif
