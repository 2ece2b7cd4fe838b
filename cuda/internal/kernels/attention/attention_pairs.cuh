// Selected attention by pairs. An entry of a query's list is *forced* if it names block 0, the query's own block or the one before; see
// Forced. A pair is a query and one of its other entries. Pairs are sorted by block, so keys are read once for many queries, wherever
// these are. Each pair gets a result of its own. attention_pairs.cu sorts; attention_wgmma_pairs_forward.cu makes the results. Then
// attention_wgmma_forward.cu goes over the forced blocks and adds the results of a query in the order of its list. For the gradient see
// PairGradients. This file also has the arguments of walks (Walks).
#pragma once

#include "attention_params.cuh"
#include "attention_tile.cuh"

namespace nsa {

constexpr int kPairKeys = 64;  // keys of a tile; a block has `parts` tiles
// The bits of an entry in a pair. 20 suffice: lists ascend, so an entry is less than the number of blocks, and the sort has a number in
// shared memory for each block. A query of a unit is less than 2048.
constexpr int kEntryBits = 20;

// Pairs describes the layout of pairs. The S queries of each of the B*Hkv groups are cut into `units` units of `queries` each. A unit has:
//
//   list    int32 [queries*top_n]  pairs, sorted by block: query << kEntryBits | entry; queries count from the unit's first. The order
//                                 within a block is arbitrary
//   lengths int32 [queries]       the number of entries of each query
//   counts  int32 [cuts, J]       J blocks; how many queries of a cut selected the block. The queries of a unit are divided into cuts
//   items   [room]                items of work; their number is count[unit]
//   shifts  int32 [ceil(T/64)]    of a group: result_shift of each tile of 64 keys
//   begun   int32                 of a launch's first unit: how many items were asked for; see each_item
//
// A launch takes the units [first,end). The result of a pair over tile `part` of its block has the place
// ((unit-first)*queries*top_n + query*top_n + entry) * parts + part in:
//
//   results f16 [places, h, width]  the sum of exponentials times values. width is a multiple of 32. Of each 32 columns, the columns 8*j + 2*i and
//                                   8*j + 2*i + 1 lie at 8*i + 2*j, which is the order that a thread has them in
//   stats [places, h]               the logit that exponentials are relative to, and their sum
//
// Results are f16 for bf16, too: they are rounded, and their sum is rounded again, so bf16 would lose half a bit. Only places of pairs are
// written and read.
// An item is a tile of keys, from `key` on, which is tile `part` of its block, with the pairs [first,first+count) of the list. Its exponentials
// are relative to a logit for which the largest one of a row is 2^shift.
struct alignas(16) PairItem { int key, first, count, part; };
struct Pairs {
  int32_t *list, *lengths, *counts, *shifts;
  PairItem* items;
  int32_t *count, *begun;
  void* results;
  float2* stats;
  int units, queries, cuts, room, parts;
  int tile, chunk;  // queries of a tile of rows; the most queries of an item, at most item_tiles tiles
  int first, end;
};

struct PairParams {
  alignas(64) uint8_t k[128], v[128];  // tensor maps of k and v, with boxes [1,64,1,64]
  uint8_t q[128];                      // tensor map of q, with boxes [1,1,h,64]
  AttentionParams p;
  Pairs pairs;
};

// The gradient by pairs goes by the inverse index. The kernel that makes dk and dv (attention_wgmma_dkv.cu) also makes a result for each entry
// of each query's list: what the tile of keys adds to dq. Then nsa_pairs_dq adds up the results of a query in the order of its list. An
// entry of the inverse is query << entry_bits | entry of the query's list. A launch takes some groups, from `first` on:
//
//   results f16 [groups, S*top_n*parts, h, width]  place (query*top_n + entry)*parts + part. Of each 16 columns, the columns 8*j + 2*i and
//                                                8*j + 2*i + 1 lie at 4*i + 2*j. They are not scaled by Sizes::scale if T is bf16, but by
//                                                2^result_exponent, as are P and dS
//   lengths int32 [B*Hkv, S]                     the number of entries of each query; null if nobody reads it
//   most    Most [B*Hkv]                         only for bf16; else null
//   reach   float [reaches]                      what nsa_pairs_delta leaves for `most`; none if delta is an input
//
// Most holds the largest finite |key| and |value| of a group, and of all groups the largest finite sum of |do| over a row.
struct alignas(16) Most { float key, value, dout; };
struct PairGradients {
  void* results;
  int32_t* lengths;
  Most* most;
  float* reach;
  int first, entry_bits, parts, reaches;
};
struct ListParams {
  AttentionParams p;
  PairGradients pairs;
};
// The argument of the kernels on warpgroups that make dk and dv.
struct KeyGradientParams {
  alignas(64) uint8_t k[128], v[128];  // tensor maps of k and v, with boxes [1,64,1,64]
  uint8_t q[128], dout[128];           // tensor maps of q and do, with boxes [1,queries,heads,64]; queries = 1 if rows are listed
  AttentionParams p;
  PairGradients pairs;                 // unused except by pairs
};

// Selected attention by a walk (attention_walk_forward.cu, attention_walk_dq.cu): a walk goes through the blocks that the queries of a
// *tile* selected. A tile is at most 32 consecutive queries of a group. Blocks are cut into *pieces* of `keys` = 64, 32 or 16 keys; the
// block size is a multiple of `keys`.
//
//   blocks  [groups*tiles, room]  the pieces of a tile that some query sees, ascending
//   count   int32 [groups*tiles]  their number
//
// A TileBlock is a piece: its first key, and a bit for each query of the tile that selected its block and sees some of its keys.
struct TileBlock { int key; uint32_t queries; };
struct Walks {
  TileBlock* blocks;
  int32_t* count;
  int tiles, queries, room, keys;  // tiles of a group, queries of a tile, pieces that a tile has room for, keys of a piece
};

struct WalkParams {
  alignas(64) uint8_t k[128], v[128];  // tensor maps of k and v, with boxes [1,keys,1,64]
  AttentionParams p;
  Walks walks;
};

// The most tiles of rows of an item.
constexpr int item_tiles(int C) { return C > 192 ? 2 : 8; }

// Whether numbers of the type T have the range of f16.
template <typename T> constexpr bool narrow = false;
template <> constexpr bool narrow<f16> = true;

// The exponent of the leading bit of x >= 0; 128 for Inf and NaN.
__device__ inline int exponent_of(float x) { return (__float_as_int(x) >> 23 & 255) - 127; }
__device__ inline float power_of_two(int e) { return __uint_as_float(uint32_t(e + 127) << 23); }  // for -126 <= e <= 127

// The shift of an item whose values are at most `most`. Sums of 64 values with weights up to 2^shift are less than 2^15. Where they are not
// far from 1, it is 0.
template <typename T> __device__ inline int result_shift(float most) {
  const int e = exponent_of(most);
  return e >= -8 && e <= 8 ? 0 : max(-100, min(narrow<T> ? 15 : 100, 8 - e));
}

// What keys add to dq of a row is multiplied by 2^result_exponent in the results for bf16. It is sum p (do·v - delta) k, where the sum of p is at
// most 1 and delta is do·o, so at most 2 dout value key: results are less than 2^15, unless that exceeds 2^115.
__device__ inline int result_exponent(const Most& most) {
  const int e = exponent_of(most.key) + exponent_of(most.value) + exponent_of(most.dout);
  return max(-100, min(60, 11 - e));
}

// For what is written and read once, such as results of pairs: it should not evict rows and keys from the L2 cache.
__device__ inline void store_once(uint4* to, uint4 x) { __stcs(to, x); }
__device__ inline void store_once(uint2* to, uint2 x) { __stcs(to, x); }
__device__ inline uint4 load_once(const uint4* from) { return __ldcs(from); }

// The largest of the numbers >= 0 that the lanes of a warp have; their bits have the same order.
__device__ inline float most_of_warp(float x) { return __uint_as_float(__reduce_max_sync(0xffffffff, unsigned(__float_as_int(x)))); }

// What a lane of a warp sees of the keys [first,first+count) of a group of an array [B,T,Hkv,c]: the largest finite |x|; 0 if there is none.
template <typename T> __device__ inline float largest_of_keys(const Sizes& n, const void* array, int group, int first, int count, int c) {
  const T* keys = static_cast<const T*>(array) + n.key(group / n.groups, group % n.groups, first, c);
  const int cells = c / 8, all = min(count, n.keys - first) * cells;
  float most = 0;
#pragma unroll 8
  for (int i = lane(); i < all; i += 32) {
    float v[8];
    Pack<T>{load_once(reinterpret_cast<const uint4*>(keys + (long long)(i / cells) * n.groups * c + i % cells * 8))}.get(v);
#pragma unroll
    for (int e = 0; e < 8; e++)
      if (fabsf(v[e]) < INFINITY) most = fmaxf(most, fabsf(v[e]));
  }
  return most;
}

// The forced entries of a query, which neighbouring queries have in common: block 0, the query's own block and the one before. Every list
// of SelectBlocks holds them; a list of another origin may lack some. Lists ascend, so the pairs are the entries [from,end).
struct Forced {
  int from, end;  // the entries that are pairs
  Run near;       // the keys of the own block and the one before that the query sees
  int first;      // how many keys of block 0 it sees that are not among these

  // Whether entry j of the list of query t is forced.
  static __device__ bool has(const Blocks& mask, int j, int t) { return j == 0 || (j + 2ll) * mask.size > t; }

  // Of query t, whose list has `length` entries.
  __device__ Forced(const Blocks& mask, const int* list, int length, int t) {
    const int own = t / mask.size;
    end = length;
    const bool is_own = end > 0 && list[end - 1] == own;
    end -= is_own;
    const bool is_before = own > 0 && end > 0 && list[end - 1] == own - 1;
    end -= is_before;
    from = end > 0 && list[0] == 0;
    near = {(own - is_before) * mask.size, is_own ? t + 1 : own * mask.size};
    first = from * mask.size;
  }
};

__device__ inline int result_width(int c) { return (c + 31) / 32 * 32; }

// The `queries` queries of a unit, from query `first` of group g of batch row b on.
struct Unit {
  int b, g, first, queries;
  __device__ Unit(const PairParams& a, int unit) {
    const Sizes& n = a.p.n;
    const int group = unit / a.pairs.units;
    b = group / n.groups, g = group % n.groups;
    first = unit % a.pairs.units * a.pairs.queries, queries = min(a.pairs.queries, n.queries - first), first += n.start(b);
  }
};

// Calls f(unit, item) for items of the launch, by one warp of a block. The first item of a block is number blockIdx.x. Then the block takes
// the next item that no block has yet. If InTurn, it takes every gridDim.x-th item instead: at width 64 an item is too short to pay for an
// atomic operation. Numbers and items are loaded while f runs for the item before.
template <bool InTurn, class F> __device__ inline void each_item(const Pairs& x, F f) {
  int unit = x.first, at = blockIdx.x, count = x.count[unit], number = at, ahead = 0;  // `at` counts from the first item of the unit
  PairItem next;
  const auto find = [&] {  // loads item `at`, and asks for the number of the item after it
    while (at >= count) {
      at -= count;
      if (++unit == x.end) return false;
      count = x.count[unit];
    }
    next = x.items[(long long)unit * x.room + at];
    if (!InTurn && lane() == 0) ahead = gridDim.x + atomicAdd(x.begun + x.first, 1);
    return true;
  };
#pragma unroll 1
  for (bool more = find(); more;) {
    const PairItem item = next;
    const int of = unit, before = number;
    number = InTurn ? number + gridDim.x : __shfl_sync(0xffffffff, ahead, 0), at += number - before;
    more = find();
    f(of, item);
  }
}

}  // namespace nsa
