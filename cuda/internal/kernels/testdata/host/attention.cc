// The attention kernels for all types, for run.cc.
#include "../../attention_dkv.cu"
#include "../../attention_dq.cu"
#include "../../attention_forward.cu"
#include "../../attention_index.cu"
#include "../../select.cu"
