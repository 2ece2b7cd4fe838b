// Block selection on tensor cores, for bf16 and f16: the contract of select_blocks.cu, for groups of at most 64 heads.
//
//   nsa_select_blocks_mma<C>      l = 2d, l' = 4d, at most 32 heads a group
//   nsa_select_blocks_any_mma<C>  all other sizes
//
// Grid x is B*Hkv*ceil(S/tokens), blocks of one team of 128 threads. A block owns `tokens` queries of a group and goes through the
// compressed keys once, 64 at a time. Products are transposed: keys are rows, and columns are the heads of queries. One thread has all
// heads of a query, two if there are more than 32. So the sum over heads is a sum of registers. It goes to a ring in shared memory, which
// holds the newest `ring` keys of each query. When the keys of `tile` more blocks are complete, a warp folds the ring of a query onto
// them, one lane for each block. A score that is not above the query's bar is dropped: at least `places` others are no worse. The other
// scores go to the end of the query's list. When the list is full (`room`), the warp cuts it to the best `places`; the least of them is
// the new bar. Entries are ordered by score and block, so the order of events does not change the result. If the queries belong to
// several documents, the block takes one document after the other.
//
// Shared memory: columns [kTeam,C], two tiles of keys [64,C], and what carve hands out in team_select_blocks.
#include "select_team.cuh"

namespace nsa {

// The key that a row of a tile holds. A thread has two rows of a product, 8 apart; they hold two consecutive keys.
__host__ __device__ constexpr int key_of(int row) { return (row & ~15) | (row & 7) << 1 | (row >> 3 & 1); }

// Usual: l = 2d, l' = 4d, and one thread has all heads of a query. Then the ring has two halves of kHalf keys. Before each half lie
// kBefore floats; the last of them holds the key before the half.
constexpr int kHalf = 2 * kKeys, kBefore = 4;

template <typename T, int C, bool Usual> __device__ void team_select_blocks(const SelectParams& p) {
  constexpr int kCells = C / 8, kStep = kTeam / kCells, kTile = kKeys * C * 2;
  static_assert(kStep % 8 == 0 && kKeys % kStep == 0, "each thread copies the same cell of several rows");
  const Sizes& n = p.n;
  const T* kc = static_cast<const T*>(p.kc);
  const int places = p.places;
  const Columns columns(n.h, p.tokens);
  const int pitch = p.pitch;  // floats from the sums of one query of a thread to the next
  Carver carve{tiles_shared()};
  const uint32_t Q = shared_address(carve.floats(kTeam * C / 2)), K = shared_address(carve.floats(2 * kTile / 4));
  float* lses = carve.floats(kTeam);  // lse of each column, Inf for an unused one
  float* bases = carve.floats(kTeam);
  float* sums = carve.floats(p.tokens * columns.threads * pitch);
  int* lists = reinterpret_cast<int*>(carve.floats(2 * p.tokens * p.room));
  ListState* states = reinterpret_cast<ListState*>(carve.floats(2 * p.tokens));

  const int tiles = (n.queries - 1) / p.tokens + 1, group = blockIdx.x / tiles, b = group / n.groups, g = group % n.groups;
  const int tile_of = tiles - 1 - blockIdx.x % tiles, owned = min(n.queries, (tile_of + 1) * p.tokens);
#pragma unroll 1
  for (int next = tile_of * p.tokens; next < owned;) {
    const Document of = p.document(b, next);
    const int start = next, end = min(owned, max(start + 1, of.end));  // the queries of one document
    next = end;
    // From here on, queries t count from the first token of the document, and keys from its first key.
    const int t0 = start - of.first, t1 = end - of.first;
    const int newest = (t1 - 1) / p.size;
    const int last = newest < p.top_n || places == 0 ? 0 : newest - 1;  // candidates are the blocks [1,last)
    const int keys = (int)(((long long)last * p.block_strides + kKeys - 1) / kKeys);  // tiles of keys

    const int c = lane() % 4;
    bool any_large = false;
    if (last > 0) {
      for (int i = threadIdx.x; i < p.tokens; i += kTeam) states[i] = {kNoScore, 0};
      any_large = load_columns<T, C, 1>(p, columns, b, g, start, Q, lses, bases, reinterpret_cast<int*>(sums));
    }

    // Begins to copy a tile of keys. Rows after the last key become zeros.
    const int row = threadIdx.x / kCells, first_cell = threadIdx.x % kCells;
    const int left = 8 * first_cell < n.d ? min(n.keys - of.keys, keys * kKeys) - key_of(row) : 0;
    const long long stride = (long long)n.groups * n.d;
    uint32_t place = part_cell<kKeys>(K, row, first_cell);
    opaque(place);  // stays in a register: to compute it again takes many instructions
    const T* from = kc + n.key(b, g, of.keys + key_of(row), n.d) + 8 * first_cell;
    const auto load = [&](int tile) {
#pragma unroll
      for (int u = 0; u < kKeys / kStep; u++)
        copy_cell(place + tile % 2 * kTile + u * kStep * 128, from + key_of(u * kStep) * stride, key_of(u * kStep) < left - tile * kKeys);
      from += kKeys * stride;
    };

    const float* const base = bases + 2 * c;
    // at_tile: where the next tile of keys goes in the ring
    int at = c * columns.queries * pitch + warp() * 16 + lane() / 4 * 2, at_tile = 0;
    opaque(at);  // as place
    const auto sum = [&](float (&s)[16][4]) {
      float* to = sums + at + at_tile + (Usual ? kBefore + at_tile / kHalf * kBefore : 0);
      at_tile = at_tile + kKeys == (Usual ? 2 * kHalf : p.ring) ? 0 : at_tile + kKeys;
      if (any_large) to_exponents(s, n.scale, base - kTeam);
      const float scale = any_large ? 1 : n.scale_log2;
      with_queries(columns.queries, [&](auto queries) { sum_heads<decltype(queries)::value, 1>(s, scale, base, to, pitch); });
    };

    const auto keep = [&](int i, const ListState& state, bool changed) {
      if (!changed) return;
      if (lane() == 0) states[i] = state;
      __syncwarp();
    };
    // take computes the scores of the next blocks and offers them to the lists.
    int j0 = 0, at_block = 0;  // the next block; where its first key lies in the ring
    const auto take = [&] {
      const int strides = Usual ? 4 : p.block_strides, width = Usual ? 32 : p.tile, j = j0 + lane();
      // the first query that may select block j, which must not be among its two newest; after all if there is none
      const int since = (lane() < width && 1 <= j && j < last ? max(p.earliest, (j + 2) * p.size) : p.sequence) - t0;
      if constexpr (Usual) {
        const int half = at_block == 0 ? kBefore : 2 * kBefore + kHalf, other = 3 * kBefore + kHalf - half;
#pragma unroll 1
        for (int i = warp(); i < t1 - t0; i += kTeam / 32) {
          float* r = sums + i * pitch;
          const float4 x = *reinterpret_cast<const float4*>(r + half + lane() * 4);
          const float before = r[half + lane() * 4 - 1];
          ListState state = states[i];
          if (lane() == 31) r[other - 1] = x.w;
          const int score = bits_of(fmaxf(before + 2 * (x.x + x.y + x.z) + x.w, 0));  // fmaxf turns NaN into 0
          keep(i, state, enter(lists + i * 2 * p.room, state, p.room, places, score, j, i >= since && score > state.bar));
        }
      } else {
        const int key = at_block + lane() * strides;
        const auto in_ring = [&](int x) { return x >= p.ring ? x - p.ring : x < 0 ? x + p.ring : x; };
#pragma unroll 1
        for (int i = warp(); i < t1 - t0; i += kTeam / 32) {
          const float* r = sums + i * columns.threads * pitch;
          ListState state = states[i];
          float score = 0;
          if (i >= since) {
            const int seen = p.span.visible(t0 + i) - j * strides;
            // The keys that meet block j, counted from its own first key.
#pragma unroll 1
            for (int x = max(-j * strides, 1 - p.l_strides); x < min(strides, seen); x++) {
              const float* at = r + in_ring(key + x);
              const int taps = min(min(x + p.l_strides, strides - x), min(p.l_strides, strides));
              score = fmaf((float)taps, columns.threads == 1 ? *at : *at + at[pitch], score);
            }
          }
          const int bits = bits_of(fmaxf(score, 0));  // fmaxf turns NaN into 0
          keep(i, state, enter(lists + i * 2 * p.room, state, p.room, places, bits, j, i >= since && bits > state.bar));
        }
      }
      j0 += width, at_block += width * strides;
      if (at_block >= (Usual ? 2 * kHalf : p.ring)) at_block -= Usual ? 2 * kHalf : p.ring;
    };
    const auto take_below = [&](int key) {  // takes all blocks whose keys lie below `key`
      const int width = Usual ? 32 : p.tile, strides = Usual ? 4 : p.block_strides;
      while (j0 < last && (j0 + width) * strides <= key) take();
    };

    load(0);
    for (int tile = 0; tile < keys; tile++) {
      tiles_arrived();
      __syncthreads();
      load(tile + 1);
      float s[16][4];
      begin_product<T, C>(s, K + tile % 2 * kTile, Q);
      take_below(tile * kKeys);
      end_product(s);
      sum(s);
    }
    copies_arrived();
    __syncthreads();
    take_below(0x7fffffff);

    SelectParams of_document = p;  // its queries count from the first token of the document
    of_document.idx += (long long)of.first * n.groups * p.top_n;
    for (int i = warp(); i < t1 - t0; i += kTeam / 32) write_selection(of_document, b, g, t0 + i, lists + i * 2 * p.room, states[i], places);
    __syncthreads();  // the next document reuses shared memory
  }
}

}  // namespace nsa

#define NSA_SELECT(op, C, blocks, usual, suffix)                                                                       \
  extern "C" __global__ void __launch_bounds__(nsa::kTeam, blocks)                                                     \
      nsa_##op##_mma##C##_##suffix(const __grid_constant__ nsa::SelectParams p) {                                      \
    nsa::team_select_blocks<nsa::suffix, C, usual>(p);                                                                 \
  }
#define NSA_SELECT_TYPES(op, C, blocks, usual)                                                                         \
  NSA_SELECT(op, C, blocks, usual, bf16)                                                                               \
  NSA_SELECT(op, C, blocks, usual, f16)
NSA_SELECT_TYPES(select_blocks, 64, 3, true)
NSA_SELECT_TYPES(select_blocks, 128, 2, true)
NSA_SELECT_TYPES(select_blocks_any, 64, 3, false)
NSA_SELECT_TYPES(select_blocks_any, 128, 2, false)
