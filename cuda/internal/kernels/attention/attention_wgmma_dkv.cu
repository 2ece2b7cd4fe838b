// attention_mma_dkv.cu for compute capability 9.0, of the branches with a Span: q, k, v, lse, do, delta -> dk, dv, the same contract.
//
//   nsa_span_dkv_wgmma<C>  window, dense and compressed attention; nsa_span_reduce adds up the partial sums
//
// A block owns M = 64*W keys of a group, 64 for each of W warp groups that compute, behind one that loads. N rows of q and do at a
// time, with what is known of them, go through a ring of `Stages`; barriers say which are full and which are free. Keys are the rows
// of the products and queries the columns, so that P and dS are left factors from registers. A step makes P and dS of N rows while
// the products of the other groups run, and its own if Ahead: then the logits and dP of the next rows begin before the sums of the
// last ones, which takes C + 1.5*N registers of a thread instead of C + N.
//
// Rows that see the keys are cut into chunks from their end, so that those of one number are the same for many keys, whose blocks
// read them at the same time. In a window a block begins where its neighbours begin: at a multiple of the rows that see a block.
//
// A block that has met NaN, Inf or large rows does all of it again, carefully; see careful_if_needed. Shared memory: kShared bytes.
#include "attention_keys.cuh"
#include "attention_rows.cuh"
#include "attention_wgmma_span.cuh"

namespace nsa {

#if defined(__CUDA_ARCH_FEAT_SM90_ALL) || !defined(__CUDACC__)
template <typename T, int C, int W, int N, int Stages, bool Ahead> struct SpanKeyGradient {
  static constexpr int M = 64 * W, kBlock = 128 + 128 * W, kCells = C / 8, kStep = 128 / kCells;
  static constexpr uint32_t kKeyTile = 64 * C * 2, kRowTile = N * C * 2;  // bytes of the keys of a warp group, and of rows
  static constexpr int kLoaderRegisters = W == 2 ? 40 : 56, kRegisters = W == 2 ? 232 : 152;
  static_assert(Stages >= 3 && N <= 128 && N % kStep == 0 && kStep % 8 == 0, "the loader is one tile ahead of what it has handed on");

  // What is known of the rows of a tile: lse*log2(e) and delta; the keys that they see; lse of large rows, when careful, and 0 of
  // others. And the keys that some row sees, or all. A pair is that of adjoining rows.
  struct Rows {
    float2 base[N / 2], delta[N / 2];
    int2 lo[N / 2], hi[N / 2];
    float lse[N];
    Run some, all;
  };
  // The keys [first,end) of group g of batch b, and the rows [from,to): `steps` tiles, the first of which is tile `turn`. The gradients
  // go to sums if there are other chunks.
  struct Work {
    int b, g, first, end, from, to, steps, turn;
    float* sums;
  };
  struct Shared {
    Rows rows[Stages];
    unsigned long long full[Stages], free[Stages];
    Work work;
    int careful;  // whether this is the second pass; here, as registers are scarce
  };
  static_assert(sizeof(Shared) == Stages * (20 * N + 32) + 48, "warpGroupDKVBytes in Go");
  static constexpr int kTiles = 2 * W * kKeyTile + 2 * Stages * kRowTile, kShared = kTiles + sizeof(Shared);

  const AttentionParams& p;
  uint32_t K, V, Q;  // do lies behind q in a stage
  Shared& is;

  static __device__ char* shared() { return reinterpret_cast<char*>(tiles_shared()); }
  __device__ SpanKeyGradient(const AttentionParams& p)
      : p(p), K(shared_address(shared())), V(K + W * kKeyTile), Q(V + W * kKeyTile),
        is(*reinterpret_cast<Shared*>(shared() + kTiles)) {}

  // Grid x is B*Hkv*items*ceil(T/M), the keys running fastest: item i of some keys has the i-th last index.chunk of their rows.
  __device__ void run() {
    const Sizes& n = p.n;
    const int tiles = (n.keys - 1) / M + 1, item = blockIdx.x / tiles % p.index.items, group = blockIdx.x / tiles / p.index.items;
    const int first = blockIdx.x % tiles * M, end = min(n.keys, first + M);
    const SpanRows rows = span_rows(p, first, end);
    const int chunks = p.index.chunks(rows.all);
    if (item >= chunks) return;
    if (threadIdx.x == 0) {
      const int to = rows.from + rows.all - item * p.index.chunk, from = max(rows.from, to - p.index.chunk);
      const long long most = min((long long)p.span.w + M, (long long)n.queries) * n.each, next = (from + most - 1) / most * most;
      const long long row = ((long long)group * p.index.items + item) * n.keys + first;
      Work& to_do = is.work;
      to_do.b = group / n.groups, to_do.g = group % n.groups, to_do.first = first, to_do.end = end, to_do.from = from, to_do.to = to;
      to_do.steps = (to - from + N - 1) / N, to_do.turn = next < to ? int(next - from) / N : 0;
      to_do.sums = chunks == 1 ? nullptr : p.partial + row * (n.d + n.dv);
      is.careful = 0;
      for (int i = 0; i < Stages; i++) barrier_init(barrier_at(is.full[i]), 128), barrier_init(barrier_at(is.free[i]), 4 * W);
      barriers_ready();
    }
    __syncthreads();
    const int role = __shfl_sync(0xffffffff, threadIdx.x / 128, 0);
    Ring<Stages> ring;
    if (role == 0) {
      fewer_registers<kLoaderRegisters>();
      load_keys();
      while (again(load_rows(ring))) {}
    } else {
      more_registers<kRegisters>();
      while (again(compute(ring, role - 1))) {}
    }
  }
  // Ends a pass and returns whether there is another one: if something was wrong for a thread in the first one.
  __device__ bool again(bool wrong) const {
    if (!__syncthreads_or(wrong) || is.careful) return false;
    __syncthreads();
    if (threadIdx.x == 0) is.careful = 1;
    __syncthreads();
    return true;
  }

  // Begins to copy the keys and values, which arrive with the first rows.
  __device__ void load_keys() const {
    const Sizes& n = p.n;
    const int b = is.work.b, g = is.work.g, first = is.work.first, end = is.work.end;
    const int i = threadIdx.x % kCells;
    const auto copy = [&](uint32_t tile, const void* array, int c) {
      const T* src = static_cast<const T*>(array) + 8 * i;
#pragma unroll 4
      for (int r = threadIdx.x / kCells; r < M; r += kStep) {
        const bool in = first + r < end && 8 * i < c;
        copy_cell(tile + r / 64 * kKeyTile + cell_of(64, r % 64, i), in ? src + n.key(b, g, first + r, c) : src, in);
      }
    };
    copy(K, p.k, n.d), copy(V, p.v, n.dv);
  }

  // Loads the rows and notes what is known of them. Returns whether one is large.
  __device__ bool load_rows(Ring<Stages>& ring) const {
    const Sizes& n = p.n;
    const int me = threadIdx.x, i = me % kCells;
    const Work& at = is.work;  // read each time anew: registers are scarce
    float lse = 0, delta = 0;  // of row `me` of the next tile
    bool any_large = false;
    const auto place = [&](int j) { return at.from + (at.turn + j < at.steps ? at.turn + j : at.turn + j - at.steps) * N; };
    const auto fetch = [&](int j) {
      const int row = place(j) + me;
      if (me < N && row < at.to) {
        const long long stat = n.stat(at.b, at.g, row);
        lse = load_lse(p.lse[stat]), delta = p.delta[stat];
      } else {
        lse = INFINITY, delta = 0;
      }
    };
    const auto note = [&](Rows& rows, int row) {
      const int last = min(row + N, at.to) - 1;
      if (me == 0) {
        const Run a = p.span.keys(row / n.each), z = p.span.keys(last / n.each);
        rows.some = {a.lo, min(z.hi, n.keys)};
        rows.all = last == row + N - 1 ? Run{z.lo, min(a.hi, n.keys)} : Run{0, 0};
      }
      if (me >= N) return;
      const Run seen = row + me <= last ? p.span.keys((row + me) / n.each) : Run{0, 0};
      const bool shift = is.careful && large(lse);
      any_large |= large(lse);
      reinterpret_cast<float*>(rows.base)[me] = shift ? 0 : lse * kLog2E;
      reinterpret_cast<float*>(rows.delta)[me] = delta;
      reinterpret_cast<int*>(rows.lo)[me] = seen.lo;
      reinterpret_cast<int*>(rows.hi)[me] = min(seen.hi, n.keys);
      rows.lse[me] = shift ? lse : 0;
    };
    // Rows are there but for the newest `Newer` tiles: hands a stage on.
    const auto hand_on = [&](int stage, auto newer) {
      copy_wait<decltype(newer)::value>();
      if (is.careful) {
        named_sync(1, 128);  // what is known of the rows is there
        take_out_rows(Q + 2 * stage * kRowTile, is.rows[stage]);
        take_out_rows(Q + (2 * stage + 1) * kRowTile, is.rows[stage]);
      }
      fence_async();
      barrier_arrive(barrier_at(is.full[stage]));
    };
    int before = -1;
    if (at.steps > 0) fetch(0);
#pragma unroll 1
    for (int j = 0; j < at.steps; j++) {
      barrier_wait(barrier_at(is.free[ring.stage]), ring.parity ^ 1);
      const int row = place(j);
      note(is.rows[ring.stage], row);
      if (j + 1 < at.steps) fetch(j + 1);
      const auto copy = [&](uint32_t to, const void* array, int c) {
        const T* src = static_cast<const T*>(array) + n.row(at.b, at.g, 0, c) + 8 * i;
        const int mine = row + me / kCells, stop = 8 * i < c ? at.to : 0;
        int t = mine / n.each, head = mine % n.each;
        to += cell_of(N, me / kCells, i);
#pragma unroll 2
        for (int r = mine; r < mine + N; r += kStep, to += kStep * 128) {
          copy_cell(to, src + ((long long)t * n.heads + head) * c, r < stop);  // what is not in is not read
          t += kStep / n.each, head += kStep % n.each;
          if (head >= n.each) head -= n.each, t++;
        }
      };
      const uint32_t q = Q + 2 * ring.stage * kRowTile;
      copy(q, p.q, n.d), copy(q + kRowTile, p.dout, n.dv);
      copy_commit();
      if (before >= 0) hand_on(before, Width<1>{});
      before = ring.stage;
      ring.next();
    }
    if (before >= 0) hand_on(before, Width<0>{});
    else copies_arrived();
    return any_large;
  }
  // take_out of attention_tile.cuh, of rows that this thread's warp has copied: they become 0, their base NaN.
  __device__ void take_out_rows(uint32_t tile, Rows& rows) const {
    const int i = lane() % kCells, shift = lane() / kCells * kCells;
#pragma unroll 1
    for (int r = threadIdx.x / kCells; r < N; r += kStep) {
      const uint32_t at = tile + cell_of(N, r, i);
      const unsigned votes = __ballot_sync(0xffffffff, has_nan_or_inf<T>(shared_cell(at)));
      if (!(votes >> shift & ((1u << kCells) - 1))) continue;
      store_shared(at, uint4{0, 0, 0, 0});
      reinterpret_cast<float*>(rows.base)[r] = NAN;
    }
  }

  // What computing group w does. Returns whether it wrote NaN or Inf.
  __device__ bool compute(Ring<Stages>& ring, int w) const {
    const Sizes& n = p.n;
    const int mine = is.work.first + 64 * w;  // the first key of the group
    float dk[C / 8][4], dv[C / 8][4], s[N / 8][4], ds[N / 8][4];
    uint32_t x[N / 16][4], y[N / 16][4];  // P and dS of the step before, in T
    int left = is.work.steps, before = 0;

    const auto release = [&](int stage) {
      if (lane() == 0) barrier_arrive(barrier_at(is.free[stage]));
    };
    // Goes on to the next tile of which a row sees a key of the group and returns whether there is one.
    const auto enter = [&] {
#pragma unroll 1
      for (; left > 0; left--, ring.next()) {
        barrier_wait(barrier_at(is.full[ring.stage]), ring.parity);
        const Run some = is.rows[ring.stage].some;
        if (some.lo < mine + 64 && some.hi > mine) return true;
        __syncwarp();
        release(ring.stage);
      }
      return false;
    };
    const auto leave = [&] { before = ring.stage, left--, ring.next(); };
    const auto begin_scores = [&] {
      const auto begin = [&](float (&to)[N / 8][4], uint32_t keys, uint32_t rows) {
        hold(to);
        wgmma_begin();
        asm volatile("" : "+r"(keys));  // so that no step's descriptor stays in registers
        const uint64_t a = describe(keys, 0), b = describe(rows, 0);
#pragma unroll
        for (int i = 0; i < C / 16; i++) {
          const int panel = i / 4, column = i % 4 * 32;
          Wgmma<T, N>::rows(to, a + (panel * 64 * 128 + column) / 16, b + (panel * N * 128 + column) / 16, i > 0);
        }
        wgmma_end();
      };
      const uint32_t q = Q + 2 * ring.stage * kRowTile;
      begin(s, K + w * kKeyTile, q), begin(ds, V + w * kKeyTile, q + kRowTile);
    };
    const auto begin_sums = [&] {
      hold(dk), hold(dv);
      wgmma_begin();
      uint32_t q = Q + 2 * before * kRowTile;
      asm volatile("" : "+r"(q));
      const uint64_t of_k = describe(q, N * 128), of_v = describe(q + kRowTile, N * 128);
#pragma unroll
      for (int i = 0; i < N / 16; i++) Wgmma<T, C>::columns(dv, x[i], of_v + i * 16 * 128 / 16);
#pragma unroll
      for (int i = 0; i < N / 16; i++) Wgmma<T, C>::columns(dk, y[i], of_k + i * 16 * 128 / 16);
      wgmma_end();
    };
    const auto end_sums = [&] {
      hold(dk), hold(dv);
      release(before);
    };
    // Turns s into P and ds, which is dP, into dS, while `running` groups of products behind them run.
    const auto weigh = [&](auto running) {
      const Rows& rows = is.rows[ring.stage];
      const int c = lane() % 4;
      wgmma_wait<decltype(running)::value + 1>();
      hold(s);
      if (is.careful)
#pragma unroll
        for (int j = 0; j < N / 8; j++)
#pragma unroll
          for (int i = 0; i < 4; i++) {
            const float lse = rows.lse[8 * j + 2 * c + i % 2];
            if (lse != 0) s[j][i] = shifted_logit(n, s[j][i], lse);
          }
#pragma unroll
      for (int j = 0; j < N / 8; j++) {
        const float2 base = rows.base[4 * j + c];
#pragma unroll
        for (int i = 0; i < 4; i++) s[j][i] = power2(fmaf(s[j][i], n.scale_log2, -(i % 2 ? base.y : base.x)));
      }
      wgmma_wait<decltype(running)::value>();
      hold(ds);
#pragma unroll
      for (int j = 0; j < N / 8; j++) {
        const float2 delta = rows.delta[4 * j + c];
#pragma unroll
        for (int i = 0; i < 4; i++) ds[j][i] = s[j][i] * (ds[j][i] - (i % 2 ? delta.y : delta.x));
      }
      if (const Run all = rows.all; all.lo > mine || all.hi < mine + 64) {
        const int key = mine + warp() % 4 * 16 + lane() / 4;
#pragma unroll
        for (int j = 0; j < N / 8; j++) {
          const int2 lo = rows.lo[4 * j + c], hi = rows.hi[4 * j + c];
#pragma unroll
          for (int i = 0; i < 4; i++) {
            const Run seen = i % 2 ? Run{lo.y, hi.y} : Run{lo.x, hi.x};
            if (!seen.has(key + i / 2 * 8)) s[j][i] = ds[j][i] = 0;
          }
        }
      }
    };
    const auto pack = [&] {
#pragma unroll
      for (int i = 0; i < N / 16; i++)
#pragma unroll
        for (int c = 0; c < 4; c++) {
          x[i][c] = pair<T>(s[2 * i + c / 2][c % 2 * 2], s[2 * i + c / 2][c % 2 * 2 + 1]);
          y[i][c] = pair<T>(ds[2 * i + c / 2][c % 2 * 2], ds[2 * i + c / 2][c % 2 * 2 + 1]);
        }
    };

#pragma unroll
    for (int j = 0; j < C / 8; j++)
#pragma unroll
      for (int i = 0; i < 4; i++) dk[j][i] = dv[j][i] = 0;
    if (enter()) {
      begin_scores();
      weigh(Width<0>{});
      pack();
#pragma unroll 1
      for (leave(); enter(); leave()) {
        if constexpr (Ahead) {
          begin_scores();
          begin_sums();
          weigh(Width<1>{});
          wgmma_wait<0>();
          end_sums();
        } else {
          begin_sums();
          wgmma_wait<0>();
          end_sums();
          begin_scores();
          weigh(Width<0>{});
        }
        pack();
      }
      begin_sums();
      wgmma_wait<0>();
      end_sums();
    }
    const int key = mine + warp() % 4 * 16 + lane() / 4;
    const auto [b, g, first, end, from, to, steps, turn, sums] = is.work;
    return sums ? store_partial<C>(sums, n, first, key, end, dk, dv) : store_gradients<T, C>(p, b, g, key, end, dk, dv);
  }
};
#endif

}  // namespace nsa

// The entry points nsa_span_dkv_wgmma<C>_<storage>, for 64*W keys and tiles of N rows.
#define NSA_SPAN_DKV(C, W, N, Stages, Ahead, suffix)                                                                   \
  extern "C" __global__ void __launch_bounds__(128 * (W + 1), 1)                                                       \
      nsa_span_dkv_wgmma##C##_##suffix(const __grid_constant__ nsa::AttentionParams p) {                               \
    NSA_WGMMA_BODY(nsa::SpanKeyGradient<nsa::suffix, C, W, N, Stages, Ahead>(p).run();)                                \
  }
NSA_SPAN_DKV(64, 2, 96, 5, false, bf16)
NSA_SPAN_DKV(64, 2, 96, 5, false, f16)
NSA_SPAN_DKV(128, 2, 64, 4, false, bf16)
NSA_SPAN_DKV(128, 2, 64, 4, false, f16)
