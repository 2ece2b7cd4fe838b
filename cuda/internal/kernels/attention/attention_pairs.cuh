// Selected attention by the pairs of a query and a block that it chose, sorted by block: each makes a result of its own, and those of
// a query are added up in the order of its list. So keys are read once for many queries, wherever these are. Sorted and added up by
// attention_pairs.cu; made by attention_wgmma_pairs_forward.cu and attention_wgmma_pairs_dq.cu.
#pragma once

#include "attention_index.cuh"
#include "attention_tile.cuh"

namespace nsa {

constexpr int kPairKeys = 64;  // keys of a tile; a block has `parts` tiles
constexpr int kEntryBits = 20;  // lists ascend, so an entry is less than the number of blocks, which the sort holds in shared memory; a query is less than 2048

// Pairs says where the pairs lie. The S queries of each of the B*Hkv groups are cut into `units` units of `queries` each. Of a unit:
//
//   list    int32 [queries*most]  query << kEntryBits | entry, with queries counted from the unit's first; those of a block in any order
//   lengths int32 [queries]       entries of a query
//   counts  int32 [cuts, J]       of J blocks: how many of a part of the queries, a cut, chose one
//   items   [room]                the work, of which there is count[unit]
//
// A launch takes the units [first,end). In it a pair has place ((unit-first)*queries*most + query*most + entry) * parts + part:
//
//   sums  T [places, h, width]  forward: the sum of values times exponentials, if narrow<T> divided by their sum; dq: what the tile adds
//                               to dq, if not narrow<T> without the scale. The width is a multiple of 32; of 32 columns, 8*j + 2*i
//                               and the one after it lie at 8*i + 2*j: as a thread has them
//   stats [places, h]           forward: the largest logit, and the sum of the exponentials below it
//
// Of a query only the places of its entries are written and read.
struct alignas(16) PairItem { int key, first, count, part; };  // a tile's first key and number in its block; where its pairs are in the list
struct Pairs {
  int32_t *list, *lengths, *counts;
  PairItem* items;
  int32_t* count;
  void* sums;
  float2* stats;
  int units, queries, cuts, room, parts;
  int tile, chunk;  // queries of a tile of rows, and at most of an item, which has at most item_tiles
  int first, end;
};

struct PairParams {
  alignas(64) uint8_t k[128], v[128];  // maps of boxes [1,64,1,64] of k and v
  uint8_t q[128], dout[128];           // of boxes [h,64] of q and do, as arrays [1,B*S*Hq,1,c]
  AttentionParams p;
  Pairs pairs;
};

// A walk goes through the blocks that the queries of a *tile*, consecutive ones of a group, at most 32, chose (attention_walk_forward.cu,
// attention_walk_dq.cu), in *pieces* of `keys` keys: 64, 32 or 16, of which a block is a multiple.
//
//   blocks  [groups*tiles, room]  those of a tile, ascending: an entry for each piece that a query sees
//   count   int32 [groups*tiles]  how many there are
struct TileBlock { int key; uint32_t queries; };  // a piece's first key, and a bit for each query of the tile that chose and sees some
struct Walks {
  TileBlock* blocks;
  int32_t* count;
  int tiles, queries, room, keys;  // tiles of a group
};

struct WalkParams {
  alignas(64) uint8_t k[128], v[128];  // as in PairParams, of boxes [1,keys,1,64]
  AttentionParams p;
  Walks walks;
};

// The most tiles of rows of an item.
constexpr int item_tiles(int C) { return C > 192 ? 2 : 8; }

// Whether sums of 64 numbers may exceed a type.
template <typename T> constexpr bool narrow = false;
template <> constexpr bool narrow<f16> = true;

__device__ inline int pair_width(int c) { return (c + 31) / 32 * 32; }

// Results of pairs are written and read once: they are not to drive rows and keys out of the L2 cache.
__device__ inline void store_once(uint4* to, uint4 x) { __stcs(to, x); }
__device__ inline uint4 load_once(const uint4* from) { return __ldcs(from); }

// The queries of a unit.
struct Unit {
  int b, g, first, queries;
  __device__ Unit(const PairParams& a, int unit) {
    const Sizes& n = a.p.n;
    const int group = unit / a.pairs.units;
    b = group / n.groups, g = group % n.groups;
    first = unit % a.pairs.units * a.pairs.queries, queries = min(a.pairs.queries, n.queries - first);
  }
};

// Calls f(unit, item) for the items of a launch that a block does, every gridDim.x-th one.
template <class F> __device__ inline void each_item(const Pairs& x, F f) {
  int at = blockIdx.x;
#pragma unroll 1
  for (int unit = x.first; unit < x.end; unit++) {
    const int count = x.count[unit];
    const PairItem* items = x.items + (long long)unit * x.room;
    if (at < count)
#pragma unroll 1
      for (PairItem next = items[at]; at < count;) {
        const PairItem item = next;
        if ((at += gridDim.x) < count) next = items[at];  // it arrives meanwhile
        f(unit, item);
      }
    at -= count;
  }
}

}  // namespace nsa
