// What the kernels of decoding share: their argument, the layout of the cache, and the work of a block.
//
// A cache (decode.KVCache) consists of regions. A region consists of lists, one for each page (or slot) and group. A list has places for
// keys [places,D] and values [places,Dv]. A *row* is the number of a place within its region, the same for its key and its value.
#pragma once

#include "../pointwise/rope.cuh"

namespace nsa {

// These kernels run only a few steps, so the time to fetch their instructions matters. Therefore loops are unrolled only where this keeps
// loads in flight.
constexpr int kDecodePairs = 128; // the most pairs of dims of a key
constexpr int kDecodeThreads = 128, kDecodeWarps = kDecodeThreads / 32;

// The branches, in the order of their bits, gates and counts. Dense attention is a window whose keys lie in pages.
enum : int { kCompressedBranch = 0, kSelectedBranch = 1, kWindowBranch = 2, kBranches = 3 };

// Divisor divides by n > 0 with a multiplication: for x < 2^31 the product with 2^(32+shift)/n, rounded up, gives the exact quotient if
// 2^shift < n <= 2^(shift+1).
struct Divisor {
  int32_t n;
  uint32_t factor; // 0 for n = 1
  int32_t shift;

  __device__ int div(int x) const { return factor ? int(__umulhi(x, factor) >> shift) : x; }
  __device__ int mod(int x) const { return x - div(x) * n; }
};

struct DecodeRegion {
  int64_t keys, values; // where keys and values begin, in elements of the cache
  Divisor places;       // places of a list
};

struct DecodeParams {
  const void* q;                // [B,1,Hq,D], not rotated
  const void* k[kBranches];     // [B,1,Hkv,D], not rotated; null if the branch stores nothing
  const void* v[kBranches];     // [B,1,Hkv,Dv]
  const void* gates;            // [B,1,Hq,branches]; null: one branch without a gate. With gate_w: the hidden row [B,1,gate_hidden]
  const void* gate_w;           // [Hq*branches,gate_hidden], or null
  const void* gate_bias;        // [Hq*branches]
  const void* phi[2][3];        // compression MLP for keys, for values: pe [l,D], w1 [hidden,l*D], w2 [D,hidden]; null: the mean
  void* cache;                  // begins with counters int32 [B,Hkv]
  const int32_t* page_table;    // [B,width]: the position of the token, -1 for an empty slot; then its pages
  void* o;                      // [B,1,Hq,Dv]
  int32_t* idx;                 // [B,1,Hkv,n]
  int32_t* read;                // [B,Hkv,3]
  float* parts;                 // [B,Hkv,parts,part], see Part
  float* logits;                // [B,Hkv,h,max_compressed], unscaled, of compressed keys; for clusters [B,Hkv,blocks,h,logits_share] or null
  DecodeRegion tokens, compressed, window, tail;
  double turns[kDecodePairs];   // the turns of each pair of dims from one position to the next; see rope.cuh
  int64_t max_compressed;       // the most compressed keys of a sequence
  int32_t groups, h, dim, value_dim, width;
  int32_t l, n, w, hidden[2], gate_hidden; // hidden: of phi
  Divisor d, select_block;
  int32_t stores, has;          // bits of branches: those that store keys; those that the layer has
  int32_t dense;
  int32_t part_keys[kBranches]; // keys of a part of each branch
  int32_t first_part[kBranches]; // number of the first part of each branch
  int32_t all_parts, part_size; // parts of a group; floats of a part
  int32_t pick_size, work_size; // floats of shared memory: for pick; for ClusterShared::work
  int32_t logits_share;         // floats of a head and a block of a cluster in logits
  float scale;                  // 1/sqrt(D)
};

// Step is the work of a block: a group of a slot, its token t, and the branch whose keys it attends to.
struct Step {
  const DecodeParams& p;
  int slot, group, t;
  const int32_t* pages;
  int branch, keys; // keys: how many the branch reads

  __device__ Step(const DecodeParams& p, int branch, int slot, int group)
      : p(p), slot(slot), group(group), t(p.page_table[int64_t(slot) * p.width]), pages(p.page_table + int64_t(slot) * p.width + 1), branch(branch) {
    keys = t < 0 ? 0 : keys_of(branch);
  }

  __device__ void set_branch(int b) { branch = b, keys = keys_of(b); }
  __device__ bool has(int b) const { return p.has >> b & 1; }
  __device__ int64_t at() const { return int64_t(slot) * p.groups + group; }
  __device__ int visible() const { return t + 1 < p.l ? 0 : p.d.div(t + 1 - p.l) + 1; }
  __device__ int own() const { return p.select_block.div(t); }
  __device__ int oldest() const { return p.dense ? 0 : max(0, t + 1 - p.w); } // the oldest token of the window

  __device__ int keys_of(int b) const {
    if (b == kCompressedBranch) return visible();
    if (b == kSelectedBranch) return (min(p.n, own() + 1) - 1) * p.select_block.n + p.select_block.mod(t) + 1;
    return t + 1 - oldest();
  }
  // The number of parts that the keys of a branch are cut into; at least one if the branch stores a token.
  __device__ int parts_of(int b) const {
    return p.stores >> b & 1 ? max(1, (keys_of(b) + p.part_keys[b] - 1) / p.part_keys[b]) : 0;
  }

  __device__ DecodeRegion region() const {
    return branch == kCompressedBranch ? p.compressed : branch == kSelectedBranch || p.dense ? p.tokens : p.window;
  }
  __device__ int64_t row(const DecodeRegion& r, int list, int64_t place) const { return (int64_t(list) * p.groups + group) * r.places.n + place; }
  __device__ int64_t paged(const DecodeRegion& r, int i) const { return row(r, pages[r.places.div(i)], r.places.mod(i)); }
  __device__ int64_t token_row() const { return paged(p.tokens, t); }
  __device__ int64_t tail_row(int token) const { return row(p.tail, slot, p.tail.places.mod(token)); }
};

// KeyRows maps key i of a step's branch to its row. All that it needs is in registers.
struct KeyRows {
  const int32_t* pages; // null: the keys lie in a ring
  const int32_t* idx;   // the blocks of the selected branch; null: all keys in order
  Divisor places, block; // places of a list; tokens of a selection block
  int apart, base;      // rows from one page to the next; rows before this group in a page, or before the first place of the ring
  int oldest;           // the oldest key in a ring

  __device__ KeyRows(const Step& s, const int32_t* idx) : pages(s.pages), idx(idx), block(s.p.select_block), oldest(s.oldest()) {
    const bool ring = s.branch == kWindowBranch && !s.p.dense;
    places = s.region().places, apart = s.p.groups * places.n;
    base = s.group * places.n + (ring ? s.slot * apart : 0);
    if (ring) pages = nullptr;
  }
  __device__ int operator()(int i) const {
    if (!pages) return base + places.mod(oldest + i);
    if (idx) {
      const int at = block.div(i);
      i += (idx[at] - at) * block.n;
    }
    const int page = places.div(i);
    return pages[page] * apart + base + i - page * places.n;
  }
};

// Part is the result of a block for one part of a branch, float32: o [h,Dv], the sums of exponentials times values; the largest logit of
// each head [h], or one little below it; the sums of exponentials relative to it [h]; and, as an int32, the number of keys read.
struct Part {
  float* o;
  int h, value_dim;
  __device__ Part(const DecodeParams& p, int64_t at, int i) : o(p.parts + (at * p.all_parts + i) * p.part_size), h(p.h), value_dim(p.value_dim) {}
  __device__ float* top() const { return o + h * value_dim; }
  __device__ float* sum() const { return top() + h; }
  __device__ int32_t* read() const { return reinterpret_cast<int32_t*>(sum() + h); }
};

// is_last_arrival tells all threads whether this block is the last of the `expected` blocks of a group to arrive. Then it may read what the others
// wrote before they arrived, with loads that bypass the L1 cache. The last block resets the counter.
__device__ inline bool is_last_arrival(const DecodeParams& p, int64_t at, int expected) {
  __shared__ bool last;
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) {
    int32_t* counter = static_cast<int32_t*>(p.cache) + at;
    last = atomicAdd(counter, 1) == expected - 1;
    if (last) *counter = 0;
    __threadfence();
  }
  __syncthreads();
  return last;
}

// Reductions over a warp; every lane gets the result.
__device__ inline float warp_max(float x) {
#pragma unroll
  for (int o = 16; o > 0; o /= 2) x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, o));
  return x;
}
__device__ inline float warp_sum(float x) {
#pragma unroll
  for (int o = 16; o > 0; o /= 2) x += __shfl_xor_sync(0xffffffffu, x, o);
  return x;
}
__device__ inline int warp_sum(int x) { return __reduce_add_sync(0xffffffffu, x); }

}  // namespace nsa
