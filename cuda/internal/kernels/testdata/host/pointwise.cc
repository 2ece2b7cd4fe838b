// The kernels of ops over elements and rows, for run.cc.
#include "cuda_on_host.h"
#include "../../linear/columns.cu"
#include "../../pointwise/elementwise.cu"
#include "../../pointwise/gated_sum.cu"
#include "../../norm/rms_norm.cu"
#include "../../pointwise/rope.cu"
#include "../../sums/sums.cu"
#include "../../norm/softmax.cu"
