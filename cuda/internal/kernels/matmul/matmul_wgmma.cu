// Matrix products in bf16 for compute capability 9.0: c [m,n] = op(a) op(b) + bias, and what an epilogue makes of it: c + residual, c and
// silu(c), or c silu'(x) for the argument x of a SiLU. op(a) is [m,k], op(b) [k,n]; rows have no gaps. A transposed a is stored as [k,m], a
// transposed b as [n,k]. Rows of all matrices are multiples of 16 bytes. out_type says whether c is T or float32. c is written with =.
//
// A cluster of two blocks computes a tile of c of 256 x 128: each block has 128 rows. Along k a tile has steps of 64. Boxes of a and b pass
// through a ring of stages; each block copies its own rows of a to itself, and one half of the columns of b to both. One warp copies. Two
// warpgroups take tiles in turn: while one stores its sums, the other one multiplies. Rows and columns outside of c are not stored.
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
  uint8_t other[128];                  // of the residual or the argument of the SiLU, as c
  uint8_t partial[128];                // of the places [places,256,128], with the same boxes
  const void* bias;      // [n], or null
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

// An epilogue makes c of the sums.
//
//   of       c of a sum, with its bias, and an element of p.other
//   kReads   whether there is p.other
//   kSiLU    whether silu(c) is stored, too
//   kHalf    whether c is T
struct Plain {
  static constexpr bool kReads = false, kSiLU = false, kHalf = false;
  static __device__ float of(float sum, float) { return sum; }
};
struct AndSiLU : Plain { static constexpr bool kSiLU = true, kHalf = true; };
struct AddOther {
  static constexpr bool kReads = true, kSiLU = false, kHalf = false;
  static __device__ float of(float sum, float x) { return sum + x; }
};
struct TimesSiLUGrad {
  static constexpr bool kReads = true, kSiLU = false, kHalf = true;
  static __device__ float of(float sum, float x) {
    const float s = sigmoid_of<bf16>(x);
    return sum * (s * (1.0f + x * (1.0f - s)));
  }
};

#if defined(__CUDA_ARCH_FEAT_SM90_ALL) || !defined(__CUDACC__)
template <typename T, bool TransA, bool TransB, class Epilogue> struct WgmmaProduct {
  static constexpr int kCluster = 2, kM = 128, kN = 128, kStages = 5;  // kM rows of a block
  static constexpr uint32_t kTileA = kM * 128, kTileB = kN * 128, kStage = kTileA + kTileB;
  static constexpr uint32_t kBox = 16 * 128, kOwn = 4 * kBox;  // the boxes of a computing warp
  static constexpr uint32_t kShared = kStages * kStage + 8 * kOwn + 8 * (2 * kStages + 2 + 8);
  static_assert(kShared == 229536, "wgmmaShared in Go");
  static constexpr int kLoaderRegisters = 40, kRegisters = 232;
  static_assert(registers_fit(2, kLoaderRegisters, kRegisters), "setmaxnreg would wait forever");

  const MatmulWgmmaParams& p;
  const uint32_t stages, boxes, barriers;

  __device__ explicit WgmmaProduct(const MatmulWgmmaParams& a)
      : p(a), stages(shared_address(shared_of_block(tiles_shared()))), boxes(stages + kStages * kStage), barriers(boxes + 8 * kOwn) {}
  __device__ uint32_t full(int stage) const { return barriers + 8 * stage; }
  __device__ uint32_t empty(int stage) const { return barriers + 8 * (kStages + stage); }
  __device__ uint32_t turn(int w) const { return barriers + 8 * (2 * kStages + w); }  // of warpgroup w to multiply
  __device__ uint32_t fetched() const { return barriers + 8 * (2 * kStages + 2 + warp() - 4); }  // boxes of other for this computing warp
  __device__ uint32_t own() const { return boxes + (warp() - 4) * kOwn; }

  __device__ void run() const {
    if (threadIdx.x == 0) {
      for (int i = 0; i < kStages; i++) barrier_init(full(i), 1), barrier_init(empty(i), 4 * kCluster);
      for (int w = 0; w < 2; w++) barrier_init(turn(w), 4);
      for (int w = 0; w < 8; w++) barrier_init(barriers + 8 * (2 * kStages + 2 + w), 1);
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
      // Boxes that lie outside a or b are left out: their sums are not stored, and to fill them with zeros takes longer than to copy one.
      const int rows = TransA ? 64 * ((row < p.m) + (row + 64 < p.m)) : kM * (row < p.m);
      const uint32_t bytes = 128 * (rows + kPart * (1 + (column + kPart < p.n)));
#pragma unroll 1
      for (int k = s.first; k < s.first + s.count; k++, ring.next()) {
        barrier_wait(empty(ring.stage), ring.parity ^ 1);
        const uint32_t a = stages + ring.stage * kStage, b = a + kTileA + rank * kPart * 128, barrier = full(ring.stage);
        barrier_arrive_expecting(barrier, bytes);
        if constexpr (TransA) {
#pragma unroll
          for (int i = 0; i < kM; i += 64)
            if (row + i < p.m) copy_box(a + i * 128, p.a, barrier, row + i, 0, 64 * k, 0);
        } else if (row < p.m) {
          copy_box(a, p.a, barrier, 64 * k, 0, row, 0);
        }
        if (part < p.n) copy_box_to_blocks<kCluster>(b, p.b, barrier, TransB ? 64 * k : part, 0, TransB ? part : 64 * k, 0);
      }
    }
  }

  // The work of computing warpgroup w.
  __device__ void compute(int w) const {
    Ring<kStages> ring;
    uint32_t round = 0, fetches = 0;
    int wait = w;  // shares of the other warpgroup before the next one of this warpgroup
#pragma unroll 1
    for (Shares s(p); s.next();) {
      if (wait > 0) {
        wait = 0;
        for (int i = 0; i < s.count; i++) ring.next();
        continue;
      }
      wait = 1;
      if (Epilogue::kReads && s.place < 0) {
        if (narrow()) fetch<true>(place_of(s), 0);
        else fetch<false>(place_of(s), 0);
      }
      barrier_wait(turn(w), (round++ & 1) ^ (w == 0));
      if (p.m - (s.row * kCluster + int(blockIdx.x)) * kM > 64) make<2>(ring, s, w, fetches);
      else make<1>(ring, s, w, fetches);
    }
    if (lane() == 0) store_wait_read<0>();
    __syncwarp();
  }
  __device__ bool narrow() const { return Epilogue::kHalf || p.out_type != kF32; }  // c is T

  // Makes and stores the first 64*Blocks rows of a share.
  template <int Blocks> __device__ __forceinline__ void make(Ring<kStages>& ring, const Shares& s, int w, uint32_t& fetches) const {
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
    if (s.place >= 0) store<false, false>(d, s, fetches);
    else if (narrow()) store<true, true>(d, s, fetches);
    else store<true, false>(d, s, fetches);
  }
  // Tells both blocks that this warp has read the stage.
  __device__ __forceinline__ void release(int stage) const {
    if (lane() < kCluster) barrier_arrive_at(empty(stage), lane());
  }

  // Where this warp's sums of a share begin in c.
  struct Place { int row, column; };
  __device__ Place place_of(const Shares& s) const {
    return {(s.row * kCluster + int(blockIdx.x)) * kM + warp() % 4 * 16, s.column * kN};
  }
  // A warp copies its sums in rounds of four boxes. In T a round has two blocks of rows with two boxes of 64 columns each, in float32 one
  // block with boxes of 32 columns. Box b of a round is at the place that at returns.
  template <bool Narrow> static __device__ Place at(Place x, int round, int b) {
    if (Narrow) return {x.row + b / 2 * 64, x.column + b % 2 * 64};
    return {x.row + round * 64, x.column + b * 32};
  }
  __device__ bool inside(Place x) const { return x.row < p.m && x.column < p.n; }

  // Begins to copy a round of p.other to this warp's boxes, when its last stores have read them.
  template <bool Narrow> __device__ __forceinline__ void fetch(Place x, int round) const {
    if (lane() == 0) {
      store_wait_read<0>();
      uint32_t bytes = 0;
#pragma unroll
      for (int b = 0; b < 4; b++) bytes += inside(at<Narrow>(x, round, b)) ? kBox : 0;
      barrier_arrive_expecting(fetched(), bytes);
#pragma unroll
      for (int b = 0; b < 4; b++) {
        const Place from = at<Narrow>(x, round, b);
        if (inside(from)) copy_box(own() + b * kBox, p.other, fetched(), Narrow ? from.column : 2 * from.column, 0, from.row, 0);
      }
    }
    __syncwarp();
  }

  // Stores this warp's sums of a share: of all steps of a tile in T or float32, or of a part. `fetches` counts what fetch has copied.
  template <bool Whole, bool Narrow, int Blocks>
  __device__ __forceinline__ void store(float (&d)[Blocks][kN / 8][4], const Shares& s, uint32_t& fetches) const {
    constexpr bool kReads = Whole && Epilogue::kReads;
    const Place x = place_of(s);
    if (Whole && p.bias != nullptr) {
#pragma unroll
      for (int j = 0; j < kN / 8; j++) {
        const int column = x.column + 8 * j + 2 * (lane() % 4);
        if (column >= p.n) continue;
        const uint32_t both = static_cast<const uint32_t*>(p.bias)[column / 2];
        T bias[2];
        memcpy(bias, &both, sizeof both);
#pragma unroll
        for (int i = 0; i < Blocks * 4; i++) d[i / 4][j][i % 4] += to_float(bias[i % 2]);
      }
    }
#pragma unroll
    for (int round = 0; round < (Narrow ? 1 : Blocks); round++) {
      if (!kReads) wait_stores();
      else if (round > 0) fetch<Narrow>(x, round);
      if (kReads) barrier_wait(fetched(), fetches++ & 1);
      fill<kReads, Narrow, Blocks>(d, round);
      send<Narrow>(Whole ? p.c : p.partial, x, round, Whole ? 0 : s.place * kCluster * kM - s.row * kCluster * kM, Whole ? 0 : x.column);
    }
    if constexpr (Whole && Epilogue::kSiLU) {
#pragma unroll
      for (int i = 0; i < Blocks * kN / 2; i++) {
        float& v = (&d[0][0][0])[i];
        v *= sigmoid_of<T>(v);
      }
      wait_stores();
      fill<false, Narrow, Blocks>(d, 0);
      send<Narrow>(p.silu, x, 0, 0, 0);
    }
  }
  // Waits until this warp's stores have read its boxes.
  __device__ __forceinline__ void wait_stores() const {
    if (lane() == 0) store_wait_read<0>();
    __syncwarp();
  }
  // Fills this warp's boxes with a round of sums or, with kReads, with what the epilogue makes of them and of the boxes.
  template <bool kReads, bool Narrow, int Blocks>
  __device__ __forceinline__ void fill(float (&d)[Blocks][kN / 8][4], int round) const {
#pragma unroll
    for (int b = 0; b < (Narrow ? 2 * Blocks : 4); b++) {
      float (*v)[4] = d[Narrow ? b / 2 : round] + (Narrow ? b % 2 * 8 : 4 * b);
      const uint32_t box = own() + b * kBox;
      if (Narrow) {
#pragma unroll
        for (int h = 0; h < 8; h += 2) {
          const uint32_t cell = box + cell_of(16, lane() % 16, h + lane() / 16);
          uint32_t words[4];
          if (kReads) {
            read_fragments<false>(words, cell);
#pragma unroll
            for (int i = 0; i < 4; i++) {
              T y[2];
              memcpy(y, &words[i], sizeof y);
              float* to = v[h + i / 2] + i % 2 * 2;
              to[0] = Epilogue::of(to[0], to_float(y[0])), to[1] = Epilogue::of(to[1], to_float(y[1]));
            }
          }
#pragma unroll
          for (int i = 0; i < 4; i++) words[i] = pair<T>(v[h + i / 2][i % 2 * 2], v[h + i / 2][i % 2 * 2 + 1]);
          store_matrices(cell, words);
        }
      } else {
#pragma unroll
        for (int h = 0; h < 8; h++) {
          const uint32_t cell = box + cell_of(16, lane() / 4 + h % 2 * 8, h / 2 * 2 + lane() % 4 / 2) + lane() % 2 * 8;
          float2 sum = make_float2(v[h / 2][h % 2 * 2], v[h / 2][h % 2 * 2 + 1]);
          if (kReads) {
            const float2 other = load_shared(cell);
            sum = make_float2(Epilogue::of(sum.x, other.x), Epilogue::of(sum.y, other.y));
          }
          store_shared(cell, sum);
        }
      }
    }
  }
  // Begins to store a round at its place in c, or so many rows below and columns to the left of it.
  template <bool Narrow> __device__ __forceinline__ void send(const void* map, Place x, int round, int below, int left) const {
    fence_async();
    __syncwarp();
    if (lane() == 0) {
#pragma unroll
      for (int b = 0; b < 4; b++) {
        const Place to = at<Narrow>(x, round, b);
        if (inside(to)) store_box(map, own() + b * kBox, (Narrow ? 1 : 2) * (to.column - left), 0, to.row + below, 0);
      }
      store_commit();
    }
    __syncwarp();
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
  int32_t m, n, out_type;  // of the sums
  int32_t silu_grad;     // whether other is the argument of a SiLU
  int32_t turned;        // whether the sums are those of cᵀ [n,m]: then neither bias nor an epilogue
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
NSA_MATMUL_WGMMA(nt, false, true, Plain)
NSA_MATMUL_WGMMA(nn, false, false, Plain)
NSA_MATMUL_WGMMA(tn, true, false, Plain)
NSA_MATMUL_WGMMA(nt_silu, false, true, AndSiLU)
NSA_MATMUL_WGMMA(nt_residual, false, true, AddOther)
NSA_MATMUL_WGMMA(nn_silu_grad, false, false, TimesSiLUGrad)

// matmul_sum_shares adds the shares of a tile and does what the epilogue does to whole tiles. The grid has the tiles along y. A thread adds four columns.
extern "C" __global__ void __launch_bounds__(256) nsa_matmul_sum_shares_bf16(const __grid_constant__ nsa::MatmulSumSharesParams p) {
  constexpr int kRows = 256, kCols = 128, kPlace = kRows * kCols;
  const nsa::WgmmaTile& tile = p.tiles[blockIdx.y];
  for (int i = blockIdx.x * 256 + threadIdx.x; i < kPlace / 4; i += gridDim.x * 256) {
    const int r = p.turned ? i % kRows : i / (kCols / 4), quad = p.turned ? i / kRows : i % (kCols / 4);
    const int row = tile.row * kRows + r, col = tile.column * kCols + 4 * quad;
    if (row >= p.m || col >= p.n) continue;
    const float4* at = reinterpret_cast<const float4*>(p.partial) + int64_t(tile.first) * (kPlace / 4) + r * (kCols / 4) + quad;
    float v[4] = {};
#pragma unroll 8
    for (int s = 0; s < tile.count; s++) {
      const float4 x = at[int64_t(s) * (kPlace / 4)];
      v[0] += x.x, v[1] += x.y, v[2] += x.z, v[3] += x.w;
    }
    if (p.turned) {
#pragma unroll
      for (int j = 0; j < 4; j++) nsa::store_as(p.c, p.out_type, int64_t(col + j) * p.m + row, v[j]);
      continue;
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
