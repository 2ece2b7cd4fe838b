// One step of decoding (ops.DecodeOp) in one launch, with the inputs and outputs of decode.cu. Grid [blocks, Hkv, B]: a cluster of blocks
// has one group of one sequence.
//
// Each block has an equal share of the keys of each branch. It writes the results that others need to their shared memory:
//
//   block 0   store, compressed ─┐         window ┐ sums of       ┐          choose, selected ┐
//   block 1   store, compressed ─┼► maxima window ┼ probabilities ┼► of all  choose, selected ┼► o of some dims,
//   ..                           │  sums          │               │  keys                     │  from all blocks
//                                1                                2                           3        cluster barriers
//
// The block that has the newest key of a branch stores the token. All blocks make the same choice. Bits depend only on the sequence and
// on the number of blocks in a cluster, which is 2, 4 or 8.
#include "../cluster.cuh"
#include "../overlap.cuh"
#include "decode_choose.cuh"
#include "decode_store.cuh"

#ifdef NSA_CLUSTERS
namespace nsa {

// The most heads of a group. Loops over heads run up to this bound, so that whole warps take part: in a cluster of two blocks a warp has
// 16 groups of lanes, one for each head.
constexpr int kMostHeads = 16;

// Share is the keys [lo,hi) that this block has, of the `of` keys of a branch.
struct Share {
  int keys, lo, hi; // keys: of a full share, a multiple of 16
  bool newest;      // the newest key of the branch is among them

  __device__ explicit Share(int of) {
    const int at_once = 16 * gridDim.x; // a power of two
    keys = max(1, (of + at_once - 1) >> (__ffs(at_once) - 1)) * 16;
    lo = min(of, int(blockIdx.x) * keys), hi = min(of, lo + keys);
    newest = of == 0 ? blockIdx.x == 0 : lo < of && hi == of;
  }
  // floats from the logits of one head to the next; 8 more than the keys, against bank conflicts
  __device__ int stride() const { return keys + 8; }
};

// Of a head and a branch: the largest logit over all blocks, 1 over the sum of exponentials, and the factor of one block's part.
struct Weight {
  float base, norm, power;
};

// The shared memory of a block. Blocks write to each other's arrays that have a `blocks` axis, and to sums.
template <typename Products> struct ClusterShared {
  static constexpr int kCells = Products::kWidth / 4; // 16-byte cells of o of a head
  void* q;           // [most heads,pitch], rotated
  float* work;       // what the Products of all warps need; also what pick and compress need
  float* logits;     // [h,share]: logits of this block's compressed keys; in global memory if there are many
  float* slices;     // [branches,blocks,slice] cells: what each block contributes to the cells of o that this block adds up
  float* sums;       // the probability of each compressed key, summed over the heads
  float* stats;      // [branches,blocks,2,h]: largest logits and sums
  float* factors;    // [branches,blocks,h]: factors of the cells of the compressed and the window branch
  float* of_warps;   // [warps,3,h]: largest logits, sums, and the factor of the warp's o
  float* tops;       // [h]: largest logit of compressed attention over all blocks
  float* norms;      // [h]: 1 over the sum of its exponentials
  float* gates;      // [h, branches of the layer]
  int32_t* counts;   // [branches,blocks]: keys read
  int32_t* warp_counts;
  int32_t* idx;      // [n]
  int32_t* pages;    // [width-1]
  int warp_floats, slice; // floats of a warp in work; cells of o that this block adds up

  __device__ ClusterShared(const DecodeParams& p, char* shared) {
    const int h = p.h, blocks = gridDim.x;
    warp_floats = Products::row_floats(p);
    slice = (h * kCells + blocks - 1) / blocks;
    q = shared;
    work = row_from(shared + Products::q_bytes(p));
    slices = work + p.work_size;
    sums = slices + kBranches * blocks * slice * 4;
    stats = sums + p.most;
    factors = stats + kBranches * blocks * 2 * h;
    of_warps = factors + kBranches * blocks * h;
    tops = of_warps + kDecodeWarps * 3 * h, norms = tops + h, gates = norms + h;
    counts = reinterpret_cast<int32_t*>(gates + kBranches * h), warp_counts = counts + kBranches * blocks;
    idx = warp_counts + kDecodeWarps, pages = idx + p.n;
    logits = reinterpret_cast<float*>(shared + (reinterpret_cast<char*>(pages + p.width - 1) - shared + 15) / 16 * 16);
    if (p.logits) logits = p.logits + ((int64_t(blockIdx.z) * p.groups + blockIdx.y) * blocks + blockIdx.x) * h * p.logits_share;
  }

  // weigh returns the Weight of a block's part of a branch for head j. Groups of as many lanes as the cluster has blocks work together, and
  // all lanes must call it: lane b of a group gets the Weight of block b.
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
  // The factor of o of the part that weigh assigns to this lane, with the gate; all lanes must call it.
  __device__ float factor(const DecodeParams& p, int branch, int j) const {
    const Weight w = weigh(p, branch, j);
    return (p.has >> branch & 1) && j < p.h ? gates[j * __popc(p.has) + __popc(p.has & ((1 << branch) - 1))] * w.norm * w.power : 0;
  }
  // give writes cell u of o [h,kCells] of a branch to the block that adds it up.
  __device__ void give(int branch, int u, float4 cell) const {
    const int blocks = gridDim.x, to = u & (blocks - 1), at = u >> (__ffs(blocks) - 1);
    reinterpret_cast<float4*>(peer(slices, to))[(branch * blocks + blockIdx.x) * slice + at] = cell;
  }
};

__device__ inline void add_cell(float4& to, float factor, float4 x) {
  to.x += factor * x.x, to.y += factor * x.y, to.z += factor * x.z, to.w += factor * x.w;
}

// The last layer of the gates' MLP, for the heads of a group. A lane multiplies 8 numbers of the hidden row. The constructor begins to
// load the weights, before the hidden row is available.
template <typename T, int MostHeads> struct GateLayer {
  static constexpr int kLanes = 8, kWidth = 8 * kLanes, kRows = kDecodeThreads / kLanes, kTurns = (kBranches * MostHeads + kRows - 1) / kRows;
  const DecodeParams& p;
  const int n, row, at; // gates of a group; this lane's first gate; its place in the hidden row
  const T *w, *bias;
  uint4 cells[kTurns];
  T biases[kTurns];

  __device__ explicit GateLayer(const DecodeParams& p)
      : p(p), n(p.h * __popc(p.has)), row(threadIdx.x / kLanes), at(threadIdx.x % kLanes * 8),
        w(static_cast<const T*>(p.gate_w) + int64_t(blockIdx.y) * n * p.gate_hidden), bias(static_cast<const T*>(p.gate_bias) + blockIdx.y * n) {
#pragma unroll
    for (int i = 0; i < kTurns; ++i) cells[i] = cell(i, at), biases[i] = p.gate_w && in(i) ? bias[row + i * kRows] : from_float<T>(0);
  }
  __device__ bool in(int turn) const { return row + turn * kRows < n; }
  __device__ uint4 cell(int turn, int at) const {
    if (!p.gate_w || !in(turn) || at >= p.gate_hidden) return {0, 0, 0, 0};
    return *reinterpret_cast<const uint4*>(w + (row + turn * kRows) * p.gate_hidden + at);
  }
  __device__ static float dot(uint4 a, uint4 b) {
    T x[8], y[8];
    memcpy(x, &a, sizeof a), memcpy(y, &b, sizeof b);
    float sum = 0;
#pragma unroll
    for (int i = 0; i < 8; ++i) sum += to_float(x[i]) * to_float(y[i]);
    return sum;
  }
  __device__ uint4 hidden(const Step& s, int at) const {
    if (!p.gate_w || at >= p.gate_hidden) return {0, 0, 0, 0};
    return *reinterpret_cast<const uint4*>(static_cast<const T*>(p.gates) + int64_t(s.slot) * p.gate_hidden + at);
  }
  // write sets gates [n]. x is this lane's first cell of the hidden row.
  __device__ void write(const Step& s, uint4 x, float* gates) const {
    float sums[kTurns];
#pragma unroll
    for (int i = 0; i < kTurns; ++i) sums[i] = dot(x, cells[i]);
#pragma unroll 1
    for (int from = at + kWidth; from < p.gate_hidden; from += kWidth) {
      x = hidden(s, from);
#pragma unroll
      for (int i = 0; i < kTurns; ++i) sums[i] += dot(x, cell(i, from));
    }
#pragma unroll
    for (int i = 0; i < kTurns; ++i) {
#pragma unroll
      for (int o = 1; o < kLanes; o *= 2) sums[i] += __shfl_xor_sync(0xffffffffu, sums[i], o);
      if (at == 0 && in(i)) gates[row + i * kRows] = sigmoid_of<T>(sums[i] + to_float(biases[i]));
    }
  }
};

// begin loads the rotated heads, the gates and the pages to shared memory, and stores the token in the cache. If the slot has no token, it
// writes the results and returns false. turn is the turn of this thread's pair of dims from one position to the next.
template <typename Products>
__device__ bool begin(Step& s, const ClusterShared<Products>& c, const GateLayer<typename Products::Type, Products::kMostHeads>& gates, double turn) {
  using T = typename Products::Type;
  constexpr int kPairs = Products::kWidth / 2, kRows = kDecodeThreads / kPairs; // a thread has one pair of dims of every kRows-th head
  const DecodeParams& p = s.p;
  const int me = threadIdx.x, of = me % kPairs, first = me / kPairs;
  const bool in = 2 * of < p.dim;
  uint32_t heads[Products::kMostHeads / kRows], k[kBranches];
  T v[kBranches];
#pragma unroll
  for (int i = 0; i < Products::kMostHeads / kRows; ++i) {
    const int j = first + i * kRows;
    heads[i] = in && j < p.h ? reinterpret_cast<const uint32_t*>(static_cast<const T*>(p.q) + (s.at() * p.h + j) * p.dim)[of] : 0;
  }
#pragma unroll
  for (int b = 0; b < kBranches; ++b) {
    const bool stores = p.stores >> b & 1;
    k[b] = stores && in ? reinterpret_cast<const uint32_t*>(static_cast<const T*>(p.k[b]) + s.at() * p.dim)[of] : 0;
    v[b] = stores && me < p.value_dim ? static_cast<const T*>(p.v[b])[s.at() * p.value_dim + me] : from_float<T>(0);
  }
  const uint4 hidden = gates.hidden(s, gates.at);
  T gate = from_float<T>(0);
  if (!p.gate_w && me < gates.n) gate = static_cast<const T*>(p.gates)[s.at() * gates.n + me];
#pragma unroll 1
  for (int i = me; i < p.width - 1; i += kDecodeThreads) c.pages[i] = s.pages[i];
  if (s.t < 0) {
    if (blockIdx.x == 0) no_blocks(s), rest<T>(s);
    return false;
  }
  if (p.gate_w) gates.write(s, hidden, c.gates);
  else if (me < gates.n) c.gates[me] = to_float(gate);
  s.pages = c.pages;
  const float2 rotation = rotation_at(s.t, turn, false);
  const auto turned = [&](uint32_t raw) {
    T two[2];
    memcpy(two, &raw, sizeof two);
    float x = to_float(two[0]), y = to_float(two[1]);
    turn_pair(x, y, rotation);
    return pair<T>(x, y);
  };
#pragma unroll
  for (int i = 0; i < Products::kMostHeads / kRows; ++i) static_cast<uint32_t*>(c.q)[(first + i * kRows) * Products::kPitch / 2 + of] = turned(heads[i]);
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
    const int block = s.t + 1 - p.l; // first token of the block that ends with this token
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

// attend does this block's share of the keys of a branch. It writes its largest logits and sums to all blocks, its count to block 0, and
// each cell of its o to the block that adds it up. With `arrives` it arrives at a cluster barrier.
template <typename Products> __device__ void attend(const Step& s, const ClusterShared<Products>& c, bool chooses, bool arrives) {
  using T = typename Products::Type;
  const DecodeParams& p = s.p;
  const T* cache = static_cast<const T*>(p.cache);
  const DecodeRegion& r = s.region();
  const int me = threadIdx.x, warp = me / 32, blocks = gridDim.x, all = kDecodeWarps * Products::kKeys, h = p.h;
  const Share share(s.keys);
  const bool logits = chooses && s.branch == kCompressedBranch;
  const Source from = {cache + r.keys, s.branch != kCompressedBranch || s.has(kCompressedBranch) ? cache + r.values : nullptr,
                       {logits ? c.logits - share.lo : nullptr, share.stride()}};
  const KeyRows row(s, s.branch == kSelectedBranch ? c.idx : nullptr);
  float *mine = c.work + warp * c.warp_floats, *stats = c.of_warps;
  Products products;
  products.start(p, mine);
  products.take(c.q);
  products.fetch(p, from, share.lo + warp * Products::kKeys, all, share.hi, row);
  if (arrives) cluster_arrive(); // completes this block's earlier writes to others, while keys are being fetched
#pragma unroll 1
  for (int first = share.lo + warp * Products::kKeys; first < share.hi; first += all) products.step(p, from, nullptr, first, all, share.hi, row);
  const int count = products.finish_rows(p, mine, stats + warp * 3 * h);
  if (me % 32 == 0) c.warp_counts[warp] = count;
  __syncthreads();

  // Thread i of head j computes the factor of warp i, and writes the share's largest logit and sum to block i.
  const int i = me / Products::kMostHeads, j = me % Products::kMostHeads;
  if (j < h) {
    Softmax softmax;
    softmax.start();
#pragma unroll
    for (int w = 0; w < kDecodeWarps; ++w) softmax.top = fmaxf(softmax.top, stats[w * 3 * h + j]);
#pragma unroll
    for (int w = 0; w < kDecodeWarps; ++w) {
      const float power = power2((stats[w * 3 * h + j] - softmax.base()) * p.scale * kLog2E);
      softmax.sum += power * stats[(w * 3 + 1) * h + j];
      if (w == i) stats[(w * 3 + 2) * h + j] = power;
    }
    if (i < blocks) {
      float* to = peer(c.stats, i) + (s.branch * blocks + blockIdx.x) * 2 * h + j;
      to[0] = softmax.top, to[h] = softmax.sum;
    }
  }
  if (me == 0) {
    const int32_t* counts = c.warp_counts;
    peer(c.counts, 0)[s.branch * blocks + blockIdx.x] = counts[0] + counts[1] + counts[2] + counts[3];
  }
  __syncthreads();
#pragma unroll 1
  for (int u = me; u < h * c.kCells; u += kDecodeThreads) {
    const int head = u / c.kCells, at = head * Products::kRow + u % c.kCells * 4;
    float4 sum = {0, 0, 0, 0};
#pragma unroll
    for (int w = 0; w < kDecodeWarps; ++w)
      add_cell(sum, stats[(w * 3 + 2) * h + head], *reinterpret_cast<const float4*>(c.work + w * c.warp_floats + at));
    c.give(s.branch, u, sum);
  }
  __syncthreads(); // all threads have read work
}

// tell_sums sums the probabilities of this block's compressed keys over the heads, and writes the sums to all blocks. Four lanes share
// four keys; each of them takes every fourth head.
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
  if (share.lo == share.hi) return;
  constexpr int kLanes = 4, kEach = Products::kMostHeads / kLanes, kAtOnce = kDecodeThreads / kLanes * 4; // heads of a lane; keys of a turn
  constexpr int kTurns = 4; // turns whose loads are in flight
  const float scale = p.scale * kLog2E;
  const int lane = threadIdx.x % kLanes, mine = threadIdx.x / kLanes * 4;
  const float* from = c.logits + lane * share.stride() - share.lo + mine;
  float top[kEach], norm[kEach];
#pragma unroll
  for (int e = 0; e < kEach; ++e) {
    const int j = lane + e * kLanes;
    top[e] = j < p.h ? c.tops[j] : 0, norm[e] = j < p.h ? c.norms[j] : 0;
  }
  float4 next[kTurns][kEach];
  const auto load = [&](float4(&to)[kEach], int first) {
#pragma unroll
    for (int e = 0; e < kEach; ++e)
      if (first + mine < share.hi && lane + e * kLanes < p.h) to[e] = *reinterpret_cast<const float4*>(from + e * kLanes * share.stride() + first);
  };
#pragma unroll
  for (int u = 0; u < kTurns; ++u) load(next[u], share.lo + u * kAtOnce);
#pragma unroll 1
  for (int of = share.lo; of < share.hi; of += kTurns * kAtOnce) {
#pragma unroll
    for (int u = 0; u < kTurns; ++u) {
      const int first = of + u * kAtOnce;
      if (first >= share.hi) break;
      float sum[4] = {};
#pragma unroll
      for (int e = 0; e < kEach; ++e) {
        if (lane + e * kLanes >= p.h) continue;
        const float x[4] = {next[u][e].x, next[u][e].y, next[u][e].z, next[u][e].w};
#pragma unroll
        for (int k = 0; k < 4; ++k) sum[k] += norm[e] * power2((x[k] - top[e]) * scale);
      }
      load(next[u], first + kTurns * kAtOnce);
#pragma unroll
      for (int k = 0; k < 4; ++k)
#pragma unroll
        for (int by = 1; by < kLanes; by *= 2) sum[k] += __shfl_xor_sync(0xffffffffu, sum[k], by);
      if (first + mine >= share.hi) continue;
#pragma unroll 1
      for (int to = lane; to < blocks; to += kLanes) *reinterpret_cast<float4*>(peer(c.sums, to) + first + mine) = {sum[0], sum[1], sum[2], sum[3]};
    }
  }
}

template <typename Products> __device__ void decode_cluster(const DecodeParams& p) {
  using T = typename Products::Type;
  extern __shared__ float4 nsa_dynamic_shared[];
  cluster_arrive(); // begins the barrier that shows that all blocks have begun
  const int me = threadIdx.x, rank = blockIdx.x, blocks = gridDim.x;
  const int block = me & (blocks - 1), group = me >> (__ffs(blocks) - 1), groups = kDecodeThreads >> (__ffs(blocks) - 1);
  const ClusterShared<Products> c(p, shared_of_block(nsa_dynamic_shared));
  const double turn = p.turns[me % (Products::kWidth / 2)]; // in range: turns has kDecodePairs elements
  const GateLayer<T, Products::kMostHeads> gates(p);
  next_may_start();
  await_previous();
  Step s(p, kCompressedBranch, blockIdx.z, blockIdx.y);
  const bool runs = begin(s, c, gates, turn);
  cluster_wait();
  if (!runs) return;
  const bool selects = s.has(kSelectedBranch), chooses = selects && s.own() >= p.n;
  // set_factors computes the factors of a branch whose stats have arrived. A group of lanes has a head; each lane has a block's part.
  const auto set_factors = [&](int branch) {
    if (!s.has(branch)) return;
#pragma unroll 1
    for (int j = group; j < kMostHeads; j += groups) {
      const float factor = c.factor(p, branch, j);
      if (j < p.h) c.factors[(branch * blocks + block) * p.h + j] = factor;
    }
  };
#pragma unroll 1
  for (int turn = 0; turn < kBranches; ++turn) {
    s.turn_to(turn == 0 ? kCompressedBranch : turn == 1 ? kWindowBranch : kSelectedBranch);
    const bool attends = p.stores >> s.branch & 1;
    if (attends) attend(s, c, chooses, turn == 1);
    if (turn == 0) continue;
    if (turn == 1) {
      if (!attends) cluster_arrive();
      cluster_wait(); // 1: all stats of the compressed branch have arrived
      if (chooses) tell_sums(s, c);
    }
    cluster_arrive();
    set_factors(turn == 1 ? kCompressedBranch : kWindowBranch);
    cluster_wait(); // 2: all sums have arrived; 3: all cells of o
    if (turn == 2) break;
    if (chooses) {
      pick(s, c.work, [=](int i) { return c.sums[i]; }, c.idx);
    } else {
      for (int f = me; f < p.n; f += kDecodeThreads) c.idx[f] = selects && f <= s.own() ? f : -1;
    }
    __syncthreads();
    if (rank == 0)
      for (int f = me; f < p.n; f += kDecodeThreads) p.idx[s.at() * p.n + f] = c.idx[f];
  }
  __syncthreads();

  if (const int b = kDecodeThreads - 1 - me; rank == 0 && b < kBranches) { // in the last warp, which has the least work on o
    int read = 0;
    for (int i = 0; i < blocks; ++i) read += p.stores >> b & 1 ? c.counts[b * blocks + i] : 0;
    p.read[s.at() * kBranches + b] = read;
  }
  T* o = static_cast<T*>(p.o) + s.at() * p.h * p.value_dim;
#pragma unroll 1
  for (int first = 0; first < c.slice; first += groups) { // a group of lanes adds up one cell
    const int i = first + group, u = i * blocks + rank, head = u / c.kCells, dim = u % c.kCells * 4;
    const bool in = i < c.slice && head < p.h;
    const float selected = selects ? c.factor(p, kSelectedBranch, head) : 0;
    float4 sum = {0, 0, 0, 0};
#pragma unroll
    for (int b = 0; b < kBranches; ++b)
      if (in && s.has(b)) {
        const int part = b * blocks + block;
        const float factor = b == kSelectedBranch ? selected : c.factors[part * p.h + head];
        add_cell(sum, factor, reinterpret_cast<const float4*>(c.slices)[part * c.slice + i]);
      }
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

NSA_MATRIX_UNITS(NSA_DECODE_CLUSTERS)
