// The matrix products, for run.cc. That on warpgroups is in matmul_wgmma.cc.
#include "cuda_on_host.h"
#define alignas(n) __align__(n)  // matmul.cu has it behind __shared__
#include "../../matmul/matmul.cu"
#include "../../matmul/matmul_tensor.cu"
