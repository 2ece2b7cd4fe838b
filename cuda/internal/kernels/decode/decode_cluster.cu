// One step of decoding (decode.Step) in one launch, with the inputs and outputs of decode.cu. Grid [blocks, Hkv, B]: a cluster of blocks
// has one group of one sequence.
//
// Each block has an equal share of the keys of each branch. It writes the results that others need to their shared memory:
//
//   block 0   store, compressed and window ┐         sums of       ┐          select, selected ┐
//   block 1   store, compressed and window ┼► maxima probabilities ┼► of all  select, selected ┼► o of some dims,
//   ..                                     │  sums                 │  keys                     │  from all blocks
//                                          1                       2                           3        cluster barriers
//
// The block that has the newest key of a branch stores the token for this branch: no other block reads it, so no barrier of the cluster is
// needed. All blocks select the same blocks of keys; barriers 1 and 2 are left out where there are not more selection blocks than are selected. Bits
// depend only on the sequence and on the size of clusters: 1 to 8 blocks of 4 or 8 warps.
#include "../cluster.cuh"
#include "../overlap.cuh"
#include "decode_select.cuh"
#include "decode_store.cuh"

#ifdef NSA_CLUSTERS
namespace nsa {

// The most heads of a group. Loops over heads run up to this bound, so that whole warps take part in shuffles: in a cluster of two blocks a
// warp has 16 groups of lanes, one for each head, and in one of a single block nothing is shuffled.
constexpr int kMostHeads = 16;
constexpr int kNoBranch = -1; // in the place of a branch

// Share is the keys [lo,hi) that this block of a cluster of Blocks has, of the `of` keys of a branch.
template <int Blocks> struct Share {
  int keys, lo, hi; // keys: of a full share, a multiple of 16
  bool newest;      // the newest key of the branch is among them

  __device__ explicit Share(int of) {
    keys = max(1, (of + 16 * Blocks - 1) / (16 * Blocks)) * 16;
    lo = min(of, int(blockIdx.x) * keys), hi = min(of, lo + keys);
    newest = of == 0 ? blockIdx.x == 0 : lo < of && hi == of;
  }
  // floats from the logits of one head to the next; 8 more than the keys, against bank conflicts
  __device__ int stride() const { return keys + 8; }
};

// join returns the softmax over the parts that Lanes neighbouring lanes have. power becomes the factor of this lane's part. All lanes of a
// warp call it.
template <int Lanes> __device__ Softmax join(Softmax part, float scale, float& power) {
  Softmax all = {part.top, 0};
#pragma unroll
  for (int o = 1; o < Lanes; o *= 2) all.top = fmaxf(all.top, __shfl_xor_sync(0xffffffffu, all.top, o));
  power = power2((part.top - all.base()) * scale * kLog2E);
  all.sum = power * part.sum;
#pragma unroll
  for (int o = 1; o < Lanes; o *= 2) all.sum += __shfl_xor_sync(0xffffffffu, all.sum, o);
  return all;
}

// Of a head and a branch: the largest logit over all blocks, 1 over the sum of exponentials, and the factor of one block's part.
struct Weight {
  float base, norm, power;
};

// The shared memory of a block. Blocks write to each other's arrays that have a `blocks` axis, and to sums.
template <typename Products, int Blocks, int Warps> struct ClusterShared {
  static constexpr int kThreads = 32 * Warps;
  static constexpr int kCells = Products::kWidth / 4, kPart = kCells / Blocks; // 16-byte cells of o of a head; those that a block adds up
  void* q;           // [most heads,pitch], rotated
  float* work;       // what the Products of all warps need; also what pick and compress need
  float* logits;     // [h,share]: logits of this block's compressed keys; in global memory if there are many
  float* slices;     // [branches,blocks,slice] cells: what each block contributes to the cells of o that this block adds up
  float* sums;       // the probability of each compressed key, summed over the heads
  float* stats;      // [branches,blocks,2,h]: largest logits and sums
  float* factors;    // [branches,blocks,h]: factors of the cells
  float* of_warps;   // [warps,3,h]: largest logits, sums, and the factor of the warp's o
  float* tops;       // [h]: largest logit of compressed attention over all blocks
  float* norms;      // [h]: 1 over the sum of its exponentials
  float* gates;      // [h, branches of the layer]
  int32_t* counts;   // [branches,blocks]: keys read
  int32_t* warp_counts;
  int32_t* idx;      // [n]
  int32_t* pages;    // [width-1]
  int slice;         // cells of o that a block adds up

  __device__ ClusterShared(const DecodeParams& p, char* shared) {
    const int h = p.h;
    slice = h * kPart;
    q = shared;
    work = row_from(shared + Products::q_bytes(p));
    slices = work + p.work_size;
    sums = slices + kBranches * Blocks * slice * 4;
    stats = sums + p.max_compressed;
    factors = stats + kBranches * Blocks * 2 * h;
    of_warps = factors + kBranches * Blocks * h;
    tops = of_warps + Warps * 3 * h, norms = tops + h, gates = norms + h;
    counts = reinterpret_cast<int32_t*>(gates + kBranches * h), warp_counts = counts + kBranches * Blocks;
    idx = warp_counts + Warps, pages = idx + p.n;
    logits = reinterpret_cast<float*>(shared + (reinterpret_cast<char*>(pages + p.width - 1) - shared + 15) / 16 * 16);
    if (p.logits) logits = p.logits + ((int64_t(blockIdx.z) * p.groups + blockIdx.y) * Blocks + blockIdx.x) * h * p.logits_share;
  }

  // The halves of a barrier of the cluster, and p in the memory of one of its blocks. One block alone has no use for those of clusters.
  static __device__ void arrive() {
    if constexpr (Blocks > 1) cluster_arrive();
  }
  static __device__ void wait() {
    if constexpr (Blocks > 1) cluster_wait();
    else __syncthreads();
  }
  template <typename V> static __device__ V* in_block(int block, V* p) { return Blocks > 1 ? peer(p, block) : p; }

  // weigh returns the Weight of a block's part of a branch for head j. Groups of as many lanes as the cluster has blocks work together, and
  // all lanes must call it: lane b of a group gets the Weight of block b.
  __device__ Weight weigh(const DecodeParams& p, int branch, int j) const {
    const float* of = stats + (branch * Blocks + threadIdx.x % Blocks) * 2 * p.h + j;
    float power;
    const Softmax all = join<Blocks>({j < p.h ? of[0] : -INFINITY, j < p.h ? of[p.h] : 0}, p.scale, power);
    return {all.base(), all.sum == 0 ? 0 : __fdividef(1, all.sum), power};
  }
  // The factor of o of the part that weigh assigns to this lane, with the gate; all lanes must call it.
  __device__ float factor(const DecodeParams& p, int branch, int j) const {
    const Weight w = weigh(p, branch, j);
    return (p.has >> branch & 1) && j < p.h ? gates[j * __popc(p.has) + __popc(p.has & ((1 << branch) - 1))] * w.norm * w.power : 0;
  }
  // send_cell writes a cell of o of a head and a branch to the block that adds it up.
  __device__ void send_cell(int branch, int head, int cell, float4 o) const {
    reinterpret_cast<float4*>(in_block(cell / kPart, slices))[(branch * Blocks + blockIdx.x) * slice + head * kPart + cell % kPart] = o;
  }
};

__device__ inline void add_cell(float4& to, float factor, float4 x) {
  to.x += factor * x.x, to.y += factor * x.y, to.z += factor * x.z, to.w += factor * x.w;
}

// The last layer of the gates' MLP, for the heads of a group. A lane multiplies 8 numbers of the hidden row. The constructor begins to
// load the weights, before the hidden row is available.
template <typename T, int MostHeads, int Threads> struct GateLayer {
  static constexpr int kLanes = 8, kWidth = 8 * kLanes, kRows = Threads / kLanes, kRounds = (kBranches * MostHeads + kRows - 1) / kRows;
  const DecodeParams& p;
  const int n, row, at; // gates of a group; this lane's first gate; its place in the hidden row
  const T *w, *bias;
  uint4 cells[kRounds];
  T biases[kRounds];

  __device__ explicit GateLayer(const DecodeParams& p)
      : p(p), n(p.h * __popc(p.has)), row(threadIdx.x / kLanes), at(threadIdx.x % kLanes * 8),
        w(static_cast<const T*>(p.gate_w) + int64_t(blockIdx.y) * n * p.gate_hidden), bias(static_cast<const T*>(p.gate_bias) + blockIdx.y * n) {
#pragma unroll
    for (int i = 0; i < kRounds; ++i) cells[i] = cell(i, at), biases[i] = p.gate_w && in(i) ? bias[row + i * kRows] : from_float<T>(0);
  }
  __device__ bool in(int round) const { return row + round * kRows < n; }
  __device__ uint4 cell(int round, int at) const {
    if (!p.gate_w || !in(round) || at >= p.gate_hidden) return {0, 0, 0, 0};
    return *reinterpret_cast<const uint4*>(w + (row + round * kRows) * p.gate_hidden + at);
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
    float sums[kRounds];
#pragma unroll
    for (int i = 0; i < kRounds; ++i) sums[i] = dot(x, cells[i]);
#pragma unroll 1
    for (int from = at + kWidth; from < p.gate_hidden; from += kWidth) {
      x = hidden(s, from);
#pragma unroll
      for (int i = 0; i < kRounds; ++i) sums[i] += dot(x, cell(i, from));
    }
#pragma unroll
    for (int i = 0; i < kRounds; ++i) {
#pragma unroll
      for (int o = 1; o < kLanes; o *= 2) sums[i] += __shfl_xor_sync(0xffffffffu, sums[i], o);
      if (at == 0 && in(i)) gates[row + i * kRows] = sigmoid_of<T>(sums[i] + to_float(biases[i]));
    }
  }
};

// begin loads the rotated heads, the gates and the pages to shared memory, and stores the token in the cache. If the slot has no token, it
// writes the results and returns false. turn is the turn of this thread's pair of dims from one position to the next.
template <typename Products, int Blocks, int Warps>
__device__ bool begin(Step& s, const ClusterShared<Products, Blocks, Warps>& c,
                      const GateLayer<typename Products::Type, Products::kMostHeads, 32 * Warps>& gates, double turn) {
  using T = typename Products::Type;
  constexpr int kPairs = Products::kWidth / 2, kRows = c.kThreads / kPairs; // a thread has one pair of dims of every kRows-th head
  const DecodeParams& p = s.p;
  const int thread = threadIdx.x, of = thread % kPairs, first = thread / kPairs;
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
    v[b] = stores && thread < p.value_dim ? static_cast<const T*>(p.v[b])[s.at() * p.value_dim + thread] : from_float<T>(0);
  }
  const uint4 hidden = gates.hidden(s, gates.at);
  T gate = from_float<T>(0);
  if (!p.gate_w && thread < gates.n) gate = static_cast<const T*>(p.gates)[s.at() * gates.n + thread];
#pragma unroll 1
  for (int i = thread; i < p.width - 1; i += c.kThreads) c.pages[i] = s.pages[i];
  if (s.t < 0) {
    if (blockIdx.x == 0) no_blocks(s), write_empty_slot<T>(s);
    return false;
  }
  if (p.gate_w) gates.write(s, hidden, c.gates);
  else if (thread < gates.n) c.gates[thread] = to_float(gate);
  s.pages = c.pages;
  const float2 rotation = rotation_at(s.t, turn, false);
  const auto turned = [&](uint32_t raw) {
    T two[2];
    memcpy(two, &raw, sizeof two);
    float x = to_float(two[0]), y = to_float(two[1]);
    rotate_pair(x, y, rotation);
    return pair<T>(x, y);
  };
#pragma unroll
  for (int i = 0; i < Products::kMostHeads / kRows; ++i)
    static_cast<uint32_t*>(c.q)[(first + i * kRows) * Products::kPitch / 2 + of] = turned(heads[i]);
  __syncthreads();
  T* cache = static_cast<T*>(p.cache);
  const auto put = [&](int b, const DecodeRegion& r, int64_t row) {
    if (thread < kPairs && in) reinterpret_cast<uint32_t*>(cache + r.keys + row * p.dim)[of] = turned(k[b]);
    if (thread < p.value_dim) cache[r.values + row * p.value_dim + thread] = v[b];
  };
  const auto has_newest = [&](int b) { return p.stores >> b & 1 && Share<Blocks>(s.keys_of(b)).newest; };
  bool stored = false;
  if (has_newest(kSelectedBranch)) put(kSelectedBranch, p.tokens, s.token_row()), stored = true;
  if (has_newest(kCompressedBranch)) {
    put(kCompressedBranch, p.tail, s.tail_row(s.t));
    const int block = s.t + 1 - p.l; // first token of the block that ends with this token
    if (stored = true; block >= 0 && p.d.mod(block) == 0) {
      __syncthreads();
      compress<T>(s, c.work);
    }
  }
  if (has_newest(kWindowBranch)) put(kWindowBranch, p.window, s.row(p.window, s.slot, p.window.places.mod(s.t))), stored = true;
  if (stored) __syncthreads();
  return true;
}

// attend does this block's share of the keys of one branch, or of two. A team of warps has a branch: the warps [0,cut) the first one, the
// others the second one. attend writes the largest logits and sums of a branch to all blocks, and its count to block 0. If `ranks`, it
// then calls arrive. At the end it writes each cell of o to the block that adds it up.
template <typename Products, int Blocks, int Warps>
__device__ void attend(Step s, const ClusterShared<Products, Blocks, Warps>& c, int first, int second, bool ranks) {
  using T = typename Products::Type;
  constexpr int kKeys = Products::kKeys, kTeams = 2;
  const DecodeParams& p = s.p;
  const T* cache = static_cast<const T*>(p.cache);
  const int thread = threadIdx.x, warp = thread / 32, h = p.h;
  const auto stored = [&](int branch) { return branch != kNoBranch && p.stores >> branch & 1; };
  const auto steps = [&](int branch) {
    if (!stored(branch)) return 0;
    const Share<Blocks> share(s.keys_of(branch));
    return (share.hi - share.lo + kKeys - 1) / kKeys;
  };
  const int a = steps(first), b = steps(second); // warps are shared out in proportion to them
  const int cut = b == 0 ? Warps : a == 0 ? 0 : max(1, min(Warps - 1, (2 * a * Warps + a + b) / (2 * (a + b))));
  const int begins = warp < cut ? 0 : cut, all = ((warp < cut ? cut : Warps) - begins) * kKeys;
  s.set_branch(warp < cut ? first : second);

  const DecodeRegion& r = s.region();
  const Share<Blocks> share(s.keys);
  const bool logits = ranks && s.branch == kCompressedBranch;
  const Source from = {cache + r.keys, s.branch != kCompressedBranch || s.has(kCompressedBranch) ? cache + r.values : nullptr,
                       {logits ? c.logits - share.lo : nullptr, share.stride()}};
  const KeyRows row(s, s.branch == kSelectedBranch ? c.idx : nullptr);
  float *mine = c.work + warp * Products::kRingFloats, *stats = c.of_warps;
  Products products;
  products.start(p, mine);
  const int lo = share.lo + (warp - begins) * kKeys, hi = stored(s.branch) ? share.hi : 0;
  products.fetch(p, from, lo, all, hi, row);
  products.load_q(c.q);
#pragma unroll 1
  for (int at = lo; at < hi; at += all) products.step(p, from, nullptr, at, all, hi, row);
  const int count = products.finish_rows(p, mine, stats + warp * 3 * h);
  if (thread % 32 == 0) c.warp_counts[warp] = count;
  __syncthreads();

  // A group of as many lanes as there are warps has a head of a branch: lane w computes the factor of warp w, and writes the share's
  // largest logit and sum to block w. There are 32 groups, and so many heads in two branches.
  static_assert(kTeams * kMostHeads == 32, "groups of lanes");
  const int w = thread % Warps, j = thread / Warps % kMostHeads, team = thread / Warps / kMostHeads;
  const int branch = team ? second : first;
  const bool in = w < cut != team && j < h;
  float* of = stats + w * 3 * h + j;
  float power;
  const Softmax softmax = join<Warps>({in ? of[0] : -INFINITY, in ? of[h] : 0}, p.scale, power);
  if (in) of[2 * h] = power;
  if (j < h && w < Blocks && stored(branch)) {
    float* to = c.in_block(w, c.stats) + (branch * Blocks + blockIdx.x) * 2 * h + j;
    to[0] = softmax.top, to[h] = softmax.sum;
  }
  if (w == 0 && j == 0 && stored(branch)) {
    int32_t sum = 0;
#pragma unroll
    for (int i = 0; i < Warps; ++i) sum += i < cut != team ? c.warp_counts[i] : 0;
    c.in_block(0, c.counts)[branch * Blocks + blockIdx.x] = sum;
  }
  if (ranks) c.arrive();
  __syncthreads();
  const int cells = h * c.kCells;
#pragma unroll 1
  for (int u = thread; u < (second == kNoBranch ? 1 : kTeams) * cells; u += c.kThreads) {
    const bool team = u >= cells;
    if (!stored(team ? second : first)) continue;
    const int of = team ? u - cells : u, head = of / c.kCells, cell = of % c.kCells, at = head * Products::kRow + cell * 4;
    float4 sum = {0, 0, 0, 0};
#pragma unroll
    for (int w = 0; w < Warps; ++w)
      if (w < cut != team) add_cell(sum, stats[(w * 3 + 2) * h + head], *reinterpret_cast<const float4*>(c.work + w * Products::kRingFloats + at));
    c.send_cell(team ? second : first, head, cell, sum);
  }
  __syncthreads(); // all threads have read work
}

// broadcast_sums sums the probabilities of this block's compressed keys over the heads, and writes the sums to all blocks. Four lanes share
// four keys; each of them takes every fourth head. broadcast_sums waits for the stats of all blocks itself, after its first reads of logits.
template <typename Products, int Blocks, int Warps> __device__ void broadcast_sums(const Step& s, const ClusterShared<Products, Blocks, Warps>& c) {
  const DecodeParams& p = s.p;
  constexpr int kLanes = 4, kEach = Products::kMostHeads / kLanes, kAtOnce = c.kThreads / kLanes * 4; // heads of a lane; keys of a round
  constexpr int kRounds = Blocks < 8 ? 4 : 2; // rounds whose loads are in flight
  const Share<Blocks> share(s.keys_of(kCompressedBranch));
  const int lane = threadIdx.x % kLanes, mine = threadIdx.x / kLanes * 4, count = share.hi - share.lo;
  const float* from[kEach];
#pragma unroll
  for (int e = 0; e < kEach; ++e) from[e] = c.logits + min(lane + e * kLanes, p.h - 1) * share.stride();
  float4 next[kRounds][kEach];
  const auto load = [&](float4(&to)[kEach], int first) {
#pragma unroll
    for (int e = 0; e < kEach; ++e) to[e] = *reinterpret_cast<const float4*>(from[e] + min(first + mine, share.keys - 4));
  };
#pragma unroll
  for (int u = 0; u < kRounds; ++u) load(next[u], u * kAtOnce);
  c.wait();

  if (const int group = threadIdx.x / Blocks; group < kMostHeads) {
    const Weight w = c.weigh(p, kCompressedBranch, group);
    if (group < p.h && threadIdx.x % Blocks == 0) c.tops[group] = w.base, c.norms[group] = w.norm;
  }
  __syncthreads();
  const float scale = p.scale * kLog2E;
  float top[kEach], norm[kEach];
#pragma unroll
  for (int e = 0; e < kEach; ++e) { // lanes without a head add 0 times the probability of the last one
    const int j = lane + e * kLanes, head = min(j, p.h - 1);
    top[e] = c.tops[head] * scale, norm[e] = j < p.h ? c.norms[head] : 0;
  }
  float* sums = c.sums + share.lo;
#pragma unroll 1
  for (int of = 0; of < count; of += kRounds * kAtOnce) {
#pragma unroll
    for (int u = 0; u < kRounds; ++u) {
      const int first = of + u * kAtOnce;
      float sum[4] = {};
#pragma unroll
      for (int e = 0; e < kEach; ++e) {
        const float x[4] = {next[u][e].x, next[u][e].y, next[u][e].z, next[u][e].w};
#pragma unroll
        for (int k = 0; k < 4; ++k) sum[k] += norm[e] * power2(x[k] * scale - top[e]);
      }
      load(next[u], first + kRounds * kAtOnce);
#pragma unroll
      for (int k = 0; k < 4; ++k)
#pragma unroll
        for (int by = 1; by < kLanes; by *= 2) sum[k] += __shfl_xor_sync(0xffffffffu, sum[k], by);
      if (lane == 0 && first + mine < count) *reinterpret_cast<float4*>(sums + first + mine) = {sum[0], sum[1], sum[2], sum[3]};
    }
  }
  __syncthreads();
  // Neighbouring threads write to one block, for a remote write takes long, however few bytes it has.
  constexpr int kEachBlock = c.kThreads / Blocks;
  float* to = c.in_block(threadIdx.x / kEachBlock, sums);
  if (threadIdx.x / kEachBlock == blockIdx.x) return;
#pragma unroll 1
  for (int i = threadIdx.x % kEachBlock * 4; i < count; i += kEachBlock * 4)
    *reinterpret_cast<float4*>(to + i) = *reinterpret_cast<float4*>(sums + i);
}

template <typename Products, int Blocks, int Warps> __device__ void decode_cluster(const DecodeParams& p) {
  using T = typename Products::Type;
  extern __shared__ float4 nsa_dynamic_shared[];
  using Shared = ClusterShared<Products, Blocks, Warps>;
  Shared::arrive(); // begins the barrier that shows that all blocks have begun
  const int thread = threadIdx.x, rank = blockIdx.x;
  constexpr int kThreads = 32 * Warps, kGroups = kThreads / Blocks;
  const int block = thread % Blocks, group = thread / Blocks;
  const Shared c(p, shared_of_block(nsa_dynamic_shared));
  const double turn = p.turns[thread % (Products::kWidth / 2)]; // in range: turns has kDecodePairs elements
  const GateLayer<T, Products::kMostHeads, 32 * Warps> gates(p);
  next_may_start();
  await_previous();
  Step s(p, kCompressedBranch, blockIdx.z, blockIdx.y);
  const bool runs = begin(s, c, gates, turn);
  c.wait();
  if (!runs) return;
  const bool has_selected = s.has(kSelectedBranch), ranks = has_selected && s.own() >= p.n;
  // set_factors computes the factors of one or two branches whose stats have arrived. A group of lanes has a head of a branch; each lane
  // has a block's part.
  const auto set_factors = [&](int first, int second) {
#pragma unroll 1
    for (int x = group; x < (second == kNoBranch ? 1 : 2) * kMostHeads; x += kGroups) {
      const int branch = x < kMostHeads ? first : second, j = x % kMostHeads;
      const float factor = c.factor(p, branch, j);
      if (j < p.h) c.factors[(branch * Blocks + block) * p.h + j] = factor;
    }
  };
  attend(s, c, kCompressedBranch, kWindowBranch, ranks);
  if (ranks) {
    broadcast_sums(s, c); // 1: attend has arrived at this barrier, broadcast_sums waits at it: all stats have arrived
    c.arrive();
    set_factors(kCompressedBranch, kWindowBranch);
    c.wait(); // 2: all sums have arrived
    pick<kThreads>(s, c.work, [=](int i) { return c.sums[i]; }, c.idx);
  } else {
    for (int f = thread; f < p.n; f += kThreads) c.idx[f] = has_selected && f <= s.own() ? f : -1;
  }
  __syncthreads();
  if (rank == 0)
    for (int f = thread; f < p.n; f += kThreads) p.idx[s.at() * p.n + f] = c.idx[f];
  if (has_selected) attend(s, c, kSelectedBranch, kNoBranch, false);
  c.arrive(), c.wait(); // 3: all cells of o have arrived
  if (!ranks) set_factors(kCompressedBranch, kWindowBranch);
  set_factors(kSelectedBranch, kNoBranch);
  __syncthreads();

  if (const int b = kThreads - 1 - thread; rank == 0 && b < kBranches) { // in the last warp, which has the least work on o
    int read = 0;
    for (int i = 0; i < Blocks; ++i) read += p.stores >> b & 1 ? c.counts[b * Blocks + i] : 0;
    p.read[s.at() * kBranches + b] = read;
  }
  T* o = static_cast<T*>(p.o) + s.at() * p.h * p.value_dim;
#pragma unroll 1
  for (int i = thread; i < c.slice; i += kThreads) {
    const int head = i / c.kPart, dim = (rank * c.kPart + i % c.kPart) * 4;
    float4 sum = {0, 0, 0, 0};
#pragma unroll
    for (int b = 0; b < kBranches; ++b) {
      if (!s.has(b)) continue;
#pragma unroll
      for (int part = b * Blocks; part < (b + 1) * Blocks; ++part)
        add_cell(sum, c.factors[part * p.h + head], reinterpret_cast<const float4*>(c.slices)[part * c.slice + i]);
    }
    if (dim < p.value_dim) *reinterpret_cast<uint2*>(o + head * p.value_dim + dim) = {pair<T>(sum.x, sum.y), pair<T>(sum.z, sum.w)};
  }
}

}  // namespace nsa
#define NSA_CLUSTER(blocks) __cluster_dims__(blocks, 1, 1)
#define NSA_CLUSTER_BODY(blocks, warps, ...) nsa::decode_cluster<nsa::__VA_ARGS__, blocks, warps>(p)
#else
#define NSA_CLUSTER(blocks)
#define NSA_CLUSTER_BODY(...)
#endif

#define NSA_DECODE_CLUSTER(blocks, warps, name, resident, ...)                                                       \
  extern "C" __global__ void NSA_CLUSTER(blocks) __launch_bounds__(32 * warps, warps == 4 ? resident : 1)              \
      nsa_decode_cluster##blocks##x##warps##_##name(const __grid_constant__ nsa::DecodeParams p) {                     \
    NSA_CLUSTER_BODY(blocks, warps, __VA_ARGS__);                                                                      \
  }
// The sizes of clusters, blocks and warps of a block, as in cluster.go.
#define NSA_DECODE_CLUSTERS(...)        \
  NSA_DECODE_CLUSTER(8, 8, __VA_ARGS__) \
  NSA_DECODE_CLUSTER(4, 8, __VA_ARGS__) \
  NSA_DECODE_CLUSTER(2, 8, __VA_ARGS__) \
  NSA_DECODE_CLUSTER(1, 8, __VA_ARGS__) \
  NSA_DECODE_CLUSTER(1, 4, __VA_ARGS__)

NSA_TENSOR_CORE_CLASSES(NSA_DECODE_CLUSTERS)
