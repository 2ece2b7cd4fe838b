// The choice of blocks of one token, by all threads of a block: from the logits of the compressed keys, which the parts of the
// compressed branch have stored, and their largest logits and sums.
#pragma once

#include "decode_products.cuh"

namespace nsa {

// joined returns the largest logit and the sum of head j over the parts of a branch from `first` on, to all lanes of a warp. Parts are
// added in a fixed order.
__device__ inline Softmax joined(const DecodeParams& p, int64_t at, int first, int count, int j) {
  const int lane = threadIdx.x % 32;
  Softmax all;
  all.start();
  for (int i = lane; i < count; i += 32) all.top = fmaxf(all.top, __ldcg(Part(p, at, first + i).top() + j));
  all.top = warp_max(all.top);
  for (int i = lane; i < count; i += 32) {
    const Part part(p, at, first + i);
    all.sum += exp2f((__ldcg(part.top() + j) - all.base()) * p.scale * kLog2E) * __ldcg(part.sum() + j);
  }
  all.sum = warp_sum(all.sum);
  return all;
}

// take_best moves the best of scores [n] to best and places, so many as wanted, those of lower places first among equals; 0 stands for a
// score that is gone. One warp.
__device__ inline void take_best(uint32_t* scores, int n, int wanted, uint32_t* best, int32_t* places) {
  const int lane = threadIdx.x % 32;
  uint32_t mine;
  int place;
  const auto look = [&] {
    mine = 0, place = INT32_MAX;
    for (int i = lane; i < n; i += 32)
      if (scores[i] > mine) mine = scores[i], place = i;
  };
  look();
  for (int f = 0; f < wanted; ++f) {
    const uint32_t top = __reduce_max_sync(0xffffffffu, mine);
    const int at = __reduce_min_sync(0xffffffffu, mine == top ? place : INT32_MAX);
    if (lane == 0) best[f] = top, places[f] = top > 0 ? at : 0;
    if (top > 0 && at == place) scores[at] = 0, look();
  }
  __syncwarp();
}

// choose writes idx [n] of a token whose block is at least the n-th. Shared: h floats twice, the scores, two lists [warps,n] and
// one of n.
__device__ inline void choose(const Step& s, float* shared) {
  const DecodeParams& p = s.p;
  const int64_t at = s.at();
  const int own = s.own(), count = s.parts_of(kCompressedBranch), visible = s.visible(), candidates = own - 2, free = p.n - 3;
  float *tops = shared, *norms = tops + p.h;
  uint32_t *scores = reinterpret_cast<uint32_t*>(norms + p.h), *best = scores + p.blocks;
  int32_t *places = reinterpret_cast<int32_t*>(best + kDecodeWarps * p.n), *chosen = places + kDecodeWarps * p.n;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const float scale = p.scale * kLog2E;
  for (int j = warp; j < p.h; j += kDecodeWarps) {
    const Softmax all = joined(p, at, p.first[kCompressedBranch], count, j);
    if (lane == 0) tops[j] = all.base(), norms[j] = all.norm();
  }
  __syncthreads();

  // Block 1 + i gets the probabilities of the compressed keys that share tokens with it, times those tokens over d.
  const int l = p.l / p.d, wide = p.select_block / p.d, weights = l + wide - 1;
  const float* logits = p.logits + at * p.h * p.most;
  for (int i = threadIdx.x; i < candidates; i += kDecodeThreads) {
    const int first = (i + 1) * wide - l + 1;
    float score = 0;
    for (int j = 0; j < p.h; ++j) {
      float head = 0;
      for (int c = max(0, -first); c < min(weights, visible - first); ++c) {
        const int weight = min(min(c + 1, weights - c), min(l, wide));
        head += weight * exp2f((__ldcg(logits + j * p.most + first + c) - tops[j]) * scale);
      }
      score += head * norms[j];
    }
    scores[i] = score >= 0 ? uint32_t(__float_as_int(score)) + 1 : 1; // ordered like the score, which may be NaN
  }
  __syncthreads();

  const int segment = (candidates + kDecodeWarps - 1) / kDecodeWarps, from = min(candidates, warp * segment);
  take_best(scores + from, min(segment, candidates - from), free, best + warp * free, places + warp * free);
  for (int f = lane; f < free; f += 32) places[warp * free + f] += from;
  __syncthreads();
  int32_t* found = chosen;
  if (warp == 0) {
    take_best(best, kDecodeWarps * free, free, scores, found);
    int32_t* idx = p.idx + at * p.n;
    for (int f = lane; f < free; f += 32) {
      const int mine = places[found[f]];
      int before = 0;
      for (int e = 0; e < free; ++e) before += places[found[e]] < mine;
      idx[1 + before] = 1 + mine;
    }
    if (lane == 0) idx[0] = 0, idx[p.n - 2] = own - 1, idx[p.n - 1] = own;
  }
}

}  // namespace nsa
