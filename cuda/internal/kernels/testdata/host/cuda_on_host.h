// What the kernels of this folder use of CUDA C++, for a host compiler: the threads of a block are fibers of one thread of
// the host, which run in turn and change at barriers and at exchanges within a warp. For tests without a GPU; it knows
// nothing of timing, and of races only what two orders of execution show (nsa_host_order): one block of a cluster after
// the other from barrier to barrier of the cluster, in it one warp after the other, and in that one thread after the other.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <immintrin.h>
#include <utility>

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __grid_constant__
#define __launch_bounds__(...)
#define __cluster_dims__(...)
#define __shared__ thread_local
#define __align__(n) __attribute__((aligned(n)))

struct alignas(8) int2 { int x, y; };
struct uint2 { unsigned x, y; };
struct alignas(16) uint4 { unsigned x, y, z, w; };
struct alignas(16) int4 { int x, y, z, w; };
struct alignas(8) float2 { float x, y; };
struct alignas(16) float4 { float x, y, z, w; };
inline float2 make_float2(float x, float y) { return {x, y}; }
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }

struct __nv_bfloat16 { uint16_t bits; };
struct __half { uint16_t bits; };
struct alignas(4) __nv_bfloat162 { __nv_bfloat16 x, y; };
struct alignas(4) __half2 { __half x, y; };
inline float __bfloat162float(__nv_bfloat16 v) {
  const uint32_t u = uint32_t(v.bits) << 16;
  float f;
  memcpy(&f, &u, 4);
  return f;
}
inline __nv_bfloat16 __float2bfloat16_rn(float f) {
  uint32_t u;
  memcpy(&u, &f, 4);
  if (f != f) return {0x7fff};
  return {uint16_t((u + 0x7fff + (u >> 16 & 1)) >> 16)};
}
inline float __half2float(__half v) { return _cvtsh_ss(v.bits); }
inline __half __float2half_rn(float f) { return {_cvtss_sh(f, 0)}; }
inline float2 __bfloat1622float2(__nv_bfloat162 v) { return {__bfloat162float(v.x), __bfloat162float(v.y)}; }
inline float2 __half22float2(__half2 v) { return {__half2float(v.x), __half2float(v.y)}; }

struct Index3 { unsigned x, y, z; };
extern thread_local Index3 threadIdx, blockIdx, blockDim, gridDim;

bool host_sync_block(bool vote);  // whether a thread voted so
void host_sync_warp();
void host_phase();  // a phase of a barrier in shared memory has ended
void host_wait(bool (*over)(const void*), const void* what);  // lets other threads run until over(what)
uint64_t host_exchange(uint64_t mine, int lane);  // what `lane` of this warp gave
unsigned host_ballot(bool vote);
int host_lane();
[[noreturn]] void host_fail(const char* what);

// An operation of a whole warp: what each lane gives, its results among it, goes to `all` when the last lane is here.
void host_warp(void* mine, void (*all)(void* const* lanes));

// Addresses in the dynamic shared memory are offsets. There `bytes` must be its own, the address a multiple of them, and no
// other warp may touch them before the next barrier, but that all of them read.
const void* host_read(uint32_t at, int bytes);
void* host_write(uint32_t at, int bytes);
uint32_t host_shared_address(const void* p);
char* host_shared_of_block();

// Asynchronous copies of `bytes` and zeros up to `size` are made when this thread waits for them and no earlier; until then
// there are NaN, which nothing may overwrite. host_copy_wait waits for all groups of copies but the newest.
void host_copy(uint32_t to, int size, const void* from, int bytes);
void host_copy_commit();
void host_copy_wait(int newest);

inline void __syncthreads() { host_sync_block(false); }
inline int __syncthreads_or(int vote) { return host_sync_block(vote != 0); }
inline void __syncwarp() { host_sync_warp(); }
template <typename V> V host_shuffle(V v, int lane) {
  uint64_t word = 0;
  memcpy(&word, &v, sizeof v);
  word = host_exchange(word, lane);
  memcpy(&v, &word, sizeof v);
  return v;
}
template <typename V> V __shfl_xor_sync(unsigned, V v, int mask) { return host_shuffle(v, host_lane() ^ mask); }
template <typename V> V __shfl_up_sync(unsigned, V v, int by) {
  return host_shuffle(v, host_lane() >= by ? host_lane() - by : host_lane());
}
template <typename V> V __shfl_down_sync(unsigned, V v, int by) {
  return host_shuffle(v, host_lane() + by > 31 ? host_lane() : host_lane() + by);
}
template <typename V> V __shfl_sync(unsigned, V v, int lane) { return host_shuffle(v, lane); }
inline unsigned __ballot_sync(unsigned, bool vote) { return host_ballot(vote); }
inline bool __any_sync(unsigned, bool vote) { return host_ballot(vote) != 0; }
inline bool __all_sync(unsigned, bool vote) { return host_ballot(!vote) == 0; }
template <typename V, class F> V host_reduce(V v, F f) {
  for (int bit = 1; bit < 32; bit *= 2) v = f(v, __shfl_xor_sync(0xffffffff, v, bit));
  return v;
}
inline unsigned __reduce_max_sync(unsigned, unsigned v) { return host_reduce(v, [](unsigned x, unsigned y) { return std::max(x, y); }); }
inline int __reduce_min_sync(unsigned, int v) { return host_reduce(v, [](int x, int y) { return std::min(x, y); }); }
inline int __reduce_add_sync(unsigned, int v) { return host_reduce(v, [](int x, int y) { return x + y; }); }
inline unsigned __reduce_or_sync(unsigned, unsigned v) { return host_reduce(v, [](unsigned x, unsigned y) { return x | y; }); }
template <typename V> unsigned __match_any_sync(unsigned, V v) {
  unsigned same = 0;
  for (int lane = 0; lane < 32; lane++) same |= unsigned(host_shuffle(v, lane) == v) << lane;
  return same;
}
using std::isfinite;
inline float __expf(float x) { return std::exp(x); }
inline float __log2f(float x) { return std::log2(x); }
inline float __fdividef(float x, float y) { return x / y; }
inline void sincospif(float x, float* s, float* c) { *s = float(std::sin(x * M_PI)), *c = float(std::cos(x * M_PI)); }
inline float __uint_as_float(unsigned x) {
  float f;
  memcpy(&f, &x, 4);
  return f;
}
inline int __float_as_int(float f) {
  int x;
  memcpy(&x, &f, 4);
  return x;
}
inline float __fmul_rn(float x, float y) { return x * y; }  // compiled without contraction
inline float __fadd_rn(float x, float y) { return x + y; }
inline float __fsub_rn(float x, float y) { return x - y; }
template <typename V> void __stcs(V* to, V x) { *to = x; }
template <typename V> V __ldcs(const V* from) { return *from; }
inline int __ffsll(long long x) { return __builtin_ffsll(x); }
inline int __ffs(unsigned x) { return __builtin_ffs(int(x)); }
inline unsigned __umulhi(unsigned x, unsigned y) { return unsigned(uint64_t(x) * y >> 32); }
inline int __popc(unsigned x) { return __builtin_popcount(x); }
template <typename V> V __ldcg(const V* p) { return *p; }
// Threads of the host share the blocks of a launch, so what blocks do to memory together is atomic here, too.
inline int atomicAdd(int* p, int x) { return __atomic_fetch_add(p, x, __ATOMIC_SEQ_CST); }
inline unsigned atomicOr(unsigned* p, unsigned x) { return __atomic_fetch_or(p, x, __ATOMIC_SEQ_CST); }
inline int atomicAnd(int* p, int x) { return __atomic_fetch_and(p, x, __ATOMIC_SEQ_CST); }
inline int atomicMax(int* p, int x) {
  int old = __atomic_load_n(p, __ATOMIC_SEQ_CST);
  while (old < x && !__atomic_compare_exchange_n(p, &old, x, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST)) {}
  return old;
}
inline void __threadfence() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }

template <typename A, typename B> auto max(A a, B b) -> decltype(a + b) { return a > b ? a : b; }
template <typename A, typename B> auto min(A a, B b) -> decltype(a + b) { return a < b ? a : b; }
