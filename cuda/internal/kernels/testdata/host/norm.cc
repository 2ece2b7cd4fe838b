// The kernels of RMSNorm and softmax, for run.cc.
#include "cuda_on_host.h"
#include "../../norm/rms_norm.cu"
#include "../../norm/softmax.cu"
