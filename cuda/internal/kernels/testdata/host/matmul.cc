// The matrix product on tensor cores, for run.cc.
#include "../../matmul/matmul_tensor.cu"
