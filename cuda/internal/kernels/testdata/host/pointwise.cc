// The kernels of activations, sums, gates and RoPE, for run.cc.
#include "cuda_on_host.h"
#include "../../pointwise/elementwise.cu"
#include "../../pointwise/gated_sum.cu"
#include "../../pointwise/rope.cu"
