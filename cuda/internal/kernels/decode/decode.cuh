// What the kernels of decoding share: their argument, where keys and values lie in the cache, and what a block works at.
//
// A cache (ops.KVCache) has regions: lists of places for keys [places,D] and values [places,Dv], a list for each page or slot and
// each group in it. A *row* is the number of a place in its region, the same for its key and its value.
#pragma once

#include "../rows/rope.cuh"

namespace nsa {

// Kernels run a few steps, so that their instructions come from far: loops are not unrolled but where loads are to be under way.
constexpr int kDecodePairs = 128; // of dims of a key, at most
constexpr int kDecodeThreads = 128, kDecodeWarps = kDecodeThreads / 32;

// The branches in the order of their bits, gates and counts. Dense attention is a window that lies in pages.
enum : int { kCompressedBranch = 0, kSelectedBranch = 1, kWindowBranch = 2, kBranches = 3 };

// A number n > 0 that others are divided by: a product by 2^(32+shift)/n, rounded up, is exact for x < 2^31 if 2^shift < n <= 2^(shift+1).
struct Divisor {
  int32_t n;
  uint32_t factor; // 0 for n = 1
  int32_t shift;

  __device__ int of(int x) const { return factor ? int(__umulhi(x, factor) >> shift) : x; }
  __device__ int rest(int x) const { return x - of(x) * n; }
};

struct DecodeRegion {
  int64_t keys, values; // where they begin, in numbers
  Divisor places;       // of a list
};

struct DecodeParams {
  const void* q;                // [B,1,Hq,D], not rotated
  const void* k[kBranches];     // [B,1,Hkv,D], not rotated; null where a branch stores nothing
  const void* v[kBranches];     // [B,1,Hkv,Dv]
  const void* gates;            // [B,1,Hq,branches]; null: one branch without a gate. With gate_w [B,1,gate_hidden], what they are made of
  const void* gate_w;           // [Hq*branches,gate_hidden], or null
  const void* gate_bias;        // [Hq*branches]
  const void* phi[2][3];        // pe [l,D], w1 [hidden,l*D], w2 [D,hidden] for keys and for values; null: the mean
  void* cache;                  // its counters int32 [B,Hkv] lie at its beginning
  const int32_t* rows;          // [B,width]: tokens so far or -1, pages
  void* o;                      // [B,1,Hq,Dv]
  int32_t* idx;                 // [B,1,Hkv,n]
  int32_t* read;                // [B,Hkv,3]
  float* parts;                 // [B,Hkv,parts,part], see Part
  float* logits;                // [B,Hkv,h,most] of the compressed keys, without the scale; of a cluster [B,Hkv,blocks,h,logits_share], or null
  DecodeRegion tokens, compressed, window, tail;
  double turns[kDecodePairs];   // of each pair of dims from one position to the next: see rope.cuh
  int64_t most;                 // compressed keys of a sequence
  int32_t groups, h, dim, value_dim, width;
  int32_t l, n, w, hidden, gate_hidden;
  Divisor d, select_block;
  int32_t stores, has;          // branches, as bits: whose keys are stored, that the layer has
  int32_t dense;
  int32_t split[kBranches];     // keys of a part
  int32_t first[kBranches];     // part of a branch
  int32_t all, part_size;       // parts of a group, and floats of one
  int32_t pick_size, work_size; // floats of shared memory: for the choice, and all that a block does but for its results
  int32_t logits_share;         // of a head and a block of a cluster, in memory
  float scale;                  // 1/sqrt(D)
};

// What one block attends to: n keys from one on, in the order of the branch.
struct Step {
  const DecodeParams& p;
  int slot, group, t;
  const int32_t* pages;
  int branch, keys; // that the branch reads

  __device__ Step(const DecodeParams& p, int branch, int slot, int group)
      : p(p), slot(slot), group(group), t(p.rows[int64_t(slot) * p.width]), pages(p.rows + int64_t(slot) * p.width + 1), branch(branch) {
    keys = t < 0 ? 0 : keys_of(branch);
  }

  __device__ void turn_to(int b) { branch = b, keys = keys_of(b); }
  __device__ bool has(int b) const { return p.has >> b & 1; }
  __device__ int64_t at() const { return int64_t(slot) * p.groups + group; }
  __device__ int visible() const { return t + 1 < p.l ? 0 : p.d.of(t + 1 - p.l) + 1; }
  __device__ int own() const { return p.select_block.of(t); }
  __device__ int oldest() const { return p.dense ? 0 : max(0, t + 1 - p.w); } // token of the window

  __device__ int keys_of(int b) const {
    if (b == kCompressedBranch) return visible();
    if (b == kSelectedBranch) return (min(p.n, own() + 1) - 1) * p.select_block.n + p.select_block.rest(t) + 1;
    return t + 1 - oldest();
  }
  // The parts that the keys of a branch are cut into: at least one if the branch stores a token.
  __device__ int parts_of(int b) const {
    return p.stores >> b & 1 ? max(1, (keys_of(b) + p.split[b] - 1) / p.split[b]) : 0;
  }

  __device__ DecodeRegion region() const {
    return branch == kCompressedBranch ? p.compressed : branch == kSelectedBranch || p.dense ? p.tokens : p.window;
  }
  __device__ int64_t row(const DecodeRegion& r, int list, int64_t place) const { return (int64_t(list) * p.groups + group) * r.places.n + place; }
  __device__ int64_t paged(const DecodeRegion& r, int i) const { return row(r, pages[r.places.of(i)], r.places.rest(i)); }
  __device__ int64_t token_row() const { return paged(p.tokens, t); }
  __device__ int64_t tail_row(int token) const { return row(p.tail, slot, p.tail.places.rest(token)); }
};

// KeyRows finds the rows of the keys of a step's branch. It has all that this takes in registers.
struct KeyRows {
  const int32_t* pages; // null: a ring
  const int32_t* idx;   // blocks of the selected branch, or null: all keys in order
  Divisor places, block; // of a list; tokens of a selection block
  int apart, base;      // rows from a list to the next one, and those before this group; in a ring those before its first place
  int oldest;           // key in a ring

  __device__ KeyRows(const Step& s, const int32_t* idx) : pages(s.pages), idx(idx), block(s.p.select_block), oldest(s.oldest()) {
    const bool ring = s.branch == kWindowBranch && !s.p.dense;
    places = s.region().places, apart = s.p.groups * places.n;
    base = s.group * places.n + (ring ? s.slot * apart : 0);
    if (ring) pages = nullptr;
  }
  __device__ int operator()(int i) const {
    if (!pages) return base + places.rest(oldest + i);
    if (idx) {
      const int at = block.of(i);
      i += (idx[at] - at) * block.n;
    }
    const int page = places.of(i);
    return pages[page] * apart + base + i - page * places.n;
  }
};

// A part is what a block has computed of one branch: float32 o [h,Dv], the sum of exponentials times values; then for each head the
// largest logit, then the sums of exponentials below it; then, as an int32, the keys that were read.
struct Part {
  float* o;
  int h, value_dim;
  __device__ Part(const DecodeParams& p, int64_t at, int i) : o(p.parts + (at * p.all + i) * p.part_size), h(p.h), value_dim(p.value_dim) {}
  __device__ float* top() const { return o + h * value_dim; }
  __device__ float* sum() const { return top() + h; }
  __device__ int32_t* read() const { return reinterpret_cast<int32_t*>(sum() + h); }
};

// arrive reports to all threads whether this block is the last one of `expected` that arrive for a group. What the others have
// written before can then be read, past the L1 cache. The last one sets the counter back.
__device__ inline bool arrive(const DecodeParams& p, int64_t at, int expected) {
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

// Operations of a whole warp: every lane gets the result.
__device__ inline float warp_max(float x) {
#pragma unroll
  for (int o = 16; o > 0; o /= 2) x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, o));
  return x;
}
template <typename V> __device__ inline V warp_sum(V x) {
#pragma unroll
  for (int o = 16; o > 0; o /= 2) x += __shfl_xor_sync(0xffffffffu, x, o);
  return x;
}

}  // namespace nsa
