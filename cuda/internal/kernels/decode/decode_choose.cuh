// The choice of blocks of one token, by all threads of a block: from the logits of the compressed keys, which the parts of the
// compressed branch have stored, and their largest logits and sums.
#pragma once

#include "decode_products.cuh"

namespace nsa {

// read_stats reads the largest logits and the sums of `count` parts from `first` on to shared memory, [count,2h], by all threads. A
// barrier must follow.
__device__ inline void read_stats(const DecodeParams& p, int64_t at, int first, int count, float* to) {
  const float* from = Part(p, at, first).top();
  const int width = 2 * p.h;
#pragma unroll 1
  for (int c = threadIdx.x % 32; c < width; c += 32) {
#pragma unroll 4
    for (int i = threadIdx.x / 32; i < count; i += kDecodeWarps) to[i * width + c] = __ldcg(from + int64_t(i) * p.part_size + c);
  }
}

// Stats are what read_stats has read.
struct Stats {
  const DecodeParams& p;
  const float* stats;
  int count;

  __device__ float top(int i, int j) const { return stats[i * 2 * p.h + j]; }
  __device__ float sum(int i, int j) const { return stats[i * 2 * p.h + p.h + j]; }

  // The largest logit and the sum of head j over all parts, to all lanes of a warp. Parts are added in a fixed order.
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

// take_best moves the best of the scores of a warp, `each` adjoining ones of each lane, to best and places, so many as wanted, those of
// lower places first among equals; 0 stands for a score that is gone, or none.
__device__ inline void take_best(uint32_t* scores, int each, int wanted, uint32_t* best, int32_t* places) {
  const int lane = threadIdx.x % 32;
  scores += lane * each;
  uint32_t mine;
  int place;
  const auto look = [&] {
    mine = 0, place = 0;
#pragma unroll 1
    for (int i = 0; i < each; i += 4) {
      const uint4 four = *reinterpret_cast<const uint4*>(scores + i);
      if (four.x > mine) mine = four.x, place = i;
      if (four.y > mine) mine = four.y, place = i + 1;
      if (four.z > mine) mine = four.z, place = i + 2;
      if (four.w > mine) mine = four.w, place = i + 3;
    }
  };
  look();
#pragma unroll 1
  for (int f = 0; f < wanted; ++f) {
    const uint32_t top = __reduce_max_sync(0xffffffffu, mine);
    const int winner = __ffs(__ballot_sync(0xffffffffu, mine == top)) - 1;
    if (lane == winner) {
      best[f] = top, places[f] = lane * each + place;
      scores[place] = 0;
      look();
    }
  }
  __syncwarp();
}

// The places of scores that a thread has in the choice among so many blocks, and the words that they take in shared memory.
__device__ inline int scores_each(int blocks) { return (blocks + 4 * kDecodeThreads - 1) / (4 * kDecodeThreads) * 4; }

// choose writes idx [n] of a token whose block is at least the n-th. decode.go has the size of its shared memory.
__device__ inline void choose(const Step& s, float* shared) {
  const DecodeParams& p = s.p;
  const int64_t at = s.at();
  const int own = s.own(), visible = s.visible(), candidates = own - 2, free = p.n - 3;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, each = scores_each(candidates), room = (p.n + 31) / 32 * 128;
  uint32_t *scores = reinterpret_cast<uint32_t*>(shared), *best = scores + scores_each(p.blocks) * kDecodeThreads;
  int32_t *places = reinterpret_cast<int32_t*>(best + room), *chosen = places + room;
  float *tops = reinterpret_cast<float*>(chosen + 2 * p.n), *norms = tops + p.h;
  const Stats stats = {p, norms + p.h, s.parts_of(kCompressedBranch)};
  read_stats(p, at, p.first[kCompressedBranch], stats.count, norms + p.h);
  __syncthreads();
#pragma unroll 1
  for (int j = warp; j < p.h; j += kDecodeWarps) {
    const Softmax all = stats.joined(j);
    if (lane == 0) tops[j] = all.base(), norms[j] = all.norm();
  }
  __syncthreads();

  // The probabilities of each compressed key, summed over the heads, take the place of the first head's logits.
  constexpr int kWide = 4, kHeads = 8;
  float* logits = p.logits + at * p.h * p.most;
  const float scale = p.scale * kLog2E;
#pragma unroll 1
  for (int i = threadIdx.x * kWide; i < visible; i += kDecodeThreads * kWide) {
    float sum[kWide] = {};
#pragma unroll 1
    for (int j = 0; j < p.h; j += kHeads) {
      float4 x[kHeads];
#pragma unroll
      for (int e = 0; e < kHeads; ++e)
        if (j + e < p.h) x[e] = __ldcg(reinterpret_cast<const float4*>(logits + (j + e) * p.most + i));
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

  // Block 1 + i gets those of the compressed keys that share tokens with it, times the tokens over d.
  const int l = p.l / p.d, wide = p.select_block / p.d, weights = l + wide - 1;
#pragma unroll 1
  for (int i = threadIdx.x; i < each * kDecodeThreads; i += kDecodeThreads) {
    const int first = (i + 1) * wide - l + 1;
    float score = 0;
    if (i < candidates) {
#pragma unroll 5
      for (int c = max(0, -first); c < min(weights, visible - first); ++c) score += min(min(c + 1, weights - c), min(l, wide)) * __ldcg(logits + first + c);
    }
    scores[i] = i >= candidates ? 0 : score >= 0 ? uint32_t(__float_as_int(score)) + 1 : 1; // ordered like the score, which may be NaN
  }
  __syncthreads();

  // Each warp takes the best of its scores, then one warp the best of these. Unused places are 0.
#pragma unroll 1
  for (int f = free + lane; f < room / kDecodeWarps; f += 32) best[warp * (room / kDecodeWarps) + f] = 0;
  take_best(scores + warp * 32 * each, each, free, best + warp * (room / kDecodeWarps), places + warp * (room / kDecodeWarps));
#pragma unroll 1
  for (int f = lane; f < free; f += 32) places[warp * (room / kDecodeWarps) + f] += warp * 32 * each;
  __syncthreads();
  if (warp > 0) return;
  take_best(best, room / 32, free, scores, chosen);
  int32_t* idx = p.idx + at * p.n;
#pragma unroll 1
  for (int f = lane; f < free; f += 32) {
    const int mine = places[chosen[f]];
    int before = 0;
#pragma unroll 1
    for (int e = 0; e < free; ++e) before += places[chosen[e]] < mine;
    idx[1 + before] = 1 + mine;
  }
  if (lane == 0) idx[0] = 0, idx[p.n - 2] = own - 1, idx[p.n - 1] = own;
}

}  // namespace nsa
