// Key loops: they go through the keys that a tile of rows sees, kKeys at a time, for the mma.sync kernels that own rows (forward and dq). A tile of
// keys consists of one or more pieces of kPiece consecutive keys. A loop gives the first key of each piece, ascending; a row sees a
// Run of it. next() moves to the next tile, the same one for all threads of a block, without a barrier. more() says whether that
// tile exists. While it is being copied, current() describes the tile before it, which the warps compute with. KeyTiles holds both
// tiles in shared memory.
#pragma once

#include "attention_mma.cuh"
#include "attention_key_loop.cuh"

namespace nsa {

// Whether a run contains some, or all, of the keys [at,at+N).
template <int N> __device__ inline bool meets(const Run& r, int at) { return r.lo < at + N && r.hi > max(at, r.lo); }
template <int N> __device__ inline bool covers(const Run& r, int at) { return r.lo <= at && r.hi >= at + N; }

// MmaSpanLoop goes through the run of keys that any row of a tile sees under a Span. Its tiles have one piece.
struct MmaSpanLoop {
  static constexpr int kPiece = kKeys;
  const AttentionParams& p;
  int from, end;

  __device__ MmaSpanLoop(const AttentionParams& p, const RowTile& tile, Carver&) : p(p) {
    from = p.keys(tile.b, tile.first / p.n.h).lo / kKeys * kKeys - kKeys;
    end = min(p.n.keys, p.keys(tile.b, (tile.end - 1) / p.n.h).hi);
  }
  // Moves to the next tile and returns its first key, -1 if there is none.
  __device__ int next() { return (from += kKeys) < end ? from : -1; }
  // The first key of a piece of the tile that next() moved to.
  __device__ int coming(int) const { return from; }
  __device__ bool more() const { return from < end; }
  __device__ int current(int) const { return from - kKeys; }

  // Row is what is kept about a row: here the keys that it sees.
  struct Row { int lo, hi; };
  __device__ Row row(const Sizes& n, const RowTile& tile, int r) const {
    if (!tile.has(r)) return {0, 0};
    const Run run = p.keys(tile.b, (tile.first + r) / n.h);
    return {run.lo, min(run.hi, n.keys)};
  }
  // The second argument of seen() for a piece of the current tile.
  __device__ uint32_t place(int) const { return 0; }
  // A run whose keys in this piece are those that the row sees.
  __device__ Run seen(const Row& r, uint32_t) const { return {r.lo, r.hi}; }
};

// BlockUnion goes through the union of the blocks that the queries of a tile selected. For each block it keeps one bit for each query, set
// if the query selected the block. The size of a block is a multiple of N tokens, or at least the sequence length.
//
// Blocks are numbered in the order of their tokens. Without documents the number is j. With documents the numbers of each document
// begin at an offset, so that blocks of different documents never share a number. The word after the bits of a block then holds its
// first token.
template <int N> struct BlockUnion {
  static constexpr int kPiece = N, kPieces = kKeys / N;
  struct Piece { int first; uint32_t bits; };  // its first key, -1 for no piece; the address of its block's bits
  static constexpr uint32_t kTile = kPieces * sizeof(Piece);
  uint32_t at;  // address of the next tile; kPieces entries with first = -1 end the list

  __device__ BlockUnion(const AttentionParams& p, const RowTile& tile, Carver& carve) {
    const Sizes& n = p.n;
    const int first = tile.first / n.h, last = (tile.end - 1) / n.h, size = p.blocks.size;
    const bool packed = p.documents;
    const int begin = p.first(tile.b, first), further = packed ? last - first : 0;
    const int words = (last - first) / 32 + 1 + packed, blocks = (last - begin) / size + 1 + further;
    const int all = p.blocks.count(n) + further, parts = (size - 1) / N + 1;
    unsigned* selected_by = reinterpret_cast<unsigned*>(carve.floats(all * words));
    Piece* list = reinterpret_cast<Piece*>(carve.floats(2 * (all * parts + kPieces)));
    for (int i = threadIdx.x; i < blocks * words; i += kThreads) selected_by[i] = 0;
    __syncthreads();
    for (int t = first + warp(); t <= last; t += kWarps) {
      const int* entries = p.idx + p.blocks.list(n, tile.b, tile.g, t);
      const int own = p.first(tile.b, t), number = block_number(own, begin, first, size);  // number: of block 0 of its document
      for (int from = 0; from < p.blocks.top_n; from += 32) {
        const int j = p.blocks.at(entries, from + lane(), t - own);
        const unsigned ended = __ballot_sync(0xffffffff, j == Blocks::kNone);
        if (lane() < (ended ? __ffs(ended) - 1 : 32)) {
          unsigned* of = selected_by + (number + j) * words;
          atomicOr(of + (t - first) / 32, 1u << (t - first) % 32);
          if (packed) atomicOr(of + words - 1, own + j * size);
        }
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
          for (int w = 0; w < words; w++) any |= selected_by[j * words + w];
        const unsigned hit = __ballot_sync(0xffffffff, any != 0);
        const int mine = (found + __popc(hit & ((1u << lane()) - 1))) * parts;
        if (any)
          for (int i = 0; i < parts; i++) {
            const int key = (packed ? (int)selected_by[j * words + words - 1] : j * size) + i * N;
            list[mine + i] = {packed || key <= last ? key : -1, shared_address(selected_by + j * words)};
          }
        found += __popc(hit);
      }
      if (lane() < kPieces) list[found * parts + lane()] = {-1, shared_address(selected_by)};
    }
    __syncthreads();
    at = shared_address(list);
  }
  // Moves to the next tile and returns its first key, -1 if there is none. Must not be called again after -1.
  __device__ int next() {
    const int from = (int)shared_word(at);
    at += kTile;
    return from;
  }
  __device__ int coming(int piece) const { return (int)shared_word(at - kTile + piece * sizeof(Piece)); }
  __device__ bool more() const { return coming(0) >= 0; }
  __device__ int current(int piece) const { return (int)shared_word(at - 2 * kTile + piece * sizeof(Piece)); }

  struct Row { int t, bit; };
  __device__ Row row(const Sizes& n, const RowTile& tile, int r) const {
    const int t = (tile.first + r) / n.h;
    return tile.has(r) ? Row{t, t - tile.first / n.h} : Row{-1, 0};
  }
  __device__ uint32_t place(int piece) const { return shared_word(at - 2 * kTile + piece * sizeof(Piece) + 4); }
  __device__ Run seen(const Row& r, uint32_t place) const {
    return {0, shared_word(place + 4 * (r.bit / 32)) >> r.bit % 32 & 1 ? r.t + 1 : 0};
  }
};

// Begins to copy the rows of a tile of an array [B,S,Hq,c] to shared memory [Rows,C]. Rows beyond the tile and columns from c on
// become zeros.
template <int C, int Rows, typename T> __device__ inline void copy_tile(uint32_t to, const T* src, int c, const Sizes& n, const RowTile& tile) {
  constexpr int kCells = C / 8, kStep = kThreads / kCells;
  const int i = threadIdx.x % kCells, first = tile.first + threadIdx.x / kCells;
  const int queries = kStep / n.h, heads = kStep % n.h;  // the distance between two rows of this thread
  int t = first / n.h, head = first % n.h;
  src += n.row(tile.b, tile.g, 0, c) + 8 * i;
#pragma unroll
  for (int u = 0; u < Rows / kStep; u++) {
    const bool in = first + u * kStep < tile.end && 8 * i < c;
    copy_cell(cell<C>(to, threadIdx.x / kCells + u * kStep, i), in ? src + ((long long)t * n.heads + head) * c : src, in);
    t += queries, head += heads;
    if (head >= n.h) head -= n.h, t++;
  }
}

// Seen answers what the rows of a thread, lane/4 + 8*i of fragments [16*R,...], see of a loop's current tile. `rows` is the address of
// the Row of the first one.
template <int R, class Loop> struct Seen {
  static constexpr int kPieces = kKeys / Loop::kPiece;
  const Loop& loop;
  uint32_t rows;

  __device__ Run run(int r, uint32_t place) const {
    const uint2 raw = shared_pair(rows + 8 * r * sizeof raw);  // read each time, to save registers
    return loop.seen({int(raw.x), int(raw.y)}, place);
  }
  // Bit i: some row of the warp sees a key of piece i.
  __device__ unsigned some() const {
    unsigned bits = 0;
#pragma unroll
    for (int piece = 0; piece < kPieces; piece++) {
      const int from = loop.current(piece), place = loop.place(piece);
      bool some = false;
#pragma unroll
      for (int r = 0; r < 2 * R; r++) some |= meets<Loop::kPiece>(run(r, place), from);
      if (kPieces > 1) some &= from >= 0;
      bits |= (unsigned)__any_sync(0xffffffff, some) << piece;
    }
    return bits;
  }
  // Whether all rows of the warp see all keys of a piece.
  __device__ bool all(int piece) const {
    const int from = loop.current(piece), place = loop.place(piece);
    bool all = true;
#pragma unroll
    for (int r = 0; r < 2 * R; r++) all &= covers<Loop::kPiece>(run(r, place), from);
    return __all_sync(0xffffffff, all);
  }
  // s holds numbers of the keys [part,part+N) of a piece. Sets those whose row does not see the key to `hidden`.
  template <int N> __device__ void hide(float (&s)[R][N / 8][4], int piece, int part, float hidden) const {
    const int first = loop.current(piece) + part, place = loop.place(piece);
#pragma unroll
    for (int r = 0; r < 2 * R; r++) {
      const Run seen = run(r, place);
#pragma unroll
      for (int j = 0; j < N / 8; j++)
#pragma unroll
        for (int i = 0; i < 2; i++)
          if (!seen.has(first + 8 * j + 2 * (lane() % 4) + i)) s[r / 2][j][r % 2 * 2 + i] = hidden;
    }
  }
};

// KeyTiles holds keys and values of a group in shared memory, a tile [kKeys,C] of each in each of two stages. One stage is copied
// while the warps compute with the other.
template <typename T, int C> struct KeyTiles {
  static constexpr uint32_t kBytes = kKeys * C * 2;  // of a tile; also the distance from keys to their values

  const Sizes& n;
  uint32_t tiles;
  const T** from;  // k and v of the group, in shared memory to save registers

  __device__ KeyTiles(const AttentionParams& p, const RowTile& tile, Carver& carve)
      : n(p.n), tiles(shared_address(carve.floats(4 * kKeys * C / 2))), from(reinterpret_cast<const T**>(carve.floats(4))) {
    if (threadIdx.x == 0) {
      from[0] = static_cast<const T*>(p.k) + n.key(tile.b, tile.g, 0, n.d);
      from[1] = static_cast<const T*>(p.v) + n.key(tile.b, tile.g, 0, n.dv);
    }
    __syncthreads();
  }

  // The address of the keys of the other stage.
  __device__ uint32_t other(uint32_t keys) const { return 2 * tiles + 2 * kBytes - keys; }

  // Begins to copy the next tile of a loop, if there is one, to the stage whose keys are at `to`.
  template <class Loop> __device__ void next(Loop& loop, uint32_t to) const {
    constexpr int N = Loop::kPiece;
    int first = loop.next();
    if (first < 0) return;
#pragma unroll
    for (int piece = 0; piece < kKeys / N; piece++, to += N * C * 2) {
      if (piece > 0) first = loop.coming(piece);
      const int end = kKeys > N && first < 0 ? first : n.keys;  // a missing piece becomes zeros
      copy_run<C, N>(to, from[0], (long long)n.groups * n.d, first, end, n.d);
      copy_run<C, N>(to + kBytes, from[1], (long long)n.groups * n.dv, first, end, n.dv);
    }
  }
};

}  // namespace nsa

// Defines the entry points that call nsa::mma_<op><T, C, R, Loop>(p): nsa_span_<name>_mma<C>_<storage>; for selected attention
// nsa_selected_<name>_... if blocks consist of whole tiles, and nsa_selected<N>_<name>_... for pieces of N keys.
#define NSA_MMA_KEY_LOOP(name, op, C, R, blocks)                                                                       \
  NSA_MMA_KEY_LOOP_ENTRY(span_##name, op, C, R, blocks, nsa::MmaSpanLoop)                                              \
  NSA_MMA_KEY_LOOP_ENTRY(selected_##name, op, C, R, blocks, nsa::BlockUnion<nsa::kKeys>)                               \
  NSA_MMA_KEY_LOOP_ENTRY(selected32_##name, op, C, R, blocks, nsa::BlockUnion<32>)                                     \
  NSA_MMA_KEY_LOOP_ENTRY(selected16_##name, op, C, R, blocks, nsa::BlockUnion<16>)
#define NSA_MMA_KEY_LOOP_ENTRY(name, op, C, R, blocks, Loop)                                                           \
  NSA_MMA_ENTRY(name, C, blocks, bf16, nsa::mma_##op<nsa::bf16, C, R, Loop>)                                           \
  NSA_MMA_ENTRY(name, C, blocks, f16, nsa::mma_##op<nsa::f16, C, R, Loop>)
