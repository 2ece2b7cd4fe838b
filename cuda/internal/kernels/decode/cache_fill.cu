// Fills a cache of decoding with the first tokens of sequences (ops.FillCacheOp): rotated keys k [R,S,Hkv,D] and values v [R,S,Hkv,Dv] of
// the branches, and compressed ones [R,Nc,Hkv,D] and [R,Nc,Hkv,Dv], go to their places; stored [R] =. rows int32 [R,width] has of each
// sequence its slot or -1, the number of its tokens, and its pages. A warp copies a key and its value.
#include "../common.cuh"

namespace nsa {

// Keys and values that go to one region. Their places: those of all tokens in pages, or of the newest ones in a ring of each slot.
struct FillPair {
  const void* k;
  const void* v;
  int64_t keys, values; // where the region begins, in numbers
  int32_t places;       // of a list of it
  int32_t ring;
  int32_t l, d;         // the keys are those of blocks of l tokens, d apart; 1 and 1: of tokens
};

struct FillParams {
  FillPair pairs[4];
  void* cache;
  const int32_t* rows;
  int32_t* stored;
  int64_t seq;     // S
  int32_t count;   // of pairs
  int32_t groups, dim, value_dim, width, pad;
};

// grid [tokens, pairs, R]
template <typename T> __device__ void cache_fill(const FillParams& p) {
  const int32_t* row = p.rows + int64_t(blockIdx.z) * p.width;
  const int slot = row[0], n = slot < 0 ? 0 : row[1];
  if (blockIdx.x == 0 && blockIdx.y == 0 && threadIdx.x == 0) p.stored[blockIdx.z] = n;
  const FillPair& pair = p.pairs[blockIdx.y];
  const int keys = n < pair.l ? 0 : (n - pair.l) / pair.d + 1, first = pair.ring ? max(0, keys - pair.places) : 0;
  const int64_t in = p.seq < pair.l ? 1 : (p.seq - pair.l) / pair.d + 1; // keys of a row of the input
  T *to_k = static_cast<T*>(p.cache) + pair.keys, *to_v = static_cast<T*>(p.cache) + pair.values;
  const int lane = threadIdx.x % 32, warps = blockDim.x / 32;
  for (int64_t u = int64_t(blockIdx.x) * warps + threadIdx.x / 32; u < int64_t(keys - first) * p.groups; u += int64_t(gridDim.x) * warps) {
    const int g = int(u % p.groups), i = first + int(u / p.groups);
    const int64_t list = pair.ring ? slot : row[2 + i / pair.places];
    const int64_t to = (list * p.groups + g) * pair.places + i % pair.places, from = (blockIdx.z * in + i) * p.groups + g;
    for (int c = lane; c < p.dim; c += 32) to_k[to * p.dim + c] = static_cast<const T*>(pair.k)[from * p.dim + c];
    for (int c = lane; c < p.value_dim; c += 32) to_v[to * p.value_dim + c] = static_cast<const T*>(pair.v)[from * p.value_dim + c];
  }
}

}  // namespace nsa

NSA_KERNEL(cache_fill, FillParams, 256)
