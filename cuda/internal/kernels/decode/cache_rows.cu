// Copies of keys and values between arrays and a region of a decoding cache (decode.FillCache, decode.Extend). Keys are those of tokens,
// already rotated, or of compressed blocks.
//
//   cache_fill    k, v [R,N,Hkv,.] -> cache, stored int32 [R], if not null: the new tokens of each sequence
//   cache_gather  cache, k, v -> all_k, all_v [R,rows,Hkv,.]: the keys and values of the cache, then k and v; other rows are zeros
//
// page_table int32 [R,width] has for each sequence its slot, -1 for none, the number of its new tokens, and its pages. Numbers that are out
// of range are replaced by the nearest ones that are not, so all accesses are within the arrays.
#include "../common.cuh"

namespace nsa {

struct CacheRowsParams {
  const void* k;
  const void* v;
  void* cache;
  const int32_t* page_table;
  const int32_t* starts; // [R]: the tokens of each sequence that the cache has; null: none
  int32_t* stored;
  void *all_k, *all_v;
  int64_t keys, values;  // where the region's keys and values begin, in elements of the cache
  int32_t n, rows;
  int32_t lists, places; // lists of the region: pages or slots; places of a list
  int32_t ring;          // nonzero: a list is the ring of a slot, for the newest keys; else a list is a page
  int32_t l, d;          // a key stands for l tokens, from every d-th one on
  int32_t block_l, block_d; // if block_d > 0, row 0 of all_k is the first token of the block after those that the cache has complete
  int32_t max_start, max_new, max_end; // most tokens before the new ones; new ones; both together
  int32_t groups, dim, value_dim, width;
};

// CachedSequence is a sequence: row b of the page table.
struct CachedSequence {
  const CacheRowsParams& p;
  const int32_t* row;
  int slot, start, end; // the new tokens are [start,end)

  __device__ CachedSequence(const CacheRowsParams& p, int b) : p(p), row(p.page_table + int64_t(b) * p.width), slot(row[0]), start(0), end(0) {
    if (slot < 0) return;
    if (p.starts) start = max(0, min(p.starts[b], p.max_start));
    end = start + max(0, min(row[1], min(p.max_new, p.max_end - start)));
  }

  static __device__ int keys(int tokens, int l, int d) { return tokens < l ? 0 : (tokens - l) / d + 1; }
  __device__ int keys(int tokens) const { return keys(tokens, p.l, p.d); }
  __device__ int first_row() const { return p.block_d ? keys(start, p.block_l, p.block_d) * p.block_d : 0; }

  // The place of key i of group g in the region.
  __device__ int64_t place(int i, int g) const {
    const int list = max(0, min(p.ring ? slot : row[2 + i / p.places], p.lists - 1));
    return (int64_t(list) * p.groups + g) * p.places + i % p.places;
  }
};

// Grid [any, R]: the warps of the blocks with the same y share the keys of sequence y. A warp copies a key and its value.
template <typename T> __device__ void cache_fill(const CacheRowsParams& p) {
  const CachedSequence s(p, blockIdx.y);
  if (p.stored && blockIdx.x == 0 && threadIdx.x == 0) p.stored[blockIdx.y] = s.end - s.start;
  const int before = s.keys(s.start), keys = s.keys(s.end), first = p.ring ? max(before, keys - p.places) : before;
  T *to_k = static_cast<T*>(p.cache) + p.keys, *to_v = static_cast<T*>(p.cache) + p.values;
  const int lane = threadIdx.x % 32, warps = blockDim.x / 32;
  const uint32_t all = uint32_t(keys - first) * p.groups; // a cache has fewer than 2^31 keys
  for (uint32_t u = blockIdx.x * warps + threadIdx.x / 32; u < all; u += gridDim.x * warps) {
    const int g = int(u % p.groups), i = first + int(u / p.groups);
    const int64_t to = s.place(i, g), from = (int64_t(blockIdx.y) * p.n + i - before) * p.groups + g;
    for (int c = lane; c < p.dim; c += 32) to_k[to * p.dim + c] = static_cast<const T*>(p.k)[from * p.dim + c];
    for (int c = lane; c < p.value_dim; c += 32) to_v[to * p.value_dim + c] = static_cast<const T*>(p.v)[from * p.value_dim + c];
  }
}

// Grid [any, R]: the threads of the blocks with the same y share the rows of sequence y, of fewer than 2^31 elements.
template <typename T> __device__ void cache_gather(const CacheRowsParams& p) {
  const CachedSequence s(p, blockIdx.y);
  const int first = s.first_row(), before = s.keys(s.start), oldest = p.ring ? max(0, before + 1 - p.places) : 0;
  const auto gather = [&](const void* fresh, int64_t region, void* all, int dim) {
    const T *cached = static_cast<const T*>(p.cache) + region, *run = static_cast<const T*>(fresh) + int64_t(blockIdx.y) * p.n * p.groups * dim;
    const int row_size = p.groups * dim;
    T* to = static_cast<T*>(all) + int64_t(blockIdx.y) * p.rows * row_size;
    strided<T>(blockIdx.x * int64_t(blockDim.x) + threadIdx.x, int64_t(gridDim.x) * blockDim.x, int64_t(p.rows) * row_size,
               dim % kLanes<T> == 0 && aligned(cached, run, to), [&](auto width, int64_t o) {
      constexpr int W = decltype(width)::value;
      const int at = int(o), row = at / row_size, g = (at - row * row_size) / dim, i = first + row;
      const T* from = nullptr;
      if (i < before) {
        if (i >= oldest) from = cached + s.place(i, g) * dim + at % dim;
      } else if (i - before < p.n) {
        from = run + int64_t(i - before) * row_size + (at - row * row_size);
      }
      if constexpr (W == 1) to[o] = from ? *from : from_float<T>(0);
      else *reinterpret_cast<uint4*>(to + o) = from ? *reinterpret_cast<const uint4*>(from) : uint4{0, 0, 0, 0};
    });
  };
  gather(p.k, p.keys, p.all_k, p.dim);
  gather(p.v, p.values, p.all_v, p.value_dim);
}

}  // namespace nsa

NSA_KERNEL(cache_fill, CacheRowsParams, 256)
NSA_KERNEL(cache_gather, CacheRowsParams, 256)
