package cuda

import (
	"errors"

	"github.com/gorgonia-nsa/nsa/cuda/driver"
	"github.com/gorgonia-nsa/nsa/cuda/kernels"
)

// productLibrary runs matrix products faster than our own kernel.
type productLibrary interface {
	// name is that of the implementations that use it, such as "cublaslt".
	name() string
	// prepare returns the plan of a product, with a bias or without. tf32 allows it to round float32 operands to TF32. A
	// *graph.Unsupported leaves the op to our kernel.
	prepare(m kernels.Matmul, bias, tf32 bool) (productPlan, error)
}

// productPlan is a product that is ready to run many times.
type productPlan interface {
	workBytes() int64
	// run enqueues the product, which is remembered as l. It allocates nothing once warm.
	run(s *driver.Stream, l *driver.Launched, a, b, bias, c, work kernels.Ptr) error
	close() error
}

// keep holds a plan until the backend is closed: kernels live no longer.
func (b *Backend) keep(p productPlan) {
	if _, shared := p.(*ltPlan); shared {
		return // the library's
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.plans = append(b.plans, p)
}

// closePlans closes the plans of stages that are not needed.
func closePlans(stages []stage) error {
	var errs []error
	for i := range stages {
		if p := stages[i].plan; p != nil {
			errs = append(errs, p.close())
		}
	}
	return errors.Join(errs...)
}

// libraryName is the name of implementations where there is no library.
const libraryName = "cublaslt"
