package cuda

import (
	"errors"
	"fmt"
	"log/slog"

	"gorgonia.org/gorgonia"

	"github.com/gorgonia-nsa/nsa/cuda/internal/cublaslt"
	"github.com/gorgonia-nsa/nsa/cuda/internal/driver"
	"github.com/gorgonia-nsa/nsa/cuda/internal/kernels"
	"github.com/gorgonia-nsa/nsa/graph"
	"github.com/gorgonia-nsa/nsa/internal/cpu"
	"github.com/gorgonia-nsa/nsa/ops"
)

// Option changes how a GPU is opened.
type Option = driver.Option

// WithBlockingLaunches makes every launch wait until it has ended, so that a Fault names the launch that has caused it. It is
// slow, and for finding errors. A captured graph counts as one launch.
func WithBlockingLaunches() Option { return driver.WithBlockingLaunches() }

// Backend is a GPU as a graph.Machine and its solvers use it.
type Backend struct {
	dev     *driver.Device
	about   graph.Device
	gpu     kernels.GPU
	library kernels.Library // computes matrix products; nil where there is none
	modules *kernels.Modules
}

// Open opens GPU n, counted from 0. The error is a *Unavailable where there is no such GPU, or none that can be used.
func Open(n int, opts ...Option) (*Backend, error) {
	dev, err := driver.Open(n, append(opts, driver.WithCause(launchError))...)
	if err != nil {
		return nil, err
	}
	p := dev.Properties()
	gpu := kernels.GPU{
		Capability: p.Capability, SharedPerBlock: p.SharedPerBlock, SharedPerSM: p.SharedPerSM, SMs: p.SMs, Boxes: dev.EncodeBoxes,
	}
	b := &Backend{dev: dev, gpu: gpu, modules: kernels.NewModules(dev)}
	lt, err := openLibrary(dev)
	if err != nil {
		return nil, errors.Join(err, dev.Close())
	}
	library := "no " + libraryName
	if lt != nil {
		b.library, library = lt, libraryName+" "+lt.Version()
	}
	b.about = graph.Device{
		Name: p.Name, Kind: "cuda", Units: p.SMs, Capability: p.Capability, Memory: p.Memory,
		Features: fmt.Sprintf("driver %d.%d, %s", p.Driver/1000, p.Driver%1000/10, library), Alignment: driver.Alignment, Half: true,
	}
	return b, nil
}

// openLibrary returns cuBLASLt, or nil where it is not there: then products run by our kernel, and the reason is logged once.
func openLibrary(d *driver.Device) (*cublaslt.Library, error) {
	if _, alone := d.Driver().(interface{ NoLibraries() }); alone {
		return nil, nil
	}
	lib, err := cublaslt.Open(d)
	if missing := (*cublaslt.Missing)(nil); errors.As(err, &missing) {
		slog.Warn("cuda: matrix products run by a kernel of this module, slower than cuBLASLt", "reason", err)
		return nil, nil
	}
	return lib, err
}

// Driver returns the device, for libraries that are called beside this package.
func (b *Backend) Driver() *driver.Device { return b.dev }

// Device implements graph.Backend.
func (b *Backend) Device() graph.Device { return b.about }

// Alloc implements graph.Backend. A *NoMemory says that there is not enough.
func (b *Backend) Alloc(bytes int) (graph.Memory, error) {
	m, err := b.dev.Alloc(bytes)
	if err != nil {
		return nil, err
	}
	return m, nil
}

// Synchronize waits until everything that was enqueued in all streams has ended.
func (b *Backend) Synchronize() error { return b.dev.Synchronize() }

// NewStream implements graph.Backend: it returns a *Stream.
func (b *Backend) NewStream() (graph.Stream, error) {
	s, err := b.dev.NewStream()
	if err != nil {
		return nil, err
	}
	return &Stream{backend: b, queue: s}, nil
}

// Adopt implements graph.Backend. It takes a *Value of this backend whose address is aligned to driver.Alignment.
func (b *Backend) Adopt(dst *cpu.Buf, v gorgonia.Value, want ops.Operand) (bool, error) {
	if v == nil {
		return false, fmt.Errorf("no value, want %v", want)
	}
	if got := v.Shape(); v.Dtype() != want.Dtype || !got.Eq(want.Shape) && !(got.IsScalar() && want.Elements() == 1) {
		return false, fmt.Errorf("got %v, want %v", ops.Operand{Dtype: v.Dtype(), Shape: got}, want)
	}
	d, ok := v.(*Value)
	if !ok {
		return false, nil
	}
	if d.stream.backend != b {
		return false, fmt.Errorf("got a value of another backend, on %v, want %v of %v", d.stream.backend.dev, want, b.dev)
	}
	if d.freed() {
		return false, fmt.Errorf("got a value whose memory has been freed, %v", d)
	}
	if d.Uintptr()%driver.Alignment != 0 {
		return false, nil
	}
	*dst = d.cell
	return true, nil
}

// Close gives the device up. What is still open on it is an error, and is freed.
func (b *Backend) Close() error {
	var errs []error
	if b.library != nil {
		errs = append(errs, b.library.Close())
		b.library = nil
	}
	return errors.Join(append(errs, b.dev.Close())...)
}
