// Package kernels holds the CUDA kernels, compiled and embedded, and describes their launches.
//
// The kernels are CUDA C++, one .cu file an op or family, compiled by go generate into a fat binary each: code for sm_80, sm_89
// and sm_90a, PTX for what comes later. manifest.json says from which sources; a test refuses binaries that are not of these.
// Nothing of CUDA is needed to build this package or to use it.
//
// An op is a struct of its sizes (RMSNorm, Matmul, ...). Its methods append the launches that compute it to a slice, from the
// device addresses of its operands:
//
//	op := kernels.RMSNorm{Type: kernels.BF16, Rows: b * s, Dim: dim, Eps: 1e-6}
//	launches, err = op.Forward(launches[:0], x, weight, y) // allocates nothing once launches has room
//
// A Launch is a kernel's name, its grid, block and dynamic shared memory, and its one argument, a struct as C lays it out. It
// depends on sizes and addresses alone, so that the same op has the same bits on every run. Where an op needs memory beside
// its operands, a method WorkBytes of the same sizes says how much; work is aligned to 256 bytes and its content is undefined.
// A kernel writes all of its outputs and reads none of them first. Results may be of another type than operands where a field
// Out says so.
//
// Sizes that the kernels do not take are an *Unsupported error. The package knows no driver: see package driver.
package kernels

//go:generate go run ./internal/build
