// The kernel of packed documents, for run.cc.
#include "cuda_on_host.h"
#include "../../documents/document_table.cu"
