// The kernels of selected attention by walks and by pairs, for run.cc.
#include "../../attention/attention_pairs.cu"
#include "../../attention/attention_wgmma_pairs_forward.cu"
#include "../../attention/attention_walk_forward.cu"
#include "../../attention/attention_walk_dq.cu"
