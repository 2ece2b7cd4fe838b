// The k largest logits of each row: logits [rows,vocab] -> top [rows,k], ids int32 [rows,k], in falling order, equal ones by ascending id.
// NaN comes before all numbers, and -0 equals 0. 1 <= k <= min(64, vocab).
//
// It is a knockout: each launch leaves the k first of every 4096 entrants of a row, until a launch has them all. A token's rank key has
// the bits of its logit, made to ascend with it, above the complement of its id. So all keys of a row differ, and results do not depend
// on the order of threads. 0 is the key of no token.
//
//   top_k   logits, or the keys [rows,n] of the launch before -> keys [rows,blocks,k], or in the last launch top and ids
//
// A block has 4096 entrants, 16 in each thread. The k-th largest of the threads' own maxima bounds the k-th largest entrant from below.
// Only k threads hold entrants from this bound on, so at most 16 k of them are ranked, and few more than k in random order. A key's rank
// is the number of keys above it.
#include "common.cuh"
#include "overlap.cuh"

namespace nsa {

constexpr int kTopThreads = 256;
constexpr int kTopOwn = 16; // entrants of a thread
constexpr int kTopMost = 64; // largest k

struct TopKParams {
  const float* logits;
  const uint64_t* keys; // null in the first launch
  uint64_t* winners; // null in the last launch
  float* top;
  int32_t* ids;
  int64_t vocab;
  int64_t entrants; // of a row
  int32_t blocks; // of a row
  int32_t k;
};

__device__ __forceinline__ uint64_t rank_key(float logit, int64_t id) {
  uint32_t bits;
  memcpy(&bits, &logit, sizeof bits);
  const uint32_t magnitude = bits & 0x7fffffffu;
  uint32_t ascending = bits >> 31 ? ~bits : bits | 0x80000000u;
  if (magnitude == 0) ascending = 0x80000000u;
  if (magnitude > 0x7f800000u) ascending = 0xffffffffu; // NaN
  return uint64_t(ascending) << 32 | uint32_t(~uint32_t(id));
}

__device__ __forceinline__ int rank_of(uint64_t key, const uint64_t* keys, int n) {
  int above = 0;
#pragma unroll 8
  for (int i = 0; i < n; ++i) above += keys[i] > key;
  return above;
}

} // namespace nsa

// A grid of rows*blocks.
extern "C" __global__ void __launch_bounds__(nsa::kTopThreads) nsa_top_k_f32(const __grid_constant__ nsa::TopKParams p) {
  using namespace nsa;
  __shared__ uint64_t largest[kTopThreads]; // of each thread
  __shared__ uint64_t finalists[kTopMost * kTopOwn];
  __shared__ uint64_t bound;
  __shared__ int count; // of finalists
  next_may_start();
  await_previous();
  const int64_t row = blockIdx.x / p.blocks;
  const int64_t first = int64_t(blockIdx.x % p.blocks) * (kTopThreads * kTopOwn);
  uint64_t own[kTopOwn], most = 0;
#pragma unroll
  for (int i = 0; i < kTopOwn; ++i) {
    const int64_t at = first + i * kTopThreads + threadIdx.x;
    own[i] = at >= p.entrants ? 0 : p.keys != nullptr ? p.keys[row * p.entrants + at] : rank_key(p.logits[row * p.vocab + at], at);
    if (own[i] > most) most = own[i];
  }
  largest[threadIdx.x] = most;
  if (threadIdx.x == 0) bound = 1, count = 0; // with fewer than k entrants all are finalists
  __syncthreads();
  if (most != 0 && rank_of(most, largest, kTopThreads) == p.k - 1) bound = most;
  __syncthreads();
  if (most >= bound) {
#pragma unroll
    for (int i = 0; i < kTopOwn; ++i) {
      if (own[i] >= bound) finalists[atomicAdd(&count, 1)] = own[i];
    }
  }
  __syncthreads();
  for (int i = threadIdx.x; i < count; i += kTopThreads) {
    const uint64_t key = finalists[i];
    const int rank = rank_of(key, finalists, count);
    if (rank >= p.k) continue;
    if (p.winners != nullptr) {
      p.winners[int64_t(blockIdx.x) * p.k + rank] = key;
    } else {
      const int32_t id = int32_t(~uint32_t(key));
      p.top[row * p.k + rank] = p.logits[row * p.vocab + id];
      p.ids[row * p.k + rank] = id;
    }
  }
  if (p.winners != nullptr) {
    for (int i = count + threadIdx.x; i < p.k; i += kTopThreads) p.winners[int64_t(blockIdx.x) * p.k + i] = 0;
  }
}
