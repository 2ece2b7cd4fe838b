// Block selection for one token, by all threads of a thread block.
#pragma once

#include "decode_products.cuh"

namespace nsa {

// read_stats copies the largest logits and the sums of `count` parts, from `first` on, to shared memory [count,2h]. All threads call it;
// a barrier must follow.
__device__ inline void read_stats(const DecodeParams& p, int64_t at, int first, int count, float* to) {
  const float* from = Part(p, at, first).top();
  const int width = 2 * p.h;
#pragma unroll 1
  for (int c = threadIdx.x % 32; c < width; c += 32) {
#pragma unroll 4
    for (int i = threadIdx.x / 32; i < count; i += kDecodeWarps) to[i * width + c] = __ldcg(from + int64_t(i) * p.part_size + c);
  }
}

// Stats are the numbers that read_stats has copied.
struct Stats {
  const DecodeParams& p;
  const float* stats;
  int count;

  __device__ float top(int i, int j) const { return stats[i * 2 * p.h + j]; }
  __device__ float sum(int i, int j) const { return stats[i * 2 * p.h + p.h + j]; }

  // The largest logit and the sum of head j over all parts. A warp calls it; all lanes get the result. The order of additions is fixed.
  __device__ Softmax joined(int j) const {
    const int lane = threadIdx.x % 32;
    Softmax all;
    all.start();
#pragma unroll 1
    for (int i = lane; i < count; i += 32) all.top = fmaxf(all.top, top(i, j));
    all.top = warp_max(all.top);
#pragma unroll 1
    for (int i = lane; i < count; i += 32) all.sum += exp2f((top(i, j) - all.base()) * p.scale * kLog2E) * sum(i, j);
    all.sum = warp_sum(all.sum);
    return all;
  }
};

// ranked encodes a score so that a better one is a larger integer; of equal scores the lower place is better. A score of NaN counts as 0.
// The integer 0 stands for no score.
__device__ inline uint64_t ranked(float score, int place) {
  const uint32_t bits = score >= 0 ? uint32_t(__float_as_int(score)) + 1 : 1;
  return uint64_t(bits) << 32 | uint32_t(~place);
}

// pick writes idx [n], ascending, of a token whose own block is number n or higher: block 0, the blocks with the n-3 best scores among the
// others, and the two newest. sum(i) is the probability of compressed key i, summed over the heads. decode.go computes the size of its
// shared memory. All threads call it; a barrier must follow.
template <int Threads, typename Sum> __device__ void pick(const Step& s, float* shared, Sum sum, int32_t* idx) {
  const DecodeParams& p = s.p;
  constexpr int kGroups = 32, kLanes = Threads / kGroups; // groups of lanes that rank one score together
  const int own = s.own(), visible = s.visible(), candidates = own - 2, free = p.n - 3;
  const int lane = threadIdx.x % kLanes, group = threadIdx.x / kLanes;
  const int per_thread = (candidates + Threads - 1) / Threads;  // blocks
  uint64_t *best = reinterpret_cast<uint64_t*>(shared), *bar = best + kGroups, *scores = bar + 2, *list = scores + per_thread * Threads;
  int32_t* count = reinterpret_cast<int32_t*>(bar + 1);
  uint32_t* best_places = reinterpret_cast<uint32_t*>(list + min(free * kLanes, Threads) * per_thread); // ~place

  // The score of block 1 + i: the sums of the compressed keys that share tokens with it, times these tokens over d.
  const int l = p.d.div(p.l), wide = p.d.div(p.select_block.n), weights = l + wide - 1;
  uint64_t mine = 0;
#pragma unroll 1
  for (int i = threadIdx.x; i < candidates; i += Threads) {
    const int first = (i + 1) * wide - l + 1;
    float score = 0;
    if (l == 2 && wide == 4) { // all of them are visible
      score = sum(first) + sum(first + 4) + 2 * (sum(first + 1) + sum(first + 2) + sum(first + 3));
    } else {
#pragma unroll 1
      for (int c = max(0, -first); c < min(weights, visible - first); ++c) score += min(min(c + 1, weights - c), min(l, wide)) * sum(first + c);
    }
    mine = max(mine, scores[i] = ranked(score, i));
  }
#pragma unroll
  for (int by = 1; by < kLanes; by *= 2) mine = max(mine, __shfl_xor_sync(0xffffffffu, mine, by));
  best[group] = mine;
  if (threadIdx.x == 0) *bar = 0, *count = 0;
  __syncthreads();

  // The rank of a score is the number of better ones; kLanes lanes count it together. To have fewer to rank, scores below a bar are left
  // out first: the bar is the (n-3)rd best among the best scores of the groups of kLanes threads.
  const auto rank = [lane](const auto* of, int n, auto score) {
    int better = 0;
#pragma unroll 1
    for (int e = lane; e < n; e += 4 * kLanes)
#pragma unroll
      for (int u = 0; u < 4 * kLanes; u += kLanes) better += e + u < n && of[e + u] > score;
#pragma unroll
    for (int by = 1; by < kLanes; by *= 2) better += __shfl_xor_sync(0xffffffffu, better, by);
    return better;
  };
  const uint64_t* from = scores;
  int n = candidates;
  if (candidates > kGroups && free > 0) {
    const uint64_t score = best[group];
    if (rank(best, kGroups, score) == free - 1 && lane == 0) *bar = score;
    __syncthreads();
    const uint64_t least = *bar;
#pragma unroll 1
    for (int i = threadIdx.x; i < candidates; i += Threads)
      if (scores[i] >= least) list[atomicAdd(count, 1)] = scores[i];
    __syncthreads();
    from = list, n = *count;
  }
#pragma unroll 1
  for (int i = group; i - group < n; i += kGroups) {
    const uint64_t score = i < n ? from[i] : 0;
    const int at = rank(from, n, score);
    if (lane == 0 && i < n && at < free) best_places[at] = uint32_t(score);
  }
  __syncthreads();
#pragma unroll 1
  for (int i = group; i - group < free; i += kGroups) {
    const uint32_t place = i < free ? best_places[i] : 0;
    const int before = rank(best_places, free, place);
    if (lane == 0 && i < free) idx[1 + before] = 1 + int(~place);
  }
  if (threadIdx.x == 0) idx[0] = 0, idx[p.n - 2] = own - 1, idx[p.n - 1] = own;
}

// select_blocks calls pick with the logits and Parts that the blocks of the compressed branch have written to global memory.
__device__ inline void select_blocks(const Step& s, float* shared) {
  const DecodeParams& p = s.p;
  const int64_t at = s.at();
  const int visible = s.visible(), lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  float *tops = shared + p.pick_size, *norms = tops + p.h;
  const Stats stats = {p, norms + p.h, s.parts_of(kCompressedBranch)};
  read_stats(p, at, p.first_part[kCompressedBranch], stats.count, norms + p.h);
  __syncthreads();
#pragma unroll 1
  for (int j = warp; j < p.h; j += kDecodeWarps) {
    const Softmax all = stats.joined(j);
    if (lane == 0) tops[j] = all.base(), norms[j] = all.norm();
  }
  __syncthreads();

  // The probability of each compressed key, summed over the heads, overwrites the logit of the first head.
  constexpr int kWide = 4, kHeads = 8;
  float* logits = p.logits + at * p.h * p.max_compressed;
  const float scale = p.scale * kLog2E;
#pragma unroll 1
  for (int i = threadIdx.x * kWide; i < visible; i += kDecodeThreads * kWide) {
    float sum[kWide] = {};
#pragma unroll 1
    for (int j = 0; j < p.h; j += kHeads) {
      float4 x[kHeads];
#pragma unroll
      for (int e = 0; e < kHeads; ++e)
        if (j + e < p.h) x[e] = __ldcg(reinterpret_cast<const float4*>(logits + (j + e) * p.max_compressed + i));
#pragma unroll
      for (int e = 0; e < kHeads; ++e) {
        if (j + e >= p.h) continue;
        const float top = tops[j + e], norm = norms[j + e];
        sum[0] += norm * exp2f((x[e].x - top) * scale), sum[1] += norm * exp2f((x[e].y - top) * scale);
        sum[2] += norm * exp2f((x[e].z - top) * scale), sum[3] += norm * exp2f((x[e].w - top) * scale);
      }
    }
    *reinterpret_cast<float4*>(logits + i) = {sum[0], sum[1], sum[2], sum[3]};
  }
  __syncthreads();
  pick<kDecodeThreads>(s, shared, [=](int i) { return __ldcg(logits + i); }, p.idx + at * p.n);
}

}  // namespace nsa
