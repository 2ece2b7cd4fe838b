// Compression blocks of x [B,S,H,D]: block i of a sequence covers the tokens [i*d, i*d + l), for i < n = Nc > 0.
//
//   compress_mean        x -> y [B,n,H,D]: the mean of each block
//   compress_mean_grad   dy [B,n,H,D] -> dx: 1/l of the gradient of every block that covers the token, added in ascending order
//   compress_gather      x, pe [l,D] -> rows [B,n,H,l*D]: vec(block + pe), the place in the block is the outer index
//   compress_scatter     drows [B,n,H,l*D] -> dx: the sum over the blocks that cover the token, in ascending order
//   compress_clear       dy [B,n,H,D] -> y: dy, but zeros at places without a block
//
// dx of a token that no block covers is 0. With documents the blocks of a row are those of its documents, one document after the other.
// Places of n may be left over; their y and rows are zeros.
//
// Outputs are written with =. Nothing is saved. The gradient of pe is the column sum of drows (sums.cu).
#include "documents.cuh"

namespace nsa {

struct CompressParams {
  const void* x; // the input: x, dy or drows
  const void* pe;
  void* y; // the output: y, dx or rows
  const Document* documents; // [B,S], or null
  int64_t batch;
  int64_t seq; // S
  int64_t blocks; // n
  int64_t heads;
  int64_t dim;
  int64_t len; // l
  int64_t stride; // d

  // The first token, counted over all B*S, of the block at place i of batch row b; -1 if there is no block.
  __device__ __forceinline__ int64_t token(int64_t b, int64_t i) const {
    if (!documents) return b * seq + i * stride;
    const int64_t at = documents[b * seq + i].block;
    return at < 0 ? -1 : b * seq + at;
  }
};

template <typename T> __device__ void compress_mean(const CompressParams& p) {
  const T* x = static_cast<const T*>(p.x);
  T* y = static_cast<T*>(p.y);
  const int64_t token = p.heads * p.dim;
  const float share = 1.0f / float(p.len);
  // Begins with the first elements: columns.cu, which runs before, goes from the end and wrote them last.
  const int64_t n = p.batch * p.blocks * token, first = blockIdx.x * int64_t(blockDim.x) + threadIdx.x;
  strided<T>(first, int64_t(gridDim.x) * blockDim.x, n, token % kLanes<T> == 0 && aligned(x, y), [&](auto width, int64_t o) {
    constexpr int W = decltype(width)::value;
    const int64_t block = o / token, b = block / p.blocks;
    const int64_t begin = p.token(b, block - b * p.blocks), len = begin < 0 ? 0 : p.len;
    const T* from = x + begin * token + (o - block * token);
    float sum[W] = {};
    for (int64_t t = 0; t < len; ++t) {
      float v[W];
      read<W>(from + t * token, v);
#pragma unroll
      for (int j = 0; j < W; ++j) sum[j] += v[j];
    }
#pragma unroll
    for (int j = 0; j < W; ++j) sum[j] *= share;
    write<W>(y + o, sum);
  });
}

// each_covering calls body(i, place) for the blocks that cover token t of batch row b, ascending: i is the place of the block, `place` that
// of the token within the block.
template <typename Body> __device__ __forceinline__ void each_covering(const CompressParams& p, int64_t b, int64_t t, Body body) {
  int64_t blocks = p.blocks, place = 0; // blocks of the document; place of its first one
  if (p.documents) {
    const Document& of = p.documents[b * p.seq + t];
    t -= of.first, place = of.keys;
    blocks = of.end - of.first < p.len ? 0 : (of.end - of.first - p.len) / p.stride + 1;
  }
  const int64_t first = t < p.len ? 0 : (t - p.len) / p.stride + 1, end = min(blocks, t / p.stride + 1);
  for (int64_t i = first; i < end; ++i) body(place + i, t - i * p.stride);
}

template <typename T> __device__ void compress_mean_grad(const CompressParams& p) {
  const T* dy = static_cast<const T*>(p.x);
  T* dx = static_cast<T*>(p.y);
  const int64_t token = p.heads * p.dim;
  const float share = 1.0f / float(p.len);
  elementwise<T>(p.batch * p.seq * token, token % kLanes<T> == 0 && aligned(dy, dx), [&](auto width, int64_t o) {
    constexpr int W = decltype(width)::value;
    const int64_t row = o / token, b = row / p.seq;
    float sum[W] = {};
    each_covering(p, b, row - b * p.seq, [&](int64_t i, int64_t) {
      float v[W];
      read<W>(dy + (b * p.blocks + i) * token + (o - row * token), v);
#pragma unroll
      for (int j = 0; j < W; ++j) sum[j] += v[j] * share;
    });
    write<W>(dx + o, sum);
  });
}

template <typename T> __device__ void compress_gather(const CompressParams& p) {
  const T* x = static_cast<const T*>(p.x);
  const T* pe = static_cast<const T*>(p.pe);
  T* rows = static_cast<T*>(p.y);
  const int64_t cols = p.len * p.dim;
  elementwise<T>(p.batch * p.blocks * p.heads * cols, p.dim % kLanes<T> == 0 && aligned(x, pe, rows), [&](auto width, int64_t o) {
    constexpr int W = decltype(width)::value;
    const int64_t row = o / cols, at = o - row * cols, t = at / p.dim;
    const int64_t block = row / p.heads, head = row - block * p.heads, b = block / p.blocks;
    const int64_t first = p.token(b, block - b * p.blocks);
    float v[W] = {}, e[W];
    if (first < 0) {
      write<W>(rows + o, v);
      return;
    }
    read<W>(x + ((first + t) * p.heads + head) * p.dim + (at - t * p.dim), v);
    read<W>(pe + at, e);
#pragma unroll
    for (int j = 0; j < W; ++j) v[j] += e[j];
    write<W>(rows + o, v);
  });
}

template <typename T> __device__ void compress_scatter(const CompressParams& p) {
  const T* rows = static_cast<const T*>(p.x);
  T* dx = static_cast<T*>(p.y);
  const int64_t cols = p.len * p.dim;
  elementwise<T>(p.batch * p.seq * p.heads * p.dim, p.dim % kLanes<T> == 0 && aligned(rows, dx), [&](auto width, int64_t o) {
    constexpr int W = decltype(width)::value;
    const int64_t row = o / p.dim, token = row / p.heads, head = row - token * p.heads, b = token / p.seq;
    float sum[W] = {};
    each_covering(p, b, token - b * p.seq, [&](int64_t i, int64_t t) {
      float v[W];
      read<W>(rows + ((b * p.blocks + i) * p.heads + head) * cols + t * p.dim + (o - row * p.dim), v);
#pragma unroll
      for (int j = 0; j < W; ++j) sum[j] += v[j];
    });
    write<W>(dx + o, sum);
  });
}

template <typename T> __device__ void compress_clear(const CompressParams& p) {
  const T* dy = static_cast<const T*>(p.x);
  T* y = static_cast<T*>(p.y);
  const int64_t width = p.heads * p.dim;
  elementwise<T>(p.batch * p.blocks * width, width % kLanes<T> == 0 && aligned(dy, y), [&](auto lanes, int64_t o) {
    constexpr int W = decltype(lanes)::value;
    const int64_t place = o / width, b = place / p.blocks;
    float v[W] = {};
    if (p.token(b, place - b * p.blocks) >= 0) read<W>(dy + o, v);
    write<W>(y + o, v);
  });
}

} // namespace nsa

NSA_KERNEL(compress_clear, CompressParams, 256)
NSA_KERNEL(compress_mean, CompressParams, 256)
NSA_KERNEL(compress_mean_grad, CompressParams, 256)
NSA_KERNEL(compress_gather, CompressParams, 256)
NSA_KERNEL(compress_scatter, CompressParams, 256)
