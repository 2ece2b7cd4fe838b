// The kernels of compression, for run.cc.
#include "cuda_on_host.h"
#include "../../compress/compress.cu"
