// Package cpu holds the compute kernels of the CPU: parallel loops over fixed pieces, the matrix product, the small tile
// product that attention is made of, and vector functions. The hot ones are generated assembly for AVX2 and AVX-512,
// chosen by the processor's features, each with a pure Go twin that serves other processors and passes the same tests.
// Nothing here knows of Gorgonia or of graphs.
//
// The environment variable NSA_CPU (generic, avx2 or avx512) lowers the level of the kernels; Level tells which is in
// use. The same inputs give the same bits on any number of workers, at one level; levels differ within rounding. The
// build tag purego leaves the assembly out.
//
// Functions on slices panic where a slice is too short, as indexing does; in a kernel that comes back as an error of
// Team.Run.
package cpu
