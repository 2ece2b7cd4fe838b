// The instructions of attention_wgmma.cuh for a host compiler: see cuda_on_host.h. Products and copies are made when they are begun,
// and what they read and write is not held to barriers: that a kernel waits for them shows on a GPU alone.
#pragma once

#include "mma_on_host.h"

namespace nsa {

template <typename V> V& host_shared(uint32_t at) { return *reinterpret_cast<V*>(host_shared_of_block() + at); }

struct HostBarrier { uint32_t count : 15, missing : 15, parity : 1; int32_t bytes; };  // missing: threads of this phase
inline void host_arrive(HostBarrier& b, int threads, int bytes) {
  b.missing -= threads, b.bytes += bytes;
  if (b.missing == 0 && b.bytes == 0) b.missing = b.count, b.parity ^= 1, host_phase();
}
inline void barrier_init(uint32_t at, int count) { host_shared<HostBarrier>(at) = {uint32_t(count), uint32_t(count), 0, 0}; }
inline void barriers_ready() {}
inline void barrier_arrive(uint32_t at) { host_arrive(host_shared<HostBarrier>(at), 1, 0); }
inline void barrier_arrive_for(uint32_t at, int count) { host_arrive(host_shared<HostBarrier>(at), count, 0); }
inline void barrier_arrive_expecting(uint32_t at, uint32_t bytes) { host_arrive(host_shared<HostBarrier>(at), 1, int(bytes)); }
inline void barrier_wait(uint32_t at, uint32_t parity) {
  const std::pair<HostBarrier*, uint32_t> what{&host_shared<HostBarrier>(at), parity};
  host_wait([](const void* p) {
    const auto& [barrier, parity] = *static_cast<const std::pair<HostBarrier*, uint32_t>*>(p);
    return barrier->parity != parity;
  }, &what);
}
inline void meet(uint32_t at, uint32_t parity) { barrier_arrive(at), barrier_wait(at, parity); }
inline void barrier_arrive_copied(uint32_t at) { copies_arrived(), barrier_arrive(at); }
inline void fence_async() {}

inline thread_local struct HostNamed { int here; long round; } host_named[16];
inline void named_arrive(int id, int threads) {
  HostNamed& b = host_named[id];
  if (++b.here == threads) b.here = 0, b.round++;
}
inline void named_sync(int id, int threads) {
  const std::pair<long, HostNamed*> what{host_named[id].round, host_named + id};
  named_arrive(id, threads);
  host_wait([](const void* p) {
    const auto& [round, barrier] = *static_cast<const std::pair<long, HostNamed*>*>(p);
    return barrier->round != round;
  }, &what);
}

// A map as the tests make it.
struct HostMap { const char* array; int64_t dims[4], heads, rows; };
inline void copy_box(uint32_t to, const void* map, uint32_t barrier, int c, int g, int t, int b) {
  const HostMap& m = *static_cast<const HostMap*>(map);
  for (int r = 0; r < m.rows * m.heads; r++)
    for (int i = 0; i < 8; i++) {
      const int64_t row = t + r / m.heads, head = g + r % m.heads;
      uint16_t cell[8] = {};
      for (int e = 0; e < 8; e++)
        if (c + 8 * i + e < m.dims[0] && head < m.dims[1] && row < m.dims[2])
          memcpy(cell + e, m.array + 2 * (((b * m.dims[2] + row) * m.dims[1] + head) * m.dims[0] + c + 8 * i + e), 2);
      const uint32_t place = to + r * 128 + i * 16;
      memcpy(&host_shared<uint4>(place ^ (place >> 7 & 7) << 4), cell, 16);
    }
  host_arrive(host_shared<HostBarrier>(barrier), 0, int(-128 * m.rows * m.heads));
}

inline void copy_bytes(uint32_t to, const void* from, int bytes, uint32_t barrier) {
  memcpy(&host_shared<char>(to), from, bytes);
  host_arrive(host_shared<HostBarrier>(barrier), 0, -bytes);
}

struct HostTurned { uint32_t to; const uint32_t* v; };
inline void store_transposed(uint32_t to, const uint32_t (&v)[4]) {
  HostTurned mine{to, v};
  host_warp(&mine, [](void* const* lanes) {
    for (int i = 0; i < 4; i++) {
      uint16_t x[8][8];
      for (int l = 0; l < 32; l++) memcpy(&x[l / 4][l % 4 * 2], static_cast<HostTurned*>(lanes[l])->v + i, 4);
      for (int r = 0; r < 8; r++) {
        uint16_t row[8];
        for (int c = 0; c < 8; c++) row[c] = x[c][r];
        memcpy(host_write(static_cast<HostTurned*>(lanes[8 * i + r])->to, 16), row, 16);
      }
    }
  });
}

template <int N> void fewer_registers() {}
template <int N> void more_registers() {}
inline void wgmma_begin() {}
inline void wgmma_end() {}
template <int N> void wgmma_wait() {}
template <int N> void hold(float (&)[N][4]) {}

// The element of 16 bits at a place of a tile without the exchange of its cells, and a pair of them.
inline uint32_t host_element(const char* shared, uint32_t place) {
  uint16_t v;
  memcpy(&v, shared + (place ^ (place >> 7 & 7) << 4), 2);
  return v;
}
inline uint32_t host_both(const char* shared, uint32_t place, int further) {
  return host_element(shared, place) | host_element(shared, place + further) << 16;
}

template <typename T, int N> struct Wgmma {
  struct Operands { float (*d)[4]; const uint32_t* a; uint64_t b; int add; };
  // One operation of the warp, since its fibers change at each.
  template <bool TransB> static void multiply(float (&d)[N / 8][4], const uint32_t (&a)[4], uint64_t b, int add) {
    Operands mine{d, a, b, add};
    host_warp(&mine, [](void* const* lanes) {
      const char* shared = host_shared_of_block();
      HostProduct products[32];
      void* given[32];
      for (int j = 0; j < N / 8; j++) {
        for (int l = 0; l < 32; l++) {
          const Operands& o = *static_cast<Operands*>(lanes[l]);
          const int g = l / 4, t = l % 4, further = TransB ? 2 : 128;
          uint32_t right = uint32_t(o.b & 0x3fff) * 16;
          right += TransB ? g * 128 + t * 4 + j * 1024 : j / 8 * uint32_t(o.b >> 16 & 0x3fff) * 16 + 2 * t * 128 + (j % 8 * 8 + g) * 2;
          if (!o.add) memset(o.d[j], 0, sizeof o.d[j]);
          products[l] = {o.d[j], o.a, {host_both(shared, right, further), host_both(shared, right + (TransB ? 16 : 1024), further)}};
          given[l] = &products[l];
        }
        host_product<T>(given);
      }
    });
  }
  template <bool TransA, bool TransB> static void multiply(float (&d)[N / 8][4], uint64_t a, uint64_t b, int add) {
    const int row = threadIdx.x / 32 % 4 * 16 + host_lane() / 4, t = host_lane() % 4;
    const uint32_t left = uint32_t(a & 0x3fff) * 16 + (TransA ? 2 * t * 128 + row * 2 : row * 128 + 4 * t);
    uint32_t x[4];
    for (int i = 0; i < 4; i++)
      x[i] = host_both(host_shared_of_block(), left + (TransA ? i / 2 * 1024 + i % 2 * 16 : i % 2 * 1024 + i / 2 * 16), TransA ? 128 : 2);
    multiply<TransB>(d, x, b, add);
  }
  static void a_bt(float (&d)[N / 8][4], uint64_t a, uint64_t b, int add) { multiply<false, true>(d, a, b, add); }
  static void a_bt(float (&d)[N / 8][4], const uint32_t (&a)[4], uint64_t b, int add) { multiply<true>(d, a, b, add); }
  static void at_bt(float (&d)[N / 8][4], uint64_t a, uint64_t b, int add) { multiply<true, true>(d, a, b, add); }
  static void a_b(float (&d)[N / 8][4], const uint32_t (&a)[4], uint64_t b, int add = 1) { multiply<false>(d, a, b, add); }
};

}  // namespace nsa
