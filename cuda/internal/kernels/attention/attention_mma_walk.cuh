// The keys that a tile of rows sees, kKeys adjoining ones at a time, for the kernels on matrix units that own rows (forward,
// dq). A walk gives the first key of each tile, ascending; what a row sees of it is a Run. next() and seen() give all
// threads of a block the same order of tiles without a barrier. KeyTiles takes them through shared memory.
#pragma once

#include "attention_mma.cuh"
#include "attention_walk.cuh"

namespace nsa {

// Whether a run has some, or all, of the keys of the tile from `at` on.
__device__ inline bool meets(const Run& r, int at) { return r.lo < at + kKeys && r.hi > max(at, r.lo); }
__device__ inline bool covers(const Run& r, int at) { return r.lo <= at && r.hi >= at + kKeys; }

// KeyRuns walks over the run of keys that any row of a tile sees under a Span.
struct KeyRuns {

  Span mask;
  int from, end, keys;

  __device__ KeyRuns(const AttentionParams& p, const RowTile& tile, Carver&) : mask(p.span), keys(p.n.keys) {
    from = mask.keys(tile.first / p.n.each).lo / kKeys * kKeys - kKeys;
    end = min(keys, mask.keys((tile.end - 1) / p.n.each).hi);
  }
  // The first key of the next tile, -1 where there is none.
  __device__ int next() { return (from += kKeys) < end ? from : -1; }

  // Row is what a thread must know of a row.
  struct Row { Run run; };
  __device__ Row row(const Sizes& n, const RowTile& tile, int r) const {
    if (!tile.has(r)) return {{0, 0}};
    const Run run = mask.keys((tile.first + r) / n.each);
    return {{run.lo, min(run.hi, keys)}};
  }
  // The keys that a row sees, where they lie in the tile of keys from `at` on.
  __device__ Run seen(const Row& r, int) const { return r.run; }
};

// BlockUnion walks over the union of the blocks that the queries of a tile have chosen. A bit for each query
// says who chose a block. A block is a multiple of kKeys tokens, or all.
struct BlockUnion {
  int size, words;  // tokens of a block; words of a block's bits
  uint32_t bits;    // address of the bits [blocks,words]
  uint32_t at;      // address of the first key of the next tile; -1 lies behind the last one

  __device__ BlockUnion(const AttentionParams& p, const RowTile& tile, Carver& carve) {
    const Sizes& n = p.n;
    const int first = tile.first / n.each, last = (tile.end - 1) / n.each;
    size = p.blocks.size, words = (last - first) / 32 + 1;
    const int blocks = last / size + 1, all = p.blocks.count(n), parts = (size - 1) / kKeys + 1;
    unsigned* chose = reinterpret_cast<unsigned*>(carve.floats(all * words));
    int* list = reinterpret_cast<int*>(carve.floats(all * parts + 1));
    for (int i = threadIdx.x; i < blocks * words; i += kThreads) chose[i] = 0;
    __syncthreads();
    for (int t = first + warp(); t <= last; t += kWarps) {
      const int* chosen = p.idx + p.blocks.list(n, tile.b, tile.g, t);
      for (int from = 0; from < p.blocks.most; from += 32) {
        const int j = p.blocks.at(chosen, from + lane(), t);
        const unsigned ended = __ballot_sync(0xffffffff, j == Blocks::kNone);
        if (lane() < (ended ? __ffs(ended) - 1 : 32)) atomicOr(chose + j * words + (t - first) / 32, 1u << (t - first) % 32);
        if (ended) break;
      }
    }
    __syncthreads();
    if (warp() == 0) {
      int found = 0;
      for (int from = 0; from < blocks; from += 32) {
        const int j = from + lane();
        unsigned any = 0;
        if (j < blocks)
          for (int w = 0; w < words; w++) any |= chose[j * words + w];
        const unsigned hit = __ballot_sync(0xffffffff, any != 0);
        const int mine = (found + __popc(hit & ((1u << lane()) - 1))) * parts;
        if (any)
          for (int i = 0; i < parts; i++) list[mine + i] = j * size + i * kKeys <= last ? j * size + i * kKeys : -1;
        found += __popc(hit);
      }
      if (lane() == 0) list[found * parts] = -1;
    }
    __syncthreads();
    bits = shared_address(chose), at = shared_address(list);
  }
  // The first key of the next tile, -1 where there is none; then it must not be asked again.
  __device__ int next() {
    const int from = (int)shared_word(at);
    at += 4;
    return from;
  }

  struct Row { int t, bit; };
  __device__ Row row(const Sizes& n, const RowTile& tile, int r) const {
    const int t = (tile.first + r) / n.each;
    return tile.has(r) ? Row{t, t - tile.first / n.each} : Row{-1, 0};
  }
  __device__ Run seen(const Row& r, int from) const {
    return {0, shared_word(bits + 4 * (from / size * words + r.bit / 32)) >> r.bit % 32 & 1 ? r.t + 1 : 0};
  }
};

// KeyTiles are the keys and values of a group in shared memory, a tile [kKeys,C] of each in either of two stages: one is
// copied while the other one is in use.
template <typename T, int C> struct KeyTiles {
  static constexpr uint32_t kBytes = kKeys * C * 2;  // of a tile; the values are so far behind their keys

  const Sizes& n;
  const T *k, *v;
  uint32_t tiles;

  __device__ KeyTiles(const AttentionParams& p, const RowTile& tile, Carver& carve)
      : n(p.n), k(static_cast<const T*>(p.k) + n.key(tile.b, tile.g, 0, n.d)),
        v(static_cast<const T*>(p.v) + n.key(tile.b, tile.g, 0, n.dv)),
        tiles(shared_address(carve.floats(4 * kKeys * C / 2))) {}

  __device__ uint32_t at(int stage) const { return tiles + 2 * stage * kBytes; }

  // Begins to copy the next tile of a walk to the stage that is not in use; returns its first key, -1 where there is none.
  template <class Walk> __device__ int next(Walk& walk, int in_use) const {
    const int from = walk.next();
    if (from >= 0) {
      const uint32_t to = at(in_use ^ 1);
      copy_run<C, kKeys>(to, k, (long long)n.groups * n.d, from, n.keys, n.d);
      copy_run<C, kKeys>(to + kBytes, v, (long long)n.groups * n.dv, from, n.keys, n.dv);
    }
    return from;
  }
};

}  // namespace nsa

// The entry points nsa_span_<op>_mma<C>_<storage> and nsa_selected_<op>_mma<C>_<storage> of nsa::mma_<op><T, C, Walk>(p).
#define NSA_MMA_WALK(op, C, blocks, branch, Walk)                                                                      \
  NSA_MMA_ENTRY(branch##_##op, C, blocks, bf16, nsa::mma_##op<nsa::bf16, C, nsa::Walk>)                                \
  NSA_MMA_ENTRY(branch##_##op, C, blocks, f16, nsa::mma_##op<nsa::f16, C, nsa::Walk>)
#define NSA_MMA_WALKS(op)                                                                                              \
  NSA_MMA_WALK(op, 64, 4, span, KeyRuns)                                                                               \
  NSA_MMA_WALK(op, 128, 2, span, KeyRuns)                                                                              \
  NSA_MMA_WALK(op, 64, 4, selected, BlockUnion)                                                                        \
  NSA_MMA_WALK(op, 128, 2, selected, BlockUnion)
