// The keys that a tile of rows sees, N at a time, for the kernels that own rows (forward, dq). A walk gives slots: which
// key lies in a column of the tile and which rows see it. next() is called by all threads of a block.
#pragma once

#include "attention_index.cuh"
#include "attention_tile.cuh"

namespace nsa {

// RowTile is the rows [first,end) of group g of batch b that a block owns: `count` rows of the group's S*h to a block, in
// the order of Sizes::row. The last rows, which may see the most, come first.
struct RowTile {
  int b, g, first, end;
  __device__ RowTile(const Sizes& n, int count, int block = blockIdx.x) {
    const int all = n.queries * n.each, tiles = (all - 1) / count + 1;
    asm volatile("" : "+r"(block));  // a tile made again is computed again: one that is kept takes registers
    const int group = block / tiles;
    b = group / n.groups, g = group % n.groups;
    first = (tiles - 1 - block % tiles) * count;
    end = min(all, first + count);
  }
  __device__ bool has(int r) const { return first + r < end; }
};

// SpanWalk walks over the run of keys that any row of a tile sees.
template <int N>
struct SpanWalk {
  struct Row { Run keys; };   // what a thread must know of a row
  struct Slot { int key; };   // and of a column; -1 is no key
  static constexpr int kShared = 0;  // floats of shared memory

  const AttentionParams& p;
  int from, end;

  __device__ SpanWalk(const AttentionParams& p, const RowTile& tile, Carver&) : p(p) {
    const Sizes& n = p.n;
    from = p.keys(tile.b, tile.first / n.each).lo / N * N - N;
    end = min(n.keys, p.keys(tile.b, (tile.end - 1) / n.each).hi);
  }
  __device__ Row row(const Sizes& n, const RowTile& tile, int r) const {
    return {tile.has(r) ? p.keys(tile.b, (tile.first + r) / n.each) : Run{0, 0}};
  }
  __device__ bool next() { return (from += N) < end; }
  __device__ int key(int column) const { return from + column < end ? from + column : -1; }
  __device__ Slot slot(int column) const { return {key(column)}; }
  __device__ static bool sees(const Row& r, const Slot& s) { return r.keys.has(s.key); }
};

// BlocksWalk walks over the union of the blocks that the queries of a tile, at most 64, have chosen, ascending. Warp 0
// merges their lists; a column knows by one bit a query who chose its block.
template <int N>
struct BlocksWalk {
  struct Row { int t, bit; };
  struct Slot { int key; unsigned lo, hi; };
  static constexpr int kShared = 3 * N + 4;

  Blocks mask;
  const int* list[2];  // of the queries of this lane of warp 0
  int query[2], begin[2], at[2], block[2];  // begin: of a query's document; block: the first token of its next block
  int first, last;     // queries of the tile
  int keys;            // T
  int here, stop;      // what is left of the current block, and who chose it
  unsigned chose[2];
  int* slots;          // keys [N], low bits [N], high bits [N], number of slots in use

  __device__ BlocksWalk(const AttentionParams& p, const RowTile& tile, Carver& carve)
      : mask(p.blocks), first(tile.first / p.n.each), last((tile.end - 1) / p.n.each), keys(p.n.keys), here(0), stop(0) {
    slots = reinterpret_cast<int*>(carve.floats(kShared));
    for (int i = 0; i < 2; i++) {
      query[i] = first + threadIdx.x % 32 + 32 * i;
      const bool mine = query[i] <= last;
      list[i] = mine ? p.idx + mask.list(p.n, tile.b, tile.g, query[i]) : p.idx;
      at[i] = 0, chose[i] = 0, begin[i] = mine ? p.first(tile.b, query[i]) : 0;
      block[i] = mine ? token(i) : Blocks::kNone;
    }
  }
  __device__ Row row(const Sizes& n, const RowTile& tile, int r) const {
    const int t = (tile.first + r) / n.each;
    return tile.has(r) ? Row{t, t - first} : Row{-1, 0};
  }
  __device__ bool next() {
    __syncthreads();  // the slots have been read
    if (threadIdx.x < 32) fill();
    __syncthreads();
    return slots[3 * N] > 0;
  }
  __device__ int key(int column) const { return slots[column]; }
  __device__ Slot slot(int column) const {
    return {slots[column], (unsigned)slots[N + column], (unsigned)slots[2 * N + column]};
  }
  __device__ static bool sees(const Row& r, const Slot& s) {
    return s.key >= 0 && s.key <= r.t && ((r.bit < 32 ? s.lo >> r.bit : s.hi >> (r.bit - 32)) & 1);
  }

 private:
  // The first token of the next block of query[i].
  __device__ int token(int i) const {
    const int j = mask.at(list[i], at[i], query[i] - begin[i]);
    return j == Blocks::kNone ? j : begin[i] + j * mask.size;
  }
  __device__ void fill() {
    const int lane = threadIdx.x % 32;
    int n = 0;
    while (n < N) {
      if (here >= stop && !advance()) break;
      const int count = min(N - n, stop - here);
      for (int i = lane; i < count; i += 32) {
        slots[n + i] = here + i;
        slots[N + n + i] = (int)chose[0];
        slots[2 * N + n + i] = (int)chose[1];
      }
      n += count, here += count;
    }
    for (int i = n + lane; i < N; i += 32) slots[i] = -1, slots[N + i] = 0, slots[2 * N + i] = 0;
    if (lane == 0) slots[3 * N] = n;
  }
  // Goes on to the lowest block that a query has not yet passed.
  __device__ bool advance() {
    int j = min(block[0], block[1]);
    for (int m = 16; m > 0; m /= 2) j = min(j, __shfl_xor_sync(0xffffffff, j, m));
    if (j == Blocks::kNone) return false;
    for (int i = 0; i < 2; i++) {
      const bool mine = block[i] == j;
      chose[i] = __ballot_sync(0xffffffff, mine);
      if (mine) at[i]++, block[i] = token(i);
    }
    here = j;
    stop = (int)min((long long)here + mask.size, (long long)min(keys, last + 1));
    return true;
  }
};

}  // namespace nsa
