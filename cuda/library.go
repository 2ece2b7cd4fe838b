package cuda

import (
	"errors"
	"fmt"
	"log/slog"
	"sync"

	"github.com/gorgonia-nsa/nsa/cuda/internal/cublaslt"
	"github.com/gorgonia-nsa/nsa/cuda/internal/driver"
	"github.com/gorgonia-nsa/nsa/cuda/internal/kernels"
	"github.com/gorgonia-nsa/nsa/graph"
)

// ltLibrary is cuBLASLt as a kernels.Library.
type ltLibrary struct {
	lib *cublaslt.Library

	mu    sync.Mutex
	plans map[cublaslt.Matmul]*cublaslt.Plan
}

// openLibrary returns cuBLASLt, or nil where it is not there: then products run by our kernel, and the reason is logged once.
func openLibrary(d *driver.Device) (*ltLibrary, error) {
	if _, alone := d.Driver().(interface{ NoLibraries() }); alone {
		return nil, nil
	}
	lib, err := cublaslt.Open(d)
	if missing := (*cublaslt.Missing)(nil); errors.As(err, &missing) {
		slog.Warn("cuda: matrix products run by a kernel of this module, slower than cuBLASLt", "reason", err)
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return &ltLibrary{lib: lib, plans: map[cublaslt.Matmul]*cublaslt.Plan{}}, nil
}

// version names the library, as in "cublaslt 13.1.0".
func (l *ltLibrary) version() string {
	v := l.lib.Version()
	return fmt.Sprintf("%s %d.%d.%d", libraryName, v/10000, v/100%100, v%100)
}

// Prepare implements kernels.Library.
func (l *ltLibrary) Prepare(p kernels.Product, bias, tf32 bool) (kernels.PreparedProduct, error) {
	if bias && p.Type != p.Out {
		return nil, graph.Refuse(graph.ReasonType, "bias of %v beside a result of %v", p.Type, p.Out)
	}
	want := cublaslt.Matmul{Product: p, Bias: bias, TF32: tf32, Align: driver.Alignment}
	l.mu.Lock()
	defer l.mu.Unlock()
	if ready := l.plans[want]; ready != nil {
		return ready, nil
	}
	ready, err := l.lib.Prepare(want)
	if err != nil {
		return nil, err
	}
	l.plans[want] = ready
	return ready, nil
}

// Close implements kernels.Library.
func (l *ltLibrary) Close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	var errs []error
	for m, p := range l.plans {
		errs = append(errs, p.Close())
		delete(l.plans, m)
	}
	return errors.Join(append(errs, l.lib.Close())...)
}
