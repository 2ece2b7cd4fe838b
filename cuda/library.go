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

// ltLibrary is cuBLASLt as a productLibrary.
type ltLibrary struct {
	lib *cublaslt.Library

	mu    sync.Mutex
	plans map[cublaslt.Matmul]*ltPlan
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
	return &ltLibrary{lib: lib, plans: map[cublaslt.Matmul]*ltPlan{}}, nil
}

// version names the library, as in "cublaslt 13.1.0".
func (l *ltLibrary) version() string {
	v := l.lib.Version()
	return fmt.Sprintf("%s %d.%d.%d", libraryName, v/10000, v/100%100, v%100)
}

// name implements productLibrary.
func (l *ltLibrary) name() string { return libraryName }

// prepare implements productLibrary.
func (l *ltLibrary) prepare(m kernels.Matmul, bias, tf32 bool) (productPlan, error) {
	if bias && m.Type != m.Out {
		return nil, graph.Refuse(graph.ReasonType, "bias of %v beside a result of %v", m.Type, m.Out)
	}
	want := cublaslt.Matmul{Product: m, Bias: bias, TF32: tf32, Align: driver.Alignment}
	l.mu.Lock()
	defer l.mu.Unlock()
	if p := l.plans[want]; p != nil {
		return p, nil
	}
	plan, err := l.lib.Prepare(want)
	if u := (*cublaslt.Unsupported)(nil); errors.As(err, &u) {
		return nil, graph.Refuse(graph.ReasonShape, "%v", u)
	}
	if err != nil {
		return nil, err
	}
	p := &ltPlan{plan: plan}
	l.plans[want] = p
	return p, nil
}

// close implements productLibrary.
func (l *ltLibrary) close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	var errs []error
	for m, p := range l.plans {
		errs = append(errs, p.plan.Close())
		delete(l.plans, m)
	}
	return errors.Join(append(errs, l.lib.Close())...)
}

// ltPlan is a plan that several machines may use at once.
type ltPlan struct {
	mu   sync.Mutex
	plan *cublaslt.Plan
}

// workBytes implements productPlan.
func (p *ltPlan) workBytes() int64 { return int64(p.plan.WorkBytes()) }

// run implements productPlan.
func (p *ltPlan) run(s *driver.Stream, l *driver.Launched, a, b, bias, c, work kernels.Ptr) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.plan.WorkBytes() == 0 {
		work = 0
	}
	return p.plan.Run(s, l, driver.DevicePtr(a), driver.DevicePtr(b), driver.DevicePtr(bias), driver.DevicePtr(c), driver.DevicePtr(work))
}
