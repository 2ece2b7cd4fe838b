// The attention kernels on tensor cores, for run.cc.
#include "../../attention/attention_mma_dkv.cu"
#include "../../attention/attention_mma_dq.cu"
#include "../../attention/attention_mma_forward.cu"
#include "../../attention/select_blocks_mma.cu"
#include "../../attention/attention_wgmma_forward.cu"
#include "../../attention/attention_wgmma_dkv.cu"
#include "../../attention/attention_wgmma_dq.cu"
#include "../../attention/select_blocks_wgmma.cu"
