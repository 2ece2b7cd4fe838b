package cuda

import (
	"github.com/gorgonia-nsa/nsa/cuda/internal/driver"
	"github.com/gorgonia-nsa/nsa/cuda/internal/kernels"
)

// productLibrary runs matrix products faster than our own kernel.
type productLibrary interface {
	// name is that of the implementations that use it, such as "cublaslt".
	name() string
	// prepare returns the plan of a product, with a bias or without, the same one for equal products. tf32 allows it to round
	// float32 operands to TF32. A *graph.Unsupported leaves the op to our kernel.
	prepare(m kernels.Matmul, bias, tf32 bool) (productPlan, error)
	// close frees the library and its plans.
	close() error
}

// productPlan is a product that is ready to run many times, in several machines at once.
type productPlan interface {
	workBytes() int64
	// run enqueues the product, which is remembered as l. It allocates nothing once warm.
	run(s *driver.Stream, l *driver.Launched, a, b, bias, c, work kernels.Ptr) error
}

// libraryName is the name of implementations where there is no library.
const libraryName = "cublaslt"
