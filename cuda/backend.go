package cuda

import (
	"errors"
	"fmt"
	"sync"

	"gorgonia.org/gorgonia"

	"github.com/gorgonia-nsa/nsa/cuda/internal/driver"
	"github.com/gorgonia-nsa/nsa/cuda/internal/kernels"
	"github.com/gorgonia-nsa/nsa/graph"
	"github.com/gorgonia-nsa/nsa/internal/cpu"
	"github.com/gorgonia-nsa/nsa/ops"
)

// Option changes how a GPU is opened.
type Option = driver.Option

// Backend is a GPU as a graph.Machine and a graph.AdamW use it.
type Backend struct {
	dev      *driver.Device
	about    graph.Device
	gpu      kernels.GPU
	products productLibrary // nil where there is none

	mu      sync.Mutex
	modules map[string]*driver.Module // by image
	blocks  []*memory                 // that have not been freed, by address
}

var _ graph.Backend = (*Backend)(nil)

// Open opens GPU n, counted from 0. The error is a *Unavailable where there is no such GPU, or none that can be used.
func Open(n int, opts ...Option) (*Backend, error) {
	dev, err := driver.Open(n, opts...)
	if err != nil {
		return nil, err
	}
	p := dev.Properties()
	b := &Backend{
		dev:     dev,
		gpu:     kernels.GPU{SharedPerBlock: p.SharedPerBlock, SharedPerSM: p.SharedPerSM, SMs: p.SMs},
		modules: map[string]*driver.Module{},
	}
	lt, err := openLibrary(dev)
	if err != nil {
		return nil, errors.Join(err, dev.Close())
	}
	library := "no " + libraryName
	if lt != nil {
		b.products, library = lt, lt.version()
	}
	b.about = graph.Device{
		Name: p.Name, Kind: "cuda", Units: p.SMs, Capability: p.Capability, Memory: p.Memory,
		Features: fmt.Sprintf("driver %d.%d, %s", p.Driver/1000, p.Driver%1000/10, library), Alignment: driver.Alignment, Half: true,
	}
	return b, nil
}

// Driver returns the device, for libraries that are called beside this package.
func (b *Backend) Driver() *driver.Device { return b.dev }

// Device implements graph.Backend.
func (b *Backend) Device() graph.Device { return b.about }

// Alloc implements graph.Backend. A *NoMemory says that there is not enough.
func (b *Backend) Alloc(bytes int) (graph.Memory, error) {
	m, err := b.dev.Alloc(bytes)
	if err != nil {
		return nil, failure(err)
	}
	return b.track(m), nil
}

// Synchronize waits until everything that was enqueued in all streams has ended.
func (b *Backend) Synchronize() error { return failure(b.dev.Synchronize()) }

// NewStream implements graph.Backend: it returns a *Stream.
func (b *Backend) NewStream() (graph.Stream, error) {
	s, err := b.dev.NewStream()
	if err != nil {
		return nil, failure(err)
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

// Close unloads the kernels and gives the device up. What is still open on it is an error, and is freed.
func (b *Backend) Close() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	var errs []error
	if b.products != nil {
		errs = append(errs, b.products.close())
		b.products = nil
	}
	for name, m := range b.modules {
		// Every module of a device that has failed says so.
		if err := m.Unload(); err != nil && !errors.Is(errors.Join(errs...), err) {
			errs = append(errs, err)
		}
		delete(b.modules, name)
	}
	return failure(errors.Join(append(errs, b.dev.Close())...))
}

// function returns a kernel. Its image is loaded when it is first needed.
func (b *Backend) function(kernel string) (*driver.Function, error) {
	name, err := kernels.ImageOf(kernel)
	if err != nil {
		return nil, err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	m := b.modules[name]
	if m == nil {
		image, err := kernels.Image(name)
		if err != nil {
			return nil, err
		}
		if m, err = b.dev.LoadModule(image); err != nil {
			return nil, fmt.Errorf("image %s: %w", name, err)
		}
		b.modules[name] = m
	}
	return m.Function(kernel)
}
