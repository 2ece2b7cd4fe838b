// Block selection, general kernel nsa_select_blocks: q [B,S,Hq,D], kc [B,Nc,Hkv,D] and the lse [B,Hq,S] float32 of compressed
// attention over kc -> idx int32 [B,S,Hkv,top_n], ascending, padded with -1. The thread that owns a query writes its list, with =.
//
// A query with at most `top_n` blocks takes all. Otherwise block 0 and the two newest blocks are forced and fill three of the `top_n`
// places. The earlier blocks with the best scores get the other places; of equal scores the lower block wins (arXiv 2502.11089,
// equations 8 to 12). The probability p = exp(q·kc*scale - lse) of each visible compression block is summed over the heads of a
// group, in their order, and folded onto selection blocks: block j adds p of compression block i times the tokens that they share, over d.
//
// Grid x is B*Hkv*ceil(S/tokens), blocks of 128 threads. A block owns `tokens` queries of a group and goes through the selection blocks,
// `tile` at a time. For these it computes the probabilities of the compression blocks that share tokens with them, N at a time. Then
// each query's list takes the scores. If the queries belong to several documents, the block takes one document after the other. Scores
// stay in shared memory.
#include "attention_softmax.cuh"
#include "select.cuh"

namespace nsa {

template <typename T, int R, int C> __device__ void select_blocks(const SelectParams& p) {
  constexpr int M = R * kDown, N = C * kAcross, ld = stride(N);
  const Sizes& n = p.n;
  const T *q = static_cast<const T*>(p.q), *kc = static_cast<const T*>(p.kc);
  const int places = p.places;
  Carver carve{dynamic_shared()};
  float* Q = carve.tile(M, n.d);
  float* K = carve.tile(N, n.d);
  float* P = carve.tile(M, N);
  float* sums = carve.floats(p.tokens * N);         // p summed over the heads
  float* scores = carve.floats(p.tokens * p.tile);  // of the selection blocks of a tile
  float* lists = carve.floats(p.tokens * places);   // of each query: scores, then blocks
  int* blocks = reinterpret_cast<int*>(carve.floats(p.tokens * places));

  const int tiles = (n.queries - 1) / p.tokens + 1, group = blockIdx.x / tiles, b = group / n.groups, g = group % n.groups;
  const int tile = tiles - 1 - blockIdx.x % tiles, owned = min(n.queries, (tile + 1) * p.tokens);
  for (int next = tile * p.tokens; next < owned;) {
    const Document of = p.document(b, next);
    const int start = next, end = min(owned, max(start + 1, of.end));  // the queries of one document
    next = end;
    // From here on, queries t count from the first token of the document, and keys from its first key.
    const int t0 = start - of.first, t1 = end - of.first, rows = (t1 - t0) * n.h, chunks = (rows - 1) / M + 1;
    const int newest = (t1 - 1) / p.size, mine = t0 + (int)threadIdx.x;
    Best best{lists + threadIdx.x * places, blocks + threadIdx.x * places, 0, places};

    const auto load_queries = [&](int from) {
      load_rows(Q, q, M, n.d, [&](int r) { return from + r < rows ? n.row(b, g, start * n.h + from + r, n.d) : -1; });
    };
    __syncthreads();  // all threads have read Q
    load_queries(0);
    const Fold fold{p.l_strides, p.block_strides};
    const int last = newest < p.top_n || places == 0 ? 0 : newest - 1;  // candidates are the blocks [1,last)
    for (int j0 = 1; j0 < last; j0 += p.tile) {
      const int j1 = min(last, j0 + p.tile), width = j1 - j0;
      __syncthreads();  // all lists have taken the last scores
      for (int i = threadIdx.x; i < (t1 - t0) * width; i += kThreads) scores[i] = 0;
      const int begin = (int)max(0LL, fold.lo(j0));
      const int end = (int)min((long long)j1 * p.block_strides, (long long)min(n.keys - of.keys, p.span.visible(t1 - 1)));
      for (int from = begin; from < end; from += N) {
        __syncthreads();  // all threads have read K, P and the sums
        load_rows(K, kc, N, n.d, [&](int c) { return from + c < end ? n.key(b, g, of.keys + from + c, n.d) : -1; });
        for (int chunk = 0; chunk < chunks; chunk++) {
          if (chunks > 1) {
            __syncthreads();  // all threads have read Q and P
            load_queries(chunk * M);
          }
          __syncthreads();
          float s[R][C];
          multiply_transposed<R, C>(s, Q, K, n.d);
#pragma unroll
          for (int i = 0; i < R; i++) {
            const int r = chunk * M + down() + kDown * i;
            const int seen = r < rows ? min(end, p.span.visible(t0 + r / n.h)) : 0;
            const float lse = r < rows ? lse_for_gradient(p.lse[n.stat(b, g, start * n.h + r)]) : INFINITY;
#pragma unroll
            for (int c = 0; c < C; c++)
              s[i][c] = from + across() + kAcross * c < seen ? probability(s[i][c], n.scale, lse) : 0;
          }
          put<R, C>(P, s);
          __syncthreads();
          // The rows of a query are consecutive. If its heads extend over several chunks, the sum continues from the chunk before.
          const int stop = min(rows, (chunk + 1) * M);
          for (int i = threadIdx.x; i < (t1 - t0) * N; i += kThreads) {
            const int token = i / N, c = i % N, from_row = max(token * n.h, chunk * M);
            float sum = token * n.h < chunk * M ? sums[i] : 0;
            for (int r = from_row; r < min((token + 1) * n.h, stop); r++) sum += P[(r - chunk * M) * ld + c];
            sums[i] = sum;
          }
        }
        __syncthreads();
        fold.add<N>(scores, sums, t1 - t0, {j0, j1}, {from, end});
      }
      __syncthreads();
      if (mine < t1 && mine / p.size >= p.top_n)
        for (int j = j0; j < min(j1, mine / p.size - 1); j++) best.take(scores[threadIdx.x * width + j - j0], j);
    }
    if (mine < t1) write_blocks(p, b, g, of.first + mine, of.first, best);
  }
}

}  // namespace nsa

#define NSA_SELECT(M, C, suffix, T)                                                                                    \
  extern "C" __global__ void __launch_bounds__(nsa::kThreads, nsa::resident(M / nsa::kDown))                           \
      nsa_select_blocks_##M##_##suffix(const __grid_constant__ nsa::SelectParams p) {                                  \
    nsa::select_blocks<T, M / nsa::kDown, C>(p);                                                                       \
  }
#define NSA_SELECT_TYPES(M, C)                                                                                         \
  NSA_SELECT(M, C, f32, float)                                                                                         \
  NSA_SELECT(M, C, bf16, nsa::bf16)                                                                                    \
  NSA_SELECT(M, C, f16, nsa::f16)

NSA_SELECT_TYPES(64, 8)
NSA_SELECT_TYPES(32, 4)
NSA_SELECT_TYPES(16, 2)
