// The kernels of rows that linear layers of one input have, for run.cc.
#include "cuda_on_host.h"
inline void sincospif(float x, float* s, float* c) { *s = float(std::sin(x * M_PI)), *c = float(std::cos(x * M_PI)); }
#include "../../rows/columns.cu"
