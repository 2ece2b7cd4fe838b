// Package cublaslt computes matrix products with NVIDIA's cuBLASLt, which is opened at run time. Nothing of CUDA is needed to
// build it, and no C compiler.
//
//	lib, err := cublaslt.Open(dev) // *Missing where there is no such library
//	plan, err := lib.Prepare(kernels.Product{Type: kernels.BF16, Out: kernels.BF16, M: m, N: n, K: k, TransB: true})
//	err = plan.Run(stream, &driver.Launched{Op: "linear"}, kernels.ProductAddresses{A: x, B: w, C: y, Work: work}) // of plan.WorkBytes()
//
// Products mean what they mean in package kernels: row-major, with the transposes, distances and batches of kernels.Product,
// and float32 sums. Sizes that the library refuses are a *graph.Unsupported error.
//
// The same plan computes the same bits each time, in a captured graph as well: its algorithm is chosen when it is prepared,
// without measuring, and partial sums are only ever added in a fixed order and in float32. Two machines agree if they have the
// same library and the same kind of GPU ("Results reproducibility" in the cuBLAS documentation).
//
// Constants and layouts are those of cublasLt.h of CUDA 12 and 13, which agree in all that is used here.
package cublaslt
