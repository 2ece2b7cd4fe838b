// The kernels of Gorgonia's own ops, for run.cc.
#include "cuda_on_host.h"
inline unsigned long long atomicMin(unsigned long long* p, unsigned long long x) { return *p = *p < x ? *p : x; }
#include "../../stock/stock_copy.cu"
#include "../../stock/stock_elementwise.cu"
#include "../../stock/stock_reduce.cu"
#include "../../stock/stock_softmax.cu"
