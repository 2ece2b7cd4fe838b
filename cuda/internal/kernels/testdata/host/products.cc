// The products of tensor cores, of the 32 lanes of a warp at once, for mma_on_host.h.
#include "../../common.cuh"
#include "mma_on_host.h"

namespace nsa {

// widen returns 8 elements as float32.
static inline __m256 widen(const bf16* p) {
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_load_si128(reinterpret_cast<const __m128i*>(p))), 16));
}
static inline __m256 widen(const f16* p) { return _mm256_cvtph_ps(_mm_load_si128(reinterpret_cast<const __m128i*>(p))); }

template <typename T> void host_product(void* const* lanes) {
  alignas(32) T a[16][16], b[16][8];
  alignas(32) float x[16][16], c[16][8];
  for (int l = 0; l < 32; l++) {
    const HostProduct& mine = *static_cast<HostProduct*>(lanes[l]);
    const int g = l / 4, t = l % 4;
    for (int i = 0; i < 4; i++) memcpy(&a[g + i % 2 * 8][i / 2 * 8 + 2 * t], mine.a + i, 4);
    for (int i = 0; i < 2; i++) {
      T two[2];
      memcpy(two, mine.b + i, 4);
      b[8 * i + 2 * t][g] = two[0], b[8 * i + 2 * t + 1][g] = two[1];
      memcpy(&c[g + 8 * i][2 * t], mine.c + 2 * i, 8);
    }
  }
  __m256 y[16];
  for (int k = 0; k < 16; k++) y[k] = widen(b[k]);
  for (int r = 0; r < 16; r++) {
    _mm256_store_ps(x[r], widen(a[r])), _mm256_store_ps(x[r] + 8, widen(a[r] + 8));
    __m256 sum = _mm256_load_ps(c[r]);
    for (int k = 0; k < 16; k++) sum = _mm256_fmadd_ps(_mm256_set1_ps(x[r][k]), y[k], sum);
    _mm256_store_ps(c[r], sum);
  }
  for (int l = 0; l < 32; l++)
    for (int i = 0; i < 2; i++) memcpy(static_cast<HostProduct*>(lanes[l])->c + 2 * i, &c[l / 4 + i * 8][2 * (l % 4)], 8);
}

template void host_product<bf16>(void* const* lanes);
template void host_product<f16>(void* const* lanes);

}  // namespace nsa
