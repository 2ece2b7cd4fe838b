// select.cu on matrix units, for bf16 and f16: the same contract, for groups of at most 64 heads and at most 64 blocks of a query.
#include "attention_mma.cuh"
#include "select.cuh"
#include "wgmma.cuh"

#include <type_traits>

namespace nsa {

constexpr int kColumns = 128, kTeam = 128;  // columns and threads of a team

// Which query and head each column of a block's products is. Of a product's columns a thread has the pairs 8*i + 2*(lane%4); they
// are heads of `queries` queries, one after the other, each of which takes `pairs` pairs. A query with more than 32 heads has two
// threads.
struct Columns {
  int each, threads, queries, pairs;

  __device__ explicit Columns(int each)
      : each(each), threads(each > 32 ? 2 : 1), queries(16 / ((each + 2 * threads - 1) / (2 * threads))), pairs(16 / queries) {}
  // The first query of the threads lane%4 = c of a team.
  __device__ int first(int team, int c) const { return (team * 4 + c) / threads * queries; }
  __device__ int query(int i) const { return first(i / kColumns, i % 8 / 2) + i % kColumns / 8 / pairs; }
  // The head of column i, -1 where there is none.
  __device__ int head(int i) const {
    const int pair = i % kColumns / 8, h = 2 * (i % 8 / 2 % threads * pairs + pair % pairs) + i % 2;
    return pair / pairs < queries && h < each ? h : -1;
  }
};

// A tile of Rows rows of C elements whose parts [Rows,64] lie one behind the other.
template <int Rows> __device__ inline uint32_t part_cell(uint32_t tile, int row, int i) {
  return cell<64>(tile + i / 8 * (Rows * 128), row, i % 8);
}

// Begins the product of a tile of keys [64,C] and the columns [128,C] of a team.
template <typename T, int C, bool Group>
__device__ __forceinline__ void product_begin(float (&c)[16][4], uint32_t keys, uint32_t columns) {
  if constexpr (Group) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    const uint32_t a = group_tile(keys), b = group_tile(columns);
    group_begin();
#pragma unroll
    for (int k = 0; k < C / 16; k++)
      group_product<T>(c, a + (k / 4 * (kKeys * 8) + k % 4 * 2), b + (k / 4 * (kColumns * 8) + k % 4 * 2), k > 0);
    group_commit();
#endif
  } else {
#pragma unroll
    for (int j = 0; j < 16; j++)
#pragma unroll
      for (int i = 0; i < 4; i++) c[j][i] = 0;
#pragma unroll
    for (int k = 0; k < C / 16; k++) {
      uint32_t a[4];
      read_fragments<false>(a, part_cell<kKeys>(keys, warp() % 4 * 16 + lane() % 16, 2 * k + lane() / 16));
#pragma unroll
      for (int j = 0; j < 8; j++) {
        uint32_t b[4];
        read_fragments<false>(b, part_cell<kColumns>(columns, 16 * j + lane() / 16 * 8 + lane() % 8, 2 * k + lane() / 8 % 2));
        multiply_fragments<T>(c[2 * j], a, b[0], b[1]);
        multiply_fragments<T>(c[2 * j + 1], a, b[2], b[3]);
      }
    }
  }
}
template <bool Group> __device__ __forceinline__ void product_end(float (&c)[16][4]) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  if constexpr (Group) group_wait(c);
#endif
}

// A score and its block as one number: greater is better. 0 is none.
using Ranked = unsigned long long;
__device__ inline Ranked ranked(float score, int block) {
  uint32_t bits;
  memcpy(&bits, &score, sizeof bits);
  return (Ranked)bits << 32 | ~(uint32_t)block;
}
struct alignas(16) RankedPair { Ranked x, y; };
__device__ inline float score_of(Ranked x) {
  const uint32_t bits = uint32_t(x >> 32);
  float score;
  memcpy(&score, &bits, sizeof score);
  return score;
}
__device__ inline int block_of(Ranked x) { return (int)~(uint32_t)x; }

// Sums the columns of each of a thread's queries, of two keys, and writes them to rows of sums that lie before `limit`.
template <int Queries> __device__ __forceinline__ void sum_heads(float* to, const float* limit, int pitch, const float (&s)[16][4]) {
#pragma unroll
  for (int u = 0; u < Queries; u++, to += pitch) {
    float2 x{0, 0};
#pragma unroll
    for (int j = 16 / Queries * u; j < 16 / Queries * (u + 1); j++) x.x += s[j][0] + s[j][1], x.y += s[j][2] + s[j][3];
    if (to < limit) *reinterpret_cast<float2*>(to) = x;
  }
}

// The key of a tile that lies in a row: 2*i + e of each 16 lies in row i + 8*e, so that a thread's rows of a product adjoin.
__device__ constexpr int key_of(int row) { return (row & ~15) | (row & 7) << 1 | (row >> 3 & 1); }

template <typename T, int C, int Teams, bool Group> __device__ void select_blocks(const SelectParams& p) {
  constexpr int kAll = Teams * kTeam, kCells = C / 8, kTile = kKeys * C * 2;
  const Sizes& n = p.n;
  const T *q = static_cast<const T*>(p.q), *kc = static_cast<const T*>(p.kc);
  const int places = (n.queries - 1) / p.size < p.most ? 0 : p.most - kForced;  // 0 where all queries get all blocks
  const Columns columns(n.each);
  const int pitch = p.ring + 4;
  Carver carve{tiles_shared()};
  const uint32_t Q = shared_address(carve.floats(kAll * C / 2)), K = shared_address(carve.floats(2 * kTile / 4));
  float* lses = carve.floats(kAll);  // of the columns; Inf where there is none
  float* bases = carve.floats(kAll);
  float* sums = carve.floats(p.tokens * columns.threads * pitch);  // of each query: p summed over the heads, of the newest `ring` keys
  Ranked* lists = reinterpret_cast<Ranked*>(carve.floats(2 * p.tokens * p.room));  // of each query
  float* bars = carve.floats(p.tokens);            // what a score must exceed
  int* counts = reinterpret_cast<int*>(carve.floats(p.tokens));            // of the lists
  int* rows = reinterpret_cast<int*>(sums);                                // first: of each column, its query and head

  const int tiles = (n.queries - 1) / p.tokens + 1, group = blockIdx.x / tiles, b = group / n.groups, g = group % n.groups;
  const int t0 = (tiles - 1 - blockIdx.x % tiles) * p.tokens, t1 = min(n.queries, t0 + p.tokens);
  const int newest = (t1 - 1) / p.size;
  const int last = newest < p.most || places == 0 ? 0 : newest - 1;  // candidates are the blocks [1,last)
  const int keys = ((long long)last * p.per + kKeys - 1) / kKeys;    // tiles of keys

  const int team = warp() / 4, c = lane() % 4;
  bool any_large = false;
  if (last > 0) {
    for (int i = threadIdx.x; i < p.tokens; i += kAll) bars[i] = -1, counts[i] = 0;
    {
      const int i = threadIdx.x, query = columns.query(i), head = columns.head(i);
      const bool in = head >= 0 && query < t1 - t0;
      const float lse = in ? load_lse(p.lse[((long long)b * n.heads + g * n.each + head) * n.queries + t0 + query]) : INFINITY;
      lses[i] = lse, bases[i] = lse * kLog2E;
      rows[i] = in ? query << 8 | head : -1;
      any_large = __syncthreads_or(large(lse));
    }
    for (int u = threadIdx.x; u < kAll * kCells; u += kAll) {
      const int row = u / kCells, i = u % kCells, at = rows[row];
      const bool in = at >= 0 && 8 * i < n.d;
      const T* from = q + (((long long)b * n.queries + t0 + (at >> 8)) * n.heads + g * n.each + (at & 255)) * n.d + 8 * i;
      copy_cell(part_cell<kColumns>(Q + row / kColumns * (kColumns * C * 2), row % kColumns, i), in ? from : q, in);
    }
    __syncthreads();  // rows have been read
  }
  const uint32_t mine = Q + team * (kColumns * C * 2);

  constexpr int kStep = kAll / kCells;
  static_assert(kStep % 8 == 0 && kKeys % kStep == 0);
  const int row = threadIdx.x / kCells;
  const long long stride = (long long)n.groups * n.d;
  const uint32_t place = part_cell<kKeys>(K, row, threadIdx.x % kCells);
  const T* from = kc + n.key(b, g, key_of(row), n.d) + 8 * (threadIdx.x % kCells);
  const int left = 8 * (threadIdx.x % kCells) < n.d ? min(n.keys, keys * kKeys) - key_of(row) : 0;
  const auto load = [&](int tile) {
#pragma unroll
    for (int u = 0; u < kKeys / kStep; u++)
      copy_cell(place + tile % 2 * kTile + u * kStep * 128, from + key_of(u * kStep) * stride, key_of(u * kStep) < left - tile * kKeys);
    copy_commit();
    from += kKeys * stride;
  };
  // Sums p over the heads, of the keys of a tile.
  const float* const base = bases + team * kColumns + 2 * c;
  float* const begin = sums + (team * 4 + c) * columns.queries * pitch + warp() % 4 * 16 + lane() / 4 * 2;
  float* const limit = sums + p.tokens * columns.threads * pitch;
  int at_tile = 0;  // where the next tile's keys lie in the ring
  const auto sum = [&](float (&s)[16][4]) {
    float* to = begin + at_tile;
    at_tile = at_tile + kKeys == p.ring ? 0 : at_tile + kKeys;
    if (any_large) {
#pragma unroll
      for (int j = 0; j < 16; j++)
#pragma unroll
        for (int i = 0; i < 4; i++) s[j][i] = power2(exponent(s[j][i], n.scale, base[lses - bases + 8 * j + i % 2]) * kLog2E);
    } else {
#pragma unroll
      for (int j = 0; j < 16; j++) {
        const float2 x = load_pair(base + 8 * j);
#pragma unroll
        for (int i = 0; i < 4; i++) s[j][i] = power2(fmaf(s[j][i], n.scale_log2, -(i % 2 ? x.y : x.x)));
      }
    }
    switch (columns.queries) {
      case 1: return sum_heads<1>(to, limit, pitch, s);
      case 2: return sum_heads<2>(to, limit, pitch, s);
      case 3: return sum_heads<3>(to, limit, pitch, s);
      case 4: return sum_heads<4>(to, limit, pitch, s);
      case 5: return sum_heads<5>(to, limit, pitch, s);
      case 8: return sum_heads<8>(to, limit, pitch, s);
      default: return sum_heads<16>(to, limit, pitch, s);
    }
  };
  // Leaves the best of a full list, in order.
  const auto prune = [&](Ranked* list) {
    Ranked x[3];
    int at[3];
#pragma unroll
    for (int e = 0; e < 3; e++)
      if (32 * e < p.room) {
        x[e] = list[lane() + 32 * e], at[e] = 0;
#pragma unroll 8
        for (int i = 0; i < p.room; i += 2) {
          const RankedPair y = *reinterpret_cast<const RankedPair*>(list + i);
          at[e] += (y.x > x[e]) + (y.y > x[e]);
        }
      }
    __syncwarp();
#pragma unroll
    for (int e = 0; e < 3; e++)
      if (32 * e < p.room && at[e] < places) list[at[e]] = x[e];
    __syncwarp();
  };
  // Gives the lists the scores of the blocks [j0,j0+tile).
  int j0 = 0, at_block = 0;  // the next block, where its first key lies in the ring
  const int earliest = (int)min((long long)p.most * p.size, (long long)n.queries);  // query that chooses
  const auto take = [&](auto usual) {
    const int j = j0 + lane(), near = at_block + lane() * p.per;
    const int since = (lane() < p.tile && 1 <= j && j < last ? max(earliest, (j + 2) * p.size) : n.queries) - t0;  // queries that may choose j
    const auto in_ring = [&](int x) { return x >= p.ring ? x - p.ring : x < 0 ? x + p.ring : x; };
    const int first = in_ring(near), before = in_ring(near - 1);
#pragma unroll 1
    for (int i = warp(); i < t1 - t0; i += kAll / 32) {
      const float* r = sums + i * columns.threads * pitch;
      float score = 0;
      if constexpr (decltype(usual)::value) {
        const float4 x = *reinterpret_cast<const float4*>(r + first);
        score = r[before] + 2 * (x.x + x.y + x.z) + x.w;
      } else if (i >= since) {
        const Fold fold{p.l, p.per};
        const int end = (int)min(fold.hi(j) + 1, (long long)p.span.visible(t0 + i));
        for (int x = (int)max(0LL, fold.lo(j)); x < end; x++) {
          const float* at = r + in_ring(near + x - j * p.per);
          score = fmaf((float)fold.weight(x, j), columns.threads == 1 ? *at : *at + at[pitch], score);
        }
      }
      score = fmaxf(score, 0);  // not NaN
      bool in = i >= since && score > bars[i];
      unsigned better = __ballot_sync(0xffffffff, in);
      if (better == 0) continue;
      Ranked* list = lists + i * p.room;
      const Ranked x = ranked(score, j);
      for (int count = counts[i];;) {
        const int at = count + __popc(better & ((1u << lane()) - 1));
        if (in && at < p.room) list[at] = x;
        count += __popc(better);
        __syncwarp();
        if (count <= p.room) {
          if (lane() == 0) counts[i] = count;
          break;
        }
        prune(list);
        count = places;
        const Ranked least = list[places - 1];
        in = in && at >= p.room && x > least;
        better = __ballot_sync(0xffffffff, in);
        if (lane() == 0) bars[i] = score_of(least);
      }
      __syncwarp();
    }
    j0 += p.tile, at_block = in_ring(at_block + p.tile * p.per);
  };
  // Takes all blocks whose keys are below `done`.
  const bool usual = p.l == 2 && p.per == 4 && columns.threads == 1;
  const auto take_until = [&](int done) {
    if (usual)
      while (j0 < last && (j0 + p.tile) * 4 <= done) take(std::true_type());
    else
      while (j0 < last && (long long)(j0 + p.tile) * p.per <= done) take(std::false_type());
  };

  // Even teams wait for the keys of a tile and then begin its product, odd ones wait for those of the next tile behind their product:
  // so one half's products run beside the exponentials of the other half.
  const bool odd = team % 2 != 0;
  load(0);
  const auto arrived = [&](int tile) {
    copy_wait<0>();
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    if (Group) group_fence();
#endif
    __syncthreads();
    load(tile + 1);
  };
  if (odd) arrived(0);
  for (int tile = 0; tile < keys; tile++) {
    if (!odd) arrived(tile);
    float s[16][4];
    product_begin<T, C, Group>(s, K + tile % 2 * kTile, mine);
    take_until((tile - 1) * kKeys);
    product_end<Group>(s);
    if (odd) arrived(tile + 1);
    sum(s);
  }
  if (!odd) arrived(keys);
  copy_wait<0>();
  __syncthreads();
  take_until(0x7fffffff);

  for (int i = warp(); i < t1 - t0; i += kAll / 32) {
    const int own = (t0 + i) / p.size;
    int* idx = p.idx + Blocks{p.size, p.most}.list(n, b, g, t0 + i);
    if (own < p.most) {
      for (int j = lane(); j < p.most; j += 32) idx[j] = j <= own ? j : -1;
      continue;
    }
    Ranked* list = lists + i * p.room;
    if (places > 0) {
      for (int j = counts[i] + lane(); j < p.room; j += 32) list[j] = 0;
      __syncwarp();
      prune(list);
    }
    for (int j = lane(); j < places; j += 32) {
      const int block = block_of(list[j]);
      int at = 1;
      for (int k = 0; k < places; k++) at += block_of(list[k]) < block;
      idx[at] = block;
    }
    if (lane() == 0) idx[0] = 0, idx[p.most - 2] = own - 1, idx[p.most - 1] = own;
  }
}

}  // namespace nsa
