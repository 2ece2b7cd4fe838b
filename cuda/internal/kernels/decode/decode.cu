// One step of decoding (ops.DecodeOp), in two launches: one token of each sequence joins the cache and attends.
//
//   decode_spans      grid [parts of the compressed and window branches, Hkv, B]: a block has a part of the keys of a branch. The block
//                     of a branch's newest key first stores the token, and compresses the block of l tokens that it completes. The
//                     last block of the compressed branch to end chooses the selection blocks: idx =
//   decode_selected   grid [parts, Hkv, B]: the keys of the chosen blocks. The last block to end joins all parts: o =, read =
//
// Without the selected branch the first launch does all. Parts are added in their order, whichever block does it, so bits do not depend on
// the order of blocks; a part has a fixed number of keys, so they do not depend on other sequences.
#include "decode_choose.cuh"

namespace nsa {

// What a block has in dynamic shared memory: rotation [D/2], the heads, and work, whose use changes.
struct DecodeShared {
  float2* rotation;
  void* q;
  float* work;

  __device__ DecodeShared(const DecodeParams& p, int q_bytes) {
    extern __shared__ float4 nsa_dynamic_shared[];
    char* at = reinterpret_cast<char*>(nsa_dynamic_shared);
    rotation = reinterpret_cast<float2*>(at);
    q = at += (p.dim * 4 + 15) / 16 * 16;
    work = reinterpret_cast<float*>(at + (q_bytes + 15) / 16 * 16);
  }
};

// put stores the token's key, rotated, and its value in a row of a region.
template <typename T> __device__ void put(const Step& s, const float2* rotation, int branch, const DecodeRegion& r, int64_t row) {
  const DecodeParams& p = s.p;
  T* cache = static_cast<T*>(p.cache);
  const T* k = static_cast<const T*>(p.k[branch]) + s.at() * p.dim;
  const T* v = static_cast<const T*>(p.v[branch]) + s.at() * p.value_dim;
  for (int i = threadIdx.x; i < p.dim / 2; i += kDecodeThreads) {
    float x = to_float(k[2 * i]), y = to_float(k[2 * i + 1]);
    turn_pair(x, y, rotation[i]);
    T* to = cache + r.keys + row * p.dim + 2 * i;
    to[0] = from_float<T>(x), to[1] = from_float<T>(y);
  }
  for (int i = threadIdx.x; i < p.value_dim; i += kDecodeThreads) cache[r.values + row * p.value_dim + i] = v[i];
}

// compress stores the key (side 0) or the value (side 1) of the block that ends with the token. Shared, with an MLP: [l*dim] and [hidden].
template <typename T> __device__ void compress(const Step& s, int side, float* shared) {
  const DecodeParams& p = s.p;
  T* cache = static_cast<T*>(p.cache);
  const int dim = side ? p.value_dim : p.dim, first = s.t + 1 - p.l, lane = threadIdx.x % 32;
  const T* tail = cache + (side ? p.tail.values : p.tail.keys);
  T* to = cache + (side ? p.compressed.values : p.compressed.keys) + s.paged(p.compressed, first / p.d) * dim;
  const T *pe = static_cast<const T*>(p.phi[side][0]), *w1 = static_cast<const T*>(p.phi[side][1]), *w2 = static_cast<const T*>(p.phi[side][2]);
  if (!pe) {
    for (int i = threadIdx.x; i < dim; i += kDecodeThreads) {
      float sum = 0;
      for (int j = 0; j < p.l; ++j) sum += to_float(tail[s.tail_row(first + j) * dim + i]);
      to[i] = from_float<T>(sum / p.l);
    }
    return;
  }
  const int n = p.l * dim;
  float* hidden = shared + n;
  __syncthreads(); // shared is free
  for (int i = threadIdx.x; i < n; i += kDecodeThreads) shared[i] = to_float(tail[s.tail_row(first + i / dim) * dim + i % dim]) + to_float(pe[i]);
  __syncthreads();
  for (int i = threadIdx.x / 32; i < p.hidden; i += kDecodeWarps) {
    float sum = 0;
    for (int j = lane; j < n; j += 32) sum += shared[j] * to_float(w1[int64_t(i) * n + j]);
    sum = warp_sum(sum);
    if (lane == 0) hidden[i] = sum * sigmoid_of<T>(sum);
  }
  __syncthreads();
  for (int i = threadIdx.x / 32; i < dim; i += kDecodeWarps) {
    float sum = 0;
    for (int j = lane; j < p.hidden; j += 32) sum += hidden[j] * to_float(w2[i * p.hidden + j]);
    sum = warp_sum(sum);
    if (lane == 0) to[i] = from_float<T>(sum);
  }
}

// store puts the token where its branch reads it, the compressed branch's block that of the selected branch, too.
template <typename T> __device__ void store(const Step& s, const DecodeShared& shared) {
  const DecodeParams& p = s.p;
  if (s.branch == kWindowBranch) {
    put<T>(s, shared.rotation, kWindowBranch, s.region(), s.key_row(s.keys - 1, nullptr));
  } else {
    put<T>(s, shared.rotation, kCompressedBranch, p.tail, s.tail_row(s.t));
    if (s.has(kSelectedBranch)) put<T>(s, shared.rotation, kSelectedBranch, p.tokens, s.token_row());
    const int first = s.t + 1 - p.l;
    if (first >= 0 && first % p.d == 0) {
      __syncthreads();
      compress<T>(s, 0, shared.work);
      compress<T>(s, 1, shared.work);
    }
  }
  __syncthreads();
}

// attend computes a part: the keys [lo,hi) of the step's branch.
template <typename Products>
__device__ void attend(const Step& s, const DecodeShared& shared, int lo, int hi, Part part, const int32_t* idx) {
  using T = typename Products::Type;
  const DecodeParams& p = s.p;
  const T* cache = static_cast<const T*>(p.cache);
  const DecodeRegion& r = s.region();
  const bool chooses = s.branch == kCompressedBranch && s.has(kSelectedBranch);
  const Source from = {cache + r.keys, s.branch != kCompressedBranch || s.has(kCompressedBranch) ? cache + r.values : nullptr,
                       chooses ? p.logits + s.at() * p.h * p.most : nullptr};
  const int warp = threadIdx.x / 32, size = Products::floats(p), outputs = p.h * p.value_dim;
  float* mine = shared.work + warp * size;
  Products products;
  products.start(p, mine);
  for (int i = lo + warp * Products::kKeys; i < hi; i += kDecodeWarps * Products::kKeys)
    products.step(p, from, shared.q, mine, i, hi, [&](int key) { return s.key_row(key, idx); });
  __shared__ int32_t read[kDecodeWarps];
  const int count = products.finish(p, mine);
  if (threadIdx.x % 32 == 0) read[warp] = count;
  __syncthreads();

  // The warps' results are joined in their order; the largest logits become factors.
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

// finish joins the parts of all branches of a group: o =, read =. Shared: [parts,h] factors.
template <typename T> __device__ void finish(const Step& s, float* factors) {
  const DecodeParams& p = s.p;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int64_t at = s.at();
  int branches = 0; // that have a gate
  for (int b = 0; b < kBranches; ++b) branches += s.has(b);
  for (int b = 0, gate = 0, first = 0; b < kBranches; ++b) {
    const int count = s.parts_of(b);
    for (int j = warp; j < p.h && s.has(b); j += kDecodeWarps) {
      const Softmax all = joined(p, at, p.first[b], count, j);
      float norm = all.norm();
      if (p.gates) norm *= to_float(static_cast<const T*>(p.gates)[(at * p.h + j) * branches + gate]);
      for (int i = lane; i < count; i += 32)
        factors[(first + i) * p.h + j] = norm * exp2f((__ldcg(Part(p, at, p.first[b] + i).top() + j) - all.base()) * p.scale * kLog2E);
    }
    if (s.has(b)) first += count, ++gate;
    if (threadIdx.x == 0) {
      int read = 0;
      for (int i = 0; i < count; ++i) read += __ldcg(Part(p, at, p.first[b] + i).read());
      p.read[at * kBranches + b] = read;
    }
  }
  __syncthreads();
  T* o = static_cast<T*>(p.o) + at * p.h * p.value_dim;
  for (int i = threadIdx.x; i < p.h * p.value_dim; i += kDecodeThreads) {
    float sum = 0;
    for (int b = 0, first = 0; b < kBranches; ++b) {
      if (!s.has(b)) continue;
      const int count = s.parts_of(b);
      for (int k = 0; k < count; ++k) sum += factors[(first + k) * p.h + i / p.value_dim] * __ldcg(Part(p, at, p.first[b] + k).o + i);
      first += count;
    }
    o[i] = from_float<T>(sum);
  }
}

// rest writes the results of a slot without a token.
template <typename T> __device__ void rest(const Step& s) {
  const DecodeParams& p = s.p;
  T* o = static_cast<T*>(p.o) + s.at() * p.h * p.value_dim;
  for (int i = threadIdx.x; i < p.h * p.value_dim; i += kDecodeThreads) o[i] = from_float<T>(0);
  for (int i = threadIdx.x; i < kBranches; i += kDecodeThreads) p.read[s.at() * kBranches + i] = 0;
}

__device__ inline void no_blocks(const Step& s) {
  for (int i = threadIdx.x; i < s.p.n; i += kDecodeThreads) s.p.idx[s.at() * s.p.n + i] = -1;
}

// The heads of the group, rotated.
template <typename Products> __device__ void stage(const Step& s, const DecodeShared& shared) {
  for (int i = threadIdx.x; i < s.p.dim / 2; i += kDecodeThreads)
    shared.rotation[i] = rotation_at(s.t, turns_of(i, s.p.dim, s.p.log2_base), false);
  __syncthreads();
  Products::stage(s, shared.rotation, shared.q);
  __syncthreads();
}

template <typename Products> __device__ void decode_spans(const DecodeParams& p) {
  using T = typename Products::Type;
  const int x = blockIdx.x, branch = (p.stores >> kCompressedBranch & 1) && x < p.first[kWindowBranch] ? kCompressedBranch : kWindowBranch;
  const Step s(p, branch, blockIdx.z, blockIdx.y);
  const bool selects = s.has(kSelectedBranch);
  if (s.t < 0) {
    if (x == 0) no_blocks(s), rest<T>(s);
    return;
  }
  const int i = x - p.first[branch], parts = s.parts_of(branch);
  if (i >= parts) return;
  const DecodeShared shared(p, Products::q_bytes(p));
  stage<Products>(s, shared);
  if (i == parts - 1) store<T>(s, shared);
  const int lo = i * p.split[branch];
  attend<Products>(s, shared, lo, min(s.keys, lo + p.split[branch]), Part(p, s.at(), x), nullptr);

  if (!selects) {
    if (!arrive(p, s.at(), s.parts_of(kCompressedBranch) + s.parts_of(kWindowBranch))) return;
    no_blocks(s);
    finish<T>(s, shared.work);
  } else if (branch == kCompressedBranch && arrive(p, s.at(), parts)) {
    if (s.own() >= p.n) {
      choose(s, shared.work);
    } else {
      for (int f = threadIdx.x; f < p.n; f += kDecodeThreads) p.idx[s.at() * p.n + f] = f <= s.own() ? f : -1;
    }
  }
}

template <typename Products> __device__ void decode_selected(const DecodeParams& p) {
  using T = typename Products::Type;
  const Step s(p, kSelectedBranch, blockIdx.z, blockIdx.y);
  const int i = blockIdx.x, parts = s.t < 0 ? 0 : s.parts_of(kSelectedBranch), lo = i * p.split[kSelectedBranch];
  if (i >= parts) return;
  const DecodeShared shared(p, Products::q_bytes(p));
  stage<Products>(s, shared);
  attend<Products>(s, shared, lo, min(s.keys, lo + p.split[kSelectedBranch]), Part(p, s.at(), p.first[kSelectedBranch] + i), p.idx + s.at() * p.n);
  if (arrive(p, s.at(), parts)) finish<T>(s, shared.work);
}

}  // namespace nsa

#define NSA_DECODE(name, ...)                                                                                            \
  extern "C" __global__ void __launch_bounds__(nsa::kDecodeThreads) nsa_decode_spans_##name(const __grid_constant__ nsa::DecodeParams p) {    \
    nsa::decode_spans<nsa::__VA_ARGS__>(p);                                                                              \
  }                                                                                                                      \
  extern "C" __global__ void __launch_bounds__(nsa::kDecodeThreads) nsa_decode_selected_##name(const __grid_constant__ nsa::DecodeParams p) { \
    nsa::decode_selected<nsa::__VA_ARGS__>(p);                                                                           \
  }

NSA_DECODE(f32, Cores<float>)
NSA_DECODE(bf16, Cores<nsa::bf16>)
NSA_DECODE(f16, Cores<nsa::f16>)
NSA_DECODE(mma64_bf16, MatrixUnits<nsa::bf16, 64>)
NSA_DECODE(mma64_f16, MatrixUnits<nsa::f16, 64>)
NSA_DECODE(mma128_bf16, MatrixUnits<nsa::bf16, 128>)
NSA_DECODE(mma128_f16, MatrixUnits<nsa::f16, 128>)
