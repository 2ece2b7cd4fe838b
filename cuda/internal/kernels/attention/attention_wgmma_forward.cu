// Attention forward on warpgroups (compute capability 9.0): q, k, v -> o, lse, with the contract of attention_forward.cu.
//
//   nsa_span_forward_wgmma<D>      window, dense and compressed attention; the mask is a Span
//   nsa_selected_forward_wgmma<D>  selected attention by bits, idx int32 [B,S,Hkv,top_n], up to 2048 keys; see SelectedBits
//   nsa_forced_forward_wgmma<D>    selected attention by pairs: the forced blocks, and the results of the pairs (attention_pairs.cuh)
//
// D stands for the compiled widths: C if q and k have the width C and v the width Cv = C, else <C>x<Cv>.
//
// The grid has at most one block for each multiprocessor. Tiles have M = 64*W rows of a group; a block goes through every
// gridDim.x-th tile. Warpgroup 0 loads, W warpgroups compute 64 rows each. Q and the facts about its rows have two stages in shared
// memory; K and V, N keys each, have a ring of `Stages` stages. Barriers say which stages are full and which are empty.
//
// A step of a computing group begins the scores of the next N keys and the product of the last exponentials with V. Then it computes
// the next exponentials, while that product and products of other groups run. The first step of a tile overlaps the last product of
// the tile before. With pairs groups do not take turns, and each tile is ended before the next one begins: while its scores are computed, a
// group adds results of pairs.
//
// Tiles with NaN, Inf or large rows are computed again at the end by the careful pass; see careful_if_needed. Shared memory: kShared
// bytes. Tests on the host run this kernel, but do not show whether it waits for products and copies; see wgmma_on_host.h.
#include "attention_forced.cuh"

namespace nsa {

#if defined(__CUDA_ARCH_FEAT_SM90_ALL) || !defined(__CUDACC__)
template <typename T, int C, int Cv, int W, int N, int Stages, Mask mask, int Results = 0> struct WgmmaForward {
  static constexpr bool kByBits = mask == Mask::kBits, kForcedBlocks = mask == Mask::kForced;
  static constexpr int M = 64 * W, kBlock = 128 + 128 * W, kCells = C / 8, kRowThreads = 96;
  using Pairs = ResultsOf<mask, T, Cv, W, Results>;
  static constexpr uint32_t kQ = 64 * C * 2, kKeyTile = N * C * 2, kValueTile = N * Cv * 2;  // bytes: Q of a warpgroup, a stage of K, of V
  static constexpr int kProducerRegisters = W == 1 ? 120 : kForcedBlocks ? 72 : 56;
  static constexpr int kConsumerRegisters = W == 1 ? 240 : (W == 3 ? 152 : 224) - (kForcedBlocks ? 8 : 0);  // of a thread
  static_assert(registers_fit(W, kProducerRegisters, kConsumerRegisters), "setmaxnreg would wait forever");
  static constexpr bool kLazy = Cv > 64;  // whether to use rise_limit. Without it o is rescaled more often, which is cheap at a width of 64
  // Named barriers; 0 is __syncthreads. kTurn + w belongs to computing group w, which meets the group before it there.
  static constexpr int kRowsWritten = 1, kTurn = 2, kTurnThreads = 256;

  // What the computing groups must know about a row:
  //
  //   keys  the keys that it sees. If kByBits, lo holds the bits of SelectedBits instead, also in Keys::all. At the end of a tile, keys is
  //         overwritten with two floats, the factor of o and the lse
  //   o     its index in o, counted in rows; -1 for no row
  //   lse   its index in lse
  struct Row : std::conditional_t<kForcedBlocks, RowPairs, NoPairs> { Run keys; long long o, lse; };
  // Of a tile: its keys, of_all and its round. some.lo = -1 means that there are no more tiles.
  struct Keys { TileKeys<mask> some; Run all; int round; };
  struct Shared : Pairs::Shared {
    Row rows[2][M];
    Keys keys[2];
    unsigned redo[kRoundWords];
    // unchecked: keys or values have arrived but have not been searched for NaN; in the careful pass
    unsigned long long full_q[2], empty_q[2], full_k[Stages], empty_k[Stages], full_v[Stages], empty_v[Stages], unchecked, pass;
  };
  static constexpr int kQs = 2 * W * kQ, kKeys = Stages * (kKeyTile + kValueTile), kTiles = kQs + kKeys + Pairs::kRings;
  static_assert(sizeof(Shared) <= (kForcedBlocks ? 2 * 48 * M + 544 * W * Results + 408 : 2 * 24 * M + 384),
                "widths.forwardBytes and forcedBytes in Go");
  static constexpr int kShared = kTiles + sizeof(Shared);

  using Params = ParamsOf<mask>;
  const Params& maps;
  const AttentionParams& p;
  uint32_t Q, K, V;
  Shared& smem;

  static __device__ char* shared() { return reinterpret_cast<char*>(tiles_shared()); }
  __device__ WgmmaForward(const Params& params)
      : maps(params), p(params.p), Q(shared_address(shared())), K(Q + kQs), V(K + Stages * kKeyTile),
        smem(*reinterpret_cast<Shared*>(shared() + kTiles)) {}

  __device__ void run() {
    if (threadIdx.x == 0) {
      for (int i = 0; i < Stages; i++) {
        barrier_init(barrier_at(smem.full_k[i]), 1), barrier_init(barrier_at(smem.empty_k[i]), 4 * W);
        barrier_init(barrier_at(smem.full_v[i]), 1), barrier_init(barrier_at(smem.empty_v[i]), 4 * W);
      }
      for (int i = 0; i < 2; i++) barrier_init(barrier_at(smem.full_q[i]), kRowThreads), barrier_init(barrier_at(smem.empty_q[i]), 128 * W);
      if constexpr (kForcedBlocks) Pairs::init(smem);
      barrier_init(barrier_at(smem.unchecked), 1), barrier_init(barrier_at(smem.pass), kBlock);
      barriers_ready();
    }
    if (threadIdx.x < kRoundWords) smem.redo[threadIdx.x] = 0;
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

  // The work of the first warp: it loads keys and values.
  __device__ void load_keys() const {
    Ring<Stages> k, v;
    uint32_t unchecked_parity = 0;
    const auto copy = [&](auto width, uint32_t to, const void* map, uint32_t barrier, int key, const RowTile& tile) {
      if (lane() > 0) return;
      constexpr int c = decltype(width)::value;
      barrier_arrive_expecting(barrier, N * c * 2);
      copy_boxes<c>(to, N, map, barrier, tile.g, key, tile.b);
    };
#pragma unroll 1
    for (int careful = 0; careful < 2; careful++) {
      each_tile<M>(maps, careful ? smem.redo : nullptr, [&](const RowTile& tile, int) {
        const TileKeys<mask> run(p, tile);
#pragma unroll 1
        for (int key = run.lo - N; key < run.hi; key += N) {  // keys run one step ahead of values, as computing groups need them
          if (key + N < run.hi) {
            const uint32_t full = careful ? barrier_at(smem.unchecked) : barrier_at(smem.full_k[k.stage]);
            barrier_wait(barrier_at(smem.empty_k[k.stage]), k.parity ^ 1);
            copy(Width<C>{}, K + k.stage * kKeyTile, maps.k, full, run.key(key + N), tile);
            if (careful) {  // loads keys and values and takes out bad rows before it hands on either
              barrier_wait(barrier_at(smem.unchecked), unchecked_parity), unchecked_parity ^= 1;
              barrier_wait(barrier_at(smem.empty_v[k.stage]), k.parity ^ 1);
              __syncwarp();
              copy(Width<Cv>{}, V + k.stage * kValueTile, maps.v, full, run.key(key + N), tile);
              barrier_wait(barrier_at(smem.unchecked), unchecked_parity), unchecked_parity ^= 1;
              take_out_rows<T, Cv>(V + k.stage * kValueTile, K + k.stage * kKeyTile, N);  // values become 0, their keys NaN
              __syncwarp();
              if (lane() == 0) barrier_arrive(barrier_at(smem.full_k[k.stage])), barrier_arrive(barrier_at(smem.full_v[k.stage]));
            }
            k.next();
          }
          if (key >= run.lo) {
            if (!careful) {
              barrier_wait(barrier_at(smem.empty_v[v.stage]), v.parity ^ 1);
              copy(Width<Cv>{}, V + v.stage * kValueTile, maps.v, barrier_at(smem.full_v[v.stage]), run.key(key), tile);
            }
            v.next();
          }
          __syncwarp();  // no lane may fall a phase of a barrier behind
        }
      });
      meet(barrier_at(smem.pass), careful);
    }
  }
  // The work of the other warps of the first group: they load rows of q and the facts about them, one or two tiles ahead.
  __device__ void load_rows() const {
    const Sizes& n = p.n;
    Ring<2> q;
    const auto hand_on = [&] {
      copies_arrived();
      fence_async();
      barrier_arrive(barrier_at(smem.full_q[q.stage]));
      q.next();
    };
#pragma unroll 1
    for (int careful = 0; careful < 2; careful++) {
      each_tile<M>(maps, careful ? smem.redo : nullptr, [&](const RowTile& tile, int round) {
        barrier_wait(barrier_at(smem.empty_q[q.stage]), q.parity ^ 1);
        const int loader = threadIdx.x - 32, i = loader % kCells;
        if (loader == 0) smem.keys[q.stage] = {TileKeys<mask>(p, tile), TileKeys<mask>::of_all(p, tile), round};
        int common = -1;
        if (kByBits && loader == 0) smem.keys[q.stage].all.lo = -1;
        if (kByBits) common = SelectedBits::note(p, tile, loader, kRowThreads, M, [&](int r) -> int& { return smem.rows[q.stage][r].keys.lo; });
#pragma unroll 1
        for (int r = loader; r < M; r += kRowThreads) {
          const int row = tile.first + r;
          Row& to = smem.rows[q.stage][r];
          if constexpr (kForcedBlocks) {
            set_row(maps, tile, r, to.keys, to);
          } else {
            const Run run = tile.has(r) ? p.keys(tile.b, row / n.h) : Run{0, 0};
            if (!kByBits) to.keys.lo = run.lo;
            to.keys.hi = min(run.hi, n.keys);
          }
          to.o = tile.has(r) ? n.row(tile.b, tile.g, row, 1) : -1, to.lse = n.stat(tile.b, tile.g, row);
        }
        named_sync(kRowsWritten, kRowThreads);  // all Row entries of the tile are written
        if (kByBits) atomicAnd(&smem.keys[q.stage].all.lo, common);
        const T* src = static_cast<const T*>(p.q) + 8 * i;
#pragma unroll 4
        for (int r = loader / kCells; r < M; r += kRowThreads / kCells) {
          const long long row = smem.rows[q.stage][r].o;
          const bool in = row >= 0 && 8 * i < n.d;
          copy_cell(Q + (q.stage * W + r / 64) * kQ + cell_of(64, r % 64, i), in ? src + row * n.d : src, in);
        }
        hand_on();
      });
      barrier_wait(barrier_at(smem.empty_q[q.stage]), q.parity ^ 1);
      if (threadIdx.x == 32) smem.keys[q.stage].some.lo = -1;
      hand_on();
      meet(barrier_at(smem.pass), careful);
    }
  }

  // The work of computing group w.
  __device__ void compute(int w) const {
    const float scale = p.n.scale_log2;
    const int first_row = 64 * w + warp() % 4 * 16 + lane() / 4;  // this thread's rows of a tile: first_row and first_row + 8
    Ring<Stages> k, v;
    Ring<2> q;  // the stage of the tile whose scores are being computed
    Pairs pairs(maps, smem, Q + kQs + kKeys, 4 * w + warp() % 4, p.n.dv);
    Softmax state[2];
    state[0].start(), state[1].start();
    float s[N / 8][4], o[Cv / 8][4], factor[2], limit[2] = {};  // limit: rise_limit, the same for the four threads of a row
    int steps = 0;                                              // so far over keys of the tile
    uint32_t x[N / 16][4];  // the exponentials of the last step, rounded to T

    const auto release = [&](const unsigned long long& barrier) {
      if (lane() == 0) barrier_arrive(barrier_at(barrier));
    };
    // Waits for the next tile and returns whether there is one.
    const auto enter = [&] {
      barrier_wait(barrier_at(smem.full_q[q.stage]), q.parity);
      return smem.keys[q.stage].some.lo >= 0;
    };
    const auto begin_scores = [&] {
      barrier_wait(barrier_at(smem.full_k[k.stage]), k.parity);
      // Groups take turns, so that one has products running while others compute exponentials.
      if (!kForcedBlocks) named_sync(kTurn + w, kTurnThreads);
      hold(s);
      wgmma_begin();
      const uint64_t a = describe(Q + (q.stage * W + w) * kQ, 0), b = describe(K + k.stage * kKeyTile, 0);
#pragma unroll
      for (int i = 0; i < C / 16; i++) {
        const int panel = i / 4, column = i % 4 * 32;
        Wgmma<T, N>::a_bt(s, a + (panel * 64 * 128 + column) / 16, b + (panel * N * 128 + column) / 16, i > 0);
      }
      wgmma_end();
    };
    const auto begin_sums = [&] {
      barrier_wait(barrier_at(smem.full_v[v.stage]), v.parity);
      hold(o);
      wgmma_begin();
      const uint64_t b = describe(V + v.stage * kValueTile, N * 128);
#pragma unroll
      for (int i = 0; i < N / 16; i++) Wgmma<T, Cv>::a_b(o, x[i], b + i * 16 * 128 / 16);
      wgmma_end();
    };
    const auto pass_turn = [&] {
      if (!kForcedBlocks) named_arrive(kTurn + (w + 1) % W, kTurnThreads);
    };
    const auto end_sums = [&] {
      wgmma_wait<0>();
      hold(o);
      release(smem.empty_v[v.stage]), v.next();
    };
    // Raises the maximum of row r to x, if the exponential of x would exceed 2^limit. Sets factor, by which sum and o must be scaled.
    const auto raise = [&](int r, float x, float limit) {
      const float before = state[r].top;
      if (!((x - before) * scale <= limit)) state[r].top = fmaxf(before, x);
      factor[r] = power2((before - state[r].base()) * scale);
    };
    const auto rescale = [&] {
      if (!__any_sync(0xffffffff, factor[0] != 1 || factor[1] != 1)) return;
#pragma unroll
      for (int j = 0; j < Cv / 8; j++)
#pragma unroll
        for (int i = 0; i < 4; i++) o[j][i] *= factor[i / 2];
    };
    // Waits for s, the scores of the keys from `key` on, while the newest `running` groups of products may still run. Turns s into
    // exponentials and sets factor, by which o must be scaled.
    const auto exponentials = [&](int key, int careful, auto running) {
      const Run all = smem.keys[q.stage].all;
      const TileKeys<mask> some = smem.keys[q.stage].some;
      if (kLazy && (steps & (steps - 1)) == 0)  // it changes slowly
#pragma unroll
        for (int r = 0; r < 2; r++) limit[r] = rise_limit(__shfl_sync(0xffffffff, state[r].sum, lane() & 28));
      steps++;
      wgmma_wait<decltype(running)::value>();
      hold(s);
      release(smem.empty_k[k.stage]), k.next();
      const auto hide_keys = [&](Run shown) {  // masks the keys that a row does not see; those in `shown` all rows see
#pragma unroll
        for (int r = 0; r < 2; r++) {
          uint2 seen = {};
          // only the lane that overwrites it in leave() reads it
          if (lane() % 4 == 0) seen = shared_pair(shared_address(&smem.rows[q.stage][first_row + 8 * r].keys));
          seen.x = __shfl_sync(0xffffffff, seen.x, lane() & 28), seen.y = __shfl_sync(0xffffffff, seen.y, lane() & 28);
          if constexpr (kForcedBlocks)
            if (key < some.first) seen = {0, uint32_t(smem.rows[q.stage][first_row + 8 * r].first)};
          hide<N>(s, r, some.key(key), {int(seen.x), int(seen.y)}, shown, -INFINITY);
        }
      };
      if (kForcedBlocks) hide_keys({1 << 30, -1});
      else if ((mask == Mask::kSpan && key < all.lo) || key + N > all.hi) hide_keys({kByBits ? 0 : all.lo, all.hi});
      if (kByBits && SelectedBits::of(key, min(key + N, some.hi)) & ~all.lo)
#pragma unroll
        for (int r = 0; r < 2; r++) {
          const uint32_t bits = shared_word(shared_address(&smem.rows[q.stage][first_row + 8 * r].keys));
          const uint32_t selected = SelectedBits::eights(bits, key);
#pragma unroll
          for (int j = 0; j < N / 8; j++)
            if (!(selected >> j & 1)) s[j][2 * r] = s[j][2 * r + 1] = -INFINITY;
        }
      float top[4], sum[4] = {}, base[2];  // of this thread's even and odd columns, for each of its two rows
#pragma unroll
      for (int i = 0; i < 4; i++) top[i] = s[0][i];
#pragma unroll
      for (int j = 1; j < N / 8; j++)
#pragma unroll
        for (int i = 0; i < 4; i++) top[i] = fmaxf(top[i], s[j][i]);
#pragma unroll
      for (int r = 0; r < 2; r++) {
        raise(r, max_of_four(fmaxf(top[2 * r], top[2 * r + 1])), limit[r]);
        base[r] = state[r].base() * scale;
      }
      if (careful)
#pragma unroll
        for (int r = 0; r < 2; r++) {
          const float shift = large(base[r]) ? state[r].top : 0;
#pragma unroll
          for (int j = 0; j < N / 8; j++) s[j][2 * r] -= shift, s[j][2 * r + 1] -= shift;
          if (large(base[r])) base[r] = 0;
        }
#pragma unroll
      for (int j = 0; j < N / 8; j++)
#pragma unroll
        for (int i = 0; i < 4; i++) sum[i] += s[j][i] = power2(fmaf(s[j][i], scale, -base[i / 2]));
#pragma unroll
      for (int r = 0; r < 2; r++) state[r].sum = fmaf(state[r].sum, factor[r], sum[2 * r] + sum[2 * r + 1]);
    };
    const auto pack = [&] {
#pragma unroll
      for (int i = 0; i < N / 16; i++)
#pragma unroll
        for (int c = 0; c < 4; c++) x[i][c] = pair<T>(s[2 * i + c / 2][c % 2 * 2], s[2 * i + c / 2][c % 2 * 2 + 1]);
    };
    const auto clear_sums = [&] {
#pragma unroll
      for (int j = 0; j < Cv / 8; j++)
#pragma unroll
        for (int i = 0; i < 4; i++) o[j][i] = 0;
    };

    if (w == W - 1) pass_turn();
#pragma unroll 1
    for (int careful = 0; careful < 2; careful++) {
#pragma unroll 1
      while (enter()) {
        bool needs_careful;
        // Ends the softmax of a tile: leaves factor and lse in the Row entries.
        const auto leave = [&] {
          needs_careful = false, steps = 0;
#pragma unroll
          for (int r = 0; r < 2; r++) {
            needs_careful |= large(state[r].base() * scale);
            state[r].sum = sum_of_four(state[r].sum);
            const Run end{__float_as_int(state[r].norm()), __float_as_int(state[r].lse(p.n.scale))};
            if (kByBits) __syncwarp();  // all four lanes have read the bits that one of them overwrites
            if (lane() % 4 == 0) smem.rows[q.stage][first_row + 8 * r].keys = end;
            state[r].start();
          }
        };
        int key = smem.keys[q.stage].some.lo;
        // Writes the results of the tile whose rows are in this stage of Q, and frees the stage.
        const auto write_tile = [&](int stage) {
          needs_careful |= write(o, smem.rows[stage] + first_row);
          const int round = smem.keys[stage].round;
          needs_careful = __any_sync(0xffffffff, needs_careful);
          if (needs_careful && !careful && lane() == 0) mark_redo(smem.redo, round);
          barrier_arrive(barrier_at(smem.empty_q[stage]));  // by every lane, because every lane has read the Row entries
        };
        clear_sums();
        if constexpr (kForcedBlocks) {
          pairs.begin(smem.rows[q.stage] + first_row / 16 * 16);
          const int end = smem.keys[q.stage].some.hi, share = (pairs.most - 1) / ((end - 1) / N + 1) + 1;  // results taken in each step
          const auto take = [&](int to) {
            const auto weigh = [&](int r, float base, float sum) {
              raise(r, base, kLazy ? kRescaleSlack : 0);
              const float weight = power2((base - state[r].base()) * scale);
              state[r].sum = fmaf(state[r].sum, factor[r], lane() % 4 == 0 ? weight * sum : 0);
              return weight;
            };
            pairs.take(to, o, weigh, rescale);
          };
#pragma unroll 1
          for (; key < end; key += N) {
            begin_scores();
            exponentials(key, careful, Width<0>{});
            rescale();
            pack();
            begin_sums();
            end_sums();
            take(pairs.next + share);
          }
          take(pairs.most);
          leave();
          write_tile(q.stage);
          q.next();
          continue;
        }
        begin_scores();
        pass_turn();
        exponentials(key, careful, Width<0>{});
        pack();
#pragma unroll 1
        for (;;) {
          const bool last = (key += N) >= smem.keys[q.stage].some.hi;
          const int stage = q.stage;
          if (last) {
            leave();
            q.next();
            if (!enter()) break;
            key = smem.keys[q.stage].some.lo;
          }
          begin_scores();
          begin_sums();
          pass_turn();
          exponentials(key, careful, Width<1>{});
          end_sums();
          if (last) {
            write_tile(stage);
            clear_sums();
          } else {
            rescale();
          }
          pack();
        }
        begin_sums();
        end_sums();
        write_tile(q.stage ^ 1);
        break;
      }
      barrier_arrive(barrier_at(smem.empty_q[q.stage])), q.next();
      meet(barrier_at(smem.pass), careful);
    }
    if (!kForcedBlocks && w == 0) named_sync(kTurn, kTurnThreads);  // the last turn that was passed
  }

  // Writes o and lse of this thread's two rows. Returns whether one of its numbers is NaN or Inf.
  __device__ bool write(const float (&o)[Cv / 8][4], const Row* row) const {
    __syncwarp();
    uint32_t zero = 0;
#pragma unroll
    for (int r = 0; r < 2; r++) {
      const long long to = row[8 * r].o;
      const uint2 end = shared_pair(shared_address(&row[8 * r].keys));
      const float norm = __uint_as_float(end.x);
      if (lane() % 4 == 0 && to >= 0) p.lse[row[8 * r].lse] = __uint_as_float(end.y);
#pragma unroll
      for (int j = 0; j < Cv / 8; j += 4) {
        uint32_t y[4];
#pragma unroll
        for (int i = 0; i < 4; i++) y[i] = pair<T>(norm * o[j + i][2 * r], norm * o[j + i][2 * r + 1]), keep_nan<T>(zero, y[i]);
        transpose_quad(y);
        const int column = 8 * (j + lane() % 4);
        T* out = static_cast<T*>(p.o) + to * p.n.dv + column;
        if (to >= 0 && column < p.n.dv) *reinterpret_cast<uint4*>(out) = uint4{y[0], y[1], y[2], y[3]};
      }
    }
    return zero != 0;
  }
};
#endif

}  // namespace nsa

// Defines the entry points nsa_<branch>_forward_wgmma<D>_<storage>, for tiles of 64*W rows and N keys.
#define NSA_WGMMA_FORWARD(D, branch, suffix, mask, C, Cv, W, N, Stages, ...)                                           \
  extern "C" __global__ void __launch_bounds__(128 * (W + 1), 1)                                                       \
      nsa_##branch##_forward_wgmma##D##_##suffix(const __grid_constant__ nsa::ParamsOf<nsa::Mask::mask> p) {           \
    NSA_WGMMA_BODY(nsa::WgmmaForward<nsa::suffix, C, Cv, W, N, Stages, nsa::Mask::mask, ##__VA_ARGS__>(p).run();)      \
  }
#define NSA_WGMMA_FORWARDS(D, ...)                                                                                     \
  NSA_WGMMA_FORWARD(D, span, bf16, kSpan, __VA_ARGS__)                                                                 \
  NSA_WGMMA_FORWARD(D, span, f16, kSpan, __VA_ARGS__)                                                                  \
  NSA_WGMMA_FORWARD(D, selected, bf16, kBits, __VA_ARGS__)                                                            \
  NSA_WGMMA_FORWARD(D, selected, f16, kBits, __VA_ARGS__)
//                 D   C   Cv  W  N    Stages; the same numbers are in widths.go
NSA_WGMMA_FORWARDS(64, 64, 64, 3, 112, 5)
NSA_WGMMA_FORWARDS(128, 128, 128, 3, 80, 3)
NSA_WGMMA_FORWARDS(192x128, 192, 128, 2, 96, 2)
NSA_WGMMA_FORWARDS(192, 192, 192, 2, 80, 2)
NSA_WGMMA_FORWARDS(256x128, 256, 128, 2, 48, 2)
NSA_WGMMA_FORWARDS(256x192, 256, 192, 2, 48, 2)
#define NSA_FORCED_FORWARD(D, ...)                                                                                     \
  NSA_WGMMA_FORWARD(D, forced, bf16, kForced, __VA_ARGS__)                                                             \
  NSA_WGMMA_FORWARD(D, forced, f16, kForced, __VA_ARGS__)
//                 D   C   Cv  W  N   Stages, stages of results
NSA_FORCED_FORWARD(64, 64, 64, 3, 64, 3, 4)
NSA_FORCED_FORWARD(128, 128, 128, 2, 64, 2, 2)
NSA_FORCED_FORWARD(192x128, 192, 128, 2, 32, 2, 2)
NSA_FORCED_FORWARD(192, 192, 192, 2, 32, 2, 1)
NSA_FORCED_FORWARD(256x128, 256, 128, 2, 32, 2, 1)
NSA_FORCED_FORWARD(256x192, 256, 192, 1, 32, 2, 2)
