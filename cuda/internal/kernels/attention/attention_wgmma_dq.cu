// dq on warpgroups (compute capability 9.0): q, k, v, lse, do, delta -> dq, with the contract of attention_dq.cu.
//
//   nsa_span_dq_wgmma<D>      window, dense and compressed attention; the mask is a Span
//   nsa_selected_dq_wgmma<D>  selected attention by bits, idx int32 [B,S,Hkv,top_n], up to 2048 keys; see SelectedBits
//
// D, the grid, tiles of M = 64*W rows and the roles of warpgroups are those of attention_wgmma_forward.cu. For the time of a tile,
// fragments of q and do stay in registers; so products read only keys and values from shared memory, and the rows of the next tile
// can be loaded there meanwhile. If C is more than 128, q stays in shared memory, in two stages; if C is more than 192, so does do.
// A step begins the logits and dP of the next N keys, then the product of the last dS with K, and computes dS while that product runs.
// Two computing groups take turns to do so; three are as fast without.
//
// Tiles with NaN, Inf or large rows are computed again at the end by the careful pass; see careful_if_needed. Shared memory: kShared
// bytes.
#include "attention_wgmma_tiles.cuh"

namespace nsa {

#if defined(__CUDA_ARCH_FEAT_SM90_ALL) || !defined(__CUDACC__)
template <typename T, int C, int Cv, int W, int N, int StagesK, int StagesV, bool ByBits> struct WgmmaQueryGradient {
  static constexpr int M = 64 * W, kBlock = 128 + 128 * W, kRowThreads = 96;
  static constexpr uint32_t kQ = 64 * C * 2, kDo = 64 * Cv * 2;  // bytes of the rows of a warpgroup
  static constexpr uint32_t kKeyTile = N * C * 2, kValueTile = N * Cv * 2;
  static constexpr bool kHeld = C <= 128, kHeldDo = C <= 192;  // whether q, and whether do, stay in registers
  static constexpr int kProducerRegisters = W == 1 ? 120 : 56, kConsumerRegisters = W == 3 ? 152 : W == 2 ? 224 : 240;  // of a thread
  static_assert(registers_fit(W, kProducerRegisters, kConsumerRegisters), "setmaxnreg would wait forever");

  // What is known about a row:
  //
  //   keys  the keys that it sees. If ByBits, lo holds the bits of SelectedBits instead, also in Keys::all
  //   at    its index in q, counted in rows; -1 for no row
  //   lse   as lse_for_gradient returns it
  struct Row {
    Run keys;
    long long at;
    float lse, delta;
  };
  // Of a tile: keys_of, keys_of_all and its round. some.lo = -1 means that there are no more tiles.
  struct Keys { Run some, all; int round; };
  // Named barriers; 0 is __syncthreads. kTurn + w belongs to computing group w, which meets the group before it there.
  static constexpr int kRowsWritten = 1, kTurn = 2, kTurnThreads = 256;
  static constexpr bool kTurns = W == 2;  // whether groups take turns, so that one has products running while the other computes dS
  static constexpr int kKnown = 3;  // tiles whose rows are known: the one being loaded, that of the logits, and that of the sums
  struct Shared {
    Row rows[kKnown][M];
    Keys keys[kKnown];
    unsigned redo[kRoundWords];
    // unchecked: keys or values have arrived but have not been searched for NaN; in the careful pass
    unsigned long long full_q, empty_q, full_k[StagesK], empty_k[StagesK], full_v[StagesV], empty_v[StagesV], unchecked, pass;
    int careful;  // whether this is the careful pass; in shared memory to save registers
  };
  static_assert(sizeof(Shared) <= 3 * 24 * M + 384, "widths.dqBytes in Go");
  static constexpr int kDoOffset = (kHeld ? 1 : 2) * W * kQ;                       // do lies after q,
  static constexpr int kKeyOffset = kDoOffset + (kHeldDo ? 1 : 2) * W * kDo;       // and keys and values after both
  static constexpr int kTiles = kKeyOffset + StagesK * kKeyTile + StagesV * kValueTile, kShared = kTiles + sizeof(Shared);

  const WgmmaParams& maps;
  const AttentionParams& p;
  uint32_t Q, K, V;  // do lies at Q + kDoOffset
  Shared& smem;

  static __device__ char* shared() { return reinterpret_cast<char*>(tiles_shared()); }
  __device__ WgmmaQueryGradient(const WgmmaParams& params)
      : maps(params), p(params.p), Q(shared_address(shared())), K(Q + kKeyOffset), V(K + StagesK * kKeyTile),
        smem(*reinterpret_cast<Shared*>(shared() + kTiles)) {}

  __device__ void run() {
    if (threadIdx.x == 0) {
      barrier_init(barrier_at(smem.full_q), kRowThreads), barrier_init(barrier_at(smem.empty_q), 128 * W);
      barrier_init(barrier_at(smem.unchecked), 1), barrier_init(barrier_at(smem.pass), kBlock);
      for (int i = 0; i < StagesK; i++) barrier_init(barrier_at(smem.full_k[i]), 1), barrier_init(barrier_at(smem.empty_k[i]), 4 * W);
      for (int i = 0; i < StagesV; i++) barrier_init(barrier_at(smem.full_v[i]), 1), barrier_init(barrier_at(smem.empty_v[i]), 4 * W);
      barriers_ready();
    }
    if (threadIdx.x == 0) smem.careful = 0;
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

  // Ends a pass of the block and returns whether another one follows: the careful one always follows the first.
  __device__ bool next_pass() const {
    const bool last = smem.careful;
    meet(barrier_at(smem.pass), 0);
    if (last) return false;
    if (threadIdx.x == 0) smem.careful = 1;
    meet(barrier_at(smem.pass), 1);
    return true;
  }

  // The work of the first warp: it loads keys and values.
  __device__ void load_keys() const {
    Ring<StagesK> k;
    Ring<StagesV> v;
    uint32_t unchecked_parity = 0;
    const auto copy = [&](auto width, uint32_t to, const void* map, uint32_t barrier, int key, const RowTile& tile) {
      if (lane() != 0) return;
      constexpr int c = decltype(width)::value;
      barrier_arrive_expecting(barrier, N * c * 2);
      copy_boxes<c>(to, N, map, barrier, tile.g, key, tile.b);
    };
    do {
      each_tile<M>(maps, smem.careful ? smem.redo : nullptr, [&](const RowTile& tile, int) {
        const Run run = keys_of(p, tile);
        const bool careful = smem.careful;
#pragma unroll 1
        for (int key = run.lo; key < run.hi; key += N, k.next(), v.next()) {
          const uint32_t to_k = K + k.stage * kKeyTile, to_v = V + v.stage * kValueTile;
          const uint32_t full_k = barrier_at(smem.full_k[k.stage]), full_v = barrier_at(smem.full_v[v.stage]);
          barrier_wait(barrier_at(smem.empty_k[k.stage]), k.parity ^ 1);
          copy(Width<C>{}, to_k, maps.k, careful ? barrier_at(smem.unchecked) : full_k, key, tile);
          if (careful) barrier_wait(barrier_at(smem.unchecked), unchecked_parity), unchecked_parity ^= 1;
          barrier_wait(barrier_at(smem.empty_v[v.stage]), v.parity ^ 1);
          __syncwarp();
          copy(Width<Cv>{}, to_v, maps.v, careful ? barrier_at(smem.unchecked) : full_v, key, tile);
          if (careful) {
            barrier_wait(barrier_at(smem.unchecked), unchecked_parity), unchecked_parity ^= 1;
            take_out_rows<T, C>(to_k, to_v, N);  // keys become 0, their values NaN
            __syncwarp();
            if (lane() == 0) barrier_arrive(full_k), barrier_arrive(full_v);
          }
          __syncwarp();  // no lane may fall a phase of a barrier behind
        }
      });
    } while (next_pass());
  }
  // The work of the other warps of the first group: they load rows of q and do and the facts about them, one tile ahead.
  __device__ void load_rows() const {
    const Sizes& n = p.n;
    Ring<kKnown> q;
    uint32_t parity = 1;
    const auto hand_on = [&] {
      copies_arrived();
      barrier_arrive(barrier_at(smem.full_q));
      q.next(), parity ^= 1;
    };
    do {
      each_tile<M>(maps, smem.careful ? smem.redo : nullptr, [&](const RowTile& tile, int round) {
        barrier_wait(barrier_at(smem.empty_q), parity);
        const int loader = threadIdx.x - 32, i = loader % 8;  // i: this thread's cell of every panel
        if (loader == 0) smem.keys[q.stage] = {keys_of(p, tile), keys_of_all(p, tile), round};
        if (ByBits && loader == 0) smem.keys[q.stage].all.lo = -1;
        int common = -1;
        if (ByBits) common = SelectedBits::note(p, tile, loader, kRowThreads, M, [&](int r) -> int& { return smem.rows[q.stage][r].keys.lo; });
        constexpr int kMine = (M - 1) / kRowThreads + 1, kStep = kRowThreads / 8, kSome = C + Cv > 320 ? 2 : 4;
        float lse[kMine], delta[kMine];  // these loads overlap the copies of rows
#pragma unroll
        for (int u = 0; u < kMine; u++) {
          const int r = loader + u * kRowThreads, row = tile.first + r;
          const bool in = tile.has(r);
          lse[u] = INFINITY, delta[u] = 0;
          if (r >= M) continue;
          const Run run = in ? p.keys(tile.b, row / n.h) : Run{0, 0};
          Row& to = smem.rows[q.stage][r];
          if (!ByBits) to.keys.lo = run.lo;
          to.keys.hi = min(run.hi, n.keys), to.at = in ? n.row(tile.b, tile.g, row, 1) : -1;
          if (const long long stat = n.stat(tile.b, tile.g, row); in) lse[u] = p.lse[stat], delta[u] = p.delta[stat];
        }
        named_sync(kRowsWritten, kRowThreads);  // Row::at of all rows of the tile is written
        if (ByBits) atomicAnd(&smem.keys[q.stage].all.lo, common);
        const T *from_q = static_cast<const T*>(p.q) + 8 * i, *from_do = static_cast<const T*>(p.dout) + 8 * i;
#pragma unroll 1
        for (int first = loader / 8; first < M; first += kSome * kStep) {
          long long places[kSome];  // read before the copies begin, because no read of shared memory is moved across those
#pragma unroll
          for (int u = 0; u < kSome; u++) places[u] = first + u * kStep < M ? smem.rows[q.stage][first + u * kStep].at : -1;
          const auto copy = [&](auto width, uint32_t to, const T* src, int c) {
            constexpr int kGroup = 128 * decltype(width)::value;  // bytes of the rows of a warpgroup
#pragma unroll
            for (int u = 0; u < kSome; u++) {
              const int r = first + u * kStep;
              if (M % (kSome * kStep) != 0 && r >= M) continue;
#pragma unroll
              for (int m = 0; m < kGroup / 8192; m++)  // nothing is read outside the rows and the c columns
                copy_cell(to + r / 64 * kGroup + cell_of(64, r % 64, 8 * m + i), src + places[u] * c + 64 * m,
                          places[u] >= 0 && 64 * m + 8 * i < c);
            }
          };
          copy(Width<C>{}, Q + (kHeld || parity ? 0 : W * kQ), from_q, n.d);
          copy(Width<Cv>{}, Q + kDoOffset + (kHeldDo || parity ? 0 : W * kDo), from_do, n.dv);
        }
#pragma unroll
        for (int u = 0; u < kMine; u++)
          if (const int r = loader + u * kRowThreads; r < M) smem.rows[q.stage][r].lse = lse_for_gradient(lse[u]), smem.rows[q.stage][r].delta = delta[u];
        hand_on();
      });
      barrier_wait(barrier_at(smem.empty_q), parity);
      if (threadIdx.x == 32) smem.keys[q.stage].some.lo = -1;
      hand_on();
    } while (next_pass());
  }

  // The work of computing group w.
  __device__ void compute(int w) const {
    const Sizes& n = p.n;
    const int first_row = 64 * w + warp() % 4 * 16 + lane() / 4;  // this thread's rows of a tile: first_row and first_row + 8
    Ring<StagesK> k;
    Ring<StagesV> v;
    Ring<kKnown> q;  // the tile whose logits are being computed
    uint32_t parity = 0, before = 0;  // the parity of full_q; the stage of the keys of the last step
    uint32_t a[kHeld ? C / 16 : 1][4], da[kHeldDo ? Cv / 16 : 1][4];  // q and do
    float s[N / 8][4], ds[N / 8][4], dq[C / 8][4], base[2], delta[2];
    uint32_t y[N / 16][4];  // dS of the last step, rounded to T

    const auto release = [&](const unsigned long long& barrier) {
      if (lane() == 0) barrier_arrive(barrier_at(barrier));
    };
    // Waits for the next tile and reads what stays in registers. Returns whether there is one.
    const auto enter = [&] {
      barrier_wait(barrier_at(smem.full_q), parity), parity ^= 1;
      if (smem.keys[q.stage].some.lo < 0) return false;
      uint32_t place = cell_of(64, first_row % 64, 0) + 4 * (lane() % 4);
      opaque(place);  // as in Left
      const auto fragments = [&](auto& to, const char* rows) {
#pragma unroll
        for (int j = 0; j < int(sizeof to / sizeof *to); j++)
#pragma unroll
          for (int i = 0; i < 4; i++)
            to[j][i] = *reinterpret_cast<const uint32_t*>(rows + j / 4 * 8192 + moved<64>(place, 2 * j % 8 + i / 2, i % 2 * 8));
      };
      if constexpr (kHeld) fragments(a, shared() + w * kQ);
      if constexpr (kHeldDo) fragments(da, shared() + kDoOffset + w * kDo);
#pragma unroll
      for (int r = 0; r < 2; r++) {
        const Row& row = smem.rows[q.stage][first_row + 8 * r];
        base[r] = smem.careful && large(row.lse) ? 0 : row.lse * kLog2E;
        delta[r] = row.delta;
      }
      // For two reasons: wgmma may read q and do that cp.async wrote (C > 128; the loading warps do not fence), and the arrival must wait
      // for this lane's reads.
      fence_async();
      barrier_arrive(barrier_at(smem.empty_q));  // by every lane, because every lane has read the Row entries
      return true;
    };
    const auto pass_turn = [&] {
      if (kTurns) named_arrive(kTurn + (w + 1) % W, kTurnThreads);
    };
    const auto begin_scores = [&] {
      const auto begin = [&](auto width, float (&to)[N / 8][4], const auto& rows, uint32_t keys) {
        hold(to);
        wgmma_begin();
        const uint64_t b = describe(keys, 0);
#pragma unroll
        for (int i = 0; i < decltype(width)::value / 16; i++) {
          const uint64_t key = b + (i / 4 * N * 128 + i % 4 * 32) / 16;
          if constexpr (sizeof rows == sizeof b) {
            Wgmma<T, N>::a_bt(to, rows + (i / 4 * 64 * 128 + i % 4 * 32) / 16, key, i > 0);
          } else {
            Wgmma<T, N>::a_bt(to, rows[i], key, i > 0);
          }
        }
        wgmma_end();
      };
      barrier_wait(barrier_at(smem.full_k[k.stage]), k.parity);
      if (kTurns) named_sync(kTurn + w, kTurnThreads);
      if constexpr (kHeld) {
        begin(Width<C>{}, s, a, K + k.stage * kKeyTile);
      } else {
        begin(Width<C>{}, s, describe(Q + ((parity ^ 1) * W + w) * kQ, 0), K + k.stage * kKeyTile);
      }
      barrier_wait(barrier_at(smem.full_v[v.stage]), v.parity);
      if constexpr (kHeldDo) {
        begin(Width<Cv>{}, ds, da, V + v.stage * kValueTile);
      } else {
        begin(Width<Cv>{}, ds, describe(Q + kDoOffset + ((parity ^ 1) * W + w) * kDo, 0), V + v.stage * kValueTile);
      }
    };
    const auto begin_sums = [&] {
      hold(dq);
      wgmma_begin();
      const uint64_t b = describe(K + before * kKeyTile, N * 128);
#pragma unroll
      for (int i = 0; i < N / 16; i++) Wgmma<T, C>::a_b(dq, y[i], b + i * 16 * 128 / 16);
      wgmma_end();
    };
    const auto end_sums = [&] {
      wgmma_wait<0>();
      hold(dq);
      release(smem.empty_k[before]);
    };
    // Turns s, the logits of the keys from `key` on, and ds, which holds dP, into dS in ds. The newest `running` groups of products
    // may still run.
    const auto make_ds = [&](int key, auto running) {
      wgmma_wait<decltype(running)::value + 1>();
      hold(s);
      if (smem.careful)
#pragma unroll
        for (int r = 0; r < 2; r++)
          if (const float lse = smem.rows[q.stage][first_row + 8 * r].lse; large(lse))
#pragma unroll
            for (int j = 0; j < N / 8; j++)
#pragma unroll
              for (int i = 2 * r; i < 2 * r + 2; i++) s[j][i] = shifted_logit(n, s[j][i], lse);
#pragma unroll
      for (int j = 0; j < N / 8; j++)
#pragma unroll
        for (int i = 0; i < 4; i++) s[j][i] = power2(fmaf(s[j][i], n.scale_log2, -base[i / 2]));
      wgmma_wait<decltype(running)::value>();
      hold(ds);
      release(smem.empty_v[v.stage]), v.next();
#pragma unroll
      for (int j = 0; j < N / 8; j++)
#pragma unroll
        for (int i = 0; i < 4; i++) ds[j][i] = s[j][i] * (ds[j][i] - delta[i / 2]);
      const Run all = smem.keys[q.stage].all;
      if (ByBits && SelectedBits::of(key, min(key + N, smem.keys[q.stage].some.hi)) & ~all.lo)
#pragma unroll
        for (int r = 0; r < 2; r++) {
          const uint32_t bits = smem.rows[q.stage][first_row + 8 * r].keys.lo;
#pragma unroll
          for (int j = 0; j < N / 8; j++)
            if (!(bits >> (key + 8 * j) / 64 & 1)) ds[j][2 * r] = ds[j][2 * r + 1] = 0;
        }
      if ((!ByBits && key < all.lo) || key + N > all.hi)
#pragma unroll
        for (int r = 0; r < 2; r++) {
          const Run seen = smem.rows[q.stage][first_row + 8 * r].keys;
          const int first_column = key + 2 * (lane() % 4), lo = ByBits ? 0 : seen.lo - first_column, hi = seen.hi - first_column;
#pragma unroll
          for (int j = 0; j < N / 8; j++)
#pragma unroll
            for (int i = 0; i < 2; i++)
              if (8 * j + i < lo || 8 * j + i >= hi) ds[j][2 * r + i] = 0;
        }
    };
    const auto pack = [&] {
#pragma unroll
      for (int i = 0; i < N / 16; i++)
#pragma unroll
        for (int c = 0; c < 4; c++) y[i][c] = pair<T>(ds[2 * i + c / 2][c % 2 * 2], ds[2 * i + c / 2][c % 2 * 2 + 1]);
      before = k.stage, k.next();
    };
    const auto clear_sums = [&] {
#pragma unroll
      for (int j = 0; j < C / 8; j++)
#pragma unroll
        for (int i = 0; i < 4; i++) dq[j][i] = 0;
    };
    const auto write_tile = [&](int stage) {
      const bool needs_careful = write(dq, smem.rows[stage] + first_row);
      if (__any_sync(0xffffffff, needs_careful) && !smem.careful && lane() == 0) mark_redo(smem.redo, smem.keys[stage].round);
    };

    if (w == W - 1) pass_turn();
    do {
      if (enter()) {
        int key = smem.keys[q.stage].some.lo, stage = 0;
        clear_sums();
        begin_scores();
        pass_turn();
        make_ds(key, Width<0>{});
        pack();
#pragma unroll 1
        for (;;) {
          const bool last = (key += N) >= smem.keys[q.stage].some.hi;
          if (last) {
            stage = q.stage;
            q.next();
            if (!enter()) break;
            key = smem.keys[q.stage].some.lo;
          }
          begin_scores();
          begin_sums();
          pass_turn();
          make_ds(key, Width<1>{});
          end_sums();
          if (last) write_tile(stage), clear_sums();
          pack();
        }
        begin_sums();
        end_sums();
        write_tile(stage);
      }
      barrier_arrive(barrier_at(smem.empty_q)), q.next();
    } while (next_pass());
    if (kTurns && w == 0) named_sync(kTurn, kTurnThreads);  // the last turn that was passed
  }

  // Writes dq of this thread's two rows. Returns whether one of its numbers is NaN or Inf, or one of its rows is large.
  __device__ bool write(const float (&dq)[C / 8][4], const Row* rows) const {
    const Sizes& n = p.n;
    uint32_t zero = 0;
    bool any_large = false;
#pragma unroll
    for (int r = 0; r < 2; r++) {
      const long long to = rows[8 * r].at;
      any_large |= large(rows[8 * r].lse);
#pragma unroll
      for (int j = 0; j < C / 8; j += 4) {
        uint32_t y[4];
#pragma unroll
        for (int i = 0; i < 4; i++) y[i] = pair<T>(n.scale * dq[j + i][2 * r], n.scale * dq[j + i][2 * r + 1]), keep_nan<T>(zero, y[i]);
        transpose_quad(y);
        const int column = 8 * (j + lane() % 4);
        if (to >= 0 && column < n.d) *reinterpret_cast<uint4*>(static_cast<T*>(p.dq) + to * n.d + column) = uint4{y[0], y[1], y[2], y[3]};
      }
    }
    return zero != 0 || any_large;
  }
};
#endif

}  // namespace nsa

// Defines the entry points nsa_<branch>_dq_wgmma<D>_<storage>, for tiles of 64*W rows and N keys.
#define NSA_WGMMA_DQ(D, W, branch, suffix, ...)                                                                        \
  extern "C" __global__ void __launch_bounds__(128 * (W + 1), 1)                                                       \
      nsa_##branch##_dq_wgmma##D##_##suffix(const __grid_constant__ nsa::WgmmaParams p) {                              \
    NSA_WGMMA_BODY(nsa::WgmmaQueryGradient<nsa::suffix, __VA_ARGS__>(p).run();)                                        \
  }
#define NSA_WGMMA_DQS(D, C, Cv, W, ...)                                                                                \
  NSA_WGMMA_DQ(D, W, span, bf16, C, Cv, W, __VA_ARGS__, false)                                                         \
  NSA_WGMMA_DQ(D, W, span, f16, C, Cv, W, __VA_ARGS__, false)                                                          \
  NSA_WGMMA_DQ(D, W, selected, bf16, C, Cv, W, __VA_ARGS__, true)                                                      \
  NSA_WGMMA_DQ(D, W, selected, f16, C, Cv, W, __VA_ARGS__, true)
//            D   C   Cv  W  N   StagesK, StagesV; the same numbers are in widths.go
NSA_WGMMA_DQS(64, 64, 64, 3, 48, 5, 4)
NSA_WGMMA_DQS(128, 128, 128, 2, 48, 5, 4)
NSA_WGMMA_DQS(192x128, 192, 128, 2, 48, 3, 2)
NSA_WGMMA_DQS(192, 192, 192, 2, 32, 3, 3)
NSA_WGMMA_DQS(256x128, 256, 128, 1, 48, 3, 3)
NSA_WGMMA_DQS(256x192, 256, 192, 1, 48, 3, 2)
