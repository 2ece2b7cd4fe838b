// The kernels of ops over elements and rows, for run.cc.
#include "cuda_on_host.h"
#include "../../rows/columns.cu"
#include "../../rows/elementwise.cu"
#include "../../rows/gate.cu"
#include "../../rows/rmsnorm.cu"
#include "../../rows/rope.cu"
#include "../../rows/rows.cu"
#include "../../rows/softmax.cu"
