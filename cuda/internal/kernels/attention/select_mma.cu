// select.cu on matrix units, for bf16 and f16: the same contract, for groups of at most 64 heads.
//
// A block of 4 warps owns `tokens` queries of a group, at most 64 rows, and walks over the selection blocks as
// select.cu does, with kKeys compression blocks at once. Shared memory: tiles [64,C] and [kKeys,C], and in float32 the
// probabilities [64,kKeys+4], their sums over heads, the scores and the lists.
#include "attention_mma.cuh"
#include "select.cuh"

namespace nsa {

template <typename T, int C> __device__ void select_blocks(const SelectParams& p) {
  constexpr int M = 16 * kWarps, N = kKeys, ld = N + 4;
  const Sizes& n = p.n;
  const T *q = static_cast<const T*>(p.q), *kc = static_cast<const T*>(p.kc);
  const int places = (n.queries - 1) / p.size < p.most ? 0 : p.most - kForced;  // 0 where all queries get all blocks
  Carver carve{tiles_shared()};
  const uint32_t Q = shared_address(carve.floats(M * C / 2)), K = shared_address(carve.floats(N * C / 2));
  float* P = carve.floats(M * ld);
  float* sums = carve.floats(p.tokens * N);         // p summed over the heads
  float* scores = carve.floats(p.tokens * p.tile);  // of the selection blocks of a tile
  float* lists = carve.floats(p.tokens * places);   // of each query: scores, then blocks
  int* blocks = reinterpret_cast<int*>(carve.floats(p.tokens * places));

  const int tiles = (n.queries - 1) / p.tokens + 1, group = blockIdx.x / tiles, b = group / n.groups, g = group % n.groups;
  const int t0 = (tiles - 1 - blockIdx.x % tiles) * p.tokens, t1 = min(n.queries, t0 + p.tokens);
  const int first = t0 * n.each, rows = (t1 - t0) * n.each;
  const int newest = (t1 - 1) / p.size, mine = t0 + (int)threadIdx.x;
  Best best{lists + threadIdx.x * places, blocks + threadIdx.x * places, 0, places};
  const Fold fold{p.l, p.per};
  const int last = newest < p.most || places == 0 ? 0 : newest - 1;  // candidates are the blocks [1,last)

  const Left<C> left(Q, 16 * warp());
  const int row = 16 * warp() + lane() / 4;  // and 8 further
  float lse[2], base[2];
  int visible[2];
  if (last > 1) {
    copy_rows<C, M>(Q, q, n.d, [&](int r) { return r < rows ? n.row(b, g, first + r, n.d) : -1; });
    for (int r = 0; r < 2; r++) {
      const bool in = row + 8 * r < rows;
      lse[r] = in ? load_lse(p.lse[n.stat(b, g, first + row + 8 * r)]) : INFINITY;
      base[r] = large(lse[r]) ? 0 : lse[r] * kLog2E;
      visible[r] = in ? p.span.visible((first + row + 8 * r) / n.each) : 0;
    }
  }
  const bool any_large = last > 1 && __any_sync(0xffffffff, large(lse[0]) || large(lse[1]));
  for (int j0 = 1; j0 < last; j0 += p.tile) {
    const int j1 = min(last, j0 + p.tile), width = j1 - j0;
    __syncthreads();  // the scores have been taken
    for (int i = threadIdx.x; i < (t1 - t0) * width; i += kThreads) scores[i] = 0;
    const int begin = (int)max(0LL, fold.lo(j0));
    const int end = (int)min((long long)j1 * p.per, (long long)min(n.keys, p.span.visible(t1 - 1)));
    for (int from = begin; from < end; from += N) {
      copy_rows<C, N>(K, kc, n.d, [&](int c) { return from + c < end ? n.key(b, g, from + c, n.d) : -1; });
      copies_arrived();
      __syncthreads();
      float product[1][N / 8][4], (&s)[N / 8][4] = product[0];
      multiply_rows<T, C, N>(product, left, K, 0);
      if (any_large)
#pragma unroll
        for (int j = 0; j < N / 8; j++)
#pragma unroll
          for (int i = 0; i < 4; i++)
            if (large(lse[i / 2])) s[j][i] = shifted(s[j][i], n.scale, lse[i / 2]);
#pragma unroll
      for (int j = 0; j < N / 8; j++) {
        const int c = 8 * j + 2 * (lane() % 4);
#pragma unroll
        for (int i = 0; i < 4; i++) {
          const bool sees = from + c + i % 2 < min(end, visible[i / 2]);
          s[j][i] = sees ? power2(fmaf(s[j][i], n.scale_log2, -base[i / 2])) : 0;
        }
#pragma unroll
        for (int r = 0; r < 2; r++)
          *reinterpret_cast<float2*>(P + (row + 8 * r) * ld + c) = make_float2(s[j][2 * r], s[j][2 * r + 1]);
      }
      __syncthreads();
      for (int i = threadIdx.x; i < (t1 - t0) * N; i += kThreads) {
        const float* x = P + i / N * n.each * ld + i % N;
        float sum = 0;
        for (int r = 0; r < n.each; r++) sum += x[r * ld];
        sums[i] = sum;
      }
      __syncthreads();
      fold.add<N>(scores, sums, t1 - t0, {j0, j1}, {from, end});
    }
    __syncthreads();
    if (mine < t1 && mine / p.size >= p.most)
      for (int j = j0; j < min(j1, mine / p.size - 1); j++) best.take(scores[threadIdx.x * width + j - j0], j);
  }
  if (mine < t1) write_blocks(p, b, g, mine, best);
}

}  // namespace nsa

#define NSA_SELECT(C, suffix, T)                                                                                       \
  extern "C" __global__ void __launch_bounds__(nsa::kThreads, NSA_MMA_BLOCKS(4))                                       \
      nsa_select_blocks_mma##C##_##suffix(const __grid_constant__ nsa::SelectParams p) {                               \
    nsa::select_blocks<T, C>(p);                                                                                       \
  }
NSA_SELECT(64, bf16, nsa::bf16)
NSA_SELECT(64, f16, nsa::f16)
NSA_SELECT(128, bf16, nsa::bf16)
NSA_SELECT(128, f16, nsa::f16)
