// Splits a matrix by columns, and joins matrices: joint [rows,cols] holds the parts [rows,cols_i] side by side.
//
//   split_columns   joint -> parts
//   join_columns    parts -> joint; a part may be the sum of up to 3 terms, added in their order
//
// Parts that are heads [H,D], with the same D, may be rotated as in rope.cu; row i is token i of B*S. Results are rounded to T once.
// Outputs are written with =; nothing is saved. With 16-byte accesses each element is read once and written once.
#include "../pointwise/rope.cuh"

namespace nsa {

constexpr int kMaxParts = 12, kMaxTerms = 3;  // linear.MaxFused, linear.MaxTerms

struct ColumnsParams {
  void* joint;
  void* part[kMaxParts][kMaxTerms]; // the terms of each part, then null
  const Document* documents; // [B,S], or null
  const int32_t* starts;     // [B], or null
  int64_t rows;
  int64_t seq; // S
  int64_t start;
  Rotary rotary;
  int32_t end[kMaxParts];    // the column after each part
  int32_t rotated[kMaxParts]; // whether each part is rotated
  int32_t parts;
  int32_t dim; // D; 0 if nothing is rotated
  int32_t inverse;
  int32_t wide; // whether parts and heads begin at multiples of 16 bytes
};

constexpr int kTilePositions = 16; // positions of a block; it does them in several sequences

template <typename T> __device__ __forceinline__ void add_pack(float (&sum)[kLanes<T>], Pack<T> x) {
  float v[kLanes<T>];
  x.get(v);
#pragma unroll
  for (int j = 0; j < kLanes<T>; ++j) sum[j] += v[j];
}

// Bytes points to 16 bytes in row 0; step is the number of bytes from one row to the next.
struct Bytes {
  char* at;
  int64_t step;

  __device__ __forceinline__ uint4* row(int r) const { return reinterpret_cast<uint4*>(at + r * step); }
};

// move_rows sets `to` to the sum of the terms `from`, arrays whose rows are from_step bytes apart, for the rows first, first + step, ...
// below end. rotations, if not null, points to those of the 16 bytes in row 0; those of the next row lie `pairs` further.
template <typename T, int kTerms>
__device__ __forceinline__ void move_rows(int first, int step, int end, char* const (&from)[3], int64_t from_step, Bytes to,
                                          const float2* rotations, int pairs) {
  constexpr int W = kLanes<T>, kInFlight = kTerms == 1 ? 4 : sizeof(T) == 2 ? 2 : 1;
#pragma unroll 1
  for (; first < end; first += kInFlight * step) {
    uint4 raw[kInFlight][kTerms];
#pragma unroll
    for (int u = 0; u < kInFlight; ++u) {
      const int r = min(first + u * step, end - 1); // loads the last row again rather than branch
#pragma unroll
      for (int t = 0; t < kTerms; ++t) raw[u][t] = *Bytes{from[t], from_step}.row(r);
    }
#pragma unroll
    for (int u = 0; u < kInFlight; ++u) {
      const int r = first + u * step;
      if (r >= end) break;
      if (kTerms == 1 && rotations == nullptr) {
        *to.row(r) = raw[u][0];
        continue;
      }
      float v[W];
      Pack<T>{raw[u][0]}.get(v);
#pragma unroll
      for (int t = 1; t < kTerms; ++t) add_pack<T>(v, {raw[u][t]});
      if (rotations != nullptr) {
#pragma unroll
        for (int j = 0; j < W; j += 2) rotate_pair(v[j], v[j + 1], rotations[r * pairs + j / 2]);
      }
      write<W>(reinterpret_cast<T*>(to.row(r)), v);
    }
  }
}

// Moves 16 bytes at a time. A thread copies one 16-byte place of its rows, or several if a row has more places than the block has
// threads. Shared memory after turns: the rotations [kTilePositions][D/2]. Grid x is tiles of positions; a block with blockIdx.y does
// every gridDim.y-th sequence. With documents or starts gridDim.y is B, because their rotations differ.
template <typename T, bool kSplit> __device__ __forceinline__ void columns_wide(const ColumnsParams& p, double* turns) {
  const int packs = p.end[p.parts - 1] / kLanes<T>, pairs = p.dim / 2, step = max(1, int(blockDim.x) / packs);
  float2* rotations = reinterpret_cast<float2*>(turns + pairs);
  const int64_t start = block_from_end() * kTilePositions, sequences = p.rows / p.seq, sequence = gridDim.y - 1 - blockIdx.y;
  const int first = int(threadIdx.x) / packs, end = int(min(int64_t(kTilePositions), p.seq - start));
  const int64_t first_position = p.start + (p.starts ? p.starts[sequence] : 0);
  for (int k = threadIdx.x; k < end * pairs; k += blockDim.x) {
    const int i = k / pairs;
    const int64_t position = first_position + position_of(p.documents, sequence * p.seq + start + i, start + i);
    rotations[k] = rotation_at(double(position), turns[k - i * pairs], p.inverse);
  }
  __syncthreads();
  if (first >= step) return; // threads beyond a whole number of rows have nothing to do
  for (int pack = threadIdx.x % packs; pack < packs; pack += blockDim.x) {
    const int column = pack * kLanes<T>;
    int i = 0, begin = 0;
    while (column >= p.end[i]) begin = p.end[i++];
    const int64_t part_step = int64_t(p.end[i] - begin) * int64_t(sizeof(T)), joint_step = int64_t(packs) * 16;
    const float2* turn = p.rotated[i] ? rotations + (column - begin) % p.dim / 2 : nullptr;
    for (int64_t b = sequence; b < sequences; b += gridDim.y) {
      const int64_t row = b * p.seq + start;
      char *joint[3] = {static_cast<char*>(p.joint) + row * joint_step + int64_t(pack) * 16}, *part[3];
#pragma unroll
      for (int t = 0; t < 3; ++t) part[t] = static_cast<char*>(p.part[i][t]) + row * part_step + int64_t(column - begin) * int64_t(sizeof(T));
      const Bytes whole{joint[0], joint_step};
      if (kSplit) move_rows<T, 1>(first, step, end, joint, joint_step, Bytes{part[0], part_step}, turn, pairs);
      else if (p.part[i][1] == nullptr) move_rows<T, 1>(first, step, end, part, part_step, whole, turn, pairs);
      else if (p.part[i][2] == nullptr) move_rows<T, 2>(first, step, end, part, part_step, whole, turn, pairs);
      else move_rows<T, 3>(first, step, end, part, part_step, whole, turn, pairs);
    }
  }
}

// Moves one element at a time: any sizes, any addresses.
template <typename T, bool kSplit> __device__ __forceinline__ void columns_narrow(const ColumnsParams& p, const double* turns) {
  const int cols = p.end[p.parts - 1];
  const int64_t n = p.rows * cols, step = int64_t(gridDim.x) * gridDim.y * blockDim.x;
  for (int64_t i = (int64_t(blockIdx.y) * gridDim.x + blockIdx.x) * blockDim.x + threadIdx.x; i < n; i += step) {
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
    if (!p.rotated[k]) {
      y[at] = from_float<T>(load(at));
      continue;
    }
    const int d = at % p.dim, even = at - d % 2;
    float a = load(even), b = load(even + 1);
    const int64_t start = p.start + (p.starts ? p.starts[row / p.seq] : 0);
    rotate_pair(a, b, rotation_at(double(start + position_of(p.documents, row, row % p.seq)), turns[d / 2], p.inverse));
    y[at] = from_float<T>(at == even ? a : b);
  }
}

// Dynamic shared memory: float64 [D/2], the turns of each pair from one position to the next, then the rotations of columns_wide.
template <typename T, bool kSplit> __device__ __forceinline__ void columns(const ColumnsParams& p) {
  extern __shared__ float4 nsa_dynamic_shared[];
  double* turns = reinterpret_cast<double*>(nsa_dynamic_shared);
  fill_turns(turns, p.dim, p.rotary);
  bool wide = p.wide && aligned(p.joint);
  for (int i = 0; i < p.parts; ++i) wide = wide && aligned(p.part[i][0], p.part[i][1], p.part[i][2]);
  if (wide) {
    columns_wide<T, kSplit>(p, turns);
  } else {
    columns_narrow<T, kSplit>(p, turns);
  }
}

template <typename T> __device__ void split_columns(const ColumnsParams& p) { columns<T, true>(p); }
template <typename T> __device__ void join_columns(const ColumnsParams& p) { columns<T, false>(p); }

} // namespace nsa

NSA_KERNEL(split_columns, ColumnsParams, 512)
NSA_KERNEL(join_columns, ColumnsParams, 512)
