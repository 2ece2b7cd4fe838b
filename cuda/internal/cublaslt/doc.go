// Package cublaslt computes matrix products with NVIDIA's cuBLASLt, which is opened at run time. The build needs
// neither CUDA nor a C compiler.
//
//	lib, err := cublaslt.Open(dev) // *Missing without such a library
//	plan, err := lib.Prepare(kernels.Product{Type: kernels.BF16, Out: kernels.BF16, M: m, N: n, K: k, TransB: true})
//	err = plan.Run(stream, &driver.Launched{Op: "linear"}, kernels.ProductAddresses{A: x, B: w, C: y, Work: work}) // of plan.WorkBytes()
//
// Products are those of package kernels: row-major, with the transposes, distances and batches of kernels.Product, and
// float32 sums. A size that the library refuses is a *graph.Unsupported error.
//
// The same plan computes the same bits each time, in a captured graph as well: its algorithm is chosen when it is
// prepared, without measuring, and partial sums are only ever added in a fixed order and in float32. Two machines agree
// if they have the same library and the same kind of GPU ("Results reproducibility" in the cuBLAS documentation).
//
// Constants and layouts come from cublasLt.h of CUDA 12 and 13. The two agree in all that this package uses.
package cublaslt
