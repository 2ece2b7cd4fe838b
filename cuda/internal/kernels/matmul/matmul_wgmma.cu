// Matrix products in bf16 for compute capability 9.0: c [m,n] = op(a) op(b) + bias, and what an epilogue makes of it: with a residual added, c
// and also silu(c), or c silu'(x) for the argument x of a SiLU. op(a) is [m,k], op(b) [k,n]; rows have no gaps. A transposed a is stored as [k,m], a transposed b as [n,k]. Rows of all matrices are multiples of 16 bytes. out_type says whether c
// is T or float32. c is written with =.
//
// A cluster of two blocks computes a tile of c of 256 x 128: each block has 128 rows. Along k a tile has steps of 64. Boxes of a and b pass
// through a ring of stages; each block copies its own rows of a to itself, and one half of the columns of b to both. One warp copies. Two
// warpgroups take tiles in turn: while one stores its sums, the other one multiplies. Rows and columns outside of c are computed from zeros
// and not stored.
//
// A cluster computes its shares, one after the other: a share is a run of steps of a tile. Cluster i has all steps of the tiles i,
// i + clusters, ... below `whole`, then the shares of a list. Of a tile that is cut each share goes in float32 to a place of its own in
// `partial`, and matmul_sum_shares adds the shares of a tile in ascending order. wgmma.go makes the list.
//
// Sums are float32, ascending in k. Bits depend on the sizes and on the shares.
#include "matmul_wgmma.cuh"

namespace nsa {

constexpr int kMostClusters = 72;

// A share: steps [first, first + count) of the tile at row and column, counted in tiles. place is -1 for all steps. next is the index of the
// cluster's next share, -1 for none; the first one of cluster i is share i.
struct WgmmaShare {
  uint16_t row, column, first, count;
  int16_t place, next;
};

struct MatmulWgmmaParams {
  alignas(64) uint8_t a[128], b[128];  // tensor maps of a and b as they are stored
  uint8_t c[128], silu[128];           // of the results, with boxes of 16 rows of 128 bytes
  uint8_t partial[128];                // of the places [places,256,128], with the same boxes
  const void* bias;      // [n], or null
  const void* other;     // [m,n] in the type of c: the residual or the argument of the SiLU, or null
  int32_t m, n, steps, down, across;  // down and across: tiles
  int32_t whole, sharing;             // tiles that are not cut by the list; clusters that have shares in it
  int32_t out_type;
  WgmmaShare shares[3 * kMostClusters];
};

// Shares goes through the shares of this cluster.
struct Shares {
  const MatmulWgmmaParams& p;
  int tile, at;  // the next whole tile, the next share of the list
  int row, column, first, count, place;

  __device__ explicit Shares(const MatmulWgmmaParams& a) : p(a), tile(blockIdx.y), at(int(blockIdx.y) < p.sharing ? int(blockIdx.y) : -1) {}
  __device__ bool next() {
    if (tile < p.whole) {
      // In bands of eight rows of tiles, first downwards, then to the right: tiles of the same time share rows of a and columns of b.
      constexpr int kBand = 8;
      const int band = tile / (kBand * p.across), in_band = tile % (kBand * p.across), rows = min(kBand, p.down - band * kBand);
      row = band * kBand + in_band % rows, column = in_band / rows, first = 0, count = p.steps, place = -1;
      tile += gridDim.y;
      return true;
    }
    if (at < 0) return false;
    const WgmmaShare& x = p.shares[at];
    row = x.row, column = x.column, first = x.first, count = x.count, place = x.place, at = x.next;
    return true;
  }
};

// An epilogue changes the sums of a whole tile before they are stored, one panel of 16 rows and 64 columns of a warp at a time.
//
//   prefetch   called by each warp before the sums are made of its panels, which begin at row and, if there are two blocks of rows, at row + 64
//   begin      reads what the panel at row and column needs
//   apply      changes the panel's sums: v[j] is the fragment of the columns 8*j to 8*j + 7
//   kReads     whether Panel holds numbers. Then no registers are left for a second size of tiles
//   kSiLU      whether silu(c) is stored, too

// Plain adds the bias, if there is one.
template <bool SiLU> struct Plain {
  static constexpr bool kReads = false, kSiLU = SiLU;
  struct Panel {};
  static __device__ __forceinline__ void prefetch(const MatmulWgmmaParams&, int, int) {}
  template <typename T> static __device__ __forceinline__ void begin(const MatmulWgmmaParams&, Panel&, int, int) {}
  template <typename T> static __device__ __forceinline__ void apply(const MatmulWgmmaParams& p, const Panel&, float (*v)[4], int column) {
    if (p.bias == nullptr) return;
#pragma unroll
    for (int j = 0; j < 8; j++) {
      const int at = column + 8 * j + 2 * (lane() % 4);
      if (at >= p.n) continue;
      const uint32_t both = static_cast<const uint32_t*>(p.bias)[at / 2];
      T bias[2];
      memcpy(bias, &both, sizeof both);
#pragma unroll
      for (int i = 0; i < 4; i++) v[j][i] += to_float(bias[i % 2]);
    }
  }
};

struct AddOther { static __device__ float of(float sum, float x) { return sum + x; } };
struct TimesSiLUGrad {
  static __device__ float of(float sum, float x) {
    const float s = sigmoid_of<bf16>(x);
    return sum * (s * (1.0f + x * (1.0f - s)));
  }
};

// With makes Op::of of each sum and the element of p.other.
template <class Op> struct With {
  static constexpr bool kReads = true, kSiLU = false;
  union Panel {
    float2 wide[8][2];  // of the fragments of v
    uint4 cells[4];     // rows lane/4 and lane/4 + 8, eight columns from 8*(lane%4) on of the first half, then of the second
  };
  static __device__ __forceinline__ void prefetch(const MatmulWgmmaParams& p, int row, int column) {
    const int bytes = p.out_type == kF32 ? 4 : 2, lines = bytes;  // of 128 bytes in the 128 columns of a row
#pragma unroll 1
    for (int i = lane(); i < 32 * lines; i += 32) {
      const int r = row + i / lines % 16 + i / (16 * lines) * 64, at = column + i % lines * (128 / bytes);
      if (r < p.m && at < p.n) prefetch_line(static_cast<const char*>(p.other) + (int64_t(r) * p.n + at) * bytes);
    }
  }
  template <typename T> static __device__ __forceinline__ void begin(const MatmulWgmmaParams& p, Panel& x, int row, int column) {
    const int t = lane() % 4;
    row += lane() / 4;
    if (p.out_type == kF32) {
      const float* from = static_cast<const float*>(p.other) + int64_t(row) * p.n + column + 2 * t;
#pragma unroll
      for (int i = 0; i < 2; i++, from += 8 * int64_t(p.n)) {
        const int left = row + 8 * i < p.m ? p.n - column - 2 * t : 0;
#pragma unroll
        for (int j = 0; j < 8; j++)
          if (8 * j < left) x.wide[j][i] = *reinterpret_cast<const float2*>(from + 8 * j);
      }
    } else {
#pragma unroll
      for (int i = 0; i < 4; i++) {
        const int r = row + i % 2 * 8, at = column + i / 2 * 32 + 8 * t;
        if (r < p.m && at < p.n) x.cells[i] = *reinterpret_cast<const uint4*>(static_cast<const T*>(p.other) + int64_t(r) * p.n + at);
      }
    }
  }
  template <typename T> static __device__ __forceinline__ void apply(const MatmulWgmmaParams& p, const Panel& x, float (*v)[4], int) {
    if (p.out_type == kF32) {
#pragma unroll
      for (int j = 0; j < 8; j++)
#pragma unroll
        for (int i = 0; i < 4; i++) v[j][i] = Op::of(v[j][i], i % 2 == 0 ? x.wide[j][i / 2].x : x.wide[j][i / 2].y);
      return;
    }
#pragma unroll
    for (int i = 0; i < 4; i++) {
      uint32_t w[4] = {x.cells[i].x, x.cells[i].y, x.cells[i].z, x.cells[i].w};
      transpose_quad(w);
#pragma unroll
      for (int j = 0; j < 4; j++) {
        T y[2];
        memcpy(y, &w[j], sizeof y);
        float* to = v[i / 2 * 4 + j] + i % 2 * 2;
        to[0] = Op::of(to[0], to_float(y[0])), to[1] = Op::of(to[1], to_float(y[1]));
      }
    }
  }
};

#if defined(__CUDA_ARCH_FEAT_SM90_ALL) || !defined(__CUDACC__)
template <typename T, bool TransA, bool TransB, class Epilogue> struct WgmmaProduct {
  static constexpr int kCluster = 2, kM = 128, kN = 128, kStages = 6;  // kM rows of a block
  static constexpr uint32_t kTileA = kM * 128, kTileB = kN * 128, kStage = kTileA + kTileB;
  static constexpr uint32_t kBox = 16 * 128, kBoxes = 8 * 2 * kBox;  // two boxes of c for each computing warp
  static constexpr uint32_t kShared = kStages * kStage + kBoxes + 8 * (2 * kStages + 2);
  static_assert(kShared == 229488, "wgmmaShared in Go");
  static constexpr int kLoaderRegisters = 40, kRegisters = 232;
  static_assert(registers_fit(2, kLoaderRegisters, kRegisters), "setmaxnreg would wait forever");

  const MatmulWgmmaParams& p;
  const uint32_t stages, boxes, barriers;

  __device__ explicit WgmmaProduct(const MatmulWgmmaParams& a)
      : p(a), stages(shared_address(shared_of_block(tiles_shared()))), boxes(stages + kStages * kStage), barriers(boxes + kBoxes) {}
  __device__ uint32_t full(int stage) const { return barriers + 8 * stage; }
  __device__ uint32_t empty(int stage) const { return barriers + 8 * (kStages + stage); }
  __device__ uint32_t turn(int w) const { return barriers + 8 * (2 * kStages + w); }  // of warpgroup w to multiply

  __device__ void run() const {
    if (threadIdx.x == 0) {
      for (int i = 0; i < kStages; i++) barrier_init(full(i), 1), barrier_init(empty(i), 4 * kCluster);
      for (int w = 0; w < 2; w++) barrier_init(turn(w), 4);
      barriers_ready();
    }
    __syncthreads();
    meet_cluster();  // no copy before the barriers of the other block are ready
    const int warpgroup = __shfl_sync(0xffffffff, threadIdx.x / 128, 0);
    if (warpgroup == 0) {
      fewer_registers<kLoaderRegisters>();
      if (warp() == 0 && lane() == 0) load();
      __syncwarp();
    } else {
      more_registers<kRegisters>();
      compute(warpgroup - 1);
    }
    meet_cluster();  // no block ends while the other one writes to it
  }

  __device__ void load() const {
    constexpr int kPart = kN / kCluster;  // columns of b that this block copies
    const int rank = blockIdx.x;
    Ring<kStages> ring;
#pragma unroll 1
    for (Shares s(p); s.next();) {
      const int row = (s.row * kCluster + rank) * kM, column = s.column * kN, part = column + rank * kPart;
#pragma unroll 1
      for (int k = s.first; k < s.first + s.count; k++, ring.next()) {
        barrier_wait(empty(ring.stage), ring.parity ^ 1);
        const uint32_t a = stages + ring.stage * kStage, b = a + kTileA + rank * kPart * 128, barrier = full(ring.stage);
        barrier_arrive_expecting(barrier, kStage);
        if constexpr (TransA) {
#pragma unroll
          for (int i = 0; i < kM; i += 64) copy_box(a + i * 128, p.a, barrier, row + i, 0, 64 * k, 0);
        } else {
          copy_box(a, p.a, barrier, 64 * k, 0, row, 0);
        }
        copy_box_to_blocks<kCluster>(b, p.b, barrier, TransB ? 64 * k : part, 0, TransB ? part : 64 * k, 0);
      }
    }
  }

  // The work of computing warpgroup w.
  __device__ void compute(int w) const {
    Ring<kStages> ring;
    uint32_t round = 0, stored = 0;
    int wait = w;  // shares of the other warpgroup before the next one of this warpgroup
#pragma unroll 1
    for (Shares s(p); s.next();) {
      if (wait > 0) {
        wait = 0;
        for (int i = 0; i < s.count; i++) ring.next();
        continue;
      }
      wait = 1;
      if (s.place < 0) Epilogue::prefetch(p, (s.row * kCluster + int(blockIdx.x)) * kM + warp() % 4 * 16, s.column * kN);
      barrier_wait(turn(w), (round++ & 1) ^ (w == 0));
      const int rows = p.m - (s.row * kCluster + int(blockIdx.x)) * kM;
      if constexpr (Epilogue::kReads) {
        make<2>(ring, s, w, stored);
      } else {
        if (rows > 64) make<2>(ring, s, w, stored);
        else make<1>(ring, s, w, stored);
      }
    }
    if (lane() == 0) store_wait_read<0>();
    __syncwarp();
  }

  // Makes and stores the first 64*Blocks rows of a share.
  template <int Blocks> __device__ __forceinline__ void make(Ring<kStages>& ring, const Shares& s, int w, uint32_t& stored) const {
    constexpr int kStepA = (TransA ? 2048 : 32) / 16, kStepB = (TransB ? 32 : 2048) / 16;  // from 16 of k to the next 16
    float d[Blocks][kN / 8][4];
    if (Blocks == 1) {  // defined here, these sums take no registers elsewhere
#pragma unroll
      for (int i = 0; i < kN / 2; i++) (&d[0][0][0])[i] = 0;
    }
    int previous = 0;
#pragma unroll
    for (int i = 0; i < Blocks; i++) hold(d[i]);
#pragma unroll 1
    for (int k = 0; k < s.count; k++, ring.next()) {
      barrier_wait(full(ring.stage), ring.parity);
      const uint64_t a = describe(stages + ring.stage * kStage, 8192), b = describe(stages + ring.stage * kStage + kTileA, 8192);
      __syncwarp();  // products want whole warps
      wgmma_begin();
#pragma unroll
      for (int kk = 0; kk < 4; kk++)
#pragma unroll
        for (int i = 0; i < Blocks; i++)
          WgmmaTiles<T, kN>::template multiply<TransA, TransB>(d[i], a + i * 8192 / 16 + kk * kStepA, b + kk * kStepB, k > 0 || kk > 0);
      wgmma_end();
      if (k + 1 == s.count && lane() == 0) barrier_arrive(turn(1 - w));
      __syncwarp();
      wgmma_wait<1>();
      if (k > 0) release(previous);
      previous = ring.stage;
    }
    wgmma_wait<0>();
#pragma unroll
    for (int i = 0; i < Blocks; i++) hold(d[i]);
    release(previous);
    if (s.place < 0) store<true>(d, s, stored);
    else store<false>(d, s, stored);
  }
  // Tells both blocks that this warp has read the stage.
  __device__ __forceinline__ void release(int stage) const {
    if (lane() < kCluster) barrier_arrive_at(empty(stage), lane());
  }

  // Stores this warp's sums of all steps of a tile, or of a part. `stored` counts the boxes that this warp has stored.
  template <bool Whole, int Blocks> __device__ __forceinline__ void store(float (&d)[Blocks][kN / 8][4], const Shares& s, uint32_t& stored) const {
    constexpr int kPanels = kN / 64;
    const bool narrow = Whole && p.out_type != kF32;
    const int in_tile = blockIdx.x * kM + warp() % 4 * 16, row = s.row * kCluster * kM + in_tile, column = s.column * kN;
    typename Epilogue::Panel panel;
    if (Whole) Epilogue::template begin<T>(p, panel, row, column);
#pragma unroll
    for (int u = 0; u < Blocks * kPanels; u++) {
      const int i = u / kPanels, j = u % kPanels * 8;
      if (Whole) Epilogue::template apply<T>(p, panel, d[i] + j, column + 8 * j);
      if (Whole && u + 1 < Blocks * kPanels)
        Epilogue::template begin<T>(p, panel, row + 64 * ((u + 1) / kPanels), column + 64 * ((u + 1) % kPanels));
      if (row + 64 * i >= p.m || column + 8 * j >= p.n) continue;
      const int to = (Whole ? row : s.place * kCluster * kM + in_tile) + 64 * i, at = (Whole ? column : 0) + 8 * j;
      if (narrow) {
        store_panel(p.c, d[i] + j, at, to, stored);
        if constexpr (Epilogue::kSiLU) {
#pragma unroll
          for (int e = 0; e < 32; e++) {
            float& v = d[i][j + e / 4][e % 4];
            v *= sigmoid_of<T>(v);
          }
          store_panel(p.silu, d[i] + j, at, to, stored);
        }
      } else {
#pragma unroll
        for (int half = 0; half < 8; half += 4) {
          const uint32_t box = next_box(stored);
#pragma unroll
          for (int h = 0; h < 4; h++)
#pragma unroll
            for (int e = 0; e < 2; e++) {
              const float* v = d[i][j + half + h] + 2 * e;
              store_shared(box + cell_of(16, lane() / 4 + 8 * e, 2 * h + lane() % 4 / 2) + lane() % 2 * 8, make_float2(v[0], v[1]));
            }
          store_box_of(Whole ? p.c : p.partial, box, 2 * (at + 8 * half), to);
        }
      }
    }
  }
  // Stores a panel in T.
  __device__ __forceinline__ void store_panel(const void* map, const float (*v)[4], int column, int row, uint32_t& stored) const {
    const uint32_t box = next_box(stored);
#pragma unroll
    for (int h = 0; h < 8; h += 2) {
      const uint32_t words[4] = {pair<T>(v[h][0], v[h][1]), pair<T>(v[h][2], v[h][3]), pair<T>(v[h + 1][0], v[h + 1][1]), pair<T>(v[h + 1][2], v[h + 1][3])};
      store_matrices(box + cell_of(16, lane() % 16, h + lane() / 16), words);
    }
    store_box_of(map, box, column, row);
  }
  // Returns a box of this warp in shared memory, when the last store but one has read it.
  __device__ __forceinline__ uint32_t next_box(uint32_t& stored) const {
    if (lane() == 0) store_wait_read<1>();
    __syncwarp();
    return boxes + ((warp() - 4) * 2 + stored++ % 2) * kBox;
  }
  __device__ __forceinline__ void store_box_of(const void* map, uint32_t box, int column, int row) const {
    fence_async();
    __syncwarp();
    if (lane() == 0) store_box(map, box, column, 0, row, 0), store_commit();
  }
};
#endif

// A tile that is cut, counted in tiles, and the places of its shares.
struct WgmmaTile { uint16_t row, column, first, count; };

struct MatmulSumSharesParams {
  const float* partial;  // [places,256,128]
  const void* bias;      // as in MatmulWgmmaParams
  const void* other;
  void* c;
  void* silu;            // [m,n], or null
  int32_t m, n, out_type;
  int32_t silu_grad;     // whether other is the argument of a SiLU
  WgmmaTile tiles[kMostClusters];
};

}  // namespace nsa

#ifdef NSA_CLUSTERS
#define NSA_CLUSTER(blocks) __cluster_dims__(blocks, 1, 1)
#else
#define NSA_CLUSTER(blocks)
#endif
// Defines nsa_matmul_wgmma_<name>_bf16; the name has n or t for a, then for b.
#define NSA_MATMUL_WGMMA(name, TransA, TransB, Epilogue)                                                                \
  extern "C" __global__ void NSA_CLUSTER(2) __launch_bounds__(384, 1)                                                   \
      nsa_matmul_wgmma_##name##_bf16(const __grid_constant__ nsa::MatmulWgmmaParams p) {                                \
    NSA_WGMMA_BODY(nsa::WgmmaProduct<nsa::bf16, TransA, TransB, nsa::Epilogue>(p).run();)                               \
  }
NSA_MATMUL_WGMMA(nt, false, true, Plain<false>)
NSA_MATMUL_WGMMA(nn, false, false, Plain<false>)
NSA_MATMUL_WGMMA(tn, true, false, Plain<false>)
NSA_MATMUL_WGMMA(nt_silu, false, true, Plain<true>)
NSA_MATMUL_WGMMA(nt_residual, false, true, With<nsa::AddOther>)
NSA_MATMUL_WGMMA(nn_silu_grad, false, false, With<nsa::TimesSiLUGrad>)

// matmul_sum_shares adds the shares of a tile and does what the epilogue does to whole tiles. The grid has the tiles along y. A thread adds four columns.
extern "C" __global__ void __launch_bounds__(256) nsa_matmul_sum_shares_bf16(const __grid_constant__ nsa::MatmulSumSharesParams p) {
  constexpr int kRows = 256, kCols = 128, kPlace = kRows * kCols;
  const nsa::WgmmaTile& tile = p.tiles[blockIdx.y];
  for (int i = blockIdx.x * 256 + threadIdx.x; i < kPlace / 4; i += gridDim.x * 256) {
    const int row = tile.row * kRows + i / (kCols / 4), col = tile.column * kCols + i % (kCols / 4) * 4;
    if (row >= p.m || col >= p.n) continue;
    const float4* at = reinterpret_cast<const float4*>(p.partial) + int64_t(tile.first) * (kPlace / 4) + i;
    float v[4] = {};
#pragma unroll 8
    for (int s = 0; s < tile.count; s++) {
      const float4 x = at[int64_t(s) * (kPlace / 4)];
      v[0] += x.x, v[1] += x.y, v[2] += x.z, v[3] += x.w;
    }
    const int64_t to = int64_t(row) * p.n + col;
#pragma unroll
    for (int j = 0; j < 4; j++) {
      if (p.bias != nullptr) v[j] += nsa::load_as(p.bias, nsa::kBF16, col + j);
      if (p.other == nullptr) continue;
      const float x = nsa::load_as(p.other, p.out_type, to + j);
      v[j] = p.silu_grad ? nsa::TimesSiLUGrad::of(v[j], x) : nsa::AddOther::of(v[j], x);
    }
    if (p.out_type == nsa::kF32) *reinterpret_cast<float4*>(static_cast<float*>(p.c) + to) = make_float4(v[0], v[1], v[2], v[3]);
    else *reinterpret_cast<uint2*>(static_cast<uint16_t*>(p.c) + to) = uint2{nsa::pair<nsa::bf16>(v[0], v[1]), nsa::pair<nsa::bf16>(v[2], v[3])};
    if (p.silu == nullptr) continue;
#pragma unroll
    for (int j = 0; j < 4; j++) v[j] *= nsa::sigmoid_of<nsa::bf16>(v[j]);
    *reinterpret_cast<uint2*>(static_cast<uint16_t*>(p.silu) + to) = uint2{nsa::pair<nsa::bf16>(v[0], v[1]), nsa::pair<nsa::bf16>(v[2], v[3])};
  }
}
