// Rotary position embedding (arXiv 2104.09864): x [tokens,H,D] -> y, tokens = B*S. Token i has the position start + i mod S; with documents
// positions count from the document's first token: start + (i mod S) - first; with starts those of row b count from starts[b]:
// start + starts[b] + i mod S. The pair (2j, 2j+1) of each head is rotated by the angle position * base^(-2j/D), or with `inverse`, for
// the gradient, by minus this angle. y is written with =; it may be x. Nothing is saved. A thread rotates the same pairs in all heads of
// a token.
#include "rope.cuh"

namespace nsa {

struct RoPEParams {
  const void* x;
  void* y;
  const Document* documents; // [B,S], or null
  const int32_t* starts;     // [B], or null
  int64_t tokens;
  int64_t seq; // S
  int64_t start;
  Rotary rotary;
  int32_t heads;
  int32_t dim;
  int32_t inverse;
  int32_t pad;
};

// Rotates W elements of a head at a time, an even number.
template <typename T, int W> __device__ __forceinline__ void rope_pairs(const RoPEParams& p, const double* turns) {
  const T* x = static_cast<const T*>(p.x);
  T* y = static_cast<T*>(p.y);
  const int packs = p.dim / W;
  const int64_t n = p.tokens * packs, step = int64_t(gridDim.x) * blockDim.x;
  for (int64_t u = blockIdx.x * int64_t(blockDim.x) + threadIdx.x; u < n; u += step) {
    const int64_t token = u / packs;
    const int at = int(u - token * packs) * W;
    const int64_t start = p.start + (p.starts ? p.starts[token / p.seq] : 0);
    const double position = double(start + position_of(p.documents, token, token % p.seq));
    float2 rotation[W / 2];
#pragma unroll
    for (int j = 0; j < W / 2; ++j) rotation[j] = rotation_at(position, turns[at / 2 + j], p.inverse);
    for (int h = 0; h < p.heads; ++h) {
      const int64_t i = (token * p.heads + h) * p.dim + at;
      float v[W];
      if constexpr (W == 2) {
        v[0] = to_float(x[i]), v[1] = to_float(x[i + 1]);
      } else {
        read<W>(x + i, v);
      }
#pragma unroll
      for (int j = 0; j < W; j += 2) rotate_pair(v[j], v[j + 1], rotation[j / 2]);
      if constexpr (W == 2) {
        y[i] = from_float<T>(v[0]), y[i + 1] = from_float<T>(v[1]);
      } else {
        write<W>(y + i, v);
      }
    }
  }
}

// Dynamic shared memory: float64 [D/2], the turns of each pair from one position to the next.
template <typename T> __device__ void rope(const RoPEParams& p) {
  extern __shared__ double turns[];
  fill_turns(turns, p.dim, p.rotary);
  if (p.dim % kLanes<T> == 0 && aligned(p.x, p.y)) {
    rope_pairs<T, kLanes<T>>(p, turns);
  } else {
    rope_pairs<T, 2>(p, turns);
  }
}

} // namespace nsa

NSA_KERNEL(rope, RoPEParams, 256)
