// What comes before and behind the kernels that make results of pairs: see attention_pairs.cuh.
//
//   nsa_pairs_sort_i32      idx int32 [B,S,Hkv,most] -> list, lengths, items, count
//   nsa_pairs_forward_join  sums, stats of the units of a launch -> o, lse
//   nsa_pairs_dq_join       sums -> dq
//
// Which place of its block's list a pair has depends on the order of integer atomics, but no result does.
#include "attention_pairs.cuh"
#include "attention_wgmma_span.cuh"

namespace nsa {

constexpr int kSorters = 1024, kJoiners = 256;  // threads of a block

// Calls f(block, pair) for the pairs of a unit, and g(query, length) for its queries.
template <class F, class G> __device__ inline void each_pair(const AttentionParams& p, const Unit& unit, F f, G g) {
  const Blocks& mask = p.blocks;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  int width = 1;  // lanes of a query
  while (width < min(32, mask.most)) width *= 2;
  const int mine = lane / width, step = 32 / width;
#pragma unroll 1
  for (int from = warp * step; from < unit.queries; from += kSorters / 32 * step) {
    const int q = from + mine, t = unit.first + q;
    const int* chosen = p.idx + mask.list(p.n, unit.b, unit.g, min(t, p.n.queries - 1));
#pragma unroll 1
    for (int first = 0;; first += width) {
      const int i = first + lane % width, j = q < unit.queries ? mask.at(chosen, i, t) : Blocks::kNone;
      const unsigned ended = __ballot_sync(0xffffffff, j == Blocks::kNone);
      const unsigned own = ended >> mine * width & (0xffffffffu >> (32 - width));
      const int length = first + (own ? __ffs(own) - 1 : width);
      if (i < length) f(j, q * mask.most + i);
      if (!ended && width == 32 && first + width < mask.most) continue;
      if (lane % width == 0 && q < unit.queries) g(q, length);
      break;
    }
  }
}

// Adds up the results of rows, a thread for each 8 columns of one, which reads kAtOnce places at once.
template <typename T, bool Forward, int kAtOnce> __device__ inline void join(const PairParams& a) {
  const AttentionParams& p = a.p;
  const Sizes& n = p.n;
  const Pairs& x = a.pairs;
  const int c = Forward ? n.dv : n.d, width = pair_width(c), cells = width / 8;
  const int blocks = (x.queries * n.each * cells - 1) / kJoiners + 1;  // of a unit
  const int number = blockIdx.x / blocks, i = blockIdx.x % blocks * kJoiners + threadIdx.x;
  const Unit unit(a, x.first + number);
  const int cell = i % cells, row = i / cells, q = row / n.each, head = row % n.each;
  const bool in = q < unit.queries;

  const int places = in ? x.lengths[(x.first + number) * x.queries + q] * x.parts : 0, stride = n.each * width;
  const long long first = ((long long)number * x.queries + q) * p.blocks.most * x.parts * n.each + head;
  const T* sums = static_cast<const T*>(x.sums) + first * width + 8 * cell;
  const float2* stats = x.stats + first;
  Softmax all;
  all.start();
  float y[8] = {};
#pragma unroll 1
  for (int s = 0; s < places; s += kAtOnce) {
    uint4 part[kAtOnce];
    float2 stat[kAtOnce];
#pragma unroll
    for (int k = 0; k < kAtOnce; k++) {
      const bool is = s + k < places;
      part[k] = is ? load_once(reinterpret_cast<const uint4*>(sums + k * stride)) : uint4{0, 0, 0, 0};
      if (Forward) stat[k] = is ? stats[k * n.each] : make_float2(-INFINITY, 0);
    }
    if (Forward) {
      float top = stat[0].x;
#pragma unroll
      for (int k = 1; k < kAtOnce; k++) top = fmaxf(top, stat[k].x);
      const float factor = all.raise(top, n.scale_log2);
#pragma unroll
      for (int e = 0; e < 8; e++) y[e] *= factor;
    }
#pragma unroll
    for (int k = 0; k < kAtOnce; k++) {
      float v[8], weight = 1;
      if (Forward) {
        weight = power2((stat[k].x - all.base()) * n.scale_log2);
        all.sum += weight * stat[k].y;
        if (narrow<T>) weight *= stat[k].y;
      }
      Pack<T>{part[k]}.get(v);
#pragma unroll
      for (int e = 0; e < 8; e++) y[e] = fmaf(weight, v[e], y[e]);
    }
    sums += kAtOnce * stride, stats += kAtOnce * n.each;
  }
  const float factor = Forward ? all.norm() : narrow<T> ? 1 : n.scale;
  uint32_t out[4];
#pragma unroll
  for (int e = 0; e < 4; e++) out[e] = pair<T>(factor * y[2 * e], factor * y[2 * e + 1]);
  turn_four(out);
  if (!in) return;
  const int at = (unit.first + q) * n.each + head;
  if (Forward && cell == 0) p.lse[n.stat(unit.b, unit.g, at)] = all.lse(n.scale);
  T* to = static_cast<T*>(Forward ? p.o : p.dq) + n.row(unit.b, unit.g, at, c) + 8 * cell;
  if (8 * cell < c) *reinterpret_cast<uint4*>(to) = uint4{out[0], out[1], out[2], out[3]};
}

}  // namespace nsa

// Grid x is the number of units; the shared memory has a number for each block.
extern "C" __global__ void __launch_bounds__(nsa::kSorters, 1) nsa_pairs_sort_i32(const __grid_constant__ nsa::PairParams a) {
  using namespace nsa;
  const AttentionParams& p = a.p;
  const Pairs& x = a.pairs;
  const Unit unit(a, blockIdx.x);
  const int blocks = p.blocks.count(p.n), lane = threadIdx.x % 32;
  int* next = reinterpret_cast<int*>(dynamic_shared());  // how often a block was chosen, then where its next pair goes
  int* list = x.list + (long long)blockIdx.x * x.queries * p.blocks.most;
  for (int j = threadIdx.x; j < blocks; j += kSorters) next[j] = 0;
  __syncthreads();
  int* lengths = x.lengths + (long long)blockIdx.x * x.queries;
  each_pair(p, unit, [&](int j, int) { atomicAdd(next + j, 1); }, [&](int q, int length) { lengths[q] = length; });
  __syncthreads();
  if (threadIdx.x < 32) {
    PairItem* items = x.items + (long long)blockIdx.x * x.room;
    int pairs = 0, work = 0;
#pragma unroll 1
    for (int from = 0; from < blocks; from += 32) {
      const int j = from + lane, key = j * p.blocks.size, length = j < blocks ? next[j] : 0;
      const int own = (length + x.chunk - 1) / x.chunk * x.parts;
      int before = length, ahead = own;
      for (int m = 1; m < 32; m *= 2) {
        const int y = __shfl_up_sync(0xffffffff, before, m), z = __shfl_up_sync(0xffffffff, ahead, m);
        if (lane >= m) before += y, ahead += z;
      }
      const int first = pairs + before - length;
      if (j < blocks) next[j] = first;
      PairItem* to = items + work + ahead - own;
      for (int done = 0; done < length; done += x.chunk)
        for (int part = 0; part < x.parts; part++)
          *to++ = {key + part * kPairKeys, first + done, min(x.chunk, length - done), part};
      pairs += __shfl_sync(0xffffffff, before, 31), work += __shfl_sync(0xffffffff, ahead, 31);
    }
    if (lane == 0) x.count[blockIdx.x] = work;
  }
  __syncthreads();
  each_pair(p, unit, [&](int j, int pair) { list[atomicAdd(next + j, 1)] = pair; }, [](int, int) {});
}

// Grid x is the number of units of the launch times that of blocks with a thread for each 8 columns of their rows.
#define NSA_JOIN(op, T, Forward, AtOnce, blocks)                                                                                      \
  extern "C" __global__ void __launch_bounds__(nsa::kJoiners, blocks) nsa_pairs_##op##_join_##T(const __grid_constant__ nsa::PairParams a) { \
    nsa::join<nsa::T, Forward, AtOnce>(a);                                                                                     \
  }
NSA_JOIN(forward, bf16, true, 4, 4)
NSA_JOIN(forward, f16, true, 4, 4)
NSA_JOIN(dq, bf16, false, 8, 3)
NSA_JOIN(dq, f16, false, 8, 3)
