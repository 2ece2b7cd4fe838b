// The kernels of copies, fills and casts, for run.cc.
#include "cuda_on_host.h"
#include "../../memory/memory.cu"
