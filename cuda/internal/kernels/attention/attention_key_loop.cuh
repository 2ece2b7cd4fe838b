// Key loops: they go through the keys that a tile of rows sees, N at a time, for the general kernels that own rows (forward and dq). next() moves to
// the next tile of keys; all threads of a block must call it. key() says which key a column of this tile holds, and slot() also
// what sees() needs to decide whether a row sees it.
#pragma once

#include "attention_row_tile.cuh"
#include "attention_tile.cuh"

namespace nsa {

// SpanLoop goes through the run of keys that any row of a tile sees under a Span.
template <int N>
struct SpanLoop {
  struct Row { Run keys; };   // what a thread keeps about a row
  struct Slot { int key; };   // what it reads about a column; -1 is no key

  const AttentionParams& p;
  int from, end;

  __device__ SpanLoop(const AttentionParams& p, const RowTile& tile, Carver&) : p(p) {
    const Sizes& n = p.n;
    from = p.keys(tile.b, tile.first / n.h).lo / N * N - N;
    end = min(n.keys, p.keys(tile.b, (tile.end - 1) / n.h).hi);
  }
  __device__ Row row(const Sizes& n, const RowTile& tile, int r) const {
    return {tile.has(r) ? p.keys(tile.b, (tile.first + r) / n.h) : Run{0, 0}};
  }
  __device__ bool next() { return (from += N) < end; }
  __device__ int key(int column) const { return from + column < end ? from + column : -1; }
  __device__ Slot slot(int column) const { return {key(column)}; }
  __device__ static bool sees(const Row& r, const Slot& s) { return r.keys.has(s.key); }
};

// BlocksLoop goes, ascending, through the union of the blocks that the queries of a tile selected, at most 64 queries. Warp 0 merges
// their lists. Each column has one bit for each query, which says whether the query selected the column's block.
template <int N>
struct BlocksLoop {
  struct Row { int t, bit; };                   // the row's query, and its bit
  struct Slot { int key; unsigned lo, hi; };    // a key, and the bits of the queries that selected its block
  static constexpr int kShared = 3 * N + 4;  // floats of shared memory

  Blocks mask;
  // A lane of warp 0 merges the lists of two queries. Of each: its list in idx, its token, the first token of its document, the place of
  // the next entry of its list, and the first token of the block that this entry names.
  const int* list[2];
  int query[2], document_begin[2], list_place[2], next_block[2];
  int first, last;     // first and last query of the tile
  int keys;            // T
  int next_token, end_token;  // these are left of the current block
  unsigned selected_by[2];  // bits of the queries that selected it
  int* slots;          // keys [N], low bits [N], high bits [N], number of slots in use

  __device__ BlocksLoop(const AttentionParams& p, const RowTile& tile, Carver& carve)
      : mask(p.blocks), first(tile.first / p.n.h), last((tile.end - 1) / p.n.h), keys(p.n.keys), next_token(0), end_token(0) {
    slots = reinterpret_cast<int*>(carve.floats(kShared));
    for (int i = 0; i < 2; i++) {
      query[i] = first + threadIdx.x % 32 + 32 * i;
      const bool in_tile = query[i] <= last;
      list[i] = in_tile ? p.idx + mask.list(p.n, tile.b, tile.g, query[i]) : p.idx;
      list_place[i] = 0, selected_by[i] = 0, document_begin[i] = in_tile ? p.first(tile.b, query[i]) : 0;
      next_block[i] = in_tile ? first_token(i) : Blocks::kNone;
    }
  }
  __device__ Row row(const Sizes& n, const RowTile& tile, int r) const {
    const int t = (tile.first + r) / n.h;
    return tile.has(r) ? Row{t, t - first} : Row{-1, 0};
  }
  __device__ bool next() {
    __syncthreads();  // all threads have read the slots of the last tile
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
  __device__ int first_token(int i) const {
    const int j = mask.at(list[i], list_place[i], query[i] - document_begin[i]);
    return j == Blocks::kNone ? j : document_begin[i] + j * mask.size;
  }
  __device__ void fill() {
    const int lane = threadIdx.x % 32;
    int n = 0;
    while (n < N) {
      if (next_token >= end_token && !advance()) break;
      const int count = min(N - n, end_token - next_token);
      for (int i = lane; i < count; i += 32) {
        slots[n + i] = next_token + i;
        slots[N + n + i] = (int)selected_by[0];
        slots[2 * N + n + i] = (int)selected_by[1];
      }
      n += count, next_token += count;
    }
    for (int i = n + lane; i < N; i += 32) slots[i] = -1, slots[N + i] = 0, slots[2 * N + i] = 0;
    if (lane == 0) slots[3 * N] = n;
  }
  // Moves to the lowest block that any query still has in its list; returns false if there is none. selected_by gets the bits of the queries
  // that selected the block.
  __device__ bool advance() {
    int j = min(next_block[0], next_block[1]);
    for (int m = 16; m > 0; m /= 2) j = min(j, __shfl_xor_sync(0xffffffff, j, m));
    if (j == Blocks::kNone) return false;
    for (int i = 0; i < 2; i++) {
      const bool is_next = next_block[i] == j;
      selected_by[i] = __ballot_sync(0xffffffff, is_next);
      if (is_next) list_place[i]++, next_block[i] = first_token(i);
    }
    next_token = j;
    end_token = (int)min((long long)next_token + mask.size, (long long)min(keys, last + 1));
    return true;
  }
};

}  // namespace nsa
