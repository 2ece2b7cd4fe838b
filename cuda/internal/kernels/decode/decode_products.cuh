// The products of one token's heads with the keys and values of the cache. A warp uses one of two classes:
//
//   TensorCores<T, W, H>  tensor cores (mma.m16n8k16): bf16 and f16, up to H = 8 or 16 heads, dims that are multiples of 8 up to W
//   Cores<T>              all types and sizes
//
// A warp takes kKeys keys a step, with an online softmax for each head. A class has
//
//   q_bytes, floats   the size of its shared memory: for q, and for each warp (decode.go computes the same)
//   start             resets sums and maxima
//   fetch             begins to read the keys of the first steps, which begin at first, first + all, ...; row(i) is the row of key i
//   stage_q           all threads write the rotated heads to shared memory
//   load_q            reads the heads from there
//   step              multiplies the oldest keys that were fetched, and begins to fetch others
//   finish            writes o, the largest logits and the sums of the warp to its shared memory, laid out as a Part; returns the keys read
#pragma once

#include "../attention/attention_softmax.cuh"
#include "../mma.cuh"
#include "decode.cuh"

namespace nsa {

// Where logits are stored: that of head j and key i of the branch goes to to[j*stride+i].
struct Logits {
  float* to; // null: they are not stored
  int64_t stride;
};

// What a step reads, and where it stores logits.
struct Source {
  const void* keys;
  const void* values; // null: only logits are needed
  Logits logits;
};

// `at` in shared memory, rounded up to a multiple of 256 bytes.
__device__ inline float* row_from(void* at) { return reinterpret_cast<float*>(static_cast<char*>(at) + -shared_address(at) % 256); }

// rotation_of returns the rotation of a pair of dims at the token of s.
__device__ inline float2 rotation_of(const Step& s, int pair) { return rotation_at(s.t, s.p.turns[pair], false); }

// rotations sets rotation [D/2] in shared memory. All threads call it; it ends with a barrier.
__device__ inline void rotations(const Step& s, float2* rotation) {
#pragma unroll 1
  for (int i = threadIdx.x; i < s.p.dim / 2; i += kDecodeThreads) rotation[i] = rotation_of(s, i);
  __syncthreads();
}

// The columns of the products are heads. The rows are keys in logits [keys,heads] = k·qᵀ, and dims in o [dims,heads] += vᵀ·p; between
// the two, exponentials are transposed in registers. Lane (g, t) = (lane/4, lane%4) has the heads 2t and 2t+1 of every eight: for logits
// those of keys g and g+8, for o those of dims g and g+8 of every sixteen. A warp has a ring of kSlots slots, which it fills kSlots
// steps ahead. A slot has keys and values [16,W] each. The 16-byte cell c of a row lies at c ^ row%8, so that reads have no bank conflicts.
template <typename T, int W, int H> struct TensorCores {
  using Type = T;
  static constexpr int kKeys = 16, kWidth = W, kChunks = W / 16, kTiles = H / 8, kMostHeads = H;
  static constexpr int kSlots = W == 64 ? 3 : 2, kSide = kKeys * W * 2, kSlot = 2 * kSide; // bytes: keys or values; both
  static constexpr int kPitch = W + 8; // elements of a row of q in shared memory
  float o[kChunks][kTiles][4];
  uint32_t heads[kChunks][kTiles][2];
  Softmax softmax[kTiles][2]; // the sum covers only this lane's keys
  uint32_t ring, slot;        // addresses of the ring and of its oldest slot, multiples of 256
  int read;

  static __device__ int floats(const DecodeParams& p) { return (max(kSlots * kSlot / 4, p.h * p.value_dim + 2 * p.h) + 63) / 64 * 64; }
  static __device__ int q_bytes(const DecodeParams&) { return H * kPitch * sizeof(T); }

  static __device__ void stage_q(const Step& s, float2*, void* q) {
    constexpr int kPairs = W / 2, kRows = kDecodeThreads / kPairs; // a thread has one pair of dims of every kRows-th head
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
      rotate_pair(x, y, rotation);
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

  __device__ void load_q(const void* q) {
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

  // The rows of keys lane/8, lane/8 + 4, ... of a step. This lane copies cell lane%8 of every 64 dims of them, so that a warp reads whole
  // lines of 128 bytes, at the full speed of memory; with half lines dense attention took a fifth longer.
  struct Rows {
    static constexpr int kCount = kKeys / 4;
    uint32_t row[kCount];
  };

  // find_rows returns the rows that this lane copies for the step that begins with key `first`. After the last key it repeats that key.
  template <typename Row> __device__ Rows find_rows(int first, int end, Row row) {
    const int lane = threadIdx.x % 32, key = first + lane % kKeys, own = row(min(key, end - 1));
    read += lane < kKeys && key < end;
    Rows rows;
#pragma unroll
    for (int i = 0; i < Rows::kCount; ++i) rows.row[i] = __shfl_sync(0xffffffffu, own, 4 * i + lane / 8);
    return rows;
  }
  // copy begins to copy keys or values to one side of a slot.
  __device__ void copy(uint32_t side, const void* from, int dim, const Rows& rows) const {
    const int g = threadIdx.x % 32 / 8, t = threadIdx.x % 8;
#pragma unroll
    for (int i = 0; i < Rows::kCount; ++i) {
      const char* cell = static_cast<const char*>(from) + uint64_t(rows.row[i]) * uint32_t(2 * dim) + 16 * t;
      const uint32_t to = side + (4 * i + g) * W * 2 + (t ^ (4 * i + g) % 8) * 16;
#pragma unroll
      for (int c = 0; c < W / 8; c += 8) copy_cell_once(to + c * 16, cell + c * 16, 8 * (c + t) < dim);
    }
  }
  // fill_keys begins to copy the keys of a step to the oldest slot, fill_values their values. Then this slot is the newest one.
  template <typename Row> __device__ void fill_keys(const DecodeParams& p, const Source& from, int first, int end, Row row, Rows& rows) {
    if (first < end) rows = find_rows(first, end, row), copy(slot, from.keys, p.dim, rows);
    copy_commit(); // also if nothing was copied: copy_wait counts two groups for each slot
  }
  __device__ void fill_values(const DecodeParams& p, const Source& from, int first, int end, const Rows& rows) {
    if (first < end && from.values) copy(slot + kSide, from.values, p.value_dim, rows);
    copy_commit();
    slot = slot == ring + (kSlots - 1) * kSlot ? ring : slot + kSlot;
  }
  // await waits until the oldest copies of all lanes, keys or values of a step, are complete.
  __device__ void await() const {
    copy_wait<2 * kSlots - 1>();
    __syncwarp();
  }
  template <typename Row> __device__ void fetch(const DecodeParams& p, const Source& from, int first, int all, int end, Row row) {
#pragma unroll 1
    for (int i = 0; i < kSlots; ++i) {
      Rows rows;
      fill_keys(p, from, first + i * all, end, row, rows);
      fill_values(p, from, first + i * all, end, rows);
    }
  }

  // raise raises the maxima by the logits x of a step, and rescales sums and o, if some logit is far above its maximum. A little above is
  // no harm: exponentials are up to 2^8 then. With so few keys a warp, exact maxima would rise in most steps.
  __device__ void raise(const float (&x)[kTiles][4], float scale) {
    const float room = 8 / scale;
    bool more = false;
#pragma unroll
    for (int i = 0; i < kTiles; ++i)
#pragma unroll
      for (int e = 0; e < 2; ++e) more |= fmaxf(x[i][e], x[i][e + 2]) > softmax[i][e].top + room;
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
    const int next = first + kSlots * all; // the step that gets this one's slot
    await();
    float x[kTiles][4] = {}, odd[kTiles][4] = {}; // two sums, so that a product waits for every second one only
    const uint32_t keys = slot + (matrix % 2 * 8 + r) * W * 2 + (matrix / 2 ^ r) * 16;
#pragma unroll
    for (int c = 0; c < kChunks; ++c) {
      uint32_t key[4];
      read_fragments<false>(key, keys ^ (c * 32));
#pragma unroll
      for (int i = 0; i < kTiles; ++i) multiply_fragments<T>(c % 2 ? odd[i] : x[i], key, heads[c][i][0], heads[c][i][1]);
    }
#pragma unroll
    for (int i = 0; i < kTiles; ++i)
#pragma unroll
      for (int e = 0; e < 4; ++e) x[i][e] += odd[i][e];
    __syncwarp(); // all lanes have read the keys
    Rows rows;
    fill_keys(p, from, next, end, row, rows);
    if (from.logits.to) { // a row of logits has room for whole steps
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
    await();
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
    __syncwarp(); // all lanes have read the values
    fill_values(p, from, next, end, rows);
  }

  // write_results writes o, `row` floats a head, to `to`, and the largest logits and sums to tops. Returns the keys read.
  __device__ int write_results(const DecodeParams& p, float* to, int row, int width, float* tops) {
    __syncwarp(); // all lanes have read the ring, which `to` overlaps
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
  __device__ int finish(const DecodeParams& p, float* to) { return write_results(p, to, p.value_dim, p.value_dim, to + p.h * p.value_dim); }

  // finish_rows is finish with o as rows [h,kRow], for which writes to shared memory have no bank conflicts.
  static constexpr int kRow = W + 4, kRingFloats = kSlots * kSlot / 4;
  static_assert(H * kRow <= kRingFloats, "rows of o lie where the ring was");
  __device__ int finish_rows(const DecodeParams& p, float* to, float* tops) { return write_results(p, to, kRow, W, tops); }
};

// NSA_TENSOR_CORE_CLASSES lists the instances: a name, the least number of blocks of four warps on a multiprocessor, which limits registers, and
// the class. decode.go has the same list.
#define NSA_TENSOR_CORE_CLASSES(kernels)                                 \
  kernels(mma64x8_bf16, 4, TensorCores<nsa::bf16, 64, 8>)         \
  kernels(mma64x16_bf16, 3, TensorCores<nsa::bf16, 64, 16>)       \
  kernels(mma64x8_f16, 4, TensorCores<nsa::f16, 64, 8>)           \
  kernels(mma64x16_f16, 3, TensorCores<nsa::f16, 64, 16>)         \
  kernels(mma128x8_bf16, 3, TensorCores<nsa::bf16, 128, 8>)       \
  kernels(mma128x16_bf16, 2, TensorCores<nsa::bf16, 128, 16>)     \
  kernels(mma128x8_f16, 3, TensorCores<nsa::f16, 128, 8>)         \
  kernels(mma128x16_f16, 2, TensorCores<nsa::f16, 128, 16>)

// A lane has one key in the first product and every 32nd dim in the second. The state of a warp lies in shared memory, laid out as a
// Part; after it lie the factors of o [h], the exponentials [h,32], and the rows of the keys [32].
template <typename T> struct Cores {
  using Type = T;
  static constexpr int kKeys = 32, kHeads = 4; // heads that a lane computes at once
  const float* q;
  int read;

  static __device__ int floats(const DecodeParams& p) { return p.h * p.value_dim + 35 * p.h + 32; }
  static __device__ int q_bytes(const DecodeParams& p) { return p.h * p.dim * sizeof(float); }

  static __device__ void stage_q(const Step& s, float2* rotation, void* q) {
    rotations(s, rotation);
    const int pairs = s.p.dim / 2;
    const T* heads = static_cast<const T*>(s.p.q) + s.at() * s.p.h * s.p.dim;
    for (int i = threadIdx.x; i < s.p.h * pairs; i += kDecodeThreads) {
      float x = to_float(heads[2 * i]), y = to_float(heads[2 * i + 1]);
      rotate_pair(x, y, rotation[i % pairs]);
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
  __device__ void load_q(const void* from) { q = static_cast<const float*>(from); }

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
        __syncwarp(); // all lanes have read the state
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
    __syncwarp(); // all lanes have read rows and exponentials, which the next step overwrites
  }

  __device__ int finish(const DecodeParams&, float*) { return warp_sum(read); }
};

}  // namespace nsa
