// The kernels of AdamW and Muon, for run.cc.
#include "cuda_on_host.h"
#include "../../optimizer/adamw.cu"
#include "../../optimizer/muon.cu"
