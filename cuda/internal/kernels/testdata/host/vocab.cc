// The kernels of embedding and cross entropy, for run.cc.
#include "cuda_on_host.h"
#include "../../vocab/cross_entropy.cu"
#include "../../vocab/embedding.cu"
#include "../../vocab/sort.cu"
