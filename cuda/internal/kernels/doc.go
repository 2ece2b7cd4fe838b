// Package kernels holds what all CUDA kernels of this module share: the table of kernels, launches, fat binaries.
//
// The kernels are CUDA C++ in the folders below this one. A folder bears the name of a family of ops/spec. The file
// FAMILY/OP.go has what the op of ops/spec/FAMILY/OP.go needs: its entries, then a guard and the launches for each. The
// .cu files lie beside it. Not of one family are matmul (products without a library), memory (copies, fills and casts),
// sums (of rows and of partial results), documents, stock (Gorgonia's own ops) and ceilings. Package all joins the
// tables.
//
// go generate compiles each .cu file into a fat binary: code for sm_80, sm_89 and sm_90a, and PTX for newer devices.
// manifest.json lists the sources of each binary; a test fails if a binary was made from other sources. These packages
// need no CUDA toolkit, neither to build nor to run.
//
// An Entry of the table is one way to run an op: the types of the operands, a guard and the launches.
//
//	kernels.EntryFor[norm.Softmax]{Types: kernels.In(kernels.Float("x")).Out(kernels.Float("y")), Launches: softmax}
//
//	func softmax(b *kernels.Builder, _ norm.Softmax) {
//		x, y := b.In[0], b.Out[0]
//		rows, cols := x.Rows()
//		b.AddRows(b.Type.Name("softmax"), rows, cols, &softmaxParams{x.Ref, y.Ref, rows, cols})
//	}
//
// A guard, guardOP, is a predicate over a call: it returns a *graph.Unsupported error for sizes, devices or policies that
// the kernels do not take, and adds nothing. Entries without a guard say what they take. The launches are built when the
// op is bound, once.
//
// A Launch is a kernel's name, its grid, block and dynamic shared memory, and its one argument: a struct as C lays it out, with a
// Ref where C has a pointer. A Launch depends on the sizes and the GPU alone, so an op has the same bits in every run. Plan.Set and
// Packed.Place fill in the addresses whenever they change. Work memory is aligned to 256 bytes and its content is undefined. A
// kernel writes all of its outputs and reads none of them first.
//
// Tests: harness_test.go compares a device with the oracle, cases_test.go runs every op on a GPU, host_test.go the
// kernels on the CPU, attention_*_test.go says which kernel takes which size, layout_test.go holds arguments to the
// layout of C.
package kernels

//go:generate go run ./internal/build
