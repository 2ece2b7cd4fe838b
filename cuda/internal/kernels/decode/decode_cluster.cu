// One step of decoding (ops.DecodeOp) in one launch: a cluster of blocks has a group of a sequence. grid [blocks, Hkv, B].
//
// Each block has an equal share of the keys of each branch. What others need of its results it writes to their shared memory:
//
//   block 0   store, compressed ─┐         window ┐ sums of       ┐          choose, selected ┐
//   block 1   store, compressed ─┼► maxima window ┼ probabilities ┼► of all  choose, selected ┼► o of some dims,
//   ..                           │  sums          │               │  keys                     │  from all blocks
//                                1                                2                           3        cluster barriers
//
// The block that has the newest key of a branch stores the token. All blocks make the same choice. Bits depend on the token and on
// the number of blocks alone, a power of two up to 8.
#include "../cluster.cuh"
#include "../overlap.cuh"
#include "decode_choose.cuh"
#include "decode_store.cuh"

#ifdef NSA_CLUSTERS
namespace nsa {

constexpr int kMostHeads = 16;

// The keys of a branch that a block has, of `of`.
struct Share {
  int keys, lo, hi;
  bool newest; // is among them

  __device__ explicit Share(int of) {
    const int at_once = 16 * gridDim.x; // a power of two
    keys = max(1, (of + at_once - 1) >> (__ffs(at_once) - 1)) * 16;
    lo = min(of, int(blockIdx.x) * keys), hi = min(of, lo + keys);
    newest = of == 0 ? blockIdx.x == 0 : lo < of && hi == of;
  }
  __device__ int stride() const { return keys + 8; } // of the heads' logits, to lie in several banks of shared memory
};

// The largest logit of a head in all parts of a branch and 1 over its sum, and what one part is multiplied by before.
struct Weight {
  float base, norm, power;
};

// What a block has in shared memory. Blocks write to the arrays [blocks,...] of each other.
template <typename Products> struct ClusterShared {
  static constexpr int kCells = Products::kWidth / 4; // of a head
  void* q;           // [16,width], rotated
  float* work;       // of warps: o [warps,h,row], largest logits and sums [warps,2,h]; or what pick and compress need
  float* kept;       // [2,h,width]: o of the compressed and of the window branch
  float* logits;     // [h,share], of this block's compressed keys; in memory if they are many
  float* slices;     // [blocks,2,slice], cells that blocks add to this block's part of o, in the place of logits
  float* stats;      // [branches,blocks,2,h]: largest logits and sums
  float* factors;    // [blocks,h]: what selected parts of o are multiplied by; before that [2,h] of this block's other parts
  float* tops;       // [h], of compressed attention over all blocks
  float* norms;      // [h]
  float* gates;      // [branches,h]
  int32_t* counts;   // [branches,blocks], keys read
  int32_t* idx;      // [n]
  int32_t* pages;    // [width-1]
  float* sums;       // of the probabilities of all compressed keys over the heads
  int slice;         // cells

  __device__ ClusterShared(const DecodeParams& p, char* shared) {
    const int h = p.h, blocks = gridDim.x;
    slice = (h * kCells + blocks - 1) / blocks;
    q = shared;
    work = reinterpret_cast<float*>(shared + 16 * Products::kWidth * sizeof(typename Products::Type));
    kept = work + p.work_size;
    logits = slices = kept + 2 * h * Products::kWidth;
    stats = slices + p.logits_size;
    if (p.logits) logits = p.logits + ((int64_t(blockIdx.z) * p.groups + blockIdx.y) * blocks + blockIdx.x) * h * p.logits_share;
    factors = stats + kBranches * blocks * 2 * h;
    tops = factors + blocks * h, norms = tops + h, gates = norms + h;
    counts = reinterpret_cast<int32_t*>(gates + kBranches * h);
    idx = counts + kBranches * blocks, pages = idx + p.n;
    sums = reinterpret_cast<float*>(pages + p.width - 1);
  }

  // weigh returns what a part of a branch counts in the sum over all blocks, for head j. Lanes are in groups of so many as there are blocks,
  // all of which take part: lane b has the part of block b.
  __device__ Weight weigh(const DecodeParams& p, int branch, int j) const {
    const int blocks = gridDim.x, block = threadIdx.x & (blocks - 1);
    const float* of = stats + (branch * blocks + block) * 2 * p.h + j;
    const float top = j < p.h ? of[0] : -INFINITY, sum = j < p.h ? of[p.h] : 0;
    Softmax all = {top, 0};
    for (int o = 1; o < blocks; o *= 2) all.top = fmaxf(all.top, __shfl_xor_sync(0xffffffffu, all.top, o));
    const float power = power2((top - all.base()) * p.scale * kLog2E);
    all.sum = power * sum;
    for (int o = 1; o < blocks; o *= 2) all.sum += __shfl_xor_sync(0xffffffffu, all.sum, o);
    return {all.base(), all.sum == 0 ? 0 : __fdividef(1, all.sum), power};
  }
  // What o of the part of a lane's block is multiplied by in the result.
  __device__ float factor(const DecodeParams& p, int branch, int j) const {
    const Weight w = weigh(p, branch, j);
    return (p.has >> branch & 1) && j < p.h ? gates[branch * p.h + j] * w.norm * w.power : 0;
  }
  // give adds cell u of o [h,kCells] to the slice of its block.
  __device__ void give(int list, int u, float4 cell) const {
    const int blocks = gridDim.x, to = u & (blocks - 1), at = u >> (__ffs(blocks) - 1);
    reinterpret_cast<float4*>(peer(slices, to))[(blockIdx.x * 2 + list) * slice + at] = cell;
  }
};

__device__ inline void add_cell(float4& to, float factor, float4 x) {
  to.x += factor * x.x, to.y += factor * x.y, to.z += factor * x.z, to.w += factor * x.w;
}

// begin brings the token, the heads, the gates and the pages to shared memory, and stores the token. It returns false, and writes the
// results, if the slot has no token.
template <typename Products> __device__ bool begin(Step& s, const ClusterShared<Products>& c) {
  using T = typename Products::Type;
  constexpr int kPairs = Products::kWidth / 2, kRows = kDecodeThreads / kPairs; // a thread has a pair of dims, of every kRows-th head
  const DecodeParams& p = s.p;
  const int me = threadIdx.x, of = me % kPairs, first = me / kPairs;
  const bool in = 2 * of < p.dim;
  uint32_t heads[16 / kRows], k[kBranches];
  T v[kBranches];
#pragma unroll
  for (int i = 0; i < 16 / kRows; ++i) {
    const int j = first + i * kRows;
    heads[i] = in && j < p.h ? reinterpret_cast<const uint32_t*>(static_cast<const T*>(p.q) + (s.at() * p.h + j) * p.dim)[of] : 0;
  }
#pragma unroll
  for (int b = 0; b < kBranches; ++b) {
    const bool stores = p.stores >> b & 1;
    k[b] = stores && in ? reinterpret_cast<const uint32_t*>(static_cast<const T*>(p.k[b]) + s.at() * p.dim)[of] : 0;
    v[b] = stores && me < p.value_dim ? static_cast<const T*>(p.v[b])[s.at() * p.value_dim + me] : from_float<T>(0);
  }
  const int gates = __popc(p.has);
  float gate = 0;
  const int branch = me / kMostHeads, head = me % kMostHeads;
  if (branch < kBranches && head < p.h && s.has(branch))
    gate = to_float(static_cast<const T*>(p.gates)[(s.at() * p.h + head) * gates + __popc(p.has & ((1 << branch) - 1))]);
#pragma unroll 1
  for (int i = me; i < p.width - 1; i += kDecodeThreads) c.pages[i] = s.pages[i];
  if (s.t < 0) {
    if (blockIdx.x == 0) no_blocks(s), rest<T>(s);
    return false;
  }
  if (branch < kBranches && head < p.h) c.gates[branch * p.h + head] = gate;
  s.pages = c.pages;
  const float2 rotation = rotation_of(s, in ? of : 0);
  const auto turned = [&](uint32_t raw) {
    T two[2];
    memcpy(two, &raw, sizeof two);
    float x = to_float(two[0]), y = to_float(two[1]);
    turn_pair(x, y, rotation);
    return pair<T>(x, y);
  };
#pragma unroll
  for (int i = 0; i < 16 / kRows; ++i) static_cast<uint32_t*>(c.q)[(first + i * kRows) * kPairs + of] = turned(heads[i]);
  __syncthreads();
  T* cache = static_cast<T*>(p.cache);
  const auto put = [&](int b, const DecodeRegion& r, int64_t row) {
    if (me < kPairs && in) reinterpret_cast<uint32_t*>(cache + r.keys + row * p.dim)[of] = turned(k[b]);
    if (me < p.value_dim) cache[r.values + row * p.value_dim + me] = v[b];
  };
  bool stored = false;
  if (p.stores >> kCompressedBranch & 1 && Share(s.keys_of(kCompressedBranch)).newest) {
    put(kCompressedBranch, p.tail, s.tail_row(s.t));
    if (s.has(kSelectedBranch)) put(kSelectedBranch, p.tokens, s.token_row());
    const int block = s.t + 1 - p.l; // that the token completes
    if (stored = true; block >= 0 && p.d.rest(block) == 0) {
      __syncthreads();
      compress<T>(s, c.work);
    }
  }
  if (p.stores >> kWindowBranch & 1 && Share(s.keys_of(kWindowBranch)).newest) {
    put(kWindowBranch, p.window, s.row(p.window, s.slot, p.window.places.rest(s.t)));
    stored = true;
  }
  if (stored) __syncthreads();
  return true;
}

// attend does this block's share of the keys of a branch. Its largest logits, sums and count go to all blocks; keep(u, cell) takes the
// cells of o.
template <typename Products, typename Keep> __device__ void attend(const Step& s, const ClusterShared<Products>& c, bool chooses, Keep keep) {
  using T = typename Products::Type;
  const DecodeParams& p = s.p;
  const T* cache = static_cast<const T*>(p.cache);
  const DecodeRegion& r = s.region();
  const int me = threadIdx.x, warp = me / 32, blocks = gridDim.x, all = kDecodeWarps * Products::kKeys, size = p.h * Products::kRow;
  const Share share(s.keys);
  const bool logits = chooses && s.branch == kCompressedBranch;
  const Source from = {cache + r.keys, s.branch != kCompressedBranch || s.has(kCompressedBranch) ? cache + r.values : nullptr,
                       {logits ? c.logits - share.lo : nullptr, share.stride()}};
  const KeyRows row(s, s.branch == kSelectedBranch ? c.idx : nullptr);
  float *stats = c.work + kDecodeWarps * size, *mine = stats + warp * 2 * p.h;
  int first = share.lo + warp * Products::kKeys;
  Products products;
  products.start(p, nullptr);
  products.fetch(p, from, first, share.hi, row);
#pragma unroll 1
  for (; first < share.hi; first += all) products.step(p, from, c.q, nullptr, first, first + all, share.hi, row);
  __syncthreads(); // the results of the branch before have been read
  const int count = products.finish_cells(p, c.work + warp * size, mine);
  int32_t* counts = reinterpret_cast<int32_t*>(stats + kDecodeWarps * 2 * p.h);
  if (me % 32 == 0) counts[warp] = count;
  __syncthreads();

  // Threads of head j: the first ones get the factor of a warp, and all tell the share's largest logit and sum to a block.
  const int i = me / kMostHeads, j = me % kMostHeads;
  float factor = 0;
  if (j < p.h) {
    Softmax softmax;
    softmax.start();
#pragma unroll
    for (int w = 0; w < kDecodeWarps; ++w) softmax.top = fmaxf(softmax.top, stats[w * 2 * p.h + j]);
#pragma unroll
    for (int w = 0; w < kDecodeWarps; ++w) {
      const float power = power2((stats[w * 2 * p.h + j] - softmax.base()) * p.scale * kLog2E);
      softmax.sum += power * stats[(w * 2 + 1) * p.h + j];
      if (w == i) factor = power;
    }
    if (i < blocks) {
      float* to = peer(c.stats, i) + (s.branch * blocks + blockIdx.x) * 2 * p.h + j;
      to[0] = softmax.top, to[p.h] = softmax.sum;
    }
  }
  if (me == 0) peer(c.counts, 0)[s.branch * blocks + blockIdx.x] = counts[0] + counts[1] + counts[2] + counts[3];
  __syncthreads();
  if (i < kDecodeWarps && j < p.h) stats[i * 2 * p.h + j] = factor;
  __syncthreads();
#pragma unroll 1
  for (int u = me; u < p.h * c.kCells; u += kDecodeThreads) {
    const int head = u / c.kCells, at = Products::cell_at(head, u % c.kCells);
    float4 sum = {0, 0, 0, 0};
#pragma unroll
    for (int w = 0; w < kDecodeWarps; ++w) add_cell(sum, stats[w * 2 * p.h + head], *reinterpret_cast<const float4*>(c.work + w * size + at));
    keep(u, sum);
  }
}

// tell_sums writes the sums of the probabilities of this block's compressed keys to all blocks.
template <typename Products> __device__ void tell_sums(const Step& s, const ClusterShared<Products>& c) {
  const DecodeParams& p = s.p;
  const int blocks = gridDim.x, groups = kDecodeThreads >> (__ffs(blocks) - 1), group = threadIdx.x >> (__ffs(blocks) - 1);
#pragma unroll 1
  for (int j = group; j < kMostHeads; j += groups) {
    const Weight w = c.weigh(p, kCompressedBranch, j);
    if (j < p.h && (threadIdx.x & (blocks - 1)) == 0) c.tops[j] = w.base, c.norms[j] = w.norm;
  }
  __syncthreads();
  const Share share(s.keys_of(kCompressedBranch));
  const float scale = p.scale * kLog2E;
#pragma unroll 1
  for (int i = share.lo + threadIdx.x; i < share.hi; i += kDecodeThreads) {
    float sum = 0;
#pragma unroll 8
    for (int j = 0; j < p.h; ++j) sum += c.norms[j] * power2((c.logits[j * share.stride() + i - share.lo] - c.tops[j]) * scale);
#pragma unroll 8
    for (int to = 0; to < blocks; ++to) peer(c.sums, to)[i] = sum;
  }
}

template <typename Products> __device__ void decode_cluster(const DecodeParams& p) {
  using T = typename Products::Type;
  extern __shared__ float4 nsa_dynamic_shared[];
  cluster_arrive(); // the blocks have begun
  const int me = threadIdx.x, rank = blockIdx.x, blocks = gridDim.x;
  const int block = me & (blocks - 1), group = me >> (__ffs(blocks) - 1), groups = kDecodeThreads >> (__ffs(blocks) - 1);
  const ClusterShared<Products> c(p, shared_of_block(nsa_dynamic_shared));
  next_may_start();
  await_previous();
  Step s(p, kCompressedBranch, blockIdx.z, blockIdx.y);
  const bool runs = begin(s, c);
  cluster_wait();
  if (!runs) return;
  const bool selects = s.has(kSelectedBranch), chooses = selects && s.own() >= p.n;
  const auto stores = [&](int b) { return p.stores >> b & 1; };
#pragma unroll 1
  for (int turn = 0; turn < kBranches; ++turn) {
    s.turn_to(turn == 0 ? kCompressedBranch : turn == 1 ? kWindowBranch : kSelectedBranch);
    if (stores(s.branch))
      attend(s, c, chooses, [&](int u, float4 cell) {
        if (turn == 2) c.give(1, u, cell);
        else reinterpret_cast<float4*>(c.kept)[turn * p.h * c.kCells + u] = cell;
      });
    if (turn == 1) {
      cluster_wait(); // 1: all stats of the compressed branch are here
      if (chooses) tell_sums(s, c);
    }
    cluster_arrive();
    if (turn == 0) continue;
    cluster_wait(); // 2, 3
    if (turn == 2) break;
#pragma unroll 1
    for (int j = group; j < 2 * kMostHeads; j += groups) {
      const int head = j % kMostHeads;
      const float factor = c.factor(p, j < kMostHeads ? kCompressedBranch : kWindowBranch, head);
      if (block == rank && head < p.h) c.factors[j / kMostHeads * p.h + head] = factor;
    }
    if (chooses) {
      pick(s, c.work, [=](int i) { return c.sums[i]; }, c.idx);
    } else {
      for (int f = me; f < p.n; f += kDecodeThreads) c.idx[f] = selects && f <= s.own() ? f : -1;
    }
    __syncthreads();
    if (rank == 0)
      for (int f = me; f < p.n; f += kDecodeThreads) p.idx[s.at() * p.n + f] = c.idx[f];
#pragma unroll 1
    for (int u = me; u < p.h * c.kCells; u += kDecodeThreads) {
      const float4* kept = reinterpret_cast<const float4*>(c.kept) + u;
      float4 sum = {0, 0, 0, 0};
      if (s.has(kCompressedBranch)) add_cell(sum, c.factors[u / c.kCells], kept[0]);
      if (s.has(kWindowBranch)) add_cell(sum, c.factors[p.h + u / c.kCells], kept[p.h * c.kCells]);
      c.give(0, u, sum);
    }
  }

  if (rank == 0 && me < kBranches) {
    int read = 0;
    for (int i = 0; i < blocks; ++i) read += stores(me) ? c.counts[me * blocks + i] : 0;
    p.read[s.at() * kBranches + me] = read;
  }
  T* o = static_cast<T*>(p.o) + s.at() * p.h * p.value_dim;
  const float4* slices = reinterpret_cast<const float4*>(c.slices);
  if (selects) {
#pragma unroll 1
    for (int j = group; j < kMostHeads; j += groups) {
      const float factor = c.factor(p, kSelectedBranch, j);
      if (j < p.h) c.factors[block * p.h + j] = factor;
    }
    __syncthreads();
  }
#pragma unroll 1
  for (int first = 0; first < c.slice; first += groups) { // a group of lanes adds up a cell
    const int i = first + group, u = i * blocks + rank, head = u / c.kCells, dim = u % c.kCells * 4;
    const bool in = i < c.slice && head < p.h;
    float4 sum = in ? slices[2 * block * c.slice + i] : float4{0, 0, 0, 0};
    if (in && selects) add_cell(sum, c.factors[block * p.h + head], slices[(2 * block + 1) * c.slice + i]);
    for (int by = 1; by < blocks; by *= 2) {
      sum.x += __shfl_xor_sync(0xffffffffu, sum.x, by), sum.y += __shfl_xor_sync(0xffffffffu, sum.y, by);
      sum.z += __shfl_xor_sync(0xffffffffu, sum.z, by), sum.w += __shfl_xor_sync(0xffffffffu, sum.w, by);
    }
    if (in && block == 0 && dim < p.value_dim)
      *reinterpret_cast<uint2*>(o + head * p.value_dim + dim) = {pair<T>(sum.x, sum.y), pair<T>(sum.z, sum.w)};
  }
}

}  // namespace nsa
#define NSA_CLUSTER(blocks) __cluster_dims__(blocks, 1, 1)
#define NSA_CLUSTER_BODY(...) nsa::decode_cluster<nsa::__VA_ARGS__>(p)
#else
#define NSA_CLUSTER(blocks)
#define NSA_CLUSTER_BODY(...)
#endif

#define NSA_DECODE_CLUSTER(blocks, name, resident, ...)                                                                  \
  extern "C" __global__ void NSA_CLUSTER(blocks) __launch_bounds__(nsa::kDecodeThreads, resident)                        \
      nsa_decode_cluster##blocks##_##name(const __grid_constant__ nsa::DecodeParams p) { NSA_CLUSTER_BODY(__VA_ARGS__); }
#define NSA_DECODE_CLUSTERS(...)       \
  NSA_DECODE_CLUSTER(8, __VA_ARGS__) \
  NSA_DECODE_CLUSTER(4, __VA_ARGS__) \
  NSA_DECODE_CLUSTER(2, __VA_ARGS__)

NSA_DECODE_CLUSTERS(mma64_bf16, 4, MatrixUnits<nsa::bf16, 64>)
NSA_DECODE_CLUSTERS(mma64_f16, 4, MatrixUnits<nsa::f16, 64>)
NSA_DECODE_CLUSTERS(mma128_bf16, 2, MatrixUnits<nsa::bf16, 128>)
NSA_DECODE_CLUSTERS(mma128_f16, 2, MatrixUnits<nsa::f16, 128>)
