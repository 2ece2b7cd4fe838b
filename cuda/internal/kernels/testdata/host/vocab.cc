// The kernels of embedding, cross entropy, documents, compression and AdamW, for run.cc.
#include "cuda_on_host.h"
#include "../../optimizer/adamw.cu"
#include "../../optimizer/muon.cu"
#include "../../compress/compress.cu"
#include "../../vocab/cross_entropy.cu"
#include "../../documents/document_table.cu"
#include "../../vocab/embedding.cu"
#include "../../vocab/sort.cu"
