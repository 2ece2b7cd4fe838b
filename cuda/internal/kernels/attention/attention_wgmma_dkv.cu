// dk and dv on warpgroups (compute capability 9.0): q, k, v, lse, do, delta -> dk, dv, with the contract of attention_dkv.cu.
//
//   nsa_span_dkv_wgmma<D>      window, dense and compressed attention; nsa_span_reduce adds up the partial sums
//   nsa_selected_dkv_wgmma<D>  selected attention; rows come from the inverse index, nsa_selected_reduce adds up the partial sums
//   nsa_joined_dkv_wgmma<D>    the same if a block of the inverse, 64 keys, stands for several selection blocks; see attention_index.cu
//   nsa_pairs_dkv_wgmma<D>     selected attention by pairs; it also makes the results for dq (PairGradients of attention_pairs.cuh)
//
// D stands for the compiled widths: C if q and k have the width C and v the width Cv = C, else <C>x<Cv>.
//
// Warpgroup 0 of a block loads, W warpgroups compute. A tile of at most N rows of q and do, with the facts about them, fills a stage of a
// ring of `Stages` stages; barriers say which stages are full and which are empty. Keys and rows come by tensor maps. A tile has whole
// queries, unless a query has more than N rows. Each computing group owns 64 keys. Selected attention needs only 64 keys a block, so it
// has one computing group, and two blocks share a multiprocessor. If a group has too few registers for both dk and dv of 64 keys
// (Split), two groups own the same keys: the first makes dv, the second dk.
//
// Keys are the rows of the products and queries the columns, so P and dS are left factors straight from registers. While one group
// makes P and dS, the products of the other run.
//
// With pairs a group writes dS to shared memory, too, and multiplies the transpose of its keys by it. That is what these keys add to
// dq, transposed; the lanes of a warp turn it round and write it to the results.
//
// The rows that see the keys of a span are cut into chunks, counted from the last row. So chunk i has the same rows for many keys, and
// their blocks read these rows from the L2 cache at about the same time. In a window a block also starts at the same row as its
// neighbours: at a multiple of the number of rows that see a block's keys. It does the rows before that last.
//
// A block that meets NaN, Inf or large rows repeats all its work by the careful pass; see careful_if_needed. Shared memory: kShared bytes.
#include "attention_store_keys.cuh"
#include "attention_pairs.cuh"
#include "attention_rows.cuh"
#include "attention_wgmma_tiles.cuh"

namespace nsa {

#if defined(__CUDA_ARCH_FEAT_SM90_ALL) || !defined(__CUDACC__)
enum RowSource { kSpanRows, kListedRows, kJoinedRows, kPairRows };
template <typename T, int C, int Cv, int W, int N, int Stages, RowSource Source, bool Split = false> struct WgmmaKeyGradient {
  static constexpr bool kListed = Source != kSpanRows, kJoined = Source == kJoinedRows, kByPairs = Source == kPairRows;
  static constexpr bool kScaled = kByPairs && !narrow<T>;  // whether results have a result_exponent
  static constexpr int kQuery = (1 << kJoinedShift) - 1;  // if kJoined: the bits of a list entry that hold the query
  static constexpr int kOwners = Split ? 1 : W, M = 64 * kOwners, kBlock = 128 + 128 * W;
  static constexpr uint32_t kKeyTile = 64 * C * 2, kValueTile = 64 * Cv * 2;       // bytes of the keys and values of a warpgroup
  static constexpr uint32_t kRowTile = N * C * 2, kStage = kRowTile + N * Cv * 2;  // bytes of q, and of q and do
  static constexpr int kProducerRegisters = Split ? 56 : W == 1 && C > 128 ? 32 : 40;  // of a thread
  static constexpr int kConsumerRegisters = W == 1 ? 256 - kProducerRegisters : Split ? 224 : 232;
  static_assert(registers_fit(W, kProducerRegisters, kConsumerRegisters, W == 1 ? 2 : 1), "setmaxnreg would wait forever");
  static_assert(W == 2 || !Split, "two groups own the same keys");
  static_assert(N <= 128, "a loading thread for each row of a tile");
  static constexpr int kRowsWritten = 1, kResults = 2;  // named barriers; 0 is __syncthreads

  // What is known about the rows of a tile. In a pair of numbers the first is for an even row, the second for the odd row after it.
  //
  //   base    lse*log2(e), for which large rows (kLarge) have 0 in the careful pass, minus the exponent of results
  //   lse     read only in the careful pass: the lse of large rows, 0 for all other rows
  //   lo, hi  the keys [lo,hi) that a row sees. If kJoined, lo holds the four bits of the list entry instead. If kByPairs, it holds the place of
  //           the row's result, times h, plus the row's head; -1 for no row
  //   some    a run that contains all keys that any row sees
  //   all     keys that all rows see; empty in the careful pass
  struct Rows {
    float2 base[N / 2], delta[N / 2];
    int2 lo[N / 2], hi[N / 2];
    float lse[N];
    alignas(16) Run some;
    Run all;
  };
  // The work of a block: the keys [first,end) of group g of batch row b, and the queries [from,to); if kListed, these are places of `list`.
  // The queries are `steps` tiles. The block starts with tile `first_tile` and wraps around. steps = -1 means no work. A tile has `heads` heads of
  // `queries` queries; if a group has more heads, a query has `parts` tiles. If there are several chunks, gradients go to sums.
  struct Work {
    int b, g, first, end, from, to, steps, first_tile;
    float* sums;
    const int* list;
    long long stat;  // index in lse of the group's row 0
    int part;        // of a selection block
    int start;       // the first query of the batch row
    int heads, queries, parts;
    float exponent;  // P and dS are multiplied by 2 to this power; see result_exponent
  };
  struct Shared {
    Rows rows[Stages];
    unsigned long long full[Stages], empty[Stages], unchecked, pass;  // unchecked: a tile has arrived but has not been searched for NaN
    Work work;
    int careful;  // whether this is the careful pass; in shared memory to save registers
    int needs_careful;    // whether any thread asks for that pass
    unsigned bad[2];  // if kByPairs: a bit for each key with NaN or Inf, in the careful pass
  };
  static_assert(sizeof(Shared) == Stages * (20 * N + 32) + 112, "widths.shapeOfDKV in Go");
  static constexpr int kWeights = kByPairs && Split ? 2 * N * 128 : 0;  // bytes of dS; without Split it lies in the place of do
  static constexpr int kTiles = kOwners * (kKeyTile + kValueTile) + Stages * kStage + kWeights, kShared = kTiles + sizeof(Shared);

  const KeyGradientParams& params;
  const AttentionParams& p;
  uint32_t K, V, Q;  // in a stage, do lies after q
  Shared& smem;

  static __device__ char* shared() { return reinterpret_cast<char*>(tiles_shared()); }
  __device__ WgmmaKeyGradient(const KeyGradientParams& params)
      : params(params), p(params.p), K(shared_address(shared())), V(K + kOwners * kKeyTile), Q(V + kOwners * kValueTile),
        smem(*reinterpret_cast<Shared*>(shared() + kTiles)) {}

  __device__ void run() {
    if (threadIdx.x == 0) {
      if constexpr (kListed) smem.work = selected_work();
      else smem.work = span_work();
      smem.work.stat = p.n.stat(smem.work.b, smem.work.g, 0), smem.work.start = p.n.start(smem.work.b);
      smem.careful = smem.needs_careful = 0, smem.bad[0] = smem.bad[1] = 0;
      barrier_init(barrier_at(smem.pass), kBlock);
      for (int i = 0; i < Stages; i++) barrier_init(barrier_at(smem.full[i]), 129), barrier_init(barrier_at(smem.empty[i]), 128 * W);
      barrier_init(barrier_at(smem.unchecked), 1);
      barriers_ready();
    }
    __syncthreads();
    if (smem.work.steps < 0) return;
    if (kListed || smem.work.heads * smem.work.queries < N) {  // rows that no box fills must be finite
      for (int i = threadIdx.x; i < Stages * int(kStage) / 16; i += kBlock) store_shared(Q + 16 * i, uint4{0, 0, 0, 0});
      fence_async();
      __syncthreads();
    }
    const int warpgroup = __shfl_sync(0xffffffff, threadIdx.x / 128, 0);
    Ring<Stages> ring;
    if (warpgroup == 0) {
      fewer_registers<kProducerRegisters>();
      do load_rows(ring);
      while (next_pass(false));
    } else {
      more_registers<kConsumerRegisters>();
      if constexpr (Split) {
        if (warpgroup == 1) {
          while (next_pass(compute<true, false>(ring, 0))) {}
        } else {
          while (next_pass(compute<false, true>(ring, 0))) {}
        }
      } else {
        while (next_pass(compute<true, true>(ring, warpgroup - 1))) {}
      }
    }
  }
  // Sets the tiles of the queries [from,to), the first of which begins at query `start`.
  __device__ void set_tiles(Work& x, int from, int to, int start) const {
    x.heads = min(p.n.h, N), x.queries = N / x.heads, x.parts = (p.n.h - 1) / x.heads + 1;
    x.from = from, x.to = to, x.steps = (to - from + x.queries - 1) / x.queries * x.parts;
    x.first_tile = start < to ? (start - from) / x.queries * x.parts : 0;
  }
  // Grid x is B*Hkv*items*ceil(T/M); tiles of keys vary fastest. Item i of a tile takes its chunk of rows number i, counted from the end.
  __device__ Work span_work() const {
    const Sizes& n = p.n;
    const int tiles = (n.keys - 1) / M + 1, item = blockIdx.x / tiles % p.index.items, group = blockIdx.x / tiles / p.index.items;
    const int first = blockIdx.x % tiles * M, end = min(n.keys, first + M);
    const SpanRows rows = span_rows(p, group / n.groups, first, end);
    const int chunks = p.index.chunks(rows.all), chunk = p.index.chunk / n.h, begin = rows.from / n.h;
    const int to = begin + rows.all / n.h - item * chunk, from = max(begin, to - chunk);
    Work x{group / n.groups, group % n.groups, first, end};
    const long long most = min((long long)p.span.w + M, (long long)n.queries);
    set_tiles(x, from, to, (from + most - 1) / most * most);
    if (item >= chunks) x.steps = -1;
    const long long row = ((long long)group * p.index.items + item) * n.keys + first;
    if (chunks > 1) x.sums = p.partial + row * (n.d + n.dv);
    return x;
  }
  // Grid x is B*Hkv*items*ceil(size/M). An item is a chunk of the list of a block.
  __device__ Work selected_work() const {
    const Sizes& n = p.n;
    const int size = p.blocks.size, parts = (size - 1) / M + 1, names = p.names();
    const int part = blockIdx.x % parts, item = blockIdx.x / parts % p.index.items;
    const int group = blockIdx.x / parts / p.index.items + (kByPairs ? params.pairs.first : 0);
    const InverseIndex inverse(p, group);
    Work x{group / n.groups, group % n.groups};
    x.steps = -1, x.part = part;
    if (kScaled) x.exponent = result_exponent(params.pairs.most[group]);
    if (item >= inverse.item[names]) return x;
    const int j = inverse.name(item, names), chunk = item - inverse.item[j], from = chunk * p.index.chunk;
    const Run block = p.tokens(x.b, j);
    if (part * M >= block.hi - block.lo) return x;
    x.first = block.lo + part * M, x.end = min(x.first + M, block.hi);
    set_tiles(x, 0, min(inverse.length(j) - from, p.index.chunk), 0);
    const long long row = ((long long)group * p.index.partials + inverse.partial[j] + chunk) * size + part * M;
    if (inverse.chunks(j) > 1) x.sums = p.partial + row * (n.d + n.dv);
    x.list = inverse.queries + inverse.list[j] + from;
    return x;
  }
  // Ends a pass of the block and returns whether another one follows: the careful one follows the first if any thread needs it.
  __device__ bool next_pass(bool needs_careful) const {
    const bool last = smem.careful;
    if (needs_careful && !last) atomicOr(&smem.needs_careful, 1);
    meet(barrier_at(smem.pass), 0);
    if (last || !smem.needs_careful) return false;
    if (threadIdx.x == 0) smem.careful = 1;
    meet(barrier_at(smem.pass), 1);
    return true;
  }

  // The work of the loading group. Thread i looks after row i of each tile. Boxes bring the rows: a box has several queries of a span, or
  // one listed query. So a stage may also hold rows of another chunk or of a tile before: they get no weight. A large row asks for the
  // careful pass.
  __device__ void load_rows(Ring<Stages>& ring) const {
    const Sizes& n = p.n;
    const Work& at = smem.work;
    const PairGradients& x = params.pairs;
    constexpr int kNoQuery = 1 << 30;
    const int thread = threadIdx.x, head = thread % at.heads, steps = at.steps;
    const int query_in_tile = thread < at.heads * at.queries ? thread / at.heads : kNoQuery;
    const bool careful = smem.careful;
    // entry is the query of the row, or its list entry if kListed; -1 for no row. entry, lse and delta are those of the next tile. next_entry is the
    // entry of the tile after that.
    int entry = -1, next_entry = -1;
    float lse = INFINITY, delta = 0;
    const auto tile_of = [&](int j) { return kListed ? j : at.first_tile + j < steps ? at.first_tile + j : at.first_tile + j - steps; };
    const auto first_of = [&](int tile) { return at.from + (at.parts == 1 ? tile : tile / at.parts) * at.queries; };
    const auto heads_of = [&](int tile) { return at.parts == 1 ? 0 : tile % at.parts * at.heads; };  // the first head of the tile
    const auto query = [&](int entry) { return kByPairs ? entry >> x.entry_bits : kJoined ? entry & kQuery : entry; };
    const auto look_up = [&](int j) {
      const int tile = tile_of(j), i = first_of(tile) + query_in_tile;
      next_entry = -1;
      if (query_in_tile < kNoQuery && j < steps && i < at.to && heads_of(tile) + head < n.h) next_entry = kListed ? at.list[i] : i;
    };
    const auto fetch = [&](int j) {
      entry = next_entry, lse = INFINITY, delta = 0;
      if (entry != -1) {
        const long long stat = at.stat + ((heads_of(tile_of(j)) + head) * (long long)n.queries + query(entry));
        lse = lse_for_gradient(p.lse[stat]), delta = p.delta[stat];
      }
      look_up(j + 1);
    };
    look_up(0), fetch(0);
#pragma unroll 1
    for (int j = 0; j < steps; j++, ring.next()) {
      const int tile = tile_of(j), first = first_of(tile), heads = at.g * n.h + heads_of(tile), t = query(entry);
      const int queries = min(at.queries, at.to - first), last = min(queries * at.heads, (queries - 1) * at.heads + n.h - heads_of(tile)) - 1;
      const uint32_t full = barrier_at(smem.full[ring.stage]), arrives = careful ? barrier_at(smem.unchecked) : full;
      const uint32_t q = Q + ring.stage * kStage;
      Rows& rows = smem.rows[ring.stage];
      const auto copy = [&](int r, int query) {
        copy_boxes<C>(q + r * 128, N, params.q, arrives, heads, query - at.start, at.b);
        copy_boxes<Cv>(q + kRowTile + r * 128, N, params.dout, arrives, heads, query - at.start, at.b);
      };
      barrier_wait(barrier_at(smem.empty[ring.stage]), ring.parity ^ 1);
      if (thread == 0) {
        const bool keys = j == 0 && !careful;
        barrier_arrive_expecting(arrives, 2 * (C + Cv) * ((kListed ? queries : at.queries) * at.heads + (keys ? M : 0)));
        if (keys)
#pragma unroll
          for (int w = 0; w < kOwners; w++) {
            copy_boxes<C>(K + w * kKeyTile, 64, params.k, arrives, at.g, at.first + 64 * w, at.b);
            copy_boxes<Cv>(V + w * kValueTile, 64, params.v, arrives, at.g, at.first + 64 * w, at.b);
          }
        if (!kListed) copy(0, first);
      }
      if (kListed && entry != -1 && head == 0) copy(thread, t);
      if (thread < N) {
        const bool shift = careful && large(lse), in = entry != -1;
        if (large(lse)) atomicOr(&smem.needs_careful, 1);
        reinterpret_cast<float*>(rows.base)[thread] = (shift ? 0 : lse * kLog2E) - (kScaled ? at.exponent : 0);
        reinterpret_cast<float*>(rows.delta)[thread] = delta;
        rows.lse[thread] = shift ? lse : 0;
        const Run all = !in ? Run{0, 0} : kListed ? Run{0, t + 1} : p.keys(at.b, t), seen{all.lo, min(all.hi, n.keys)};
        int lo = seen.lo;
        if (kJoined) lo = in ? entry >> kJoinedShift & 15 : 0;
        if (kByPairs) lo = in ? (((t - at.start) * p.blocks.top_n + (entry & (1 << x.entry_bits) - 1)) * x.parts + at.part) * n.h + head : -1;
        reinterpret_cast<int*>(rows.lo)[thread] = lo;
        reinterpret_cast<int*>(rows.hi)[thread] = seen.hi;
        if (thread == 0) rows.some.lo = seen.lo, rows.all.hi = careful ? 0 : seen.hi;
        if (thread == last) rows.some.hi = kListed ? n.keys : seen.hi, rows.all.lo = seen.lo;
      }
      fetch(j + 1);
      if (careful) {
        barrier_wait(arrives, j % 2);
        named_sync(kRowsWritten, 128);  // all facts about the tile are written
        if (kByPairs && j == 0) take_out(Width<C>{}, K, 64, [&](int r) { atomicOr(smem.bad + r / 32, 1u << r % 32); });
        const auto bad = [&](int r) { reinterpret_cast<float*>(rows.base)[r] = NAN; };
        take_out(Width<C>{}, q, N, bad), take_out(Width<Cv>{}, q + kRowTile, N, bad);
        fence_async();
        if (thread == 0) barrier_arrive(full);
      }
      barrier_arrive(full);
    }
  }
  // take_out of attention_tile.cuh for a tile of `count` rows, by the loading group. Rows with NaN or Inf
  // become zeros. Each lane that has a part of such a row calls also(r).
  template <int X, class Also> __device__ void take_out(Width<X>, uint32_t tile, int count, Also also) const {
    int thread = threadIdx.x;
    opaque(thread);  // what follows takes no registers before this rare work
#pragma unroll 1
    for (int r = thread / 8; r < count; r += 16) {
      const uint32_t at = tile + cell_of(count, r, thread % 8);
      bool bad = false;
#pragma unroll
      for (int m = 0; m < X / 64; m++) bad |= has_nan_or_inf<T>(shared_cell(at + m * count * 128));
      const unsigned votes = __ballot_sync(0xffffffff, bad);
      if (!(votes >> thread % 32 / 8 * 8 & 0xff)) continue;
#pragma unroll
      for (int m = 0; m < X / 64; m++) store_shared(at + m * count * 128, uint4{0, 0, 0, 0});
      also(r);
    }
  }

  // The work of the computing group that owns the 64 keys from 64*w on: it makes dv if Values, and dk if Keys. Returns whether this
  // thread wrote NaN or Inf.
  template <bool Values, bool Keys> __device__ bool compute(Ring<Stages>& ring, int w) const {
    const Sizes& n = p.n;
    const int first_key = smem.work.first + 64 * w;  // the first key of the group
    float dk[C / 8][4], dv[Cv / 8][4], s[N / 8][4], ds[N / 8][4];
    uint32_t x[2][N / 16][4];  // P and dS, rounded to T
    int left = smem.work.steps;
    const bool careful = smem.careful;
    bool all_seen = false;  // whether all rows of the tile see all keys of the group

    // Called by every lane, because every lane has read the facts about rows.
    const auto release = [&] { barrier_arrive(barrier_at(smem.empty[ring.stage])); };
    // Moves to the next tile in which a row sees a key of the group. Returns whether there is one.
    const auto enter = [&] {
#pragma unroll 1
      for (; left > 0; left--, ring.next()) {
        barrier_wait(barrier_at(smem.full[ring.stage]), ring.parity);
        const Run some = smem.rows[ring.stage].some, all = smem.rows[ring.stage].all;
        all_seen = !kJoined && all.lo <= first_key && all.hi >= first_key + 64;
        if (some.lo < first_key + 64 && some.hi > first_key) return true;
        release();
      }
      return false;
    };
    const auto begin_scores = [&] {
      const auto begin = [&](auto width, float (&to)[N / 8][4], uint32_t keys, uint32_t rows) {
        hold(to);
        wgmma_begin();
        opaque(keys);  // descriptors are computed again rather than kept in registers
        const uint64_t a = describe(keys, 0), b = describe(rows, 0);
#pragma unroll
        for (int i = 0; i < decltype(width)::value / 16; i++) {
          const int panel = i / 4, column = i % 4 * 32;
          Wgmma<T, N>::a_bt(to, a + (panel * 64 * 128 + column) / 16, b + (panel * N * 128 + column) / 16, i > 0);
        }
        wgmma_end();
      };
      const uint32_t q = Q + ring.stage * kStage;
      begin(Width<C>{}, s, K + w * kKeyTile, q);
      if constexpr (Keys) begin(Width<Cv>{}, ds, V + w * kValueTile, q + kRowTile);
    };
    // Begins sum += x·rows. x is `from` rounded to T; the rows of q or do begin `further` bytes into the stage.
    const auto begin_sum = [&](auto width, auto& sum, const float (&from)[N / 8][4], uint32_t (&x)[N / 16][4], uint32_t further) {
#pragma unroll
      for (int i = 0; i < N / 16; i++)
#pragma unroll
        for (int c = 0; c < 4; c++) x[i][c] = pair<T>(from[2 * i + c / 2][c % 2 * 2], from[2 * i + c / 2][c % 2 * 2 + 1]);
      hold(sum);
      wgmma_begin();
      uint32_t rows = Q + ring.stage * kStage + further;
      opaque(rows);
      const uint64_t b = describe(rows, N * 128);
#pragma unroll
      for (int i = 0; i < N / 16; i++) Wgmma<T, decltype(width)::value>::a_b(sum, x[i], b + i * 16 * 128 / 16);
      wgmma_end();
    };
    // Turns s into P.
    const auto make_p = [&] {
      const Rows& rows = smem.rows[ring.stage];
      const int c = lane() % 4;
      wgmma_wait<Keys ? 1 : 0>();
      hold(s);
      if (careful)
#pragma unroll
        for (int j = 0; j < N / 8; j++)
#pragma unroll
          for (int i = 0; i < 4; i++) {
            const float lse = rows.lse[8 * j + 2 * c + i % 2];
            if (lse != 0) s[j][i] = shifted_logit(n, s[j][i], lse);
            const int key = warp() % 4 * 16 + lane() / 4 + i / 2 * 8;
            if (kByPairs && smem.bad[key / 32] >> key % 32 & 1) s[j][i] = NAN;
          }
#pragma unroll
      for (int j = 0; j < N / 8; j++) {
        const float2 base = rows.base[4 * j + c];
#pragma unroll
        for (int i = 0; i < 4; i++) s[j][i] = power2(fmaf(s[j][i], n.scale_log2, -(i % 2 ? base.y : base.x)));
      }
      if (all_seen) return;
      const int key = first_key + warp() % 4 * 16 + lane() / 4;
#pragma unroll
      for (int j = 0; j < N / 8; j++) {
        int2 lo = kByPairs ? int2{0, 0} : rows.lo[4 * j + c], hi = rows.hi[4 * j + c];
        if (kJoined) {  // the 16 keys of a warp belong to one selection block
          const int block = warp() % 4 * p.joined_blocks() / 4;
          hi.x = lo.x >> block & 1 ? hi.x : 0, hi.y = lo.y >> block & 1 ? hi.y : 0, lo = int2{0, 0};
        }
#pragma unroll
        for (int i = 0; i < 4; i++) {
          const Run seen = i % 2 ? Run{lo.y, hi.y} : Run{lo.x, hi.x};
          if (!seen.has(key + i / 2 * 8)) s[j][i] = -0.0f;  // marks a hidden key for make_ds: no exponential is -0
        }
      }
    };
    // Turns ds, which holds dP, into dS.
    const auto make_ds = [&] {
      wgmma_wait<0>();
      hold(ds);
#pragma unroll
      for (int j = 0; j < N / 8; j++) {
        const float2 delta = smem.rows[ring.stage].delta[4 * j + lane() % 4];
#pragma unroll
        for (int i = 0; i < 4; i++) ds[j][i] = s[j][i] * (ds[j][i] - (i % 2 ? delta.y : delta.x));
      }
      if (kByPairs) hold(ds), hold(s);  // else the compiler rounds P before, and has too few registers
      if (all_seen) return;
#pragma unroll
      for (int j = 0; j < N / 8; j++)
#pragma unroll
        for (int i = 0; i < 4; i++)
          if (__float_as_int(s[j][i]) == int(0x80000000)) ds[j][i] = 0;
    };

    const auto clear = [](auto& sum) {
#pragma unroll
      for (int j = 0; j < int(sizeof sum / sizeof *sum); j++)
#pragma unroll
        for (int i = 0; i < 4; i++) sum[j][i] = 0;
    };
    // Makes the results of the rows of the tile from dS, in x[1]: what the group's keys add to dq.
    //
    // dS goes to shared memory, [N rows, 64 keys]. Without Split it takes the place of do, when all warps have done their products with that.
    // With Split there are two tiles of it: when all warps have written one of them, all have read the other one.
    const uint32_t store_offset = lane() % 8 * 128 + lane() / 16 * 1024 + ((warp() % 4 * 2 + lane() / 8 % 2 ^ lane() % 8) << 4);
    uint32_t further = 0, zero = 0;
    const auto make_results = [&] {
      if constexpr (kByPairs && Keys) {
        if (!Split) {
          wgmma_wait<1>();
          hold(dv);
          named_sync(kResults, 128);
        }
        const uint32_t tile = Split ? Q + Stages * kStage + further : Q + ring.stage * kStage + kRowTile;
        further ^= N * 128;
#pragma unroll
        for (int i = 0; i < N / 16; i++) store_transposed(tile + store_offset + i * 2048, x[1][i]);
        fence_async();
        named_sync(kResults, 128);

        const PairGradients& to = params.pairs;
        const int width = result_width(n.d);
        const long long rows = (long long)(smem.work.b * n.groups + smem.work.g - to.first) * n.queries * p.blocks.top_n * to.parts * n.h;
        f16* results = static_cast<f16*>(to.results) + rows * width + warp() % 4 * 16 + lane() % 4 * 4;
        int places[N / 8];  // read before any result is written, because no read is moved across a write
        const auto begin = [&](float (&y)[N / 8][4], int panel) {  // 64 columns of dq, transposed
          hold(y);
          wgmma_begin();
          const uint64_t a = describe(K + panel * 64 * 128, 0), b = describe(tile, 0);
#pragma unroll
          for (int i = 0; i < 4; i++) Wgmma<T, N>::at_bt(y, a + i * 16 * 128 / 16, b + i * 32 / 16, i > 0);
          wgmma_end();
        };
        const auto write = [&](const float (&y)[N / 8][4], int panel) {
          const float f = narrow<T> ? n.scale : 1;
          uint2 both[N / 8];
#pragma unroll
          for (int j = 0; j < N / 8; j++) {
            const uint32_t lo = pair<f16>(f * y[j][0], f * y[j][1]), hi = pair<f16>(f * y[j][2], f * y[j][3]);
            keep_nan<f16>(zero, lo), keep_nan<f16>(zero, hi);
            both[j] = {transpose_fragment(lo), transpose_fragment(hi)};
          }
          if (64 * panel + warp() % 4 * 16 >= width) return;
#pragma unroll
          for (int j = 0; j < N / 8; j++)
            if (places[j] >= 0) store_once(reinterpret_cast<uint2*>(results + (long long)places[j] * width + 64 * panel), both[j]);
        };
#pragma unroll
        for (int panel = 0; panel < C / 64; panel += 2) {
          const bool two = panel + 1 < C / 64;
          begin(s, panel);
          if (two) begin(ds, panel + 1);
          if (panel == 0)
#pragma unroll
            for (int j = 0; j < N / 8; j++) places[j] = reinterpret_cast<const int*>(smem.rows[ring.stage].lo)[8 * j + lane() / 4];
          if (two) wgmma_wait<1>();
          else wgmma_wait<0>();
          hold(s);
          write(s, panel);
          if (two) wgmma_wait<0>(), hold(ds), write(ds, panel + 1);
        }
      }
    };
    clear(dk), clear(dv);
    while (enter()) {
      begin_scores();
      make_p();
      if constexpr (Keys) make_ds();
      if constexpr (Values) begin_sum(Width<Cv>{}, dv, s, x[0], kRowTile);
      if constexpr (Keys) begin_sum(Width<C>{}, dk, ds, x[1], 0);
      make_results();
      wgmma_wait<0>();
      if constexpr (Keys) hold(dk);
      if constexpr (Values) hold(dv);
      release(), left--, ring.next();
    }
    const Work& at = smem.work;
    const int key = first_key + warp() % 4 * 16 + lane() / 4;
    // Writes f*sum, c columns a key: to the partial sums, `further` numbers into the row of a key, if the block has any; else to the array.
    const auto store = [&](auto width, void* array, const auto& sum, float f, int c, int further) {
      constexpr int X = decltype(width)::value;
      if (at.sums)
        return store_keys16<float, X>(at.sums + further, sum, f, key, at.end, c, [&](int s) { return (long long)(s - at.first) * (n.d + n.dv); });
      return store_keys16<T, X>(static_cast<T*>(array), sum, f, key, at.end, c, [&](int s) { return n.key(at.b, at.g, s, c); });
    };
    bool needs_careful = zero != 0;
    const float unscale = kScaled ? power_of_two(-int(smem.work.exponent)) : 1;
    if constexpr (Keys) needs_careful |= store(Width<C>{}, p.dk, dk, unscale * n.scale, n.d, 0);
    if constexpr (Values) needs_careful |= store(Width<Cv>{}, p.dv, dv, unscale, n.dv, n.d);
    return needs_careful;
  }
};
#endif

}  // namespace nsa

// Defines the entry points nsa_<op>_wgmma<D>_<storage>, which run WgmmaKeyGradient.
#define NSA_DKV_ENTRY(op, D, W, suffix, ...)                                                                           \
  extern "C" __global__ void __launch_bounds__(128 * (W + 1), W == 1 ? 2 : 1)                                          \
      nsa_##op##_wgmma##D##_##suffix(const __grid_constant__ nsa::KeyGradientParams p) {                               \
    NSA_WGMMA_BODY(nsa::WgmmaKeyGradient<nsa::suffix, __VA_ARGS__>(p).run();)                                          \
  }
#define NSA_DKV(op, D, C, Cv, W, ...)                                                                                  \
  NSA_DKV_ENTRY(op, D, W, bf16, C, Cv, W, __VA_ARGS__)                                                                 \
  NSA_DKV_ENTRY(op, D, W, f16, C, Cv, W, __VA_ARGS__)
//                D   C   Cv  W  N  Stages  the rows       Split
NSA_DKV(span_dkv, 64, 64, 64, 2, 128, 4, nsa::kSpanRows)
NSA_DKV(span_dkv, 128, 128, 128, 2, 64, 4, nsa::kSpanRows)
NSA_DKV(span_dkv, 192x128, 192, 128, 2, 32, 6, nsa::kSpanRows)
NSA_DKV(selected_dkv, 64, 64, 64, 1, 112, 3, nsa::kListedRows)
NSA_DKV(joined_dkv, 64, 64, 64, 1, 112, 3, nsa::kJoinedRows)
NSA_DKV(selected_dkv, 128, 128, 128, 1, 48, 3, nsa::kListedRows)
NSA_DKV(joined_dkv, 128, 128, 128, 1, 48, 3, nsa::kJoinedRows)
NSA_DKV(selected_dkv, 192x128, 192, 128, 1, 32, 3, nsa::kListedRows)
NSA_DKV(joined_dkv, 192x128, 192, 128, 1, 32, 3, nsa::kJoinedRows)
NSA_DKV(span_dkv, 192, 192, 192, 2, 64, 3, nsa::kSpanRows, true)
NSA_DKV(span_dkv, 256x128, 256, 128, 2, 64, 3, nsa::kSpanRows, true)
NSA_DKV(span_dkv, 256x192, 256, 192, 2, 48, 3, nsa::kSpanRows, true)
NSA_DKV(selected_dkv, 192, 192, 192, 2, 64, 3, nsa::kListedRows, true)
NSA_DKV(joined_dkv, 192, 192, 192, 2, 64, 3, nsa::kJoinedRows, true)
NSA_DKV(selected_dkv, 256x128, 256, 128, 2, 64, 3, nsa::kListedRows, true)
NSA_DKV(joined_dkv, 256x128, 256, 128, 2, 64, 3, nsa::kJoinedRows, true)
NSA_DKV(selected_dkv, 256x192, 256, 192, 2, 48, 3, nsa::kListedRows, true)
NSA_DKV(joined_dkv, 256x192, 256, 192, 2, 48, 3, nsa::kJoinedRows, true)
NSA_DKV(pairs_dkv, 64, 64, 64, 1, 96, 3, nsa::kPairRows)
NSA_DKV(pairs_dkv, 128, 128, 128, 1, 48, 3, nsa::kPairRows)
NSA_DKV(pairs_dkv, 192x128, 192, 128, 2, 64, 3, nsa::kPairRows, true)
NSA_DKV(pairs_dkv, 192, 192, 192, 2, 64, 3, nsa::kPairRows, true)
NSA_DKV(pairs_dkv, 256x128, 256, 128, 2, 48, 3, nsa::kPairRows, true)
NSA_DKV(pairs_dkv, 256x192, 256, 192, 2, 48, 3, nsa::kPairRows, true)
