// One step of decoding (decode.Step) in two or three launches: one token of each sequence is stored in the cache and attends. q, k, v [B,1,...]
// and cache -> o [B,1,Hq,Dv], idx int32 [B,1,Hkv,n], read int32 [B,Hkv,3] (the keys read by each branch), and the cache.
//
//   decode_spans      grid [parts of the compressed and window branches, Hkv, B]. A block has a part of the keys of one branch. The block
//                     with the branch's newest key first stores the token, and compresses the block of l tokens that it completes. The
//                     last block of the compressed branch to end selects the blocks and writes idx
//   decode_selected   grid [parts, Hkv, B], only with the selected branch. A block has a part of the keys of the selected blocks
//   decode_join       grid [shares of o, Hkv, B]. A block joins the parts of all branches for some numbers of o
//
// Parts are added in a fixed order, so bits do not depend on the order of blocks. A part has a fixed number of keys, so bits do not depend
// on other sequences.
#include "../overlap.cuh"
#include "decode_select.cuh"
#include "decode_store.cuh"

namespace nsa {

// The dynamic shared memory of a block: rotation [D/2], the rotated heads, and `work`, which phases use one after the other.
struct DecodeShared {
  float2* rotation;
  void* q;
  float* work;

  __device__ DecodeShared(const DecodeParams& p, int q_bytes) {
    extern __shared__ float4 nsa_dynamic_shared[];
    char* at = reinterpret_cast<char*>(nsa_dynamic_shared);
    rotation = reinterpret_cast<float2*>(at);
    q = at += (p.dim * 4 + 15) / 16 * 16;
    work = row_from(at + (q_bytes + 15) / 16 * 16);
  }
};

// store writes the token's rotated key and its value to the places where its branch reads them, and compresses the block that the token
// completes. The block with the newest part of the compressed branch also stores the token for the selected branch.
template <typename T> __device__ void store(const Step& s, const DecodeShared& shared) {
  const DecodeParams& p = s.p;
  T* cache = static_cast<T*>(p.cache);
  rotations(s, shared.rotation);
  const bool window = s.branch == kWindowBranch;
#pragma unroll 1
  for (int i = 0; i < (!window && s.has(kSelectedBranch) ? 2 : 1); ++i) {
    const int branch = window ? kWindowBranch : i == 0 ? kCompressedBranch : kSelectedBranch;
    const DecodeRegion r = window ? s.region() : i == 0 ? p.tail : p.tokens;
    const int64_t row = window ? KeyRows(s, nullptr)(s.keys - 1) : i == 0 ? s.tail_row(s.t) : s.token_row();
    const T *k = static_cast<const T*>(p.k[branch]) + s.at() * p.dim, *v = static_cast<const T*>(p.v[branch]) + s.at() * p.value_dim;
    T *to_k = cache + r.keys + row * p.dim, *to_v = cache + r.values + row * p.value_dim;
#pragma unroll 1
    for (int c = threadIdx.x; 2 * c < p.dim; c += kDecodeThreads) {
      float x = to_float(k[2 * c]), y = to_float(k[2 * c + 1]);
      rotate_pair(x, y, shared.rotation[c]);
      to_k[2 * c] = from_float<T>(x), to_k[2 * c + 1] = from_float<T>(y);
    }
#pragma unroll 1
    for (int c = threadIdx.x; c < p.value_dim; c += kDecodeThreads) to_v[c] = v[c];
  }
  __syncthreads();
  const int first = s.t + 1 - p.l;
  if (!window && first >= 0 && p.d.mod(first) == 0) {
    compress<T>(s, shared.work);
    __syncthreads();
  }
}

// attend computes part i of the step's branch. newest: the part contains the token's own key, so this block stores the token.
template <typename Products>
__device__ void attend(const Step& s, const DecodeShared& shared, int i, bool newest, Part part, const int32_t* idx) {
  using T = typename Products::Type;
  const DecodeParams& p = s.p;
  const T* cache = static_cast<const T*>(p.cache);
  const DecodeRegion r = s.region();
  const bool keeps_logits = s.branch == kCompressedBranch && s.has(kSelectedBranch);
  const Source from = {cache + r.keys, s.branch != kCompressedBranch || s.has(kCompressedBranch) ? cache + r.values : nullptr,
                       {keeps_logits ? p.logits + s.at() * p.h * p.max_compressed : nullptr, p.max_compressed}};
  const int warp = threadIdx.x / 32, size = Products::floats(p), outputs = p.h * p.value_dim;
  const int lo = i * p.part_keys[s.branch], hi = min(s.keys, lo + p.part_keys[s.branch]), all = kDecodeWarps * Products::kKeys;
  const KeyRows row(s, idx);
  int first = lo + warp * Products::kKeys;
  if (newest) store<T>(s, shared);
  Products products;
  float* mine = shared.work + warp * size;
  products.start(p, mine);
  products.fetch(p, from, first, all, hi, row);
  Products::stage_q(s, shared.rotation, shared.q);
  products.load_q(shared.q);
#pragma unroll 1
  for (; first < hi; first += all) products.step(p, from, mine, first, all, hi, row);
  __shared__ int32_t read[kDecodeWarps];
  const int count = products.finish(p, mine);
  if (threadIdx.x % 32 == 0) read[warp] = count;
  __syncthreads();

  // Joins the results of the warps in their order. The largest logits of warps are overwritten with factors.
#pragma unroll 1
  for (int j = threadIdx.x; j < p.h; j += kDecodeThreads) {
    float* top = shared.work + outputs + j;
    Softmax all;
    all.start();
    for (int w = 0; w < kDecodeWarps; ++w) all.top = fmaxf(all.top, top[w * size]);
    for (int w = 0; w < kDecodeWarps; ++w) {
      const float factor = exp2f((top[w * size] - all.base()) * p.scale * kLog2E);
      all.sum += factor * top[w * size + p.h];
      top[w * size] = factor;
    }
    part.top()[j] = all.top, part.sum()[j] = all.sum;
  }
  __syncthreads();
#pragma unroll 1
  for (int i = threadIdx.x; i < outputs; i += kDecodeThreads) {
    const float* o = shared.work + i;
    const float* factor = shared.work + outputs + i / p.value_dim;
    float sum = 0;
    for (int w = 0; w < kDecodeWarps; ++w) sum += factor[w * size] * o[w * size];
    part.o[i] = sum;
  }
  if (threadIdx.x == 0) {
    int all = 0;
    for (int w = 0; w < kDecodeWarps; ++w) all += read[w];
    *part.read() = all;
  }
}

// OutputShare is the share [lo,hi) of this block in the h*Dv numbers of o, a multiple of W. All blocks but the last ones have `each`.
template <int W> struct OutputShare {
  int per_block, lo, hi;
  __device__ explicit OutputShare(const DecodeParams& p) {
    const int all = p.h * p.value_dim;
    per_block = (all / W + gridDim.x - 1) / gridDim.x * W;
    lo = min(all, int(blockIdx.x) * per_block), hi = min(all, lo + per_block);
  }
};

// weigh sets factors [count,h] of the heads [from,to): their o is the sum of each part's o times its factor, gates included.
template <typename T> __device__ void weigh(const Step& s, const Stats& stats, int gate, int gates, int from, int to, float* factors) {
  const DecodeParams& p = s.p;
  const int lane = threadIdx.x % 32;
#pragma unroll 1
  for (int j = from + threadIdx.x / 32; j < to; j += kDecodeWarps) {
    const Softmax all = stats.joined(j);
    float norm = all.norm();
    if (p.gates) norm *= to_float(static_cast<const T*>(p.gates)[(s.at() * p.h + j) * gates + gate]);
#pragma unroll 1
    for (int i = lane; i < stats.count; i += 32) factors[i * p.h + j] = norm * exp2f((stats.top(i, j) - all.base()) * p.scale * kLog2E);
  }
}

// add adds to sum W numbers of the parts slice, slice + slices, ..., times the factors of their head.
template <int W> __device__ void add(const DecodeParams& p, const float* from, const int32_t* places, const float* factors, int parts, int slice,
                                     int slices, float (&sum)[W]) {
  constexpr int kAtOnce = 12; // loads in flight
  const int size = p.part_size;
#pragma unroll 1
  for (int k = slice; k < parts; k += kAtOnce * slices) {
    Pack<float> x[kAtOnce];
#pragma unroll
    for (int e = 0; e < kAtOnce; ++e) {
      const int i = k + e * slices;
      if (i >= parts) continue;
      if constexpr (W == 4) x[e].part[0] = __ldcg(reinterpret_cast<const uint4*>(from + int64_t(places[i]) * size));
      else x[e].part[0].x = __float_as_int(__ldcg(from + int64_t(places[i]) * size));
    }
#pragma unroll
    for (int e = 0; e < kAtOnce; ++e) {
      const int i = k + e * slices;
      if (i >= parts) continue;
      float v[4];
      x[e].get(v);
#pragma unroll
      for (int c = 0; c < W; ++c) sum[c] += factors[i * p.h] * v[c];
    }
  }
}

// join adds up the parts and writes this block's share of o, W numbers at a time. If there are more threads than such numbers, several
// threads share one, each with a slice of the parts. places, factors and sums, the room for the sums of slices, are in shared memory.
template <typename T, int W>
__device__ void join(const Step& s, const OutputShare<W>& share, const int32_t* places, const float* factors, int parts, float* sums) {
  const DecodeParams& p = s.p;
  const int n = share.per_block / W, slices = max(1, kDecodeThreads / n), numbers = share.hi - share.lo;
  const float* from = Part(p, s.at(), 0).o + share.lo;
  T* o = static_cast<T*>(p.o) + s.at() * p.h * p.value_dim + share.lo;
#pragma unroll 1
  for (int u = threadIdx.x; u < n * slices; u += kDecodeThreads) {
    const int i = u % n * W, slice = u / n;
    if (i >= numbers) continue;
    float sum[W] = {};
    add<W>(p, from + i, places, factors + (share.lo + i) / p.value_dim, parts, slice, slices, sum);
    for (int c = 0; c < W; ++c) {
      if (slices == 1) o[i + c] = from_float<T>(sum[c]);
      else sums[slice * n * W + i + c] = sum[c];
    }
  }
  if (slices == 1) return;
  __syncthreads();
#pragma unroll 1
  for (int i = threadIdx.x; i < numbers; i += kDecodeThreads) {
    float sum = 0;
#pragma unroll 1
    for (int slice = 0; slice < slices; ++slice) sum += sums[slice * n * W + i];
    o[i] = from_float<T>(sum);
  }
}

// join_parts joins the parts of all branches of a group for W numbers of o at a time. `shared` holds the Stats, factors and places of the
// parts, and the room of join.
template <typename T, int W> __device__ void join_parts(const Step& s, float* shared) {
  const DecodeParams& p = s.p;
  const int64_t at = s.at();
  const OutputShare<W> share(p);
  int gates = 0, n = 0, parts[kBranches]; // gates: branches that count in o; n: their parts
  for (int b = 0; b < kBranches; ++b) gates += s.has(b), parts[b] = s.parts_of(b);
  float *factors = shared + p.all_parts * 2 * p.h, *sums = factors + p.all_parts * p.h;
  int32_t* places = reinterpret_cast<int32_t*>(sums + 4 * kDecodeThreads);
#pragma unroll 1
  for (int b = 0; b < kBranches; ++b) {
    if (blockIdx.x == 0 && threadIdx.x / 32 == b) {
      int read = 0;
#pragma unroll 1
      for (int i = threadIdx.x % 32; i < parts[b]; i += 32) read += __ldcg(Part(p, at, p.first_part[b] + i).read());
      read = warp_sum(read);
      if (threadIdx.x % 32 == 0) p.read[at * kBranches + b] = read;
    }
    if (!s.has(b)) continue;
    read_stats(p, at, p.first_part[b], parts[b], shared + n * 2 * p.h);
#pragma unroll 1
    for (int i = threadIdx.x; i < parts[b]; i += kDecodeThreads) places[n + i] = p.first_part[b] + i;
    n += parts[b];
  }
  __syncthreads();
  const int head = share.lo / p.value_dim, end = (share.hi + p.value_dim - 1) / p.value_dim;
#pragma unroll 1
  for (int b = 0, gate = 0, first = 0; b < kBranches; ++b) {
    if (!s.has(b)) continue;
    weigh<T>(s, Stats{p, shared + first * 2 * p.h, parts[b]}, gate++, gates, head, end, factors + first * p.h);
    first += parts[b];
  }
  __syncthreads();
  join<T, W>(s, share, places, factors, n, sums);
}

template <typename T> __device__ void decode_join(const DecodeParams& p) {
  await_previous();
  const Step s(p, kWindowBranch, blockIdx.z, blockIdx.y);
  if (s.t < 0) return; // decode_spans has written the results
  extern __shared__ float4 nsa_dynamic_shared[];
  float* shared = reinterpret_cast<float*>(nsa_dynamic_shared);
  if (p.value_dim % 4 == 0) join_parts<T, 4>(s, shared);
  else join_parts<T, 1>(s, shared);
}

template <typename Products> __device__ void decode_spans(const DecodeParams& p) {
  using T = typename Products::Type;
  next_may_start();
  const int x = blockIdx.x, branch = (p.stores >> kCompressedBranch & 1) && x < p.first_part[kWindowBranch] ? kCompressedBranch : kWindowBranch;
  const Step s(p, branch, blockIdx.z, blockIdx.y);
  const bool selects = s.has(kSelectedBranch);
  if (x == 0 && (s.t < 0 || !selects)) no_blocks(s);
  if (s.t < 0) {
    if (x == 0) write_empty_slot<T>(s);
    return;
  }
  const int i = x - p.first_part[branch], parts = s.parts_of(branch);
  if (i >= parts) return;
  const DecodeShared shared(p, Products::q_bytes(p));
  attend<Products>(s, shared, i, i == parts - 1, Part(p, s.at(), x), nullptr);

  if (!selects || branch != kCompressedBranch || !is_last_arrival(p, s.at(), parts)) return;
  if (s.own() >= p.n) {
    select_blocks(s, shared.work);
  } else {
#pragma unroll 1
    for (int f = threadIdx.x; f < p.n; f += kDecodeThreads) p.idx[s.at() * p.n + f] = f <= s.own() ? f : -1;
  }
}

template <typename Products> __device__ void decode_selected(const DecodeParams& p) {
  next_may_start();
  const Step s(p, kSelectedBranch, blockIdx.z, blockIdx.y);
  const int i = blockIdx.x, parts = s.t < 0 ? 0 : s.parts_of(kSelectedBranch);
  if (i >= parts) return;
  const DecodeShared shared(p, Products::q_bytes(p));
  attend<Products>(s, shared, i, false, Part(p, s.at(), p.first_part[kSelectedBranch] + i), p.idx + s.at() * p.n);
}

}  // namespace nsa

#define NSA_DECODE(name, blocks, ...)                                                                                    \
  extern "C" __global__ void __launch_bounds__(nsa::kDecodeThreads, blocks)                                              \
      nsa_decode_spans_##name(const __grid_constant__ nsa::DecodeParams p) { nsa::decode_spans<nsa::__VA_ARGS__>(p); }   \
  extern "C" __global__ void __launch_bounds__(nsa::kDecodeThreads, blocks)                                              \
      nsa_decode_selected_##name(const __grid_constant__ nsa::DecodeParams p) { nsa::decode_selected<nsa::__VA_ARGS__>(p); }

// The number is the least number of blocks on a multiprocessor, which limits registers.
NSA_DECODE(f32, 4, Cores<float>)
NSA_DECODE(bf16, 4, Cores<nsa::bf16>)
NSA_DECODE(f16, 4, Cores<nsa::f16>)
NSA_TENSOR_CORE_CLASSES(NSA_DECODE)

#define NSA_DECODE_JOIN(name, type)                                                       \
  extern "C" __global__ void __launch_bounds__(nsa::kDecodeThreads)                       \
      nsa_decode_join_##name(const __grid_constant__ nsa::DecodeParams p) { nsa::decode_join<type>(p); }
NSA_DECODE_JOIN(f32, float)
NSA_DECODE_JOIN(bf16, nsa::bf16)
NSA_DECODE_JOIN(f16, nsa::f16)
