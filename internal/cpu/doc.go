// Package cpu holds the compute kernels of the CPU: parallel loops over fixed pieces, the matrix product, the small tile
// product that attention uses, and vector functions. The hot ones are generated assembly for AVX2 and AVX-512, chosen by
// the processor's features. Each has a pure Go twin that runs on other processors and passes the same tests. The package
// does not depend on Gorgonia or on graphs.
//
// The environment variable NSA_CPU (generic, avx2 or avx512) lowers the level of the kernels; Level returns the level in
// use. At one level the same inputs give the same bits on any number of workers. Results of different levels differ by
// rounding. The build tag purego excludes the assembly.
//
// Functions on slices panic if a slice is too short, as indexing does. Team.Run returns such a panic in a kernel as an
// error.
package cpu
