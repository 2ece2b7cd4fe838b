// The instructions of matmul_mma.cuh for a host compiler: see cuda_on_host.h. Asynchronous copies are made when they are
// waited for and no earlier.
#pragma once

#include <deque>
#include <map>
#include <vector>

namespace nsa {

struct HostCopy { uint32_t to; const void* from; int bytes; };
struct HostCopies { std::vector<HostCopy> open; std::deque<std::vector<HostCopy>> groups; };
inline HostCopies& host_copies() {
  thread_local std::map<unsigned, HostCopies> all;
  return all[threadIdx.x];
}

extern thread_local float4 nsa_dynamic_shared[];
inline char* host_shared(uint32_t at) { return reinterpret_cast<char*>(nsa_dynamic_shared) + at; }
inline uint32_t shared_address(const void* p) { return uint32_t(static_cast<const char*>(p) - host_shared(0)); }

inline void copy_async(uint32_t to, const void* from, int bytes) { host_copies().open.push_back({to, from, bytes}); }
inline void copy_commit() {
  HostCopies& c = host_copies();
  c.groups.push_back(std::move(c.open));
  c.open.clear();
}
template <int N> void copy_wait() {
  HostCopies& c = host_copies();
  for (; c.groups.size() > N; c.groups.pop_front()) {
    for (const HostCopy& x : c.groups.front()) {
      if (x.bytes > 0 && uint64_t(x.from) % 16 != 0) abort();
      memset(host_shared(x.to), 0, 16);
      memcpy(host_shared(x.to), x.from, x.bytes);
    }
  }
}
inline void store_shared(uint32_t to, uint4 v) { memcpy(host_shared(to), &v, sizeof v); }

// Words that the lanes of a warp show each other.
struct HostWords { uint32_t v[6]; };
inline HostWords* host_words() {
  thread_local HostWords all[1024];
  return all + threadIdx.x / 32 * 32;
}

template <bool Transposed> void read_fragments(uint32_t (&v)[4], uint32_t from) {
  const int lane = host_lane();
  HostWords* words = host_words();
  words[lane].v[0] = from;
  host_sync_warp();
  for (int i = 0; i < 4; ++i) {
    uint16_t pair[2];
    for (int e = 0; e < 2; ++e) {
      const int row = Transposed ? 2 * (lane % 4) + e : lane / 4, col = Transposed ? lane / 4 : 2 * (lane % 4) + e;
      memcpy(pair + e, host_shared(words[8 * i + row].v[0]) + 2 * col, 2);
    }
    memcpy(&v[i], pair, 4);
  }
  host_sync_warp();
}

template <typename T> void multiply_fragments(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  const int lane = host_lane(), g = lane / 4, t = lane % 4;
  HostWords* words = host_words();
  words[lane] = {a[0], a[1], a[2], a[3], b0, b1};
  host_sync_warp();
  float x[2][16], y[2][16];
  const auto two = [](float* to, uint32_t word) {
    T both[2];
    memcpy(both, &word, 4);
    to[0] = to_float(both[0]), to[1] = to_float(both[1]);
  };
  for (int q = 0; q < 4; ++q) {
    for (int i = 0; i < 4; ++i) two(x[i % 2] + i / 2 * 8 + 2 * q, words[4 * g + q].v[i]);
    for (int e = 0; e < 2; ++e) {
      for (int h = 0; h < 2; ++h) two(y[e] + 8 * h + 2 * q, words[4 * (2 * t + e) + q].v[4 + h]);
    }
  }
  host_sync_warp();
  for (int r = 0; r < 2; ++r) {
    for (int e = 0; e < 2; ++e) {
      for (int k = 0; k < 16; ++k) c[2 * r + e] += x[r][k] * y[e][k];
    }
  }
}

} // namespace nsa
