// The attention kernels for all types, for run.cc.
#include "../../attention/attention_dkv.cu"
#include "../../attention/attention_dq.cu"
#include "../../attention/attention_forward.cu"
#include "../../attention/attention_index.cu"
#include "../../attention/select_blocks.cu"
