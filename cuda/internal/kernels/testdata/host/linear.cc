// The kernels of linear layers, for run.cc.
#include "cuda_on_host.h"
#include "../../linear/columns.cu"
#include "../../linear/few_rows.cu"
