// Columns of one matrix: joint [rows,cols] holds the parts [rows,cols_i] side by side.
//
//   split_columns   joint -> parts      join_columns   parts -> joint
//
// A part that is joined may be the sum of up to 3 terms, in their order. Parts of heads [H,D], of one D, may be turned on their
// way as rope.cu does it: row i is a token at position start + i mod S. Results are rounded to T once. All outputs =; nothing is
// saved. An element is read once and written once.
#include "rope.cuh"

namespace nsa {

struct ColumnsParams {
  void* joint;
  void* part[12][3]; // the terms of each, then null
  int64_t rows;
  int64_t seq; // S
  int64_t start;
  double log2_base;
  int32_t end[12];    // the column behind each part
  int32_t turned[12]; // flags
  int32_t parts;
  int32_t dim; // D; 0 where nothing is turned
  int32_t inverse;
  int32_t wide; // parts and heads begin at multiples of 16 bytes
};

constexpr int kTileRows = 16; // of a block at a time

// Where the 16 bytes of row 0 lie in a part that are at some column of the joint matrix.
struct Place {
  char* at[3];  // in each term
  int32_t step; // bytes from one row to the next
  int32_t pair; // the first that they hold; -1 where the part is not turned
};

template <typename T> __device__ __forceinline__ void add_pack(float (&sum)[kLanes<T>], uint4 raw) {
  float v[kLanes<T>];
  unpack<T>(raw, v);
#pragma unroll
  for (int j = 0; j < kLanes<T>; ++j) sum[j] += v[j];
}

// 16 bytes at a time. A thread's packs are blockDim.x apart in a tile of rows. Shared memory behind turns: the rotations
// [kTileRows][D/2] of the tile and the places [packs of a row].
template <typename T, bool kSplit> __device__ __forceinline__ void columns_wide(const ColumnsParams& p, double* turns) {
  constexpr int W = kLanes<T>;
  constexpr int kPacksInFlight = kSplit ? 4 : 3; // of a thread
  const int packs = p.end[p.parts - 1] / W, pairs = p.dim / 2;
  float2* rotations = reinterpret_cast<float2*>(turns + pairs);
  Place* places = reinterpret_cast<Place*>(rotations + kTileRows * pairs);
  for (int c = threadIdx.x; c < packs; c += blockDim.x) {
    int i = 0, first = 0;
    while (c * W >= p.end[i]) first = p.end[i++];
    const int at = c * W - first;
    Place& place = places[c];
    for (int t = 0; t < 3; ++t) place.at[t] = p.part[i][t] == nullptr ? nullptr : static_cast<char*>(p.part[i][t]) + at * sizeof(T);
    place.step = int32_t((p.end[i] - first) * sizeof(T));
    place.pair = p.turned[i] ? at % p.dim / 2 : -1;
  }
  const int more_rows = blockDim.x / packs, more_packs = blockDim.x % packs;
  for (int64_t tile = blockIdx.x * int64_t(kTileRows); tile < p.rows; tile += gridDim.x * int64_t(kTileRows)) {
    const int rows = int(min(int64_t(kTileRows), p.rows - tile));
    __syncthreads(); // the rotations of the tile before have been used
    for (int k = threadIdx.x; k < rows * pairs; k += blockDim.x) {
      const int r = k / pairs;
      rotations[k] = rotation_at(double(p.start + (tile + r) % p.seq), turns[k - r * pairs], p.inverse);
    }
    __syncthreads();
    uint4* joint = static_cast<uint4*>(p.joint) + tile * packs;
    int row = threadIdx.x / packs, pack = threadIdx.x % packs;
    while (row < rows) {
      uint4 raw[kPacksInFlight], second[kPacksInFlight], third[kPacksInFlight];
      int terms[kPacksInFlight];
      uint4* to[kPacksInFlight];
      int turn[kPacksInFlight]; // index in rotations, or -1
#pragma unroll
      for (int u = 0; u < kPacksInFlight; ++u) {
        to[u] = nullptr;
        if (row < rows) {
          const Place place = places[pack];
          const int64_t at = (tile + row) * place.step;
          uint4* part = reinterpret_cast<uint4*>(place.at[0] + at);
          uint4* whole = joint + row * packs + pack;
          raw[u] = kSplit ? *whole : *part;
          to[u] = kSplit ? part : whole;
          terms[u] = 1;
          if (!kSplit && place.at[1] != nullptr) {
            second[u] = *reinterpret_cast<const uint4*>(place.at[1] + at);
            terms[u] = 2;
            if (place.at[2] != nullptr) {
              third[u] = *reinterpret_cast<const uint4*>(place.at[2] + at);
              terms[u] = 3;
            }
          }
          turn[u] = place.pair < 0 ? -1 : row * pairs + place.pair;
        }
        row += more_rows, pack += more_packs;
        if (pack >= packs) pack -= packs, ++row;
      }
#pragma unroll
      for (int u = 0; u < kPacksInFlight; ++u) {
        if (to[u] == nullptr) continue;
        if (turn[u] < 0 && terms[u] == 1) {
          *to[u] = raw[u];
          continue;
        }
        float v[W];
        unpack<T>(raw[u], v);
        if (terms[u] > 1) add_pack<T>(v, second[u]);
        if (terms[u] > 2) add_pack<T>(v, third[u]);
        if (turn[u] >= 0) {
#pragma unroll
          for (int j = 0; j < W; j += 2) turn_pair(v[j], v[j + 1], rotations[turn[u] + j / 2]);
        }
        write<W>(reinterpret_cast<T*>(to[u]), v);
      }
    }
  }
}

// One element at a time: any sizes, any addresses.
template <typename T, bool kSplit> __device__ __forceinline__ void columns_narrow(const ColumnsParams& p, const double* turns) {
  const int cols = p.end[p.parts - 1];
  const int64_t n = p.rows * cols, step = int64_t(gridDim.x) * blockDim.x;
  for (int64_t i = blockIdx.x * int64_t(blockDim.x) + threadIdx.x; i < n; i += step) {
    const int64_t row = i / cols;
    const int c = int(i - row * cols);
    int k = 0, first = 0;
    while (c >= p.end[k]) first = p.end[k++];
    const int64_t begin = row * (p.end[k] - first);
    T* whole = static_cast<T*>(p.joint) + row * cols + first;
    const auto load = [&](int at) {
      if (kSplit) return to_float(whole[at]);
      float sum = to_float(static_cast<const T*>(p.part[k][0])[begin + at]);
      for (int t = 1; t < 3 && p.part[k][t] != nullptr; ++t) sum += to_float(static_cast<const T*>(p.part[k][t])[begin + at]);
      return sum;
    };
    T* y = kSplit ? static_cast<T*>(p.part[k][0]) + begin : whole;
    const int at = c - first;
    if (!p.turned[k]) {
      y[at] = from_float<T>(load(at));
      continue;
    }
    const int d = at % p.dim, even = at - d % 2;
    float a = load(even), b = load(even + 1);
    turn_pair(a, b, rotation_at(double(p.start + row % p.seq), turns[d / 2], p.inverse));
    y[at] = from_float<T>(at == even ? a : b);
  }
}

// Dynamic shared memory: float64 [D/2], the turns of each pair from one position to the next, then what columns_wide says.
template <typename T, bool kSplit> __device__ __forceinline__ void columns(const ColumnsParams& p) {
  extern __shared__ float4 nsa_dynamic_shared[];
  double* turns = reinterpret_cast<double*>(nsa_dynamic_shared);
  fill_turns(turns, p.dim, p.log2_base);
  bool wide = p.wide && aligned(p.joint);
  for (int i = 0; i < p.parts; ++i) wide = wide && aligned(p.part[i][0], p.part[i][1], p.part[i][2]);
  if (wide) {
    columns_wide<T, kSplit>(p, turns);
  } else {
    columns_narrow<T, kSplit>(p, turns);
  }
}

template <typename T> __device__ void split_columns(const ColumnsParams& p) { columns<T, true>(p); }

} // namespace nsa

NSA_KERNEL(split_columns, ColumnsParams, 256)

// Three blocks share a multiprocessor, each thread with up to 9 loads in flight.
#define NSA_JOIN_COLUMNS(suffix, T)                                                                                    \
  extern "C" __global__ void __launch_bounds__(256, 3)                                                                 \
    nsa_join_columns_##suffix(const __grid_constant__ nsa::ColumnsParams p) {                                          \
    nsa::columns<T, false>(p);                                                                                         \
  }
NSA_JOIN_COLUMNS(f32, float)
NSA_JOIN_COLUMNS(bf16, nsa::bf16)
NSA_JOIN_COLUMNS(f16, nsa::f16)
