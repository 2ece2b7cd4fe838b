// The kernels of sums of rows and of partial results, for run.cc.
#include "cuda_on_host.h"
#include "../../sums/sums.cu"
