// What the kernels of decoding write besides attention: compressed keys and values, and the results of slots without a token.
#pragma once

#include "decode.cuh"

namespace nsa {

// compress stores the compressed key and value of the block of l tokens that ends with this token. `shared` has room for a block and a
// hidden row in float32, used by the MLP only.
template <typename T> __device__ void compress(const Step& s, float* shared) {
  const DecodeParams& p = s.p;
  T* cache = static_cast<T*>(p.cache);
  const int first = s.t + 1 - p.l, lane = threadIdx.x % 32;
  const int64_t row = s.paged(p.compressed, p.d.div(first)), tail = s.tail_row(0);
  if (!p.phi[0][0]) { // the mean
#pragma unroll 1
    for (int u = threadIdx.x; u < p.dim + p.value_dim; u += blockDim.x) {
      const bool key = u < p.dim;
      const int dim = key ? p.dim : p.value_dim, i = key ? u : u - p.dim;
      const T* from = cache + (key ? p.tail.keys : p.tail.values) + tail * dim + i;
      float sum = 0;
#pragma unroll 8
      for (int j = 0; j < p.l; ++j) sum += to_float(from[int64_t(j) * dim]);
      cache[(key ? p.compressed.keys : p.compressed.values) + row * dim + i] = from_float<T>(sum / p.l);
    }
    return;
  }
#pragma unroll 1
  for (int side = 0; side < 2; ++side) {
    const int dim = side ? p.value_dim : p.dim, n = p.l * dim, wide = p.hidden[side];
    const T* from = cache + (side ? p.tail.values : p.tail.keys);
    T* to = cache + (side ? p.compressed.values : p.compressed.keys) + row * dim;
    const T *pe = static_cast<const T*>(p.phi[side][0]), *w1 = static_cast<const T*>(p.phi[side][1]), *w2 = static_cast<const T*>(p.phi[side][2]);
    float* hidden = shared + n;
    __syncthreads(); // all threads have read `shared`
#pragma unroll 1
    for (int i = threadIdx.x; i < n; i += blockDim.x) shared[i] = to_float(from[s.tail_row(first + i / dim) * dim + i % dim]) + to_float(pe[i]);
    __syncthreads();
#pragma unroll 1
    for (int i = threadIdx.x / 32; i < wide; i += blockDim.x / 32) {
      float sum = 0;
#pragma unroll 1
      for (int j = lane; j < n; j += 32) sum += shared[j] * to_float(w1[int64_t(i) * n + j]);
      sum = warp_sum(sum);
      if (lane == 0) hidden[i] = sum * sigmoid_of<T>(sum);
    }
    __syncthreads();
#pragma unroll 1
    for (int i = threadIdx.x / 32; i < dim; i += blockDim.x / 32) {
      float sum = 0;
#pragma unroll 1
      for (int j = lane; j < wide; j += 32) sum += hidden[j] * to_float(w2[int64_t(i) * wide + j]);
      sum = warp_sum(sum);
      if (lane == 0) to[i] = from_float<T>(sum);
    }
  }
}

// write_empty_slot writes o and read of a slot without a token: zeros. no_blocks writes its idx: -1.
template <typename T> __device__ void write_empty_slot(const Step& s) {
  const DecodeParams& p = s.p;
  T* o = static_cast<T*>(p.o) + s.at() * p.h * p.value_dim;
#pragma unroll 1
  for (int i = threadIdx.x; i < p.h * p.value_dim; i += blockDim.x) o[i] = from_float<T>(0);
  for (int i = threadIdx.x; i < kBranches; i += blockDim.x) p.read[s.at() * kBranches + i] = 0;
}

__device__ inline void no_blocks(const Step& s) {
#pragma unroll 1
  for (int i = threadIdx.x; i < s.p.n; i += blockDim.x) s.p.idx[s.at() * s.p.n + i] = -1;
}

}  // namespace nsa
