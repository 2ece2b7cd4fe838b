// The instructions of matmul_wgmma.cuh for a host compiler: see wgmma_on_host.h.
#pragma once

#include "wgmma_on_host.h"

namespace nsa {

inline void meet_cluster() { cluster_arrive(), cluster_wait(); }
inline void barrier_arrive_at(uint32_t at, int block) { host_arrive(*peer(&host_shared<HostBarrier>(at), block), 1, 0); }

template <int N> void copy_box_to_blocks(uint32_t to, const void* map, uint32_t barrier, int c, int g, int t, int b) {
  const HostMap& m = *static_cast<const HostMap*>(map);
  const int64_t bytes = 128 * m.rows * m.heads;
  copy_box(to, map, barrier, c, g, t, b);
  for (int block = 0; block < N; block++) {
    if (block == int(blockIdx.x)) continue;
    memcpy(peer(&host_shared<char>(to), block), &host_shared<char>(to), bytes);
    host_arrive(*peer(&host_shared<HostBarrier>(barrier), block), 0, int(-bytes));
  }
}

inline void store_box(const void* map, uint32_t from, int c, int g, int t, int b) {
  const HostMap& m = *static_cast<const HostMap*>(map);
  for (int r = 0; r < m.rows * m.heads; r++)
    for (int i = 0; i < 64; i++) {
      const int64_t row = t + r / m.heads, head = g + r % m.heads;
      const uint32_t place = from + r * 128 + i * 2;
      if (c + i < m.dims[0] && head < m.dims[1] && row < m.dims[2])
        memcpy(const_cast<char*>(m.array) + 2 * (((b * m.dims[2] + row) * m.dims[1] + head) * m.dims[0] + c + i), &host_shared<uint16_t>(place ^ (place >> 7 & 7) << 4), 2);
    }
}
inline void store_commit() {}
inline float2 load_shared(uint32_t from) { return host_shared<float2>(from); }
template <int N> void store_wait_read() {}

struct HostStored { uint32_t to; const uint32_t* v; };
inline void store_matrices(uint32_t to, const uint32_t (&v)[4]) {
  HostStored mine{to, v};
  host_warp(&mine, [](void* const* lanes) {
    for (int i = 0; i < 4; i++)
      for (int r = 0; r < 8; r++) {
        uint32_t row[4];
        for (int c = 0; c < 4; c++) row[c] = static_cast<HostStored*>(lanes[4 * r + c])->v[i];
        memcpy(host_write(static_cast<HostStored*>(lanes[8 * i + r])->to, 16), row, 16);
      }
  });
}

template <typename T, int N> using WgmmaTiles = Wgmma<T, N>;

}  // namespace nsa
