// The matrix product on tensor cores, for run.cc.
#include "../../matmul_tensor.cu"
