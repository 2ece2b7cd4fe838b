// The products of one token's heads with the keys and values of the cache, as two kinds of a class that a warp works with:
//
//   MatrixUnits<T, W, H>  bf16 and f16, up to H = 8 or 16 heads, dims that are multiples of 8 up to W: mma.m16n8k16
//   Cores<T>              all types and sizes
//
// A warp takes kKeys keys at a time. Its heads share their largest logits, which grow from step to step. A class has
//
//   q_bytes, floats   its shared memory: for q, and for each warp    (decode.go has them, too)
//   start             nothing has been added up
//   fetch             begins to read the keys of the first steps: those from `first` on, and every `all` keys; row(i) is the row of key i
//   stage             puts the rotated heads into shared memory, by all threads
//   take              reads them there
//   step              takes the oldest keys fetched, and fetches others
//   finish            o, largest logits and sums of the warp to its shared memory, as a Part has them; returns the keys read
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

// The first place of a row in shared memory from `at` on, at most 256 bytes behind it.
__device__ inline float* row_from(void* at) { return reinterpret_cast<float*>(static_cast<char*>(at) + -shared_address(at) % 256); }

// rotation_of returns the rotation of a pair of dims at the token of s.
__device__ inline float2 rotation_of(const Step& s, int pair) { return rotation_at(s.t, s.p.turns[pair], false); }

// rotations sets rotation [D/2], in shared memory.
__device__ inline void rotations(const Step& s, float2* rotation) {
#pragma unroll 1
  for (int i = threadIdx.x; i < s.p.dim / 2; i += kDecodeThreads) rotation[i] = rotation_of(s, i);
  __syncthreads();
}

// Keys, and then dims, are the rows of the products, and heads their columns: logits [keys,heads] = k q^T, whose exponentials are
// transposed, and o [dims,heads] += v^T p. A lane (g, t) = (lane/4, lane%4) has heads 2t and 2t+1 of each eight of them: of logits
// those of keys g and g+8, of o dims g and g+8 of each sixteen. Keys and values lie in kSlots slots of a warp's ring, which are filled as
// many steps ahead: [16,W] each, cell c of 16 bytes of a row at c ^ row%8, so that reads find all banks.
template <typename T, int W, int H> struct MatrixUnits {
  using Type = T;
  static constexpr int kKeys = 16, kWidth = W, kChunks = W / 16, kTiles = H / 8, kMostHeads = H;
  static constexpr int kSlots = W == 64 ? 3 : 2, kSide = kKeys * W * 2, kSlot = 2 * kSide; // in bytes: keys or values; both
  static constexpr int kPitch = W + 8; // of q [H,pitch]
  float o[kChunks][kTiles][4];
  uint32_t heads[kChunks][kTiles][2];
  Softmax softmax[kTiles][2]; // sums are those of this lane's keys
  uint32_t ring, slot;        // its beginning and that of the oldest slot, multiples of a row
  int read;

  static __device__ int floats(const DecodeParams& p) { return (max(kSlots * kSlot / 4, p.h * p.value_dim + 2 * p.h) + 63) / 64 * 64; }
  static __device__ int q_bytes(const DecodeParams&) { return H * kPitch * sizeof(T); }

  static __device__ void stage(const Step& s, float2*, void* q) {
    constexpr int kPairs = W / 2, kRows = kDecodeThreads / kPairs; // a thread has one pair of dims, of every kRows-th head
    const DecodeParams& p = s.p;
    const int pair_of = threadIdx.x % kPairs, first = threadIdx.x / kPairs;
    const bool in = 2 * pair_of < p.dim;
    uint32_t raw[H / kRows];
#pragma unroll
    for (int i = 0; i < H / kRows; ++i) {
      const int j = first + i * kRows;
      raw[i] = in && j < p.h ? reinterpret_cast<const uint32_t*>(static_cast<const T*>(p.q) + (s.at() * p.h + j) * p.dim)[pair_of] : 0;
    }
    const float2 rotation = rotation_of(s, in ? pair_of : 0);
#pragma unroll
    for (int i = 0; i < H / kRows; ++i) {
      T lanes[2];
      memcpy(lanes, raw + i, sizeof lanes);
      float x = to_float(lanes[0]), y = to_float(lanes[1]);
      turn_pair(x, y, rotation);
      static_cast<uint32_t*>(q)[(first + i * kRows) * kPitch / 2 + pair_of] = pair<T>(x, y);
    }
    __syncthreads();
  }

  __device__ void start(const DecodeParams&, float* shared) {
#pragma unroll
    for (int c = 0; c < kChunks; ++c)
#pragma unroll
      for (int i = 0; i < kTiles; ++i)
#pragma unroll
        for (int e = 0; e < 4; ++e) o[c][i][e] = 0;
#pragma unroll
    for (int i = 0; i < kTiles; ++i) softmax[i][0].start(), softmax[i][1].start();
    ring = slot = shared_address(shared), read = 0;
  }

  __device__ void take(const void* q) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int i = 0; i < kTiles; ++i) {
      const uint32_t from = shared_address(static_cast<const T*>(q) + (8 * i + lane % 8) * kPitch + lane / 8 * 8);
#pragma unroll
      for (int c = 0; c < kChunks; c += 2) {
        uint32_t v[4];
        read_fragments<false>(v, from + c * 32);
        heads[c][i][0] = v[0], heads[c][i][1] = v[1], heads[c + 1][i][0] = v[2], heads[c + 1][i][1] = v[3];
      }
    }
  }

  // fill begins to copy the keys of a step to the oldest slot, which becomes the newest one. Rows behind the last one are that once more.
  template <typename Row> __device__ void fill(const DecodeParams& p, const Source& from, int first, int end, Row row) {
    const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    if (first < end) {
      const int key = first + lane % kKeys, mine = row(min(key, end - 1));
      read += lane < kKeys && key < end;
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const uint32_t of = __shfl_sync(0xffffffffu, mine, 8 * i + g);
        const char* key = static_cast<const char*>(from.keys) + uint64_t(of) * uint32_t(2 * p.dim) + 16 * t;
        const char* value = static_cast<const char*>(from.values) + uint64_t(of) * uint32_t(2 * p.value_dim) + 16 * t;
        const uint32_t to = slot + (8 * i + g) * W * 2;
#pragma unroll
        for (int c = 0; c < W / 8; c += 4) {
          const uint32_t at = to + c / 8 * 128 + ((c % 8 + t) ^ g) * 16;
          copy_cell(at, key + c * 16, 8 * (c + t) < p.dim);
          if (from.values) copy_cell(at + kSide, value + c * 16, 8 * (c + t) < p.value_dim);
        }
      }
    }
    copy_commit(); // of nothing, too: slots are counted
    slot = slot == ring + (kSlots - 1) * kSlot ? ring : slot + kSlot;
  }
  template <typename Row> __device__ void fetch(const DecodeParams& p, const Source& from, int first, int all, int end, Row row) {
#pragma unroll 1
    for (int i = 0; i < kSlots; ++i) fill(p, from, first + i * all, end, row);
  }

  // raise raises the largest logits to those of a step.
  __device__ void raise(const float (&x)[kTiles][4], float scale) {
    bool more = false;
#pragma unroll
    for (int i = 0; i < kTiles; ++i)
#pragma unroll
      for (int e = 0; e < 2; ++e) more |= fmaxf(x[i][e], x[i][e + 2]) > softmax[i][e].top;
    if (!__any_sync(0xffffffffu, more)) return;
#pragma unroll
    for (int i = 0; i < kTiles; ++i)
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        float best = fmaxf(x[i][e], x[i][e + 2]);
#pragma unroll
        for (int by = 4; by < 32; by *= 2) best = fmaxf(best, __shfl_xor_sync(0xffffffffu, best, by));
        const float factor = softmax[i][e].raise(best, scale);
#pragma unroll
        for (int c = 0; c < kChunks; ++c) o[c][i][e] *= factor, o[c][i][e + 2] *= factor;
      }
  }

  template <typename Row>
  __device__ void step(const DecodeParams& p, const Source& from, float*, int first, int all, int end, Row row) {
    const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4, matrix = lane / 8, r = lane % 8;
    copy_wait<kSlots - 1>();
    __syncwarp();
    float x[kTiles][4] = {};
    const uint32_t keys = slot + (matrix % 2 * 8 + r) * W * 2 + (matrix / 2 ^ r) * 16;
#pragma unroll
    for (int c = 0; c < kChunks; ++c) {
      uint32_t key[4];
      read_fragments<false>(key, keys ^ (c * 32));
#pragma unroll
      for (int i = 0; i < kTiles; ++i) multiply_fragments<T>(x[i], key, heads[c][i][0], heads[c][i][1]);
    }
    if (from.logits.to) { // rows of logits have room for all keys of a step
#pragma unroll
      for (int i = 0; i < kTiles; ++i)
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          const int head = 8 * i + 2 * t + e;
          float* to = from.logits.to + head * from.logits.stride + first + g;
          if (head < p.h) to[0] = x[i][e], to[8] = x[i][e + 2];
        }
    }
    if (first + kKeys > end) {
#pragma unroll
      for (int i = 0; i < kTiles; ++i)
#pragma unroll
        for (int e = 0; e < 4; ++e)
          if (first + g + e / 2 * 8 >= end) x[i][e] = -INFINITY;
    }
    const float scale = p.scale * kLog2E;
    raise(x, scale);
    uint32_t power[kTiles][2];
#pragma unroll
    for (int i = 0; i < kTiles; ++i) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        Softmax& of = softmax[i][e % 2];
        of.sum += x[i][e] = power2((x[i][e] - of.base()) * scale);
      }
      power[i][0] = transpose_fragment(pair<T>(x[i][0], x[i][1])), power[i][1] = transpose_fragment(pair<T>(x[i][2], x[i][3]));
    }
    if (from.values) {
      const uint32_t values = slot + kSide + (matrix / 2 * 8 + r) * W * 2 + (matrix % 2 ^ r) * 16;
#pragma unroll
      for (int c = 0; c < kChunks; ++c) {
        uint32_t value[4];
        read_fragments<true>(value, values ^ (c * 32));
#pragma unroll
        for (int i = 0; i < kTiles; ++i) multiply_fragments<T>(o[c][i], value, power[i][0], power[i][1]);
      }
    }
    __syncwarp();
    fill(p, from, first + kSlots * all, end, row);
  }

  // give writes o, that of a head with `row` floats, the largest logits and the sums.
  __device__ int give(const DecodeParams& p, float* to, int row, int width, float* tops) {
    __syncwarp(); // no lane reads the ring
    const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
#pragma unroll
    for (int i = 0; i < kTiles; ++i)
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const int head = 8 * i + 2 * t + e;
        float sum = softmax[i][e].sum;
#pragma unroll
        for (int by = 4; by < 32; by *= 2) sum += __shfl_xor_sync(0xffffffffu, sum, by);
        if (head >= p.h) continue;
#pragma unroll
        for (int c = 0; c < kChunks; ++c) {
          const int dim = 16 * c + g;
          if (dim < width) to[head * row + dim] = o[c][i][e];
          if (dim + 8 < width) to[head * row + dim + 8] = o[c][i][e + 2];
        }
        if (g == 0) tops[head] = softmax[i][e].top, tops[p.h + head] = sum;
      }
    return warp_sum(read);
  }
  __device__ int finish(const DecodeParams& p, float* to) { return give(p, to, p.value_dim, p.value_dim, to + p.h * p.value_dim); }

  // finish_rows does this with o as rows [h,kRow], such that all lanes write to banks of shared memory of their own.
  static constexpr int kRow = W + 4;
  static __device__ int row_floats(const DecodeParams& p) { return max(kSlots * kSlot / 4, p.h * kRow); }
  __device__ int finish_rows(const DecodeParams& p, float* to, float* tops) { return give(p, to, kRow, W, tops); }
};

// NSA_MATRIX_UNITS has what kernels are compiled for: a name, how many blocks fit a multiprocessor at least, which bounds the registers, and the
// class. decode.go has them, too.
#define NSA_MATRIX_UNITS(kernels)                                 \
  kernels(mma64x8_bf16, 4, MatrixUnits<nsa::bf16, 64, 8>)         \
  kernels(mma64x16_bf16, 3, MatrixUnits<nsa::bf16, 64, 16>)       \
  kernels(mma128x8_bf16, 3, MatrixUnits<nsa::bf16, 128, 8>)       \
  kernels(mma128x16_bf16, 2, MatrixUnits<nsa::bf16, 128, 16>)     \
  kernels(mma64x8_f16, 4, MatrixUnits<nsa::f16, 64, 8>)           \
  kernels(mma64x16_f16, 3, MatrixUnits<nsa::f16, 64, 16>)         \
  kernels(mma128x8_f16, 3, MatrixUnits<nsa::f16, 128, 8>)         \
  kernels(mma128x16_f16, 2, MatrixUnits<nsa::f16, 128, 16>)

// A lane has a key in the first product and a dim in the second one. The state of a warp lies in shared memory, as a Part has it; behind
// it are the factors of o [h], the exponentials [h,32], and the rows of the keys [32].
template <typename T> struct Cores {
  using Type = T;
  static constexpr int kKeys = 32, kHeads = 4; // heads that a lane computes at a time
  const float* q;
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

  template <typename Row> __device__ void fetch(const DecodeParams&, const Source&, int, int, int, Row) {}
  __device__ void take(const void* from) { q = static_cast<const float*>(from); }

  template <typename Row>
  __device__ void step(const DecodeParams& p, const Source& from, float* state, int first, int, int end, Row row) {
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
          if (j + e < p.h) dot[e] += q[(j + e) * p.dim + c] * k;
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
