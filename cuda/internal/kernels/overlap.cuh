// Launches that begin before the launch before them has ended, in a captured graph on sm_90 and later: see Builder.Overlap.
#pragma once

namespace nsa {

// next_may_start lets the next launch start its blocks, where it overlaps this one and there is room, as soon as all blocks of this one have
// called it or ended.
__device__ __forceinline__ void next_may_start() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// await_previous waits until the launch before has ended and what it wrote is there. It does nothing in a launch that does not overlap.
__device__ __forceinline__ void await_previous() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

}  // namespace nsa
