// Instructions of sm_90a for attention kernels: products by a warpgroup of 128 threads (wgmma), barriers in shared memory
// (mbarrier), and copies of boxes of an array by tensor maps (TMA).
//
// A half-precision tile of R rows and C columns consists of panels of 64 columns: R rows of 128 bytes. The eight 16-byte cells of a
// row have the 128-byte swizzle of tensor maps and wgmma: cell i lies at place i ^ (row % 8). Panels begin at multiples of 1024 bytes.
#pragma once

#include "attention_mma.cuh"

namespace nsa {

// The wgmma descriptor of a tile; `panel` is the distance in bytes from one panel to the next. Adding n to a descriptor moves it
// by 16*n bytes: 16 columns of a panel are 32 bytes, 16 rows are 2048.
__device__ __forceinline__ uint64_t describe(uint32_t tile, uint32_t panel) {
  return uint64_t((tile & 0x3ffff) >> 4) | uint64_t(panel >> 4) << 16 | uint64_t(1024 >> 4) << 32 | 1ull << 62;
}

}  // namespace nsa

#ifndef __CUDACC__
#include <wgmma_on_host.h>
#else
namespace nsa {

// A barrier in shared memory. A phase ends when `count` threads have arrived and all expected bytes have been written. barrier_wait
// returns when the phase with this parity has ended.
__device__ __forceinline__ void barrier_init(uint32_t at, int count) {
  asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(at), "r"(count) : "memory");
}
// Makes initialised barriers visible to other threads and to copies by maps. Call it after the last barrier_init.
__device__ __forceinline__ void barriers_ready() {
  asm volatile("fence.mbarrier_init.release.cluster;\nfence.proxy.async.shared::cta;" ::: "memory");
}
__device__ __forceinline__ void barrier_arrive(uint32_t at) {
  asm volatile("mbarrier.arrive.shared.b64 _, [%0];" ::"r"(at) : "memory");
}
// Arrives for `count` threads.
__device__ __forceinline__ void barrier_arrive_for(uint32_t at, int count) {
  asm volatile("mbarrier.arrive.shared.b64 _, [%0], %1;" ::"r"(at), "r"(count) : "memory");
}
__device__ __forceinline__ void barrier_arrive_expecting(uint32_t at, uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(at), "r"(bytes) : "memory");
}
__device__ __forceinline__ void barrier_wait(uint32_t at, uint32_t parity) {
  asm volatile(
      "{.reg .pred p;\n"
      "again: mbarrier.try_wait.parity.shared.b64 p, [%0], %1;\n"
      "@!p bra again;}" ::"r"(at), "r"(parity) : "memory");
}
// __syncthreads for warps at different places of the code. The barrier must have the block's number of threads as its count. parity is
// the number of earlier meetings at this barrier, modulo 2.
__device__ __forceinline__ void meet(uint32_t at, uint32_t parity) { barrier_arrive(at), barrier_wait(at, parity); }
// The barrier counts this thread as arrived when all copies that it has begun by copy_cell are complete.
__device__ __forceinline__ void barrier_arrive_copied(uint32_t at) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(at) : "memory");
}
// Orders this thread's reads and writes of shared memory, and the writes that it has waited for, before later reads by wgmma, before
// writes by maps, and before the thread's next arrival at a barrier. Without it, an arrival does not wait for reads whose results have
// not been used yet.
__device__ __forceinline__ void fence_async() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// The numbered hardware barriers of the block. Number 0 is that of __syncthreads.
__device__ __forceinline__ void named_sync(int id, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}
__device__ __forceinline__ void named_arrive(int id, int threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

// Begins to copy the box at column c, group g, key t and batch row b by the tensor map of an array [B,T,Hkv,c]. The barrier counts the
// bytes that arrive.
__device__ __forceinline__ void copy_box(uint32_t to, const void* map, uint32_t barrier, int c, int g, int t, int b) {
  asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2,%3,%4,%5}], [%6];"
               ::"r"(to), "l"(map), "r"(c), "r"(g), "r"(t), "r"(b), "r"(barrier) : "memory");
}

// Begins to copy `bytes` bytes, a multiple of 16, to shared memory. The barrier counts the bytes that arrive.
__device__ __forceinline__ void copy_bytes(uint32_t to, const void* from, int bytes, uint32_t barrier) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
               ::"r"(to), "l"(from), "r"(bytes), "r"(barrier) : "memory");
}

// store_transposed (stmatrix) writes the transposes of four 8x8 matrices of 2-byte elements, which lanes hold in the layout of read_fragments.
// Lane l passes the address of row l%8 of the transpose of matrix l/8.
__device__ __forceinline__ void store_transposed(uint32_t to, const uint32_t (&v)[4]) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1,%2,%3,%4};"
               ::"r"(to), "r"(v[0]), "r"(v[1]), "r"(v[2]), "r"(v[3]) : "memory");
}

// Change the number of registers of a thread to N. All threads of a warpgroup must execute it.
template <int N> __device__ __forceinline__ void fewer_registers() { asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(N)); }
template <int N> __device__ __forceinline__ void more_registers() { asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(N)); }

// Products run asynchronously, in groups. Call wgmma_begin after all writes to a group's registers and before its first product, and
// wgmma_end after its last product. wgmma_wait<N> waits for all groups of this thread except the newest N. From wgmma_begin to
// wgmma_wait no code may touch the registers of the sums; hold keeps the compiler from moving such code there.
__device__ __forceinline__ void wgmma_begin() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void wgmma_end() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int N> __device__ __forceinline__ void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(N) : "memory");
}
template <int N> __device__ __forceinline__ void hold(float (&d)[N][4]) {
#pragma unroll
  for (int j = 0; j < N; j++)
#pragma unroll
    for (int i = 0; i < 4; i++) asm volatile("" : "+f"(d[j][i])::"memory");
}

// Wgmma<T, N> has the products of depth 16 with sums d [64,N]. Warp w of the group has the rows 16*w to 16*w+15 of d, as fragments with
// the layout of attention_mma.cuh. With add = 0 the sums are overwritten.
//
//   a_bt(d, a, b, add)   d += a·bᵀ; b [N,16] in a tile; a [64,16] in a tile, or as fragments
//   a_b(d, a, b, add)    d += a·b; b [16,N] in a tile; a as fragments
//   at_bt(d, a, b, add)  d += aᵀ·bᵀ; a [16,64] and b [N,16] in tiles
template <typename T, int N> struct Wgmma;

#define NSA_SUMS_4(j) "+f"(d[j][0]), "+f"(d[j][1]), "+f"(d[j][2]), "+f"(d[j][3])
#define NSA_SUMS_16(j) NSA_SUMS_4(j), NSA_SUMS_4(j + 1), NSA_SUMS_4(j + 2), NSA_SUMS_4(j + 3)
#define NSA_SUMS_32 NSA_SUMS_16(0)
#define NSA_SUMS_64 NSA_SUMS_16(0), NSA_SUMS_16(4)
#define NSA_SUMS_80 NSA_SUMS_64, NSA_SUMS_4(8), NSA_SUMS_4(9)
#define NSA_SUMS_48 NSA_SUMS_16(0), NSA_SUMS_4(4), NSA_SUMS_4(5)
#define NSA_SUMS_96 NSA_SUMS_64, NSA_SUMS_16(8)
#define NSA_SUMS_112 NSA_SUMS_64, NSA_SUMS_16(8), NSA_SUMS_4(12), NSA_SUMS_4(13)
#define NSA_SUMS_128 NSA_SUMS_112, NSA_SUMS_4(14), NSA_SUMS_4(15)
#define NSA_SUMS_192 NSA_SUMS_128, NSA_SUMS_16(16), NSA_SUMS_16(20)
#define NSA_SUMS_256 NSA_SUMS_192, NSA_SUMS_16(24), NSA_SUMS_16(28)
#define NSA_NAMES_32 "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15"
#define NSA_NAMES_64 "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31"
#define NSA_NAMES_80 NSA_NAMES_64 ",%32,%33,%34,%35,%36,%37,%38,%39"
#define NSA_NAMES_48 "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23"
#define NSA_NAMES_96 NSA_NAMES_80 ",%40,%41,%42,%43,%44,%45,%46,%47"
#define NSA_NAMES_112 NSA_NAMES_80 ",%40,%41,%42,%43,%44,%45,%46,%47,%48,%49,%50,%51,%52,%53,%54,%55"
#define NSA_NAMES_128 NSA_NAMES_112 ",%56,%57,%58,%59,%60,%61,%62,%63"
#define NSA_NAMES_192 NSA_NAMES_128 ",%64,%65,%66,%67,%68,%69,%70,%71,%72,%73,%74,%75,%76,%77,%78,%79,%80,%81,%82,%83,%84,%85,%86,%87,%88,%89,%90,%91,%92,%93,%94,%95"
#define NSA_NAMES_256 NSA_NAMES_192 ",%96,%97,%98,%99,%100,%101,%102,%103,%104,%105,%106,%107,%108,%109,%110,%111,%112,%113,%114,%115,%116,%117,%118,%119,%120,%121,%122,%123,%124,%125,%126,%127"
// Defines Wgmma<T, N>. `type` is the name of T in assembly; x0 to x5 are the assembly operands that follow the sums.
#define NSA_WGMMA(T, type, N, x0, x1, x2, x3, x4, x5)                                                                      \
  template <> struct Wgmma<T, N> {                                                                                     \
    static __device__ __forceinline__ void a_bt(float (&d)[N / 8][4], uint64_t a, uint64_t b, int add) {               \
      asm volatile("{.reg .pred p; setp.ne.b32 p, " x2 ", 0;\n"                                                        \
                   "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." type "." type " {" NSA_NAMES_##N "}, " x0 ", " x1 ", p, 1, 1, 0, 0;}" \
                   : NSA_SUMS_##N : "l"(a), "l"(b), "r"(add));                                                         \
    }                                                                                                                  \
    static __device__ __forceinline__ void a_bt(float (&d)[N / 8][4], const uint32_t (&a)[4], uint64_t b, int add) {   \
      asm volatile("{.reg .pred p; setp.ne.b32 p, " x5 ", 0;\n"                                                        \
                   "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." type "." type " {" NSA_NAMES_##N "}, "            \
                   "{" x0 "," x1 "," x2 "," x3 "}, " x4 ", p, 1, 1, 0;}"                                               \
                   : NSA_SUMS_##N : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add));                     \
    }                                                                                                                  \
    static __device__ __forceinline__ void a_b(float (&d)[N / 8][4], const uint32_t (&a)[4], uint64_t b, int add = 1) { \
      asm volatile("{.reg .pred p; setp.ne.b32 p, " x5 ", 0;\n"                                                        \
                   "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." type "." type " {" NSA_NAMES_##N "}, "            \
                   "{" x0 "," x1 "," x2 "," x3 "}, " x4 ", p, 1, 1, 1;}"                                               \
                   : NSA_SUMS_##N : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add));                     \
    }                                                                                                                  \
    static __device__ __forceinline__ void at_bt(float (&d)[N / 8][4], uint64_t a, uint64_t b, int add) {             \
      asm volatile("{.reg .pred p; setp.ne.b32 p, " x2 ", 0;\n"                                                        \
                   "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." type "." type " {" NSA_NAMES_##N "}, " x0 ", " x1 ", p, 1, 1, 1, 0;}" \
                   : NSA_SUMS_##N : "l"(a), "l"(b), "r"(add));                                                         \
    }                                                                                                                  \
  };
#define NSA_WGMMA_TYPES(...) NSA_WGMMA(bf16, "bf16", __VA_ARGS__) NSA_WGMMA(f16, "f16", __VA_ARGS__)
NSA_WGMMA_TYPES(32, "%16", "%17", "%18", "%19", "%20", "%21")
NSA_WGMMA_TYPES(48, "%24", "%25", "%26", "%27", "%28", "%29")
NSA_WGMMA_TYPES(64, "%32", "%33", "%34", "%35", "%36", "%37")
NSA_WGMMA_TYPES(80, "%40", "%41", "%42", "%43", "%44", "%45")
NSA_WGMMA_TYPES(96, "%48", "%49", "%50", "%51", "%52", "%53")
NSA_WGMMA_TYPES(112, "%56", "%57", "%58", "%59", "%60", "%61")
NSA_WGMMA_TYPES(128, "%64", "%65", "%66", "%67", "%68", "%69")
NSA_WGMMA_TYPES(192, "%96", "%97", "%98", "%99", "%100", "%101")
NSA_WGMMA_TYPES(256, "%128", "%129", "%130", "%131", "%132", "%133")

}  // namespace nsa
#endif
