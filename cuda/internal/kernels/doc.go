// Package kernels is what all CUDA kernels of this module share: the table of implementations, launches, fat binaries.
//
// The kernels are CUDA C++, in the folders here, one .cu file an op or family, compiled by go generate into a fat binary each: code
// for sm_80, sm_89 and sm_90a, PTX for what comes later. manifest.json says from which sources; a test refuses binaries that are not
// of these. Nothing of CUDA is needed to build these packages or to use them.
//
// An implementation of an op is a row, an Op: which types its operands have, what it refuses, and a function that builds its launches
//
//	func softmax(b *kernels.Builder, _ ops.SoftmaxOp) error {
//		x, y := b.In[0], b.Out[0]
//		rows, cols := x.Rows()
//		b.LaunchRows(b.Type.Name("softmax"), rows, cols, &softmaxParams{x.Ref, y.Ref, rows, cols})
//		return nil
//	}
//
// A Launch is a kernel's name, its grid, block and dynamic shared memory, and its one argument, a struct as C lays it out, with a Ref
// where C has a pointer. It depends on the sizes and the GPU alone, so that the same op has the same bits on every run. Plan.Set and
// Packed.Place fill in addresses, as often as they change. Work memory is aligned to 256 bytes and its content is undefined. A kernel
// writes all of its outputs and reads none of them first.
//
// Sizes and types that kernels do not take are a *graph.Unsupported.
package kernels

//go:generate go run ./internal/build
