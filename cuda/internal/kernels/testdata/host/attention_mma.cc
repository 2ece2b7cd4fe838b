// The attention kernels on tensor cores, for run.cc.
#include "../../attention_mma_dkv.cu"
#include "../../attention_mma_dq.cu"
#include "../../attention_mma_forward.cu"
#include "../../select_mma.cu"
