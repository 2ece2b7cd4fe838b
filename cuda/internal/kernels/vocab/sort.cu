// Stable sort of the places of tokens by id: ids int32 [n], clamped to [0,limit) -> keys [n], the ids ascending, and places [n], ascending
// within each id. It is a radix sort with 8 bits a pass, lowest bits first. A pass has three kernels:
//
//   sort_count   keys -> counts [256,tiles]: how many keys of each tile of 1024 have each digit
//   sort_scan    counts -> counts: running sums, which say where the keys of a digit and tile go
//   sort_place   keys, places, counts -> keys and places, sorted by this digit
//
// Outputs are written with =. Null places stand for 0, 1, 2, ... Results do not depend on the order in which blocks run.
#include "common.cuh"

namespace nsa {

constexpr int kDigits = 256;
constexpr int kTile = 1024;
constexpr int kKeysAhead = 8; // keys that a thread loads at once

struct SortParams {
  const int32_t* keys;
  const int32_t* places;
  int32_t* counts;
  int32_t* keys_out;
  int32_t* places_out;
  int64_t n;
  int64_t tiles;
  int32_t shift; // lowest bit of the digit
  int32_t limit;
};

__device__ __forceinline__ int32_t key_of(const SortParams& p, int64_t i) {
  const int32_t k = p.keys[i];
  return k < 0 ? 0 : k >= p.limit ? p.limit - 1 : k;
}

__device__ __forceinline__ int digit_of(const SortParams& p, int32_t key) { return (uint32_t(key) >> p.shift) & (kDigits - 1); }

} // namespace nsa

// Blocks of one warp; each does every gridDim.x-th tile.
extern "C" __global__ void __launch_bounds__(32) nsa_sort_count_i32(const __grid_constant__ nsa::SortParams p) {
  using namespace nsa;
  __shared__ int32_t count[kDigits];
  for (int64_t tile = blockIdx.x; tile < p.tiles; tile += gridDim.x) {
    for (int d = threadIdx.x; d < kDigits; d += 32) count[d] = 0;
    __syncwarp();
    const int64_t end = min(p.n, (tile + 1) * kTile);
    for (int64_t i = tile * kTile + threadIdx.x; i < end; i += 32) atomicAdd(&count[digit_of(p, key_of(p, i))], 1);
    __syncwarp();
    for (int d = threadIdx.x; d < kDigits; d += 32) p.counts[d * p.tiles + tile] = count[d];
    __syncwarp();
  }
}

// Grid 1, one block of 1024 threads.
extern "C" __global__ void __launch_bounds__(1024) nsa_sort_scan_i32(const __grid_constant__ nsa::SortParams p) {
  __shared__ int32_t warps[32];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int64_t n = nsa::kDigits * p.tiles;
  int32_t before = 0;
  for (int64_t base = 0; base < n; base += 1024) {
    const int64_t i = base + threadIdx.x;
    const int32_t own = i < n ? p.counts[i] : 0;
    int32_t sum = own;
    for (int o = 1; o < 32; o <<= 1) {
      const int32_t v = __shfl_up_sync(0xffffffffu, sum, o);
      if (lane >= o) sum += v;
    }
    if (lane == 31) warps[warp] = sum;
    __syncthreads();
    int32_t lower = 0, all = 0;
    for (int w = 0; w < 32; ++w) {
      if (w == warp) lower = all;
      all += warps[w];
    }
    if (i < n) p.counts[i] = before + lower + sum - own;
    before += all;
    __syncthreads();
  }
}

// Blocks of one warp; each does every gridDim.x-th tile, 32 keys at a time, in order. Keys with the same digit get consecutive places.
extern "C" __global__ void __launch_bounds__(32) nsa_sort_place_i32(const __grid_constant__ nsa::SortParams p) {
  using namespace nsa;
  __shared__ int32_t next[kDigits];
  for (int64_t tile = blockIdx.x; tile < p.tiles; tile += gridDim.x) {
    for (int d = threadIdx.x; d < kDigits; d += 32) next[d] = p.counts[d * p.tiles + tile];
    __syncwarp();
    for (int64_t base = tile * kTile; base < min(p.n, (tile + 1) * kTile); base += 32 * kKeysAhead) {
      int32_t key[kKeysAhead];
#pragma unroll
      for (int u = 0; u < kKeysAhead; ++u) key[u] = key_of(p, min(p.n - 1, base + u * 32 + threadIdx.x));
#pragma unroll
      for (int u = 0; u < kKeysAhead; ++u) {
        const int64_t i = base + u * 32 + threadIdx.x;
        const bool in = i < p.n;
        const int digit = in ? digit_of(p, key[u]) : kDigits;
        const unsigned peers = __match_any_sync(0xffffffffu, digit);
        const int rank = __popc(peers & ((1u << threadIdx.x) - 1));
        const int32_t first = in ? next[digit] : 0;
        __syncwarp();
        if (in) {
          if (rank == 0) next[digit] = first + __popc(peers);
          p.keys_out[first + rank] = key[u];
          p.places_out[first + rank] = p.places != nullptr ? p.places[i] : int32_t(i);
        }
        __syncwarp();
      }
    }
  }
}
