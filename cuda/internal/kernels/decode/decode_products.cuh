// The products of one token's heads with the keys and values of the cache, as two kinds of a class that a warp works with:
//
//   MatrixUnits<T, W>  bf16 and f16, up to 16 heads, dims that are multiples of 8 up to W: mma.m16n8k16
//   Cores<T>           all types and sizes
//
// A warp takes kKeys keys at a time. Its heads share their largest logits, which grow from step to step. A class has
//
//   q_bytes, floats   its shared memory: for q, and for the state of each warp    (decode.go has them, too)
//   fetch             begins to read the first keys; row(i) is the row of key i, and from `end` on none is read
//   stage             puts the rotated heads into shared memory, by all threads
//   step              takes the keys fetched, and fetches those from `next` on
//   finish            o, largest logits and sums of the warp to its state, as a Part has them; returns the keys read
#pragma once

#include "../attention/attention_softmax.cuh"
#include "../mma.cuh"
#include "decode.cuh"

namespace nsa {

// Where logits are stored: that of head j and key i of the branch at to[j*stride+i].
struct Logits {
  float* to; // null: nowhere
  int64_t stride;
};

// What a step reads and writes beside its own state.
struct Source {
  const void* keys;
  const void* values; // null: logits alone
  Logits logits;
};

// rotation_of returns the rotation of a pair of dims at the token of s.
__device__ inline float2 rotation_of(const Step& s, int pair) { return rotation_at(s.t, s.p.turns[pair], false); }

// rotations sets rotation [D/2], in shared memory.
__device__ inline void rotations(const Step& s, float2* rotation) {
#pragma unroll 1
  for (int i = threadIdx.x; i < s.p.dim / 2; i += kDecodeThreads) rotation[i] = rotation_of(s, i);
  __syncthreads();
}

// Heads are the rows of both products, and so the sums of the first one are the left factor of the second one as they lie. The right
// factors come from memory to registers, 16 bytes a lane: dims and keys are permuted alike on both sides of a product, so that
//
//   lane (g, t) = (lane/4, lane%4) has    q     heads g and g+8, dims 32c+8t .. +7
//                                         key   columns g of both eights of keys, the same dims
//                                         value keys 2t and 2t+1 of both eights, dims 64e+8g .. +7
//                                         o     heads g and g+8, dims 64e+16t .. +15
template <typename T, int W> struct MatrixUnits {
  using Type = T;
  static constexpr int kKeys = 16, kWidth = W, kChunks = W / 32, kHalves = W / 64;
  float o[kHalves][8][4];
  Softmax softmax[2];                         // of heads g and g+8
  int32_t mine[2], theirs[4];                 // rows of this lane's columns, and of the keys of its values; -1: none
  uint4 key[2][kChunks], value[4][kHalves];   // that are fetched
  int read;

  static __device__ int floats(const DecodeParams& p) { return p.h * p.value_dim + 2 * p.h; }
  static __device__ int q_bytes(const DecodeParams&) { return 16 * W * sizeof(T); }

  static __device__ void stage(const Step& s, float2*, void* q) {
    constexpr int kPairs = W / 2, kRows = kDecodeThreads / kPairs; // a thread has one pair of dims, of every kRows-th head
    const DecodeParams& p = s.p;
    const int pair_of = threadIdx.x % kPairs, first = threadIdx.x / kPairs;
    const bool in = 2 * pair_of < p.dim;
    uint32_t raw[16 / kRows];
#pragma unroll
    for (int i = 0; i < 16 / kRows; ++i) {
      const int j = first + i * kRows;
      raw[i] = in && j < p.h ? reinterpret_cast<const uint32_t*>(static_cast<const T*>(p.q) + (s.at() * p.h + j) * p.dim)[pair_of] : 0;
    }
    const float2 rotation = rotation_of(s, in ? pair_of : 0);
#pragma unroll
    for (int i = 0; i < 16 / kRows; ++i) {
      T lanes[2];
      memcpy(lanes, raw + i, sizeof lanes);
      float x = to_float(lanes[0]), y = to_float(lanes[1]);
      turn_pair(x, y, rotation);
      static_cast<uint32_t*>(q)[(first + i * kRows) * kPairs + pair_of] = pair<T>(x, y);
    }
    __syncthreads();
  }

  __device__ void start(const DecodeParams&, float*) {
#pragma unroll
    for (int e = 0; e < kHalves; ++e)
#pragma unroll
      for (int j = 0; j < 8; ++j)
#pragma unroll
        for (int i = 0; i < 4; ++i) o[e][j][i] = 0;
    softmax[0].start(), softmax[1].start(), read = 0;
  }

  static __device__ uint4 cell(const void* base, int row, int dim, int at) {
    if (row < 0 || at >= dim) return {0, 0, 0, 0};
    return *reinterpret_cast<const uint4*>(static_cast<const char*>(base) + at * int(sizeof(T)) + int64_t(row) * (dim * int(sizeof(T))));
  }
  // Element i of two cells.
  static __device__ uint32_t both(const uint4& a, const uint4& b, int i) {
    const uint32_t x = i < 2 ? a.x : i < 4 ? a.y : i < 6 ? a.z : a.w, y = i < 2 ? b.x : i < 4 ? b.y : i < 6 ? b.z : b.w;
    return i % 2 ? (x >> 16) | (y & 0xffff0000u) : (x & 0xffffu) | (y << 16);
  }

  template <typename Row> __device__ void find(int first, int end, Row row) {
    const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
#pragma unroll
    for (int i = 0; i < 2; ++i) mine[i] = first + 8 * i + g < end ? int32_t(row(first + 8 * i + g)) : -1;
#pragma unroll
    for (int i = 0; i < 4; ++i) theirs[i] = __shfl_sync(0xffffffffu, mine[i / 2], (2 * t + i % 2) * 4);
    if (t == 0) read += (mine[0] >= 0) + (mine[1] >= 0);
  }
  __device__ void fetch_keys(const DecodeParams& p, const Source& from) {
#pragma unroll
    for (int i = 0; i < 2; ++i)
#pragma unroll
      for (int c = 0; c < kChunks; ++c) key[i][c] = cell(from.keys, mine[i], p.dim, 32 * c + threadIdx.x % 4 * 8);
  }
  __device__ void fetch_values(const DecodeParams& p, const Source& from) {
#pragma unroll
    for (int i = 0; i < 4; ++i)
#pragma unroll
      for (int e = 0; e < kHalves; ++e) value[i][e] = cell(from.values, from.values ? theirs[i] : -1, p.value_dim, 64 * e + threadIdx.x % 32 / 4 * 8);
  }
  template <typename Row> __device__ void fetch(const DecodeParams& p, const Source& from, int first, int end, Row row) {
    find(first, end, row);
    fetch_keys(p, from);
    fetch_values(p, from);
  }

  template <typename Row>
  __device__ void step(const DecodeParams& p, const Source& from, const void* q, float*, int first, int next, int end, Row row) {
    const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    float x[2][4] = {}; // [eight of keys][head g: keys 2t, 2t+1; head g+8: the same]
#pragma unroll
    for (int c = 0; c < kChunks; ++c) {
      const uint4* cells = static_cast<const uint4*>(q) + 4 * c + t;
      const uint4 low = cells[g * (W / 8)], high = cells[(g + 8) * (W / 8)];
      const uint32_t a[2][4] = {{low.x, high.x, low.y, high.y}, {low.z, high.z, low.w, high.w}};
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        multiply_fragments<T>(x[i], a[0], key[i][c].x, key[i][c].y);
        multiply_fragments<T>(x[i], a[1], key[i][c].z, key[i][c].w);
      }
    }
#pragma unroll
    for (int i = 0; i < 2; ++i)
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const bool in = theirs[2 * i + e % 2] >= 0;
        const int head = g + e / 2 * 8;
        if (from.logits.to && in && head < p.h) from.logits.to[head * from.logits.stride + first + 8 * i + 2 * t + e % 2] = x[i][e];
        if (!in) x[i][e] = -INFINITY;
      }
    if (next < end) { // registers of the keys are free now, and those of the values at the end of the step
      find(next, end, row);
      fetch_keys(p, from);
    }
    const float scale = p.scale * kLog2E;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float best = fmaxf(fmaxf(x[0][2 * r], x[0][2 * r + 1]), fmaxf(x[1][2 * r], x[1][2 * r + 1]));
      best = fmaxf(best, __shfl_xor_sync(0xffffffffu, best, 1));
      best = fmaxf(best, __shfl_xor_sync(0xffffffffu, best, 2));
      const float factor = softmax[r].raise(best, scale), base = softmax[r].base();
#pragma unroll
      for (int i = 0; i < 2; ++i)
#pragma unroll
        for (int e = 2 * r; e < 2 * r + 2; ++e) softmax[r].sum += x[i][e] = power2((x[i][e] - base) * scale);
#pragma unroll
      for (int e = 0; e < kHalves; ++e)
#pragma unroll
        for (int j = 0; j < 8; ++j) o[e][j][2 * r] *= factor, o[e][j][2 * r + 1] *= factor;
    }
    if (!from.values) return;
    const uint32_t a[4] = {pair<T>(x[0][0], x[0][1]), pair<T>(x[0][2], x[0][3]), pair<T>(x[1][0], x[1][1]), pair<T>(x[1][2], x[1][3])};
#pragma unroll
    for (int e = 0; e < kHalves; ++e)
#pragma unroll
      for (int j = 0; j < 8; ++j) multiply_fragments<T>(o[e][j], a, both(value[0][e], value[1][e], j), both(value[2][e], value[3][e], j));
    if (next < end) fetch_values(p, from);
  }

  __device__ int finish(const DecodeParams& p, float* to) {
    const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    for (int r = 0; r < 2; ++r) {
      const int head = g + 8 * r;
      float sum = softmax[r].sum;
      sum += __shfl_xor_sync(0xffffffffu, sum, 1);
      sum += __shfl_xor_sync(0xffffffffu, sum, 2);
      if (head >= p.h) continue;
#pragma unroll
      for (int e = 0; e < kHalves; ++e)
#pragma unroll
        for (int j = 0; j < 8; ++j)
#pragma unroll
          for (int i = 0; i < 2; ++i) {
            const int dim = 64 * e + 16 * t + 8 * i + j;
            if (dim < p.value_dim) to[head * p.value_dim + dim] = o[e][j][2 * r + i];
          }
      if (t == 0) to[p.h * p.value_dim + head] = softmax[r].top, to[p.h * p.value_dim + p.h + head] = sum;
    }
    return warp_sum(read);
  }

  // finish_cells does this with o as rows [h,kRow] of cells of four dims, and the largest logits and the sums in stats [2,h]. Cells lie
  // such that all lanes write to banks of shared memory of their own.
  static constexpr int kRow = W + 8;
  static __device__ int cell_at(int head, int i) { return head * kRow + 4 * (i ^ (i >> 3 & 1)); }
  __device__ int finish_cells(const DecodeParams& p, float* to, float* stats) {
    const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int head = g + 8 * r;
      float sum = softmax[r].sum;
      sum += __shfl_xor_sync(0xffffffffu, sum, 1);
      sum += __shfl_xor_sync(0xffffffffu, sum, 2);
      if (head >= p.h) continue;
#pragma unroll
      for (int e = 0; e < kHalves; ++e)
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const auto& x = o[e];
          const int j = i % 2 * 4, c = 2 * r + i / 2;
          *reinterpret_cast<float4*>(to + cell_at(head, 16 * e + 4 * t + i)) = {x[j][c], x[j + 1][c], x[j + 2][c], x[j + 3][c]};
        }
      if (t == 0) stats[head] = softmax[r].top, stats[p.h + head] = sum;
    }
    return warp_sum(read);
  }
};

// A lane has a key in the first product and a dim in the second one. The state of a warp lies in shared memory, as a Part has it; behind
// it are the factors of o [h], the exponentials [h,32], and the rows of the keys [32].
template <typename T> struct Cores {
  using Type = T;
  static constexpr int kKeys = 32, kHeads = 4; // heads that a lane computes at a time
  int read;

  static __device__ int floats(const DecodeParams& p) { return p.h * p.value_dim + 35 * p.h + 32; }
  static __device__ int q_bytes(const DecodeParams& p) { return p.h * p.dim * sizeof(float); }

  static __device__ void stage(const Step& s, float2* rotation, void* q) {
    rotations(s, rotation);
    const int pairs = s.p.dim / 2;
    const T* heads = static_cast<const T*>(s.p.q) + s.at() * s.p.h * s.p.dim;
    for (int i = threadIdx.x; i < s.p.h * pairs; i += kDecodeThreads) {
      float x = to_float(heads[2 * i]), y = to_float(heads[2 * i + 1]);
      turn_pair(x, y, rotation[i % pairs]);
      static_cast<float2*>(q)[i] = {to_float(from_float<T>(x)), to_float(from_float<T>(y))};
    }
    __syncthreads();
  }

  __device__ void start(const DecodeParams& p, float* state) {
    read = 0;
    for (int i = threadIdx.x % 32; i < p.h * p.value_dim + 2 * p.h; i += 32) {
      const int of = i - p.h * p.value_dim;
      state[i] = of >= 0 && of < p.h ? -INFINITY : 0;
    }
    __syncwarp();
  }

  template <typename Row> __device__ void fetch(const DecodeParams&, const Source&, int, int, Row) {}

  template <typename Row>
  __device__ void step(const DecodeParams& p, const Source& from, const void* q, float* state, int first, int, int end, Row row) {
    const int lane = threadIdx.x % 32, i = first + lane;
    const int64_t mine = i < end ? row(i) : -1;
    float *top = state + p.h * p.value_dim, *sum = top + p.h, *factors = sum + p.h, *x = factors + p.h;
    int32_t* rows = reinterpret_cast<int32_t*>(x + 32 * p.h);
    rows[lane] = int32_t(mine);
    read += mine >= 0;
    const T* key = static_cast<const T*>(from.keys) + mine * p.dim;
    const float scale = p.scale * kLog2E;
    for (int j = 0; j < p.h; j += kHeads) {
      float dot[kHeads] = {};
      for (int c = 0; c < p.dim && mine >= 0; ++c) {
        const float k = to_float(key[c]);
        for (int e = 0; e < kHeads; ++e)
          if (j + e < p.h) dot[e] += static_cast<const float*>(q)[(j + e) * p.dim + c] * k;
      }
      for (int e = 0; e < kHeads && j + e < p.h; ++e) {
        if (from.logits.to && mine >= 0) from.logits.to[(j + e) * from.logits.stride + i] = dot[e];
        const float logit = mine >= 0 ? dot[e] : -INFINITY;
        Softmax softmax = {top[j + e], sum[j + e]};
        const float factor = softmax.raise(warp_max(logit), scale), power = exp2f((logit - softmax.base()) * scale);
        softmax.sum += warp_sum(power);
        __syncwarp(); // all have read the state
        x[(j + e) * 32 + lane] = power;
        if (lane == 0) top[j + e] = softmax.top, sum[j + e] = softmax.sum, factors[j + e] = factor;
      }
    }
    __syncwarp();
    const T* values = static_cast<const T*>(from.values);
    for (int c = lane; c < p.value_dim && values; c += 32)
      for (int j = 0; j < p.h; j += kHeads) {
        float acc[kHeads] = {};
        for (int k = 0; k < 32 && rows[k] >= 0; ++k) {
          const float v = to_float(values[int64_t(rows[k]) * p.value_dim + c]);
          for (int e = 0; e < kHeads; ++e)
            if (j + e < p.h) acc[e] += x[(j + e) * 32 + k] * v;
        }
        for (int e = 0; e < kHeads && j + e < p.h; ++e) {
          float& to = state[(j + e) * p.value_dim + c];
          to = to * factors[j + e] + acc[e];
        }
      }
    __syncwarp(); // before the next step writes rows and exponentials
  }

  __device__ int finish(const DecodeParams&, float*) { return warp_sum(read); }
};

}  // namespace nsa
