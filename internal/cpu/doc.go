// Package cpu holds the compute kernels of the CPU. It does not depend on Gorgonia or on graphs.
//
// A Kernel is a list of parallel loops over fixed pieces; a Team of workers runs it. Products is the matrix product: it
// packs its operands into panels and multiplies these by a micro-kernel. Attention calls the micro-kernel directly, as
// Tile. Vector functions, such as ExpSum and Axpy, work on slices.
//
// The micro-kernel, the packing and the float32 vector functions are generated assembly for AVX2 and AVX-512, and for
// NEON on arm64. Each has a pure Go twin that runs on other processors and passes the same tests. The build tag purego
// excludes the assembly.
//
// ProductsBF16 is the matrix product of operands in bf16 with sums in float32; RoundBF16 and WidenBF16 convert. Their
// assembly needs AVX512_BF16.
//
// The level of the kernels is the highest that the processor has. The environment variable NSA_CPU (generic, avx2,
// avx512, avx512bf16 or neon) lowers it; Level returns the level in use. At one level the same inputs give the same bits
// on any number of workers. Results of different levels differ by rounding; float32 has the same bits at avx512 and
// avx512bf16.
//
// Functions on slices panic if a slice is too short, as indexing does. Team.Run returns such a panic in a kernel as an
// error.
package cpu

//go:generate go -C asm run . -pkg cpu -out ../asm_amd64.s -stubs ../asm_amd64.go
//go:generate go -C asm run ./neon -out ../asm_arm64.s -stubs ../asm_arm64.go
