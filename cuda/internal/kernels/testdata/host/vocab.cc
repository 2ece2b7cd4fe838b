// The kernels of embedding, cross entropy and the largest logits, for run.cc.
#include "cuda_on_host.h"
#include "../../vocab/cross_entropy.cu"
#include "../../vocab/embedding.cu"
#include "../../vocab/sort.cu"
#include "../../vocab/top_k.cu"
