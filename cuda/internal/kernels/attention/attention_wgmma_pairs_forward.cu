// Selected attention by pairs, forward, on warpgroups (compute capability 9.0): q, k, v, list, items, count -> the result of each pair
// (attention_pairs.cuh).
//
//   nsa_pairs_forward_wgmma<D>, D as in attention_wgmma_forward.cu
//
// A multiprocessor has one block, with a warpgroup that loads and W that compute. each_item says which items a block takes. An item is a
// tile of 64 keys with queries that selected its block. The keys, values and list of an item fill one of Keys stages. Its rows fill tiles of
// at most 64 rows in a ring of Rows stages; a tile has whole queries with their h heads. Tensor maps copy both. Barriers say which stages
// are full and which are empty.
// Computing groups take tiles in turn, and so do loading warps; so a stage of rows always belongs to the same group and the same warp.
// Between two tiles of rows no loading warp waits for a number from global memory.
//
// A row with its 64 keys is done in one step: its largest logit is known before any exponential. Large rows subtract first; see kLarge.
//
// If some query may not see all keys of an item, the warp that loads keys looks for NaN and Inf first. A value row with NaN or Inf becomes
// zeros, and its key NaN. So rows that do not see it have the same bits as with finite numbers.
#include "attention_pairs.cuh"
#include "attention_wgmma_tiles.cuh"

namespace nsa {

#if defined(__CUDA_ARCH_FEAT_SM90_ALL) || !defined(__CUDACC__)
template <typename T, int C, int Cv, int W, int Rows, int Keys> struct PairForward {
  static constexpr int kItem = item_tiles(C);
  static constexpr int kLoaders = Rows % 3 == 0 ? 3 : 2;
  static constexpr int kProducerRegisters = 64, kConsumerRegisters = 104;  // of a thread
  static_assert(registers_fit(W, kProducerRegisters, kConsumerRegisters), "setmaxnreg would wait forever");
  static_assert(Rows % W == 0 && Rows % kLoaders == 0, "or a group could wait for a stage that is a round behind");
  static constexpr uint32_t kTile = 64 * C * 2, kKeyStage = kTile + 64 * Cv * 2;  // bytes of rows or keys, and of keys and values

  // What is known about a tile of rows:
  //
  //   count          its queries; -1 tells a group that there are no more tiles
  //   all            whether all of its queries see all keys
  //   stage, parity  those of its keys
  //   from           where its queries begin in the list of that stage
  //   place          the place of the unit's first pair
  //   seen           how many of the keys the unit's first query sees; may be negative
  struct alignas(8) Tile {
    int count, all, stage;
    uint32_t parity;
    int from, place, seen;
  };
  // What the warps that load rows must know about an item. b, head and first are the batch row, the first head and the place in q of the first
  // query of its unit. count is its number of queries, -1 for no more items. place and seen are those of its tiles.
  struct Item { int count, b, head, first, place, seen; };
  struct Shared {
    Tile tiles[Rows];
    Item items[Keys];
    int lists[Keys][64 * kItem];
    float drops[Keys];  // exponentials are relative to a logit that is less than the largest one by this
    // unchecked: keys and values have arrived but have not been searched for NaN
    alignas(8) unsigned long long full_rows[Rows], empty_rows[Rows], full_keys[Keys], empty_keys[Keys], listed[Keys], unchecked;
  };
  static_assert(sizeof(Tile) == 32, "the size in the next line");
  static_assert(sizeof(Shared) == Rows * (32 + 16) + Keys * (256 * kItem + 24 + 24) + (Keys + 1) / 2 * 8 + 8, "widths.pairForwardBytes in Go");
  static constexpr int kTiles = Rows * kTile + Keys * kKeyStage, kShared = kTiles + sizeof(Shared);

  const PairParams& maps;
  const AttentionParams& p;
  const Pairs& x;
  uint32_t Q, K;  // in a stage, values lie after keys
  Shared& smem;

  static __device__ char* shared() { return reinterpret_cast<char*>(tiles_shared()); }
  __device__ PairForward(const PairParams& a)
      : maps(a), p(a.p), x(a.pairs), Q(shared_address(shared())), K(Q + Rows * kTile),
        smem(*reinterpret_cast<Shared*>(shared() + kTiles)) {}

  __device__ void run() const {
    if (threadIdx.x == 0) {
      for (int i = 0; i < Rows; i++) barrier_init(barrier_at(smem.full_rows[i]), 1), barrier_init(barrier_at(smem.empty_rows[i]), 128);
      for (int i = 0; i < Keys; i++) {
        barrier_init(barrier_at(smem.full_keys[i]), 1), barrier_init(barrier_at(smem.empty_keys[i]), 128 * kItem + 32 * kLoaders);
        barrier_init(barrier_at(smem.listed[i]), 32);
      }
      barrier_init(barrier_at(smem.unchecked), 1);
      barriers_ready();
    }
    __syncthreads();
    const int warpgroup = __shfl_sync(0xffffffff, threadIdx.x / 128, 0);
    if (warpgroup == 0) {
      fewer_registers<kProducerRegisters>();
      if (warp() == 0) load_keys();
      else load_rows();
    } else {
      more_registers<kConsumerRegisters>();
      compute(warpgroup - 1);
    }
  }

  __device__ void load_keys() const {
    Ring<Keys> k;
    uint32_t parity = 0;
    each_item<C == 64>(x, [&](int u, const PairItem& item) {
      const Unit unit(maps, u);
      const bool check = item.key + kPairKeys - 1 > unit.first;
      const uint32_t to = K + k.stage * kKeyStage, full = barrier_at(smem.full_keys[k.stage]), arrives = check ? barrier_at(smem.unchecked) : full;
      const int shift = x.shifts[(long long)(u / x.units) * ((p.n.keys - 1) / kPairKeys + 1) + item.key / kPairKeys];
      barrier_wait(barrier_at(smem.empty_keys[k.stage]), k.parity ^ 1);
      const int tiles = (item.count - 1) / x.tile + 1;
      if (lane() == 0) {
        if (tiles < kItem) barrier_arrive_for(barrier_at(smem.empty_keys[k.stage]), 128 * (kItem - tiles));  // for the tiles that the item lacks
        barrier_arrive_expecting(arrives, kKeyStage);
        copy_boxes<C>(to, kPairKeys, maps.k, arrives, unit.g, item.key, unit.b);
        copy_boxes<Cv>(to + kTile, kPairKeys, maps.v, arrives, unit.g, item.key, unit.b);
      }
      const int* list = x.list + (long long)u * x.queries * p.blocks.top_n + item.first;
#pragma unroll 4
      for (int i = lane(); i < item.count; i += 32) smem.lists[k.stage][i] = list[i];
      if (lane() == 0) {
        const int place = (u - x.first) * x.queries * p.blocks.top_n * x.parts + item.part;
        smem.drops[k.stage] = shift == 0 ? 0 : shift / p.n.scale_log2;
        smem.items[k.stage] = Item{item.count, unit.b, unit.g * p.n.h, unit.first - p.n.start(unit.b), place, unit.first + 1 - item.key};
      }
      barrier_arrive(barrier_at(smem.listed[k.stage]));
      if (check) {
        barrier_wait(arrives, parity), parity ^= 1;
        take_out_rows<T, Cv>(to + kTile, to, kPairKeys);
        __syncwarp();
        if (lane() == 0) barrier_arrive(full);
      }
      __syncwarp();  // no lane may fall a phase of a barrier behind
      k.next();
    });
    barrier_wait(barrier_at(smem.empty_keys[k.stage]), k.parity ^ 1);
    if (lane() == 0) smem.items[k.stage].count = -1;
    barrier_arrive(barrier_at(smem.listed[k.stage]));
  }
  // The work of each of the other loading warps: it loads every kLoaders-th tile of rows.
  __device__ void load_rows() const {
    const Sizes& n = p.n;
    Ring<Rows> q;
    Ring<Keys> k;
    int turn = warp() - 1;  // 0 if the next tile is this warp's
    if (turn >= kLoaders) return;
    const auto next = [&] { q.next(), turn = (turn == 0 ? kLoaders : turn) - 1; };
#pragma unroll 1
    for (;; k.next()) {
      barrier_wait(barrier_at(smem.listed[k.stage]), k.parity);
      const Item item = smem.items[k.stage];
      if (item.count < 0) break;
      const int* list = smem.lists[k.stage];
#pragma unroll 1
      for (int from = 0; from < item.count; from += x.tile, next()) {
        if (turn > 0) continue;
        const int count = min(x.tile, item.count - from);
        barrier_wait(barrier_at(smem.empty_rows[q.stage]), q.parity ^ 1);
        Tile& tile = smem.tiles[q.stage];
        const uint32_t full = barrier_at(smem.full_rows[q.stage]), to = Q + q.stage * kTile;
        bool all = true;
#pragma unroll
        for (int j = 0; j < 2; j++) {
          const int i = lane() + 32 * j;
          if (i >= count) continue;
          const int of = list[from + i] >> kEntryBits;
          copy_boxes<C>(to + i * n.h * 128, 64, maps.q, full, item.head, item.first + of, item.b);
          all &= item.seen + of >= kPairKeys;
        }
        all = __all_sync(0xffffffff, all);
        if (lane() == 0) {
          tile.count = count, tile.all = all, tile.stage = k.stage, tile.parity = k.parity;
          tile.from = from, tile.place = item.place, tile.seen = item.seen;
          barrier_arrive_expecting(full, count * n.h * (kTile / 64));
        }
      }
      barrier_arrive(barrier_at(smem.empty_keys[k.stage]));
    }
    for (int w = 0; w < W; w++, next()) {
      if (turn > 0) continue;
      barrier_wait(barrier_at(smem.empty_rows[q.stage]), q.parity ^ 1);
      if (lane() == 0) smem.tiles[q.stage].count = -1, barrier_arrive(barrier_at(smem.full_rows[q.stage]));
      __syncwarp();
    }
  }

  // A thread's two rows of a tile: the index of their results, counted in rows, -1 for no row; how many keys they see.
  struct Pair { int to[2], seen[2]; };

  // The work of computing group w.
  __device__ void compute(int w) const {
    const int first_row = warp() % 4 * 16 + lane() / 4, heads = p.n.h;
    int query[2], head[2];
#pragma unroll
    for (int r = 0; r < 2; r++) query[r] = (first_row + 8 * r) / heads, head[r] = (first_row + 8 * r) % heads;
    static_assert(W <= Rows, "a stage for each group");
    uint32_t parity = 0;
#pragma unroll 1
    for (int stage = w;;) {
      barrier_wait(barrier_at(smem.full_rows[stage]), parity);
      const Tile& tile = smem.tiles[stage];
      const int count = tile.count, keys = tile.stage;
      if (count < 0) break;
      Pair rows;
#pragma unroll
      for (int r = 0; r < 2; r++) {
        const int pair = smem.lists[keys][tile.from + min(query[r], count - 1)], of = pair >> kEntryBits, entry = pair & ((1 << kEntryBits) - 1);
        rows.to[r] = query[r] < count ? (tile.place + (of * p.blocks.top_n + entry) * x.parts) * heads + head[r] : -1;
        rows.seen[r] = tile.seen + of;
      }
      barrier_wait(barrier_at(smem.full_keys[keys]), tile.parity);
      make_results(tile.all, smem.drops[keys], rows, Q + stage * kTile, K + keys * kKeyStage, barrier_at(smem.empty_rows[stage]));
      barrier_arrive(barrier_at(smem.empty_keys[keys]));  // by every lane, because every lane has read the list
      if ((stage += W) >= Rows) stage -= Rows, parity ^= 1;
    }
  }

  // Makes the results of a tile from q and k, addresses of rows and keys. Arrives at the barrier when it has read the rows.
  __device__ __forceinline__ void make_results(bool all, float drop, const Pair& rows, uint32_t q, uint32_t k, uint32_t empty) const {
    const float scale = p.n.scale_log2;
    float s[8][4];
    begin_product(Width<C>{}, s, q, k);
    wgmma_wait<0>();
    hold(s);
    barrier_arrive(empty);
    if (!all) hide(s, rows);
#pragma unroll
    for (int r = 0; r < 2; r++) {
      Softmax state;
      state.start();
#pragma unroll
      for (int j = 0; j < 8; j++) state.top = fmaxf(state.top, fmaxf(s[j][2 * r], s[j][2 * r + 1]));
      state.top = max_of_four(state.top) - drop;
      float base = state.base() * scale;
      if (large(base)) {
#pragma unroll
        for (int j = 0; j < 8; j++) s[j][2 * r] -= state.top, s[j][2 * r + 1] -= state.top;
        base = 0;
      }
#pragma unroll
      for (int j = 0; j < 8; j++)
#pragma unroll
        for (int i = 2 * r; i < 2 * r + 2; i++) state.sum += s[j][i] = power2(fmaf(s[j][i], scale, -base));
      state.sum = sum_of_four(state.sum);
      if (lane() % 4 == 0 && rows.to[r] >= 0) x.stats[rows.to[r]] = make_float2(state.top, state.sum);
    }
    write_product(Width<Cv>{}, s, k + kTile, rows, p.n.dv);
  }
  // Begins s = rows·keysᵀ, for tiles of 64 rows and X columns.
  template <int X> static __device__ __forceinline__ void begin_product(Width<X>, float (&s)[8][4], uint32_t rows, uint32_t keys) {
    hold(s);
    wgmma_begin();
    const uint64_t a = describe(rows, 0), b = describe(keys, 0);
#pragma unroll
    for (int i = 0; i < X / 16; i++) Wgmma<T, 64>::a_bt(s, a + (i / 4 * 64 * 128 + i % 4 * 32) / 16, b + (i / 4 * 64 * 128 + i % 4 * 32) / 16, i > 0);
    wgmma_end();
  }
  // Writes the thread's two rows of s·keys, c columns, to the results. s is rounded to T. It does 64 columns at a time to save registers.
  template <int X>
  __device__ __forceinline__ void write_product(Width<X>, const float (&s)[8][4], uint32_t keys, const Pair& rows, int c) const {
    const int width = result_width(c);
    uint32_t y[4][4];
#pragma unroll
    for (int i = 0; i < 4; i++)
#pragma unroll
      for (int e = 0; e < 4; e++) y[i][e] = pair<T>(s[2 * i + e / 2][e % 2 * 2], s[2 * i + e / 2][e % 2 * 2 + 1]);
#pragma unroll
    for (int part = 0; part < X / 64; part++) {
      float sum[8][4];
      hold(sum);
      wgmma_begin();
      const uint64_t b = describe(keys + part * 64 * 128, 0);
#pragma unroll
      for (int i = 0; i < 4; i++) Wgmma<T, 64>::a_b(sum, y[i], b + i * 16 * 128 / 16, i > 0);
      wgmma_end();
      wgmma_wait<0>();
      hold(sum);
#pragma unroll
      for (int r = 0; r < 2; r++) {
        if (rows.to[r] < 0) continue;
        f16* to = static_cast<f16*>(x.results) + (long long)rows.to[r] * width + 64 * part + 8 * (lane() % 4);
#pragma unroll
        for (int j = 0; j < 8; j += 4) {
          uint32_t z[4];
#pragma unroll
          for (int i = 0; i < 4; i++) {
            const float* both = sum[j + i] + 2 * r;
            z[i] = pair<f16>(both[0], both[1]);
          }
          if (64 * part + 8 * j < width) store_once(reinterpret_cast<uint4*>(to + 8 * j), uint4{z[0], z[1], z[2], z[3]});
        }
      }
    }
  }
  // Sets the logits of keys that a row does not see to -Inf.
  static __device__ __forceinline__ void hide(float (&s)[8][4], const Pair& rows) {
#pragma unroll
    for (int r = 0; r < 2; r++) {
      const int seen = rows.seen[r] - 2 * (lane() % 4);
#pragma unroll
      for (int j = 0; j < 8; j++)
#pragma unroll
        for (int i = 0; i < 2; i++)
          if (8 * j + i >= seen) s[j][2 * r + i] = -INFINITY;
    }
  }
};
#endif

}  // namespace nsa

#define NSA_PAIR_FORWARD_ENTRY(D, suffix, C, Cv, W, ...)                                                               \
  extern "C" __global__ void __launch_bounds__(128 * (1 + W), 1)                                                       \
      nsa_pairs_forward_wgmma##D##_##suffix(const __grid_constant__ nsa::PairParams p) {                               \
    NSA_WGMMA_BODY(nsa::PairForward<nsa::suffix, C, Cv, W, __VA_ARGS__>(p).run();)                                     \
  }
#define NSA_PAIR_FORWARD(D, ...)                                                                                       \
  NSA_PAIR_FORWARD_ENTRY(D, bf16, __VA_ARGS__)                                                                         \
  NSA_PAIR_FORWARD_ENTRY(D, f16, __VA_ARGS__)
//               D   C   Cv  W  Rows, Keys; the same numbers are in widths.go
NSA_PAIR_FORWARD(64, 64, 64, 4, 12, 4)
NSA_PAIR_FORWARD(128, 128, 128, 4, 8, 2)
NSA_PAIR_FORWARD(192x128, 192, 128, 4, 4, 3)
NSA_PAIR_FORWARD(192, 192, 192, 4, 4, 2)
NSA_PAIR_FORWARD(256x128, 256, 128, 4, 4, 2)
NSA_PAIR_FORWARD(256x192, 256, 192, 3, 3, 2)
