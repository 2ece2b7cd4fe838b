// dk and dv on warp groups (compute capability 9.0): q, k, v, lse, do, delta -> dk, dv, with the contract of attention_dkv.cu.
//
//   nsa_span_dkv_wgmma<D>      window, dense and compressed attention; nsa_span_reduce adds up the partial sums
//   nsa_selected_dkv_wgmma<D>  selected attention; rows come from the inverse index, nsa_selected_reduce adds up the partial sums
//   nsa_several_dkv_wgmma<D>   the same if a block of the inverse, 64 keys, stands for several blocks of the choice; see attention_index.cu
//   nsa_pairs_dkv_wgmma<D>     selected attention by pairs; it also makes the results for dq (PairGradients of attention_pairs.cuh)
//
// D stands for the compiled widths: C if q and k have the width C and v the width Cv = C, else <C>x<Cv>.
//
// Warp group 0 of a block loads, W warp groups compute. N rows of q and do, with the facts about them, fill a stage of a ring of `Stages`
// stages; barriers say which stages are full and which are free. Each computing group owns 64 keys. Selected attention needs only 64
// keys a block, so it has one computing group, and two blocks share a multiprocessor. If a group has too few registers for both dk
// and dv of 64 keys (Split), two groups own the same keys: the first makes dv, the second dk.
//
// Keys are the rows of the products and queries the columns, so P and dS are left factors straight from registers. While one group
// makes P and dS, the products of the other run.
//
// With pairs, rows come by tensor maps: a box has the heads of one query, and each loading warp fills a stage of its own. A group writes dS
// to shared memory, too, and multiplies the transpose of its keys by it. That is what these keys add to dq, transposed; the lanes of a
// warp turn it round and write it to the results.
//
// The rows that see the keys of a span are cut into chunks, counted from the last row. So chunk i has the same rows for many keys, and
// their blocks read these rows from the L2 cache at about the same time. In a window a block also starts at the same row as its
// neighbours: at a multiple of the number of rows that see a block's keys. It does the rows before that last.
//
// A block that meets NaN, Inf or large rows repeats all its work by the careful pass; see careful_if_needed. Shared memory: kShared bytes.
#include "attention_keys.cuh"
#include "attention_pairs.cuh"
#include "attention_rows.cuh"
#include "attention_wgmma_span.cuh"

namespace nsa {

#if defined(__CUDA_ARCH_FEAT_SM90_ALL) || !defined(__CUDACC__)
enum Listing { kSpan, kListed, kSeveral, kPairs };
template <typename T, int C, int Cv, int W, int N, int Stages, Listing Lists, bool Split = false> struct KeyGradient {
  static constexpr bool Listed = Lists != kSpan, Several = Lists == kSeveral, Pairs = Lists == kPairs;
  using Params = std::conditional_t<Pairs, PairGradientParams, AttentionParams>;
  static constexpr int kQuery = (1 << 28) - 1;  // if Several: the bits of a list entry that hold the query
  static constexpr int kOwners = Split ? 1 : W, M = 64 * kOwners, kBlock = 128 + 128 * W;
  static constexpr uint32_t kKeyTile = 64 * C * 2, kValueTile = 64 * Cv * 2;       // bytes of the keys and values of a warp group
  static constexpr uint32_t kRowTile = N * C * 2, kStage = kRowTile + N * Cv * 2;  // bytes of q, and of q and do
  static constexpr int kLoaderRegisters = Split ? 56 : W == 1 && C > 128 ? 32 : 40, kRegisters = W == 1 ? 256 - kLoaderRegisters : Split ? 224 : 232;  // of a thread
  static_assert(registers_fit(W, kLoaderRegisters, kRegisters, W == 1 ? 2 : 1) && (W == 2 || !Split), "or the groups wait for registers without end");
  static constexpr int kStep = 128 / 8;
  static_assert(N <= 128 && N % kStep == 0, "a thread for each row of a tile, which copies the same cell of panels of several");

  // What is known about the rows of a tile. An element of a pair is for an even or an odd row. base is lse*log2(e), or 0 for large rows
  // in the careful pass; then lse holds their lse, and 0 for all other rows. lo and hi are the keys that a row sees; if Several, lo
  // holds its four bits instead, and if Pairs the place of its result, times h, plus its head (-1 for no row). at is the distance from
  // the group's first row, counted in rows, -1 for no row; unused if Pairs. some is a run that contains the keys that any row sees, all
  // those that all rows see.
  struct Rows {
    float2 base[N / 2], delta[N / 2];
    int2 lo[N / 2], hi[N / 2];
    float lse[N];
    int at[N];
    Run some, all;
  };
  // The work of a block: the keys [first,end) of group g of batch row b, and the rows [from,to), which are `steps` tiles; the block
  // starts with tile `turn` and wraps around. If there are several chunks, gradients go to sums. `queries` is the list of queries if
  // Listed. steps = -1 means no work.
  struct Work {
    int b, g, first, end, from, to, steps, turn;
    float* sums;
    const int* queries;
    long long row, stat;  // index of the group's first row in q, counted in rows, and in lse
    int part;             // of a selection block
  };
  struct Shared {
    Rows rows[Stages];
    unsigned long long full[Stages], free[Stages], raw[4], pass;  // raw: of the loading warps if Pairs, in the careful pass
    Work work;
    int careful;  // whether this is the careful pass; in shared memory to save registers
    int wrong;    // whether any thread asks for it
    unsigned bad[2];  // if Pairs: a bit for each key with NaN or Inf, in the careful pass
  };
  static_assert(sizeof(Shared) == Stages * (24 * N + 32) + 128, "widths.dkvBytes in Go");
  static constexpr int kWeights = Pairs && Split ? 2 * N * 128 : 0;  // bytes of dS; without Split it lies in the place of do
  static constexpr int kTiles = kOwners * (kKeyTile + kValueTile) + Stages * kStage + kWeights, kShared = kTiles + sizeof(Shared);

  const Params& params;
  const AttentionParams& p;
  uint32_t K, V, Q;  // in a stage, do lies behind q
  Shared& is;

  static __device__ char* shared() { return reinterpret_cast<char*>(tiles_shared()); }
  static __device__ const AttentionParams& of(const AttentionParams& p) { return p; }
  static __device__ const AttentionParams& of(const PairGradientParams& a) { return a.p; }
  __device__ KeyGradient(const Params& params)
      : params(params), p(of(params)), K(shared_address(shared())), V(K + kOwners * kKeyTile), Q(V + kOwners * kValueTile),
        is(*reinterpret_cast<Shared*>(shared() + kTiles)) {}

  __device__ void run() {
    if (threadIdx.x == 0) {
      if constexpr (Listed) is.work = selected_work();
      else is.work = span_work();
      is.work.row = p.n.row(is.work.b, is.work.g, 0, 1), is.work.stat = p.n.stat(is.work.b, is.work.g, 0);
      is.careful = is.wrong = 0, is.bad[0] = is.bad[1] = 0;
      barrier_init(barrier_at(is.pass), kBlock);
      for (int i = 0; i < Stages; i++)
        barrier_init(barrier_at(is.full[i]), Pairs ? 33 : 128 + 4), barrier_init(barrier_at(is.free[i]), 128 * W);
      for (int i = 0; i < 4; i++) barrier_init(barrier_at(is.raw[i]), 1);
      barriers_ready();
    }
    if (Pairs) {  // rows that no box fills must be finite
      for (int i = threadIdx.x; i < Stages * int(kStage) / 16; i += kBlock) store_shared(Q + 16 * i, uint4{0, 0, 0, 0});
      fence_async();
    }
    __syncthreads();
    if (is.work.steps < 0) return;
    const int role = __shfl_sync(0xffffffff, threadIdx.x / 128, 0);
    Ring<Stages> ring;
    if (role == 0) {
      fewer_registers<kLoaderRegisters>();
      if constexpr (Pairs) {
        while (again(load_lists())) {}
      } else {
        load_keys();
        while (again(load_rows(ring))) {}
      }
    } else {
      more_registers<kRegisters>();
      if constexpr (Split) {
        if (role == 1) {
          while (again(compute<true, false>(ring, 0))) {}
        } else {
          while (again(compute<false, true>(ring, 0))) {}
        }
      } else {
        while (again(compute<true, true>(ring, role - 1))) {}
      }
    }
  }
  // Grid x is B*Hkv*items*ceil(T/M); tiles of keys vary fastest. Item i of a tile takes its chunk of rows number i, counted from the end.
  __device__ Work span_work() const {
    const Sizes& n = p.n;
    const int tiles = (n.keys - 1) / M + 1, item = blockIdx.x / tiles % p.index.items, group = blockIdx.x / tiles / p.index.items;
    const int first = blockIdx.x % tiles * M, end = min(n.keys, first + M);
    const SpanRows rows = span_rows(p, group / n.groups, first, end);
    const int chunks = p.index.chunks(rows.all);
    const int to = rows.from + rows.all - item * p.index.chunk, from = max(rows.from, to - p.index.chunk);
    const long long most = min((long long)p.span.w + M, (long long)n.queries) * n.each, next = (from + most - 1) / most * most;
    const long long row = ((long long)group * p.index.items + item) * n.keys + first;
    return {group / n.groups, group % n.groups, first, end, from, to, item < chunks ? (to - from + N - 1) / N : -1,
            next < to ? int(next - from) / N : 0, chunks == 1 ? nullptr : p.partial + row * (n.d + n.dv), nullptr};
  }
  // The rows of a full tile: if Pairs, those of whole queries.
  __device__ int rows_of() const { return Pairs ? N / p.n.each * p.n.each : N; }
  // Grid x is B*Hkv*items*ceil(size/M). An item is a chunk of the list of a block.
  __device__ Work selected_work() const {
    const Sizes& n = p.n;
    const int size = p.blocks.size, parts = (size - 1) / M + 1, blocks = p.names();
    const int part = blockIdx.x % parts, item = blockIdx.x / parts % p.index.items;
    int group = blockIdx.x / parts / p.index.items;
    if constexpr (Pairs) group += params.pairs.first;
    const Choosers of(p, group);
    Work to_do{group / n.groups, group % n.groups};
    to_do.steps = -1, to_do.part = part;
    if (item >= of.item[blocks]) return to_do;
    const int j = of.block(item, blocks), chunk = item - of.item[j], from = chunk * p.index.chunk;
    const Run block = p.tokens(to_do.b, j);
    if (part * M >= block.hi - block.lo) return to_do;
    to_do.first = block.lo + part * M, to_do.end = min(to_do.first + M, block.hi);
    to_do.to = min(of.length(j) - from, p.index.chunk) * n.each, to_do.steps = (to_do.to + rows_of() - 1) / rows_of();
    const long long row = ((long long)group * p.index.partials + of.partial[j] + chunk) * size + part * M;
    if (of.chunks(j) > 1) to_do.sums = p.partial + row * (n.d + n.dv);
    to_do.queries = of.queries + of.list[j] + from;
    return to_do;
  }
  // Ends a pass of the block and returns whether another one follows: the careful one follows the first if any thread was `wrong`.
  __device__ bool again(bool wrong) const {
    const bool last = is.careful;
    if (wrong && !last) atomicOr(&is.wrong, 1);
    meet(barrier_at(is.pass), 0);
    if (last || !is.wrong) return false;
    if (threadIdx.x == 0) is.careful = 1;
    meet(barrier_at(is.pass), 1);
    return true;
  }

  // Begins to copy the keys and values. Their arrival is part of the first stage's full barrier.
  __device__ void load_keys() const {
    const Sizes& n = p.n;
    const int b = is.work.b, g = is.work.g, first = is.work.first, end = is.work.end;
    const int i = threadIdx.x % 8;
    const auto copy = [&](auto width, uint32_t tile, const void* array, int c) {
      const T* src = static_cast<const T*>(array) + 8 * i;
#pragma unroll 2
      for (int r = threadIdx.x / 8; r < M; r += kStep) {
        const T* row = src + n.key(b, g, min(first + r, end - 1), c);
#pragma unroll
        for (int m = 0; m < decltype(width)::value / 64; m++) {  // nothing is read unless `in`
          const bool in = first + r < end && 64 * m + 8 * i < c;
          copy_cell(tile + r / 64 * 128 * decltype(width)::value + cell_of(64, r % 64, 8 * m + i), row + 64 * m, in);
        }
      }
    };
    copy(Width<C>{}, K, p.k, n.d), copy(Width<Cv>{}, V, p.v, n.dv);
  }

  // The work of a loading warp if Pairs: it takes every Stages-th tile, and so always fills the same stage in a pass. It begins to copy the
  // boxes of the tile, writes what is known about its rows, and fetches that of its next tile. Rows behind those of whole queries keep
  // what they held: no weight is given to them. Returns whether a row is large.
  __device__ bool load_lists() const {
    constexpr int kMine = (N - 1) / 32 + 1;  // rows of a lane
    static_assert(Stages <= 4, "a warp for each stage, or it could wait for a stage that is a round behind");
    if (warp() >= Stages) return false;
    const Sizes& n = p.n;
    const Work& at = is.work;
    const PairGradients& x = params.pairs;
    const int most = rows_of(), careful = is.careful, before = careful * at.steps;  // tiles of the pass before
    bool any_large = false;
    int entry[kMine];  // of the lane's rows of the next tile: their list entries
    float lse[kMine], delta[kMine];
    const auto fetch = [&](int j) {
      const int first = j * most, count = j < at.steps ? min(most, at.to - first) : 0;
#pragma unroll
      for (int u = 0; u < kMine; u++) {
        const int r = lane() + 32 * u;
        entry[u] = r < count ? at.queries[(first + r) / n.each] : -1;
      }
#pragma unroll
      for (int u = 0; u < kMine; u++) {
        const int r = lane() + 32 * u, t = entry[u] >> x.entry_bits;
        const long long stat = at.stat + (r % n.each * n.queries + t);
        lse[u] = INFINITY, delta[u] = 0;
        if (r < count) lse[u] = p.lse[stat], delta[u] = p.delta[stat];
      }
    };
    uint32_t raw = 0;  // parity
    fetch(warp());
#pragma unroll 1
    for (int j = warp(); j < at.steps; j += Stages) {
      const int number = before + j, stage = number % Stages, first = j * most, count = min(most, at.to - first);
      const uint32_t full = barrier_at(is.full[stage]), q = Q + stage * kStage, arrives = careful ? barrier_at(is.raw[warp()]) : full;
      Rows& rows = is.rows[stage];
      barrier_wait(barrier_at(is.free[stage]), (number / Stages & 1) ^ 1);
      if (lane() == 0) {
        const bool keys = number == 0;
        barrier_arrive_expecting(arrives, 2 * (C + Cv) * (count + (keys ? 64 : 0)));
        if (keys) copy_boxes<C>(K, 64, params.k, arrives, at.g, at.first, at.b), copy_boxes<Cv>(V, 64, params.v, arrives, at.g, at.first, at.b);
      }
      __syncwarp();
#pragma unroll 1
      for (int r = lane() * n.each; __any_sync(0xffffffff, r < count); r += 32 * n.each) {  // the first row of a query
        int of = -1;
#pragma unroll
        for (int u = 0; u < kMine; u++)
          if (const int other = __shfl_sync(0xffffffff, entry[u], r % 32); r / 32 == u) of = other;
        if (r >= count) continue;
        const int row = (at.b * n.queries + (of >> x.entry_bits)) * n.heads + at.g * n.each;
#pragma unroll
        for (int m = 0; m < C / 64; m++) copy_box(q + (m * N + r) * 128, params.q, arrives, 64 * m, 0, row, 0);
#pragma unroll
        for (int m = 0; m < Cv / 64; m++) copy_box(q + kRowTile + (m * N + r) * 128, params.dout, arrives, 64 * m, 0, row, 0);
      }
#pragma unroll
      for (int u = 0; u < kMine; u++) {
        const int r = lane() + 32 * u, t = entry[u] >> x.entry_bits;
        if (r >= N) continue;
        const float of = load_lse(lse[u]);
        const bool shift = careful && large(of);
        any_large |= large(of);
        reinterpret_cast<float*>(rows.base)[r] = shift ? 0 : of * kLog2E;
        reinterpret_cast<float*>(rows.delta)[r] = delta[u];
        const int place = (t * p.blocks.most + (entry[u] & (1 << x.entry_bits) - 1)) * x.parts + at.part;
        reinterpret_cast<int*>(rows.lo)[r] = entry[u] < 0 ? -1 : place * n.each + r % n.each;
        reinterpret_cast<int*>(rows.hi)[r] = t + 1;
        rows.lse[r] = shift ? of : 0;
        if (r == 0) rows.some = {0, n.keys}, rows.all = {0, careful ? 0 : t + 1};
      }
      if (careful) {
        barrier_wait(arrives, raw), raw ^= 1;
        if (j == 0) take_out(Width<C>{}, K, 64, [&](int r) { atomicOr(is.bad + r / 32, 1u << r % 32); });
        const auto bad = [&](int r) { reinterpret_cast<float*>(rows.base)[r] = NAN; };
        __syncwarp();
        take_out(Width<C>{}, q, N, bad), take_out(Width<Cv>{}, q + kRowTile, N, bad);
        fence_async();
        __syncwarp();
        if (lane() == 0) barrier_arrive(full);
      }
      barrier_arrive(full);
      __syncwarp();
      fetch(j + Stages);
    }
    return any_large;
  }

  // Loads the rows and the facts about them. Returns whether a row is large.
  __device__ bool load_rows(Ring<Stages>& ring) const {
    const Sizes& n = p.n;
    const int me = threadIdx.x, i = me % 8, mine = me / 8;  // this thread copies cell i of every panel, of rows mine, mine + kStep, ...
    const Work& at = is.work;  // read each time, to save registers
    bool any_large = false;
    // Thread `me` looks after row `me` of a tile. t (the query, -1 for none), row, lse and delta belong to the next tile. For the tile
    // after that: soon is the query, or its place in the list if Listed; listed is then the entry; head is the head.
    int t = -1, row = 0, soon = 0, head = 0, listed = 0;  // if Several, t and listed contain the four bits
    float lse = INFINITY, delta = 0;
    const int turn = at.turn, steps = at.steps;
    const auto tile = [&](int j) { return turn + j < steps ? turn + j : turn + j - steps; };
    const auto look_up = [&](int j) {  // finds the row of tile j
      const int first = at.from + tile(j) * N + me;
      soon = first / n.each, head = first % n.each;
      if (Listed) listed = me < N && j < steps && soon * n.each + head < at.to ? at.queries[soon] : -1;
    };
    const auto query = [&](int t) { return Several ? t & kQuery : t; };
    const auto fetch = [&](int j) {  // loads lse and delta of tile j, and looks up tile j + 1
      t = -1, lse = INFINITY, delta = 0;
      if (Several ? listed != -1 : Listed ? listed >= 0 : me < N && j < steps && soon * n.each + head < at.to) {
        t = Listed ? listed : soon, row = query(t) * n.heads + head;
        const long long stat = at.stat + (head * n.queries + query(t));
        lse = load_lse(p.lse[stat]), delta = p.delta[stat];
      }
      look_up(j + 1);
    };
    const auto note = [&](Rows& rows, int count) {  // writes the facts about a tile with `count` rows
      if (me >= N) return;
      const Run all = (Several ? t == -1 : t < 0) ? Run{0, 0} : Several ? Run{t >> 28 & 15, query(t) + 1} : Listed ? Run{0, query(t) + 1} : p.keys(at.b, t), seen{all.lo, min(all.hi, n.keys)};
      if (me == 0) rows.some.lo = Several ? 0 : seen.lo, rows.all.hi = count == N ? seen.hi : 0;
      if (me == count - 1) rows.some.hi = Listed ? n.keys : seen.hi, rows.all.lo = seen.lo;
      const bool shift = is.careful && large(lse);
      any_large |= large(lse);
      reinterpret_cast<float*>(rows.base)[me] = shift ? 0 : lse * kLog2E;
      reinterpret_cast<float*>(rows.delta)[me] = delta;
      reinterpret_cast<int*>(rows.lo)[me] = seen.lo;
      reinterpret_cast<int*>(rows.hi)[me] = seen.hi;
      rows.lse[me] = shift ? lse : 0;
      rows.at[me] = (Several ? t == -1 : t < 0) ? -1 : row;
    };
    look_up(0), fetch(0);
#pragma unroll 1
    for (int j = 0; j < steps; j++, ring.next()) {
      const uint32_t full = barrier_at(is.full[ring.stage]), q = Q + ring.stage * kStage;
      Rows& rows = is.rows[ring.stage];
      barrier_wait(barrier_at(is.free[ring.stage]), ring.parity ^ 1);
      note(rows, min(N, at.to - at.from - tile(j) * N));
      named_sync(1, 128);  // all facts about the tile are written
      fetch(j + 1);
      const T *from_q = static_cast<const T*>(p.q) + at.row * n.d + 8 * i, *from_do = static_cast<const T*>(p.dout) + at.row * n.dv + 8 * i;
      const uint32_t to = q + cell_of(N, mine, i);
      constexpr int kSome = C > 128 ? 1 : 4;  // places read at once, before the copies, which no read of shared memory is moved across
#pragma unroll kSome == 1 ? 1 : N / kStep
      for (int first = 0; first < N / kStep; first += kSome) {
        int places[kSome];
#pragma unroll
        for (int r = 0; r < kSome; r++)
          if (first + r < N / kStep) places[r] = rows.at[mine + (first + r) * kStep];
        const auto copy = [&](auto width, uint32_t to, const T* src, int c) {  // nothing is read outside the rows and the c columns
#pragma unroll
          for (int r = 0; r < kSome; r++)
            if (first + r < N / kStep) {
#pragma unroll
              for (int m = 0; m < decltype(width)::value / 64; m++)
                copy_cell(to + (m * N + (first + r) * kStep) * 128, src + (long long)places[r] * c + 64 * m, places[r] >= 0 && 64 * m + 8 * i < c);
            }
        };
        copy(Width<C>{}, to, from_q, n.d), copy(Width<Cv>{}, to + kRowTile, from_do, n.dv);
      }
      if (is.careful) {
        copies_arrived();
        const auto bad = [&](int r) { reinterpret_cast<float*>(rows.base)[r] = NAN; };
        take_out(Width<C>{}, q, N, bad), take_out(Width<Cv>{}, q + kRowTile, N, bad);
        barrier_arrive(full);
      } else {
        barrier_arrive_copied(full);
      }
      __syncwarp();
      if (lane() == 0) barrier_arrive(full);
    }
    if (at.steps == 0) copies_arrived();
    return any_large;
  }
  // take_out of attention_tile.cuh for a tile of `count` rows, by each warp for the rows that it copied, which are all if Pairs. Rows with
  // NaN or Inf become zeros. Each lane that has a part of such a row calls also(r).
  template <int X, class Also> __device__ void take_out(Width<X>, uint32_t tile, int count, Also also) const {
    int me = threadIdx.x;
    asm volatile("" : "+r"(me));  // keeps what follows out of registers before this rare work
#pragma unroll 1
    for (int r = Pairs ? me % 32 / 8 : me / 8; r < count; r += Pairs ? 4 : kStep) {
      const uint32_t at = tile + cell_of(count, r, me % 8);
      bool bad = false;
#pragma unroll
      for (int m = 0; m < X / 64; m++) bad |= has_nan_or_inf<T>(shared_cell(at + m * count * 128));
      const unsigned votes = __ballot_sync(0xffffffff, bad);
      if (!(votes >> me % 32 / 8 * 8 & 0xff)) continue;
#pragma unroll
      for (int m = 0; m < X / 64; m++) store_shared(at + m * count * 128, uint4{0, 0, 0, 0});
      also(r);
    }
  }

  // The work of the computing group that owns the 64 keys from 64*w on: it makes dv if Values, and dk if Keys. Returns whether this
  // thread wrote NaN or Inf.
  template <bool Values, bool Keys> __device__ bool compute(Ring<Stages>& ring, int w) const {
    const Sizes& n = p.n;
    const int mine = is.work.first + 64 * w;  // the first key of the group
    float dk[C / 8][4], dv[Cv / 8][4], s[N / 8][4], ds[N / 8][4];
    uint32_t x[2][N / 16][4];  // P and dS, rounded to T
    int left = is.work.steps;

    // Called by every lane, since every lane has read the facts about rows.
    const auto release = [&] { barrier_arrive(barrier_at(is.free[ring.stage])); };
    // Moves to the next tile in which a row sees a key of the group. Returns whether there is one.
    const auto enter = [&] {
#pragma unroll 1
      for (; left > 0; left--, ring.next()) {
        barrier_wait(barrier_at(is.full[ring.stage]), ring.parity);
        if (!Pairs) fence_async();  // boxes are not written by threads
        const Run some = is.rows[ring.stage].some;
        if (some.lo < mine + 64 && some.hi > mine) return true;
        release();
      }
      return false;
    };
    const auto begin_scores = [&] {
      const auto begin = [&](auto width, float (&to)[N / 8][4], uint32_t keys, uint32_t rows) {
        hold(to);
        wgmma_begin();
        asm volatile("" : "+r"(keys));  // makes the compiler compute descriptors again rather than keep them in registers
        const uint64_t a = describe(keys, 0), b = describe(rows, 0);
#pragma unroll
        for (int i = 0; i < decltype(width)::value / 16; i++) {
          const int panel = i / 4, column = i % 4 * 32;
          Wgmma<T, N>::rows(to, a + (panel * 64 * 128 + column) / 16, b + (panel * N * 128 + column) / 16, i > 0);
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
      asm volatile("" : "+r"(rows));
      const uint64_t b = describe(rows, N * 128);
#pragma unroll
      for (int i = 0; i < N / 16; i++) Wgmma<T, decltype(width)::value>::columns(sum, x[i], b + i * 16 * 128 / 16);
      wgmma_end();
    };
    // Whether all rows of the tile see all keys of the group.
    const auto all_seen = [&] {
      if (Several) return false;
      const Run all = is.rows[ring.stage].all;
      return all.lo <= mine && all.hi >= mine + 64;
    };
    // Turns s into P.
    const auto make_p = [&] {
      const Rows& rows = is.rows[ring.stage];
      const int c = lane() % 4;
      wgmma_wait<Keys ? 1 : 0>();
      hold(s);
      if (is.careful)
#pragma unroll
        for (int j = 0; j < N / 8; j++)
#pragma unroll
          for (int i = 0; i < 4; i++) {
            const float lse = rows.lse[8 * j + 2 * c + i % 2];
            if (lse != 0) s[j][i] = shifted_logit(n, s[j][i], lse);
            const int key = warp() % 4 * 16 + lane() / 4 + i / 2 * 8;
            if (Pairs && is.bad[key / 32] >> key % 32 & 1) s[j][i] = NAN;
          }
#pragma unroll
      for (int j = 0; j < N / 8; j++) {
        const float2 base = rows.base[4 * j + c];
#pragma unroll
        for (int i = 0; i < 4; i++) s[j][i] = power2(fmaf(s[j][i], n.scale_log2, -(i % 2 ? base.y : base.x)));
      }
      if (all_seen()) return;
      const int key = mine + warp() % 4 * 16 + lane() / 4;
#pragma unroll
      for (int j = 0; j < N / 8; j++) {
        int2 lo = Pairs ? int2{0, 0} : rows.lo[4 * j + c], hi = rows.hi[4 * j + c];
        if (Several) {  // the 16 keys of a warp belong to one block of the choice
          const int block = warp() % 4 * p.count / 4;
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
        const float2 delta = is.rows[ring.stage].delta[4 * j + lane() % 4];
#pragma unroll
        for (int i = 0; i < 4; i++) ds[j][i] = s[j][i] * (ds[j][i] - (i % 2 ? delta.y : delta.x));
      }
      if (Pairs) hold(ds), hold(s);  // else the compiler rounds P before, and has too few registers
      if (all_seen()) return;
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
    const uint32_t here = lane() % 8 * 128 + lane() / 16 * 1024 + ((warp() % 4 * 2 + lane() / 8 % 2 ^ lane() % 8) << 4);
    uint32_t further = 0, zero = 0;
    const auto make_results = [&] {
      if constexpr (Pairs && Keys) {
        if (!Split) {
          wgmma_wait<1>();
          hold(dv);
          named_sync(2, 128);
        }
        const uint32_t tile = Split ? Q + Stages * kStage + further : Q + ring.stage * kStage + kRowTile;
        further ^= N * 128;
#pragma unroll
        for (int i = 0; i < N / 16; i++) store_turned(tile + here + i * 2048, x[1][i]);
        fence_async();
        named_sync(2, 128);

        const PairGradients& to = params.pairs;
        const int width = result_width(n.d);
        const long long rows = (long long)(is.work.b * n.groups + is.work.g - to.first) * n.queries * p.blocks.most * to.parts * n.each;
        T* results = static_cast<T*>(to.results) + rows * width + warp() % 4 * 16 + lane() % 4 * 4;
        int places[N / 8];  // read before any result is written, since no read is moved across a write
        const auto begin = [&](float (&y)[N / 8][4], int panel) {  // 64 columns of dq, transposed
          hold(y);
          wgmma_begin();
          const uint64_t a = describe(K + panel * 64 * 128, 0), b = describe(tile, 0);
#pragma unroll
          for (int i = 0; i < 4; i++) Wgmma<T, N>::turned(y, a + i * 16 * 128 / 16, b + i * 32 / 16, i > 0);
          wgmma_end();
        };
        const auto write = [&](const float (&y)[N / 8][4], int panel) {
          const float f = narrow<T> ? n.scale : 1;
          uint2 both[N / 8];
#pragma unroll
          for (int j = 0; j < N / 8; j++) {
            const uint32_t lo = pair<T>(f * y[j][0], f * y[j][1]), hi = pair<T>(f * y[j][2], f * y[j][3]);
            keep_nan<T>(zero, lo), keep_nan<T>(zero, hi);
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
            for (int j = 0; j < N / 8; j++) places[j] = reinterpret_cast<const int*>(is.rows[ring.stage].lo)[8 * j + lane() / 4];
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
    const Work& at = is.work;
    const int key = mine + warp() % 4 * 16 + lane() / 4;
    // Writes f*sum, c columns a key: to the partial sums, `further` numbers into the row of a key, if the block has any; else to the array.
    const auto store = [&](auto width, void* array, const auto& sum, float f, int c, int further) {
      constexpr int X = decltype(width)::value;
      if (at.sums)
        return store_keys16<float, X>(at.sums + further, sum, f, key, at.end, c, [&](int s) { return (long long)(s - at.first) * (n.d + n.dv); });
      return store_keys16<T, X>(static_cast<T*>(array), sum, f, key, at.end, c, [&](int s) { return n.key(at.b, at.g, s, c); });
    };
    bool wrong = zero != 0;
    if constexpr (Keys) wrong |= store(Width<C>{}, p.dk, dk, n.scale, n.d, 0);
    if constexpr (Values) wrong |= store(Width<Cv>{}, p.dv, dv, 1, n.dv, n.d);
    return wrong;
  }
};
#endif

}  // namespace nsa

// Defines the entry points nsa_<op>_wgmma<D>_<storage>, which run KeyGradient.
#define NSA_DKV_ENTRY(op, Params, D, W, suffix, ...)                                                                   \
  extern "C" __global__ void __launch_bounds__(128 * (W + 1), W == 1 ? 2 : 1)                                          \
      nsa_##op##_wgmma##D##_##suffix(const __grid_constant__ nsa::Params p) {                                          \
    NSA_WGMMA_BODY(nsa::KeyGradient<nsa::suffix, __VA_ARGS__>(p).run();)                                               \
  }
#define NSA_DKV(op, D, C, Cv, W, ...)                                                                                  \
  NSA_DKV_ENTRY(op, AttentionParams, D, W, bf16, C, Cv, W, __VA_ARGS__)                                                \
  NSA_DKV_ENTRY(op, AttentionParams, D, W, f16, C, Cv, W, __VA_ARGS__)
#define NSA_PAIRS_DKV(D, C, Cv, W, N, Stages, ...)                                                                     \
  NSA_DKV_ENTRY(pairs_dkv, PairGradientParams, D, W, bf16, C, Cv, W, N, Stages, nsa::kPairs, ##__VA_ARGS__)            \
  NSA_DKV_ENTRY(pairs_dkv, PairGradientParams, D, W, f16, C, Cv, W, N, Stages, nsa::kPairs, ##__VA_ARGS__)
NSA_DKV(span_dkv, 64, 64, 64, 2, 128, 4, nsa::kSpan)
NSA_DKV(span_dkv, 128, 128, 128, 2, 64, 4, nsa::kSpan)
NSA_DKV(span_dkv, 192x128, 192, 128, 2, 32, 6, nsa::kSpan)
NSA_DKV(selected_dkv, 64, 64, 64, 1, 112, 3, nsa::kListed)
NSA_DKV(several_dkv, 64, 64, 64, 1, 112, 3, nsa::kSeveral)
NSA_DKV(selected_dkv, 128, 128, 128, 1, 48, 3, nsa::kListed)
NSA_DKV(several_dkv, 128, 128, 128, 1, 48, 3, nsa::kSeveral)
NSA_DKV(selected_dkv, 192x128, 192, 128, 1, 32, 3, nsa::kListed)
NSA_DKV(several_dkv, 192x128, 192, 128, 1, 32, 3, nsa::kSeveral)
NSA_DKV(span_dkv, 192, 192, 192, 2, 64, 3, nsa::kSpan, true)
NSA_DKV(span_dkv, 256x128, 256, 128, 2, 64, 3, nsa::kSpan, true)
NSA_DKV(span_dkv, 256x192, 256, 192, 2, 48, 3, nsa::kSpan, true)
NSA_DKV(selected_dkv, 192, 192, 192, 2, 64, 3, nsa::kListed, true)
NSA_DKV(several_dkv, 192, 192, 192, 2, 64, 3, nsa::kSeveral, true)
NSA_DKV(selected_dkv, 256x128, 256, 128, 2, 64, 3, nsa::kListed, true)
NSA_DKV(several_dkv, 256x128, 256, 128, 2, 64, 3, nsa::kSeveral, true)
NSA_DKV(selected_dkv, 256x192, 256, 192, 2, 48, 3, nsa::kListed, true)
NSA_DKV(several_dkv, 256x192, 256, 192, 2, 48, 3, nsa::kSeveral, true)
NSA_PAIRS_DKV(64, 64, 64, 1, 96, 3)
NSA_PAIRS_DKV(128, 128, 128, 1, 48, 3)
NSA_PAIRS_DKV(192x128, 192, 128, 2, 64, 3, true)
NSA_PAIRS_DKV(192, 192, 192, 2, 64, 3, true)
NSA_PAIRS_DKV(256x128, 256, 128, 2, 48, 3, true)
NSA_PAIRS_DKV(256x192, 256, 192, 2, 48, 3, true)
