// What the attention kernels on warpgroups share (compute capability 9.0): parameters, rings of stages, tiles of a block, masks.
#pragma once

#include "attention_row_tile.cuh"
#include "attention_wgmma.cuh"

namespace nsa {

struct WgmmaParams {
  alignas(64) uint8_t k[128], v[128];  // tensor maps of k [B,T,Hkv,D] and v [B,T,Hkv,Dv], with boxes [1,N,1,64]
  AttentionParams p;
};

// Whether the registers suffice for one loading group with `loader` and W computing groups with `computer` registers a thread. The
// launch gives each of `blocks` blocks on a multiprocessor an equal share, rounded down to a multiple of 8 a thread.
constexpr bool registers_fit(int W, int loader, int computer, int blocks = 1) {
  return loader + W * computer <= (W + 1) * (65536 / blocks / (128 * (W + 1)) / 8 * 8);
}

// Ring is a position in a ring of stages. parity is the parity of the round, which a full barrier of the stage waits for.
template <int Stages> struct Ring {
  int stage = 0;
  uint32_t parity = 0;
  __device__ void next() {
    if (++stage == Stages) stage = 0, parity ^= 1;
  }
};

// Offset in bytes of cell i of a row in a tile of `rows` rows.
__device__ inline uint32_t cell_of(int rows, int row, int i) { return (i / 8 * rows + row) * 128 + ((i % 8 ^ row % 8) << 4); }

// Begins to copy `rows` keys of group g, from key t of batch row b on, to a tile of C columns, by the map of an array [B,T,Hkv,c].
template <int C> __device__ inline void copy_boxes(uint32_t to, int rows, const void* map, uint32_t barrier, int g, int t, int b) {
#pragma unroll
  for (int i = 0; i < C / 64; i++) copy_box(to + i * rows * 128, map, barrier, 64 * i, g, t, b);
}

// take_out of attention_tile.cuh for a pair of tiles of `rows` rows, by one warp. A row of `tile` (C columns) that holds NaN or Inf
// becomes zeros, and the first cell of the same row of `other` becomes NaN.
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

// Marks that the block must redo its round-th tile of rows. There are 32*kRoundWords bits: in longer grids several tiles share a bit,
// and all of them are redone.
constexpr int kRoundWords = 32;
__device__ inline void mark_redo(unsigned* redo, int round) { atomicOr(redo + round / 32 % kRoundWords, 1u << round % 32); }
// Whether a pass has a tile: all are in the first pass, whose `redo` is null, and those that were marked in the careful one.
__device__ inline bool in_pass(const unsigned* redo, int round) { return !redo || redo[round / 32 % kRoundWords] >> round % 32 & 1; }

// Calls f(tile, round) for the block's tiles of M rows, which are every gridDim.x-th one. If `redo` is given, only for the tiles that
// are marked there.
template <int M, class F> __device__ inline void each_tile(const WgmmaParams& a, const unsigned* redo, F f) {
  const AttentionParams& p = a.p;
  const int tiles = ((p.n.queries * p.n.h - 1) / M + 1) * p.n.batch * p.n.groups;
#pragma unroll 1
  for (int i = blockIdx.x, round = 0; i < tiles; i += gridDim.x, round++)
    if (in_pass(redo, round)) f(RowTile(p.n, M, i), round);
}

// keys_of returns a run of at least one key that contains all keys that any row of a tile sees; keys_of_all the keys that all rows see.
__device__ inline Run keys_of(const AttentionParams& p, const RowTile& tile) {
  const int lo = min(p.n.keys - 1, p.keys(tile.b, tile.first / p.n.h).lo);
  return {lo, max(lo + 1, min(p.n.keys, p.keys(tile.b, (tile.end - 1) / p.n.h).hi))};
}
__device__ inline Run keys_of_all(const AttentionParams& p, const RowTile& tile) {
  return {p.keys(tile.b, (tile.end - 1) / p.n.h).lo, min(p.n.keys, p.keys(tile.b, tile.first / p.n.h).hi)};
}

// What the forward kernel goes over: the keys of a Span; those of SelectedBits; or the forced blocks of selected attention by pairs
// (attention_forced.cuh).
enum class Mask { kSpan, kBits, kForced };

// The keys [lo,hi) of a tile of rows; of_all are those that all rows are known to see. key(i) is the place of key i in k and v.
template <Mask> struct TileKeys : Run {
  __device__ TileKeys(const AttentionParams& p, const RowTile& tile) : Run(keys_of(p, tile)) {}
  static __device__ Run of_all(const AttentionParams& p, const RowTile& tile) { return keys_of_all(p, tile); }
  __device__ int key(int i) const { return i; }
};

// shifted of attention_softmax.cuh without a division: 1/scale = scale*d.
__device__ inline float shifted_logit(const Sizes& n, float x, float lse) { return exponent(x, n.scale, lse) * (n.scale * n.d); }

// SelectedBits is selected attention by bits: a Span of all keys, and for each row a word in which bit i says that its query selected the block
// of the keys 64*i to 64*i+63. So there are at most 32*64 keys. A block is a multiple of 64 keys, or all keys.
struct SelectedBits {
  // Sets bits(r) of the rows first, first + step, ... of a tile, below `rows`. Returns the bits that all these rows have.
  template <class Bits> static __device__ int note(const AttentionParams& p, const RowTile& tile, int first, int step, int rows, Bits bits) {
    const int parts = (p.blocks.size - 1) / 64 + 1;
    int common = -1;
#pragma unroll 1
    for (int r = first; r < rows && tile.has(r); r += step) {
      const int t = (tile.first + r) / p.n.h, newest = t / p.blocks.size;
      const int* list = p.idx + p.blocks.list(p.n, tile.b, tile.g, t);
      uint32_t selected = 0;
#pragma unroll 1
      for (int i = 0, last = -1; i < p.blocks.top_n; i++) {  // the rules of Blocks::at, with fewer registers
        const int j = list[i];
        if (j <= last || j > newest) break;
        selected |= 0xffffffffu >> (32 - parts) << j * parts, last = j;
      }
      common &= bits(r) = int(selected);
    }
    return common;
  }
  // Bit j of the result says whether a row with these bits has selected the block of the keys key + 8*j to key + 8*j + 7, below key + 128.
  static __device__ uint32_t eights(uint32_t bits, int key) {
    const int first = 8 - key / 8 % 8;  // of the first block
    bits >>= key / 64;
    return (bits & 1 ? (1u << first) - 1 : 0) | (bits >> 1 & 1 ? 0xffu << first : 0) | (bits >> 2 & 1 ? ~0u << (first + 8) : 0);
  }
  // The bits that the keys [from,to) belong to.
  static __device__ uint32_t of(int from, int to) { return 0xffffffffu >> (31 - (to - 1) / 64) & 0xffffffffu << from / 64; }
};

// Overwrites with `hidden` what row r of a fragment x [rows,N] has for keys, from `key` on, that the row does not see. Runs of 32 keys of which
// all rows see each key, by `all`, take no time.
template <int N> __device__ __forceinline__ void hide(float (&x)[N / 8][4], int r, int key, Run seen, Run all, float hidden) {
  const int first = key + 2 * (lane() % 4), lo = seen.lo - first, hi = seen.hi - first;
#pragma unroll
  for (int from = 0; from < N / 8; from += 4) {
    const int to = from + 4 < N / 8 ? from + 4 : N / 8;
    if (key + 8 * from < all.lo)
#pragma unroll
      for (int j = from; j < to; j++)
#pragma unroll
        for (int i = 0; i < 2; i++)
          if (8 * j + i < lo) x[j][2 * r + i] = hidden;
    if (key + 8 * to > all.hi)
#pragma unroll
      for (int j = from; j < to; j++)
#pragma unroll
        for (int i = 0; i < 2; i++)
          if (8 * j + i >= hi) x[j][2 * r + i] = hidden;
  }
}

// The address of a barrier in shared memory.
__device__ inline uint32_t barrier_at(const unsigned long long& barrier) { return shared_address(&barrier); }

}  // namespace nsa

// The body of a kernel. In code for other devices, where it is never launched, the body is empty.
#if defined(__CUDA_ARCH_FEAT_SM90_ALL) || !defined(__CUDACC__)
#define NSA_WGMMA_BODY(...) __VA_ARGS__
#else
#define NSA_WGMMA_BODY(...)
#endif
