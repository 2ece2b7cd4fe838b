// Fills a region of a cache of decoding with keys k [R,N,Hkv,D] and values v [R,N,Hkv,Dv] of the first tokens of sequences
// (ops.FillCacheOp): those of tokens, already rotated, or of compressed blocks. rows int32 [R,width] has of each sequence its slot or -1,
// the number of its tokens, and its pages. stored [R] =, if not null. A warp copies a key and its value.
#include "../common.cuh"

namespace nsa {

struct CacheFillParams {
  const void* k;
  const void* v;
  void* cache;
  const int32_t* rows;
  int32_t* stored;
  int64_t keys, values;  // where the region begins, in numbers
  int64_t n;             // N
  int32_t places;        // of a list of the region
  int32_t ring;          // of a slot, for the newest keys; otherwise lists are pages
  int32_t l, d;          // a key is one of l tokens, d apart
  int32_t groups, dim, value_dim, width;
};

// grid [keys, R]
template <typename T> __device__ void cache_fill(const CacheFillParams& p) {
  const int32_t* row = p.rows + int64_t(blockIdx.y) * p.width;
  const int slot = row[0], tokens = slot < 0 ? 0 : row[1];
  if (p.stored && blockIdx.x == 0 && threadIdx.x == 0) p.stored[blockIdx.y] = tokens;
  const int keys = tokens < p.l ? 0 : (tokens - p.l) / p.d + 1, first = p.ring ? max(0, keys - p.places) : 0;
  T *to_k = static_cast<T*>(p.cache) + p.keys, *to_v = static_cast<T*>(p.cache) + p.values;
  const int lane = threadIdx.x % 32, warps = blockDim.x / 32;
  const uint32_t all = uint32_t(keys - first) * p.groups; // keys of a cache are fewer than 2^31
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
