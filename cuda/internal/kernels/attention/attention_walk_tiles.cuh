// What the two kernels by a walk share (Walks of attention_pairs.cuh; compute capability 9.0). The grid has at most one block for each
// multiprocessor. A block has four warps that load and W that compute 16 rows each. Each block goes through one tile of queries in every
// gridDim.x, those with the latest queries first. A tile has at most W/ceil(h/16) * max(1, 16/h) queries, and at most 32.
//
// The first warp copies the keys and values of a tile's blocks into a ring of stages by tensor maps. A *fill* is one filling of a stage:
// 64/P pieces of P keys. Barriers say which stages are full and which are empty. A computing warp takes a fill if one of its queries selected
// one of its pieces, and multiplies only those pieces. Warps do not wait for each other, not even at the end of a tile: two warps can be
// as many fills apart as the ring has stages. If a warp does not take a fill, the loading warp arrives at the empty barrier in its place.
// If a warp takes it, the loading warp tells it that the fill has begun, by a barrier of this warp and stage (`fill_begun`). Without this the
// warp could mistake an earlier fill with the same parity for this one.
//
// If some row of a warp does not see all keys of a piece that the warp takes, a loading warp looks for NaN and Inf first. A value row
// with NaN or Inf (for dq: a key) becomes zeros, and its key (value) NaN. So rows that do not see it have the same bits as with finite
// numbers.
//
// Shared memory: kShared bytes.
#pragma once

#include "attention_pairs.cuh"
#include "attention_wgmma_tiles.cuh"

namespace nsa {

#if defined(__CUDA_ARCH_FEAT_SM90_ALL) || !defined(__CUDACC__)
// Each computing warp has OwnBytes of shared memory for itself. Its rows are those of q; with Gradient, those of q and do.
template <typename T, int C, int Cv, int P, int W, int Stages, int OwnBytes, bool Gradient> struct WalkTiles {
  static constexpr int kLoadingWarps = 4, kBlock = 32 * (kLoadingWarps + W), kPieces = 64 / P;
  static constexpr uint32_t kKeyTile = 64 * C * 2, kStage = kKeyTile + 64 * Cv * 2;
  // For each stage, each computing warp has a barrier `fill_begun` of its own, and each checking warp a barrier `unchecked`. A phase of such a barrier
  // ends for each fill that this warp takes.
  struct Shared {
    unsigned long long full[Stages], empty[Stages], fill_begun[W][Stages], unchecked[kLoadingWarps - 1][Stages];
  };
  static constexpr int kTiles = Stages * kStage + W * OwnBytes, kShared = kTiles + sizeof(Shared);
  static_assert(sizeof(Shared) == 8 * Stages * (W + kLoadingWarps + 1), "widths.walkBytes in Go");
  static_assert(Stages <= 32, "a bit for each stage");
  static_assert(kShared <= 227 << 10, "or no block fits");

  const WalkParams& a;
  const AttentionParams& p;
  const Walks& x;
  uint32_t ring;
  Shared& smem;

  static __device__ char* shared() { return reinterpret_cast<char*>(tiles_shared()); }
  __device__ WalkTiles(const WalkParams& a)
      : a(a), p(a.p), x(a.walks), ring(shared_address(shared())), smem(*reinterpret_cast<Shared*>(shared() + kTiles)) {}

  __device__ void begin() const {
    if (threadIdx.x == 0) {
      for (int i = 0; i < Stages; i++) {
        barrier_init(barrier_at(smem.full[i]), 1), barrier_init(barrier_at(smem.empty[i]), W);
        for (int w = 0; w < W; w++) barrier_init(barrier_at(smem.fill_begun[w][i]), 1);
        for (int l = 0; l < kLoadingWarps - 1; l++) barrier_init(barrier_at(smem.unchecked[l][i]), 1);
      }
      barriers_ready();
    }
    __syncthreads();
  }
  __device__ uint32_t own(int w) const { return ring + Stages * kStage + w * OwnBytes; }

  // Tile i of all tiles, in the order in which blocks take them: the queries [first,first+queries) of group g of batch row b.
  struct Tile {
    int b, g, first, queries, number;  // number: its index in Walks
    __device__ Tile(const WalkParams& a, int i) {
      opaque(i);  // a second Tile is computed again: the first one does not stay in registers
      const Sizes& n = a.p.n;
      const Walks& x = a.walks;
      const int groups = n.batch * n.groups, group = i % groups, tile = x.tiles - 1 - i / groups;
      b = group / n.groups, g = group % n.groups, first = tile * x.queries, queries = min(x.queries, n.queries - first), first += n.start(b);
      number = group * x.tiles + tile;
    }
  };

  // The rows of warp w: `queries_per_warp` whole queries, or one of the parts of `warps_per_query` warps of a query.
  struct Rows {
    int queries_per_warp, warps_per_query, first_query, first_row;  // row 0 of the warp is row first_row of query first_query of the tile
    __device__ Rows(const WalkParams& a, int w) {
      opaque(w);  // as in Tile
      const int heads = a.p.n.h;
      warps_per_query = (heads - 1) / 16 + 1, queries_per_warp = (a.walks.queries - 1) / (W / warps_per_query) + 1;
      first_query = w / warps_per_query * queries_per_warp, first_row = w % warps_per_query * 16;
      if (w / warps_per_query >= W / warps_per_query) first_query = 32;
    }
    // The bits of the warp's queries in a tile of `queries` queries.
    __device__ unsigned bits(int queries) const {
      const int n = min(queries_per_warp, queries - first_query);
      return n <= 0 ? 0 : 0xffffffffu >> (32 - n) << first_query;
    }
  };

  // Goes through the tiles of the block. For each it calls start(i); then step(piece, count, fill) for 32 pieces at a time, where each
  // lane has one of `count` pieces and `fill` is the number of the fill of the first one; then finish(i).
  template <class Start, class Step, class Finish> __device__ __forceinline__ void each(Start start, Step step, Finish finish) const {
    const int tiles = x.tiles * p.n.batch * p.n.groups;
    // rounds go up and down in turn: the block with the longest tile of a round gets the shortest of the next one
    const auto number = [&](int round) { return round * gridDim.x + (round & 1 ? gridDim.x - 1 - blockIdx.x : blockIdx.x); };
    int fill = 0;
#pragma unroll 1
    for (int round = 0; number(round) < tiles; round++) {
      const int now = number(round);
      const long long tile = Tile(a, now).number;
      const int blocks = x.count[tile];
      start(now);
#pragma unroll 1
      for (int from = 0; from < blocks; from += 32) {
        const TileBlock piece = from + lane() < blocks ? x.blocks[tile * x.room + from + lane()] : TileBlock{0, 0};
        step(piece, min(32, blocks - from), fill + from / kPieces);
      }
      fill += (blocks + kPieces - 1) / kPieces;
      finish(now);
    }
  }

  // Lane w gets the bits of the queries of computing warp w.
  __device__ unsigned bits_of_warps(const Tile& tile) const { return lane() < W ? Rows(a, lane()).bits(tile.queries) : 0; }
  // About the fill of the pieces of lanes [j,j+kPieces). takes: in lane w, whether computing warp w takes it. suspect: whether some warp
  // does not see all keys of a piece that it takes. All lanes must call it.
  struct Wanted { bool takes, suspect; };
  static __device__ Wanted wanted(const TileBlock& piece, int j, unsigned bits, int first) {
    bool takes = false, partly = false;
#pragma unroll
    for (int k = 0; k < kPieces; k++) {
      const unsigned queries = __shfl_sync(0xffffffff, piece.queries, j + k) & bits;
      const int key = __shfl_sync(0xffffffff, piece.key, j + k);
      takes |= queries != 0, partly |= queries != 0 && (queries != bits || key + P - 1 > first);
    }
    return {takes, __any_sync(0xffffffff, partly) != 0};
  }

  // Runs a block. The first warp brings fills; each of the next three looks at the suspect ones among every third fill; computing warp w
  // runs compute(w).
  template <int ProducerRegisters, int ConsumerRegisters, class F> __device__ __forceinline__ void run(F compute) const {
    static_assert(ProducerRegisters + W / 4 * ConsumerRegisters <= (W / 4 + 1) * (65536 / kBlock / 8 * 8), "setmaxnreg would wait forever");
    begin();
    const int warpgroup = __shfl_sync(0xffffffff, threadIdx.x / 128, 0);
    if (warpgroup == 0) {
      fewer_registers<ProducerRegisters>();
      if (warp() == 0) load_keys();
      else check_finite(warp() - 1);
    } else {
      more_registers<ConsumerRegisters>();
      compute(warp() - kLoadingWarps);
    }
  }
  __device__ void load_keys() const {
    int i = 0;
    each([&](int at) { i = at; }, [&](const TileBlock& piece, int count, int fill) {
      const Tile tile(a, i);
      const unsigned bits = bits_of_warps(tile);
#pragma unroll 1
      for (int j = 0; j < count; j += kPieces, fill++) {
        const int stage = fill % Stages, pieces = min(kPieces, count - j), own_piece = lane() - j;
        const Wanted warps = wanted(piece, j, bits, tile.first);
        const uint32_t full = barrier_at(warps.suspect ? smem.unchecked[fill % (kLoadingWarps - 1)][stage] : smem.full[stage]);
        const uint32_t to = ring + stage * kStage + own_piece * P * 128;
        barrier_wait(barrier_at(smem.empty[stage]), fill / Stages & 1 ^ 1);
        if (own_piece == 0) barrier_arrive_expecting(full, pieces * (kStage / kPieces));
        if (own_piece >= 0 && own_piece < pieces) {
          copy_boxes<C>(to, 64, a.k, full, tile.g, piece.key, tile.b);
          copy_boxes<Cv>(to + kKeyTile, 64, a.v, full, tile.g, piece.key, tile.b);
        }
        if (lane() < W) barrier_arrive(barrier_at(warps.takes ? smem.fill_begun[lane()][stage] : smem.empty[stage]));
        __syncwarp();  // no lane may fall a phase of a barrier behind
      }
    }, [](int) {});
  }
  __device__ void check_finite(int number) const {
    uint32_t parities = 0;
    int i = 0;
    each([&](int at) { i = at; }, [&](const TileBlock& piece, int count, int fill) {
      const Tile tile(a, i);
      const unsigned bits = bits_of_warps(tile);
#pragma unroll 1
      for (int j = 0; j < count; j += kPieces, fill++) {
        if (fill % (kLoadingWarps - 1) != number || !wanted(piece, j, bits, tile.first).suspect) continue;
        const int stage = fill % Stages;
        const uint32_t to = ring + stage * kStage;
        wait_own(smem.unchecked[number], stage, parities);
        if constexpr (Gradient) {
          if (not_finite<C>(to)) take_out_rows<T, C>(to, to + kKeyTile, 64);
        } else {
          if (not_finite<Cv>(to + kKeyTile)) take_out_rows<T, Cv>(to + kKeyTile, to, 64);
        }
        __syncwarp();
        if (lane() == 0) barrier_arrive(barrier_at(smem.full[stage]));
      }
    }, [](int) {});
  }
  // Waits for the next phase of the warp's own barrier of a stage. One parity bit suffices: the phase after that cannot end before this
  // warp has released the stage.
  static __device__ __forceinline__ void wait_own(const unsigned long long (&barriers)[Stages], int stage, uint32_t& parities) {
    barrier_wait(barrier_at(barriers[stage]), parities >> stage & 1);
    parities ^= 1u << stage;
  }
  // Whether a tile of 64 rows contains NaN or Inf.
  template <int X> static __device__ bool not_finite(uint32_t tile) {
    uint32_t sum[4] = {};
#pragma unroll 4
    for (int i = lane(); i < 64 * X / 8; i += 32) {
      const uint4 cell = shared_cell(tile + 16 * i);
      keep_nan<T>(sum[0], cell.x), keep_nan<T>(sum[1], cell.y), keep_nan<T>(sum[2], cell.z), keep_nan<T>(sum[3], cell.w);
    }
    return __any_sync(0xffffffff, ((sum[0] | sum[1] | sum[2] | sum[3]) & 0x7fff7fff) != 0);
  }

  // What a thread knows about its two rows of a tile, lane/4 and lane/4 + 8: their heads, -1 for no row, and their queries.
  struct ThreadRows {
    int head[2], t[2], first;  // first: the tile's first query
    unsigned bits;             // bits of the warp's queries
    // Whether all rows of the warp see all keys of a piece.
    __device__ bool see_all(int key, unsigned queries) const { return (queries & bits) == bits && key + P <= first + __ffs(bits); }
  };
  __device__ ThreadRows thread_rows(const Tile& tile, const Rows& rows) const {
    ThreadRows m;
    m.bits = rows.bits(tile.queries), m.first = tile.first;
#pragma unroll
    for (int r = 0; r < 2; r++) {
      const int row = rows.first_row + lane() / 4 + 8 * r, q = row / p.n.h, at = rows.first_query + min(q, rows.queries_per_warp - 1);
      m.t[r] = tile.first + min(at, tile.queries - 1);
      m.head[r] = q < rows.queries_per_warp && at < tile.queries ? row % p.n.h : -1;
    }
    return m;
  }

  // A computing warp calls this in step() of each(). It waits for the pieces that the warp takes and calls f(keys, key, queries) for them,
  // where keys is their address. `parities` must be 0 before the first call.
  template <class F> __device__ __forceinline__ void consume(const TileBlock& piece, unsigned bits, int fill, uint32_t& parities, F f) const {
#pragma unroll 1
    for (unsigned wanted = __ballot_sync(0xffffffff, piece.queries & bits); wanted;) {
      const int first = (__ffs(wanted) - 1) / kPieces, stage = (fill + first) % Stages;
      wait_own(smem.fill_begun[warp() - kLoadingWarps], stage, parities);
      barrier_wait(barrier_at(smem.full[stage]), (fill + first) / Stages & 1);
#pragma unroll 1
      do {
        const int j = __ffs(wanted) - 1;
        f(ring + stage * kStage + j % kPieces * P * 128, __shfl_sync(0xffffffff, piece.key, j), __shfl_sync(0xffffffff, piece.queries, j));
        wanted &= wanted - 1;
      } while (kPieces > 1 && wanted && (__ffs(wanted) - 1) / kPieces == first);
      fence_async();  // an arrival does not wait for this lane's reads, and the copies of the next fill could overtake them
      __syncwarp();
      if (lane() == 0) barrier_arrive(barrier_at(smem.empty[stage]));
    }
  }
};

// Sixteen rows of an array as the left factor of products over its X columns; in registers if Kept, else in shared memory.
template <int X, bool Kept> struct WalkLeft {
  uint32_t a[Kept ? X / 16 : 1][4];
  uint32_t place;
  __device__ void get(int k, uint32_t (&y)[4]) const {
    if constexpr (Kept) {
#pragma unroll
      for (int i = 0; i < 4; i++) y[i] = a[k][i];
    } else {
      const uint4 v = shared_cell(place + 512 * k);
      y[0] = v.x, y[1] = v.y, y[2] = v.z, y[3] = v.w;
    }
  }
  // Loads the rows lane/4 and lane/4 + 8, of c columns. A null row becomes zeros. `to` is the warp's shared memory, used unless Kept.
  template <typename T> __device__ void load(const T* const (&rows)[2], int c, uint32_t to) {
    place = to + 16 * lane();
    if (!Kept) __syncwarp();
    constexpr int kMost = Kept ? X / 32 : X % 128 ? 2 : 4;  // loads of 32 columns at once
#pragma unroll 1
    for (int first = 0; first < X / 32; first += kMost) {
      uint4 y[2][kMost];
#pragma unroll
      for (int m = 0; m < kMost; m++)
#pragma unroll
        for (int r = 0; r < 2; r++) {
          const int column = 32 * (first + m) + 8 * (lane() % 4);
          y[r][m] = rows[r] && column < c ? *reinterpret_cast<const uint4*>(rows[r] + column) : uint4{0, 0, 0, 0};
        }
#pragma unroll
      for (int m = 0; m < kMost; m++) {
        uint32_t z[2][4];
#pragma unroll
        for (int r = 0; r < 2; r++) {
          z[r][0] = y[r][m].x, z[r][1] = y[r][m].y, z[r][2] = y[r][m].z, z[r][3] = y[r][m].w;
          transpose_quad(z[r]);
        }
#pragma unroll
        for (int i = 0; i < 2; i++) {
          if constexpr (Kept) {
            a[2 * m + i][0] = z[0][2 * i], a[2 * m + i][1] = z[1][2 * i], a[2 * m + i][2] = z[0][2 * i + 1], a[2 * m + i][3] = z[1][2 * i + 1];
          } else {
            store_shared(place + 512 * (2 * (first + m) + i), uint4{z[0][2 * i], z[1][2 * i], z[0][2 * i + 1], z[1][2 * i + 1]});
          }
        }
      }
    }
    if (!Kept) __syncwarp();
  }
};

// s [16,N] = left·bᵀ, where b [N,X] are the rows [row,row+N) of a tile of 64 rows.
template <typename T, int X, int N, bool Kept>
__device__ __forceinline__ void walk_multiply_transposed(float (&s)[N / 8][4], const WalkLeft<X, Kept>& left, uint32_t tile, int row) {
  const uint32_t place = tile + (row + lane() / 16 * 8 + lane() % 8) * 128 + ((lane() / 8 % 2 ^ lane() % 8) << 4);
#pragma unroll
  for (int j = 0; j < N / 8; j++)
#pragma unroll
    for (int i = 0; i < 4; i++) s[j][i] = 0;
#pragma unroll
  for (int k = 0; k < X / 16; k++) {
    uint32_t y[4];
    left.get(k, y);
#pragma unroll
    for (int j = 0; j < N / 16; j++) {
      uint32_t b[4];
      read_fragments<false>(b, (place ^ (k % 4 << 5)) + k / 4 * 64 * 128 + j * 16 * 128);
      multiply_fragments<T>(s[2 * j], y, b[0], b[1]);
      multiply_fragments<T>(s[2 * j + 1], y, b[2], b[3]);
    }
  }
}
// Adds the sums of the rows of a [16,16] to all columns of c, in the layout of multiply_fragments.
template <typename T> __device__ __forceinline__ void add_row_sums(float (&c)[4], const uint32_t (&a)[4]) {
  constexpr uint32_t kOnes = narrow<T> ? 0x3c003c00 : 0x3f803f80;
  multiply_fragments<T>(c, a, kOnes, kOnes);
}
// sum [16,X] += s·b, where s [16,N] is rounded to T and b [N,X] are the rows [row,row+N) of a tile of 64 rows. If `weights` are given, it
// adds the sums of the rows of the rounded s to them, as add_row_sums does.
template <typename T, int X, int N, class... Weights>
__device__ __forceinline__ void walk_multiply_add(float (&sum)[X / 8][4], const float (&s)[N / 8][4], uint32_t tile, int row,
                                                  Weights&... weights) {
  const uint32_t place = tile + (row + lane() % 16) * 128 + ((lane() / 16 ^ lane() % 8) << 4);
#pragma unroll
  for (int k = 0; k < N / 16; k++) {
    uint32_t y[4];
#pragma unroll
    for (int i = 0; i < 4; i++) y[i] = pair<T>(s[2 * k + i / 2][i % 2 * 2], s[2 * k + i / 2][i % 2 * 2 + 1]);
    (add_row_sums<T>(weights, y), ...);
#pragma unroll
    for (int j = 0; j < X / 16; j++) {
      uint32_t b[4];
      read_fragments<true>(b, (place ^ (j % 4 << 5)) + j / 4 * 64 * 128 + k * 16 * 128);
      multiply_fragments<T>(sum[2 * j], y, b[0], b[1]);
      multiply_fragments<T>(sum[2 * j + 1], y, b[2], b[3]);
    }
  }
}
// s holds numbers of the keys [key+row,key+row+N), of the piece that begins at `key`. Sets those of keys that a row does not see to
// `hidden`.
template <int N, class ThreadRows>
__device__ __forceinline__ void walk_hide(float (&s)[N / 8][4], const ThreadRows& own, int key, int row, unsigned queries, float hidden) {
#pragma unroll
  for (int r = 0; r < 2; r++) {
    const int seen = (queries >> (own.t[r] - own.first) & 1 ? own.t[r] + 1 - key : 0) - row - 2 * (lane() % 4);
#pragma unroll
    for (int j = 0; j < N / 8; j++)
#pragma unroll
      for (int i = 0; i < 2; i++)
        if (8 * j + i >= seen) s[j][2 * r + i] = hidden;
  }
}
// Writes factor times this thread's row r of y, c columns; nothing if `to` is null.
template <typename T, int X> __device__ __forceinline__ void walk_store(T* to, const float (&y)[X / 8][4], int r, float factor, int c) {
#pragma unroll
  for (int m = 0; m < X / 32; m++) {
    uint32_t z[4];
#pragma unroll
    for (int i = 0; i < 4; i++) z[i] = pair<T>(factor * y[4 * m + i][2 * r], factor * y[4 * m + i][2 * r + 1]);
    transpose_quad(z);
    const int column = 32 * m + 8 * (lane() % 4);
    if (to && column < c) *reinterpret_cast<uint4*>(to + column) = uint4{z[0], z[1], z[2], z[3]};
  }
}
#endif

}  // namespace nsa

// Defines the entry points nsa_walk<P>_<op>_mma<D>_<storage>, which run Kernel<T, C, Cv, P, W, ...> with W computing warps. The name
// has no number for P = 64.
#define NSA_WALK_ENTRY(name, D, suffix, W, ...)                                                                        \
  extern "C" __global__ void __launch_bounds__(128 + 32 * W, 1)                                                        \
      nsa_##name##_mma##D##_##suffix(const __grid_constant__ nsa::WalkParams p) {                                      \
    NSA_WGMMA_BODY(__VA_ARGS__(p).run();)                                                                              \
  }
#define NSA_WALK_TYPES(name, D, Kernel, C, Cv, P, W, ...)                                                              \
  NSA_WALK_ENTRY(name, D, bf16, W, nsa::Kernel<nsa::bf16, C, Cv, P, W, __VA_ARGS__>)                                   \
  NSA_WALK_ENTRY(name, D, f16, W, nsa::Kernel<nsa::f16, C, Cv, P, W, __VA_ARGS__>)
#define NSA_WALK(op, D, Kernel, C, Cv, ...)                                                                            \
  NSA_WALK_TYPES(walk_##op, D, Kernel, C, Cv, 64, __VA_ARGS__)                                                         \
  NSA_WALK_TYPES(walk32_##op, D, Kernel, C, Cv, 32, __VA_ARGS__)                                                       \
  NSA_WALK_TYPES(walk16_##op, D, Kernel, C, Cv, 16, __VA_ARGS__)
