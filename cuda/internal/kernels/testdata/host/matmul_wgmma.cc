// The matrix product on warpgroups, for run.cc.
#include "../../matmul/matmul_wgmma.cu"
