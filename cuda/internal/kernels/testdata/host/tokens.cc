// The kernels of embedding, cross entropy, documents, compression and AdamW, for run.cc.
#include "cuda_on_host.h"
#include "../../adamw/adamw.cu"
#include "../../adamw/muon.cu"
#include "../../compress/compress.cu"
#include "../../tokens/crossentropy.cu"
#include "../../tokens/documents.cu"
#include "../../tokens/embedding.cu"
#include "../../tokens/sort.cu"
