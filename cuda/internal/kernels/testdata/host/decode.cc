// The kernels of decoding, for run.cc.
#include "cuda_on_host.h"
#include "../../decode/cache_rows.cu"
#include "../../decode/decode.cu"
#include "../../decode/decode_cluster.cu"
