// select.cu on matrix units, for bf16 and f16: the same contract, for groups of at most 64 heads.
//
// A block of `Teams` teams owns `tokens` queries of a group and walks over the compressed keys once, 64 at a time. Products are
// transposed: keys are rows, and columns are the heads of queries, all heads of a query in one thread. So the sum over the heads is a
// sum of registers; it goes to shared memory, into a ring of the newest `ring` keys of each query. When the keys of `tile` more
// blocks are there, a warp folds the ring of a query onto them, each lane for one block. Scores that are not above the query's bar,
// at least `places` of which are better, are dropped. The others go to the end of its list; a full one (`room`) is cut to the best
// `places`, the least of which is the new bar. A list's entries are ordered by score and block, so no order of events changes them.
//
// Shared memory: columns [kTeam*Teams,C], two tiles of keys [64,C], and what Carver says.
#include "select.cuh"
#include "team_product.cuh"

namespace nsa {

// Which query and head each column of a block is. Of a product a thread has the pairs of columns 8*i + 2*(lane%4): heads of `queries`
// queries, one after the other, `pairs` pairs for each. A query with more than 32 heads has two threads.
struct Columns {
  int each, threads, queries, pairs;

  __device__ Columns(int each, int queries_of_team)
      : each(each), threads(each > 32 ? 2 : 1), queries(queries_of_team * threads / 4), pairs(16 / queries) {}
  // The first query of the threads lane%4 = c of a team.
  __device__ int first(int team, int c) const { return (team * 4 + c) / threads * queries; }
  __device__ int query(int i) const { return first(i / kColumns, i % 8 / 2) + i % kColumns / 8 / pairs; }
  // The head of column i, -1 where there is none.
  __device__ int head(int i) const {
    const int pair = i % kColumns / 8, h = 2 * (i % 8 / 2 % threads * pairs + pair % pairs) + i % 2;
    return pair / pairs < queries && h < each ? h : -1;
  }
};

// A list of a query: first the bits of the scores of its entries, which order as the scores do since none is negative, then their
// blocks. Of equal scores the one of the lower block comes first. No score is kNone.
constexpr int kNone = -1;
// What the bits of a score must exceed to come to a list, and how many have come.
struct __align__(8) ListState { int bar, count; };
__device__ inline int bits_of(float x) {
  int bits;
  memcpy(&bits, &x, sizeof bits);
  return bits;
}

// Sorts the best `places` of a list to its begin; Room is 32 or 64. All lanes of a warp call it.
template <int Room> __device__ __forceinline__ void cut(int* list, int places) {
  int x[Room / 32], block[Room / 32], better[Room / 32];
#pragma unroll
  for (int e = 0; e < Room / 32; e++) {
    x[e] = list[lane() + 32 * e], block[e] = list[Room + lane() + 32 * e];
    better[e] = __popc(__match_any_sync(0xffffffff, x[e]) & ((1u << lane()) - 1));
  }
#pragma unroll 8
  for (int i = 0; i < Room; i += 4) {
    const int4 y = *reinterpret_cast<const int4*>(list + i);
#pragma unroll
    for (int e = 0; e < Room / 32; e++) {
      const int mine = x[e] - (i / 32 < e);  // equal ones before this half are better
      better[e] += (uint32_t)(mine - y.x) >> 31, better[e] += (uint32_t)(mine - y.y) >> 31;
      better[e] += (uint32_t)(mine - y.z) >> 31, better[e] += (uint32_t)(mine - y.w) >> 31;
    }
  }
  __syncwarp();
#pragma unroll
  for (int e = 0; e < Room / 32; e++)
    if (better[e] < places) list[better[e]] = x[e], list[Room + better[e]] = block[e];
  __syncwarp();
}
__device__ __forceinline__ void cut(int* list, int room, int places) { room == 32 ? cut<32>(list, places) : cut<64>(list, places); }

// Makes a thread's products probabilities and sums those of each of its queries, of two keys, into rows of sums. base: of each column
// lse*log2(e).
template <int Queries>
__device__ __forceinline__ void sum_heads(float (&s)[16][4], float scale, const float* base, float* to, int pitch) {
  constexpr int kPairs = 16 / Queries;
  float2 x[Queries];  // stored last: loads of base do not go before stores
#pragma unroll
  for (int j = 0; j < kPairs * Queries; j++) {
    const float2 y = load_pair(base + 8 * j);
#pragma unroll
    for (int i = 0; i < 4; i++) s[j][i] = power2(fmaf(s[j][i], scale, -(i % 2 ? y.y : y.x)));
    float2& sum = x[j / kPairs];
    if (j % kPairs == 0)
      sum = {s[j][0] + s[j][1], s[j][2] + s[j][3]};
    else
      sum.x += s[j][0] + s[j][1], sum.y += s[j][2] + s[j][3];
  }
#pragma unroll
  for (int u = 0; u < Queries; u++, to += pitch) *reinterpret_cast<float2*>(to) = x[u];
}

// The key of a tile that lies in a row: a thread's rows of a product, 8 apart, are two keys that adjoin.
__host__ __device__ constexpr int key_of(int row) { return (row & ~15) | (row & 7) << 1 | (row >> 3 & 1); }

// Usual is whether l is 2 d, l' 4 d, and a query one thread's. The ring is then two halves of kHalf keys, each behind kBefore cells, of
// which the last one is for the key before.
constexpr int kHalf = 2 * kKeys, kBefore = 4;

template <typename T, int C, int Teams, bool Usual> __device__ void team_select_blocks(const SelectParams& p) {
  constexpr int kAll = Teams * kTeam, kCells = C / 8, kStep = kAll / kCells, kTile = kKeys * C * 2, kMine = kColumns * C * 2;
  static_assert(kStep % 8 == 0 && kKeys % kStep == 0, "each thread copies the same cell of several rows");
  const Sizes& n = p.n;
  const T *q = static_cast<const T*>(p.q), *kc = static_cast<const T*>(p.kc);
  const int places = (n.queries - 1) / p.size < p.most ? 0 : p.most - kForced;  // 0 where all queries get all blocks
  const Columns columns(n.each, p.tokens / Teams);
  const int pitch = p.pitch;  // of a thread's sums
  Carver carve{tiles_shared()};
  const uint32_t Q = shared_address(carve.floats(kAll * C / 2)), K = shared_address(carve.floats(2 * kTile / 4));
  float* lses = carve.floats(kAll);  // of the columns, Inf where there is none
  float* bases = carve.floats(kAll);
  float* sums = carve.floats(p.tokens * columns.threads * pitch);
  int* lists = reinterpret_cast<int*>(carve.floats(2 * p.tokens * p.room));
  ListState* states = reinterpret_cast<ListState*>(carve.floats(2 * p.tokens));
  int* rows = reinterpret_cast<int*>(sums);                      // first: of the columns, query and head

  const int tiles = (n.queries - 1) / p.tokens + 1, group = blockIdx.x / tiles, b = group / n.groups, g = group % n.groups;
  const int t0 = (tiles - 1 - blockIdx.x % tiles) * p.tokens, t1 = min(n.queries, t0 + p.tokens);
  const int newest = (t1 - 1) / p.size;
  const int last = newest < p.most || places == 0 ? 0 : newest - 1;  // candidates are the blocks [1,last)
  const int keys = (int)(((long long)last * p.per + kKeys - 1) / kKeys);  // tiles of them

  const int team = warp() / 4, c = lane() % 4;
  bool any_large = false;
  if (last > 0) {
    for (int i = threadIdx.x; i < p.tokens; i += kAll) states[i] = {kNone, 0};
    const int own = threadIdx.x, query = columns.query(own), head = columns.head(own);
    const bool in = head >= 0 && t0 + query < t1;
    const float lse = in ? load_lse(p.lse[((long long)b * n.heads + g * n.each + head) * n.queries + t0 + query]) : INFINITY;
    rows[own] = in ? query << 8 | head : -1;
    any_large = __syncthreads_or(large(lse));
    lses[own] = lse, bases[own] = any_large ? 0 : lse * kLog2E;
    const T* from = q + (((long long)b * n.queries + t0) * n.heads + g * n.each) * n.d;
#pragma unroll 4
    for (int u = 0; u < kCells; u++) {
      const int row = threadIdx.x / kCells + u * kStep, i = threadIdx.x % kCells, at = rows[row];
      const bool in = at >= 0 && 8 * i < n.d;
      copy_cell(part_cell<kColumns>(Q + row / kColumns * kMine, row % kColumns, i),
                in ? from + ((long long)(at >> 8) * n.heads + (at & 255)) * n.d + 8 * i : q, in);
    }
    __syncthreads();  // the rows have been read
  }

  // Begins to copy a tile of keys, zeros behind the last one.
  const int row = threadIdx.x / kCells, first_cell = threadIdx.x % kCells;
  const int left = 8 * first_cell < n.d ? min(n.keys, keys * kKeys) - key_of(row) : 0;
  const long long stride = (long long)n.groups * n.d;
  uint32_t place = part_cell<kKeys>(K, row, first_cell);
  asm volatile("" : "+r"(place));  // so that it stays in its register: computed anew, it takes many instructions
  const T* from = kc + n.key(b, g, key_of(row), n.d) + 8 * first_cell;
  const auto load = [&](int tile) {
#pragma unroll
    for (int u = 0; u < kKeys / kStep; u++)
      copy_cell(place + tile % 2 * kTile + u * kStep * 128, from + key_of(u * kStep) * stride, key_of(u * kStep) < left - tile * kKeys);
    from += kKeys * stride;
  };

  const float* const base = bases + team * kColumns + 2 * c;
  int at = (team * 4 + c) * columns.queries * pitch + warp() % 4 * 16 + lane() / 4 * 2, at_tile = 0;  // in the ring: of the next tile
  asm volatile("" : "+r"(at));
  const auto sum = [&](float (&s)[16][4]) {
    float* to = sums + at + at_tile + (Usual ? kBefore + at_tile / kHalf * kBefore : 0);
    at_tile = at_tile + kKeys == (Usual ? 2 * kHalf : p.ring) ? 0 : at_tile + kKeys;
    float scale = n.scale_log2;
    if (any_large) {  // to exponents
#pragma unroll
      for (int j = 0; j < 16; j++)
#pragma unroll
        for (int i = 0; i < 4; i++) s[j][i] = exponent(s[j][i], n.scale, base[lses - bases + 8 * j + i % 2]) * kLog2E;
      scale = 1;
    }
    switch (columns.queries) {
      case 1: return sum_heads<1>(s, scale, base, to, pitch);
      case 2: return sum_heads<2>(s, scale, base, to, pitch);
      case 3: return sum_heads<3>(s, scale, base, to, pitch);
      case 4: return sum_heads<4>(s, scale, base, to, pitch);
      case 5: return sum_heads<5>(s, scale, base, to, pitch);
      case 8: return sum_heads<8>(s, scale, base, to, pitch);
      default: return sum_heads<16>(s, scale, base, to, pitch);
    }
  };

  // Gives the list of query i the scores of the lanes that are `in`.
  const auto enter = [&](int i, ListState state, int score, int block, bool in) {
    unsigned chosen = __ballot_sync(0xffffffff, in);
    if (chosen == 0) return;
    int* list = lists + i * 2 * p.room;
    for (;;) {
      const int at = state.count + __popc(chosen & ((1u << lane()) - 1));
      if (in && at < p.room) list[at] = score, list[p.room + at] = block;
      state.count += __popc(chosen);
      __syncwarp();
      if (state.count <= p.room) break;
      cut(list, p.room, places);
      state = {list[places - 1], places};
      in = in && at >= p.room && score > state.bar;
      chosen = __ballot_sync(0xffffffff, in);
    }
    if (lane() == 0) states[i] = state;
    __syncwarp();
  };
  // Gives the lists the scores of the next blocks.
  int j0 = 0, at_block = 0;  // the next block, and where its first key lies in the ring
  const auto take = [&] {
    const int per = Usual ? 4 : p.per, width = Usual ? 32 : p.tile, j = j0 + lane();
    const int since = (lane() < width && 1 <= j && j < last ? max(p.earliest, (j + 2) * p.size) : n.queries) - t0;
    if constexpr (Usual) {
      const int half = at_block == 0 ? kBefore : 2 * kBefore + kHalf, other = 3 * kBefore + kHalf - half;
#pragma unroll 1
      for (int i = warp(); i < t1 - t0; i += kAll / 32) {
        float* r = sums + i * pitch;
        const float4 x = *reinterpret_cast<const float4*>(r + half + lane() * 4);
        const float before = r[half + lane() * 4 - 1];
        const ListState state = states[i];
        if (lane() == 31) r[other - 1] = x.w;
        const int score = bits_of(fmaxf(before + 2 * (x.x + x.y + x.z) + x.w, 0));  // not NaN
        enter(i, state, score, j, i >= since && score > state.bar);
      }
    } else {
      const int key = at_block + lane() * per;
      const auto in_ring = [&](int x) { return x >= p.ring ? x - p.ring : x < 0 ? x + p.ring : x; };
#pragma unroll 1
      for (int i = warp(); i < t1 - t0; i += kAll / 32) {
        const float* r = sums + i * columns.threads * pitch;
        const ListState state = states[i];
        float score = 0;
        if (i >= since) {
          const int seen = p.span.visible(t0 + i) - j * per;
#pragma unroll 1
          for (int x = max(-j * per, 1 - p.l); x < min(per, seen); x++) {  // from the first key that meets block j, counted from its own
            const float* at = r + in_ring(key + x);
            score = fmaf((float)min(min(x + p.l, per - x), min(p.l, per)), columns.threads == 1 ? *at : *at + at[pitch], score);
          }
        }
        const int bits = bits_of(fmaxf(score, 0));  // not NaN
        enter(i, state, bits, j, i >= since && bits > state.bar);
      }
    }
    j0 += width, at_block += width * per;
    if (at_block >= (Usual ? 2 * kHalf : p.ring)) at_block -= Usual ? 2 * kHalf : p.ring;
  };
  const auto take_below = [&](int key) {  // all blocks whose keys are
    const int width = Usual ? 32 : p.tile, per = Usual ? 4 : p.per;
    while (j0 < last && (j0 + width) * per <= key) take();
  };

  // Even teams wait for a tile of keys and then begin its product, odd ones wait for the next tile between a product and its sums:
  // so some exponentials run beside others' products.
  const bool odd = team % 2 != 0;
  const auto wait = [&](int tile) {
    tiles_arrived();
    __syncthreads();
    load(tile + 1);
  };
  load(0);
  if (odd) wait(0);
  for (int tile = 0; tile < keys; tile++) {
    if (!odd) wait(tile);
    float s[16][4];
    begin_product<T, C>(s, K + tile % 2 * kTile, Q + team * kMine);
    take_below((tile - 1) * kKeys);  // odd teams have not summed the tile before this one
    end_product(s);
    if (odd) wait(tile + 1);
    sum(s);
  }
  if (!odd) wait(keys);
  copies_arrived();
  __syncthreads();
  take_below(0x7fffffff);

  for (int i = warp(); i < t1 - t0; i += kAll / 32) {
    const int own = (t0 + i) / p.size;
    int* idx = p.idx + Blocks{p.size, p.most}.list(n, b, g, t0 + i);
    if (own < p.most) {
      for (int j = lane(); j < p.most; j += 32) idx[j] = j <= own ? j : -1;
      continue;
    }
    int* list = lists + i * 2 * p.room;
    if (places > 0) {
      for (int j = states[i].count + lane(); j < p.room; j += 32) list[j] = kNone;
      __syncwarp();
      cut(list, p.room, places);
    }
    for (int j = lane(); j < places; j += 32) {
      const int block = list[p.room + j];
      int at = 1;
#pragma unroll 4
      for (int k = 0; k < places; k++) at += list[p.room + k] < block;
      idx[at] = block;
    }
    if (lane() == 0) idx[0] = 0, idx[p.most - 2] = own - 1, idx[p.most - 1] = own;
  }
}

}  // namespace nsa

#define NSA_SELECT(op, C, teams, blocks, usual, suffix, T)                                                             \
  extern "C" __global__ void __launch_bounds__(nsa::kTeam * teams, blocks)                                             \
      nsa_##op##_mma##C##_##suffix(const __grid_constant__ nsa::SelectParams p) {                                      \
    nsa::team_select_blocks<T, C, teams, usual>(p);                                                                    \
  }
#define NSA_SELECT_TYPES(op, C, teams, blocks, usual)                                                                  \
  NSA_SELECT(op, C, teams, blocks, usual, bf16, nsa::bf16)                                                             \
  NSA_SELECT(op, C, teams, blocks, usual, f16, nsa::f16)
NSA_SELECT_TYPES(select_blocks, 64, 2, 2, true)
NSA_SELECT_TYPES(select_blocks, 128, 4, 1, true)
NSA_SELECT_TYPES(select_blocks_small, 64, 1, 3, true)
NSA_SELECT_TYPES(select_blocks_small, 128, 1, 2, true)
NSA_SELECT_TYPES(select_blocks_any, 64, 1, 3, false)
NSA_SELECT_TYPES(select_blocks_any, 128, 1, 2, false)
