// Fills a region of a decoding cache from a prompt (decode.FillCache): k [R,N,Hkv,D], v [R,N,Hkv,Dv] -> cache, stored int32 [R] (the tokens
// of each sequence), if not null. Keys are those of tokens, already rotated, or of compressed blocks. page_table int32 [R,width] has for each
// sequence its slot, -1 for none, the number of its tokens, and its pages. One warp copies a key and its value.
#include "../common.cuh"

namespace nsa {

struct CacheFillParams {
  const void* k;
  const void* v;
  void* cache;
  const int32_t* page_table;
  int32_t* stored;
  int64_t keys, values;  // where the region's keys and values begin, in elements of the cache
  int64_t n;             // N
  int32_t places;        // places of a list of the region
  int32_t ring;          // nonzero: a list is the ring of a slot, for the newest keys; else a list is a page
  int32_t l, d;          // a key stands for l tokens, from every d-th one on
  int32_t groups, dim, value_dim, width;
};

// Grid [any, R]: the warps of the blocks with the same y share the keys of sequence y.
template <typename T> __device__ void cache_fill(const CacheFillParams& p) {
  const int32_t* row = p.page_table + int64_t(blockIdx.y) * p.width;
  const int slot = row[0], tokens = slot < 0 ? 0 : row[1];
  if (p.stored && blockIdx.x == 0 && threadIdx.x == 0) p.stored[blockIdx.y] = tokens;
  const int keys = tokens < p.l ? 0 : (tokens - p.l) / p.d + 1, first = p.ring ? max(0, keys - p.places) : 0;
  T *to_k = static_cast<T*>(p.cache) + p.keys, *to_v = static_cast<T*>(p.cache) + p.values;
  const int lane = threadIdx.x % 32, warps = blockDim.x / 32;
  const uint32_t all = uint32_t(keys - first) * p.groups; // a cache has fewer than 2^31 keys
  for (uint32_t u = blockIdx.x * warps + threadIdx.x / 32; u < all; u += gridDim.x * warps) {
    const int g = int(u % p.groups), i = first + int(u / p.groups);
    const int64_t list = p.ring ? slot : row[2 + i / p.places];
    const int64_t to = (list * p.groups + g) * p.places + i % p.places, from = (blockIdx.y * p.n + i) * p.groups + g;
    for (int c = lane; c < p.dim; c += 32) to_k[to * p.dim + c] = static_cast<const T*>(p.k)[from * p.dim + c];
    for (int c = lane; c < p.value_dim; c += 32) to_v[to * p.value_dim + c] = static_cast<const T*>(p.v)[from * p.value_dim + c];
  }
}

}  // namespace nsa

NSA_KERNEL(cache_fill, CacheFillParams, 256)
