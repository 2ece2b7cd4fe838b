// Lets gorgonia.org/cu v0.9.6 compile with the headers of CUDA 13. cu calls five functions by the prototypes that they had
// in CUDA 12; the library still has these, the header of CUDA 13 gives their names to newer ones. With CUDA 12 this header
// changes nothing. It is found before the real one: CGO_CFLAGS="-I<this folder> -I<CUDA>/include".
#pragma once
#include_next <cuda.h>

#if CUDA_VERSION >= 13000

#undef cuCtxCreate
#undef cuMemAdvise
#undef cuMemPrefetchAsync
#undef cuGraphAddDependencies
#undef cuGraphGetEdges
#define cuCtxCreate cuCtxCreate_v2

CUresult CUDAAPI cuCtxCreate_v2(CUcontext *ctx, unsigned int flags, CUdevice dev);
CUresult CUDAAPI cuMemAdvise(CUdeviceptr ptr, size_t bytes, CUmem_advise advice, CUdevice dev);
CUresult CUDAAPI cuMemPrefetchAsync(CUdeviceptr ptr, size_t bytes, CUdevice to, CUstream stream);
CUresult CUDAAPI cuGraphAddDependencies(CUgraph graph, const CUgraphNode *from, const CUgraphNode *to, size_t n);
CUresult CUDAAPI cuGraphGetEdges(CUgraph graph, CUgraphNode *from, CUgraphNode *to, size_t *n);

#endif
