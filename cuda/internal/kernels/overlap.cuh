// Overlapping launches: a launch may begin before the previous one has ended. Only in a captured graph, from sm_90 on; see
// Builder.Overlap.
#pragma once

namespace nsa {

// next_may_start: when all blocks of this launch have called it or ended, the next launch may start its blocks, if it overlaps this one.
__device__ __forceinline__ void next_may_start() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// await_previous waits until the previous launch has ended and its writes are visible. It does nothing in a launch that does not overlap.
__device__ __forceinline__ void await_previous() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

}  // namespace nsa
