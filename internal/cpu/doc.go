// Package cpu holds the compute kernels of the CPU: parallel loops over fixed pieces, the matrix product, the small tile
// product that attention is made of, and vector functions. The hot ones are generated assembly for AVX2 and AVX-512,
// chosen by the processor's features, each with a pure Go twin that serves other processors and passes the same tests.
// Nothing here knows of Gorgonia or of graphs.
package cpu
