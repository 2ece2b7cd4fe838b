package cuda

import (
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"strings"
	"sync"
	"time"

	"gorgonia.org/gorgonia"

	"github.com/gorgonia-nsa/nsa/cuda/internal/cublaslt"
	"github.com/gorgonia-nsa/nsa/cuda/internal/driver"
	"github.com/gorgonia-nsa/nsa/cuda/internal/kernels"
	"github.com/gorgonia-nsa/nsa/cuda/internal/nccl"
	"github.com/gorgonia-nsa/nsa/graph"
	"github.com/gorgonia-nsa/nsa/internal/cpu"
	"github.com/gorgonia-nsa/nsa/internal/fault"
	"github.com/gorgonia-nsa/nsa/internal/value"
	"github.com/gorgonia-nsa/nsa/ops/spec"
)

// Option changes how a GPU is opened.
type Option = driver.Option

// WithBlockingLaunches makes every launch wait for its end, so that a Fault names the launch that caused it. It is
// slow: use it to find errors. A captured graph counts as one launch.
func WithBlockingLaunches() Option { return driver.WithBlockingLaunches() }

// Backend is a graph.Backend on a GPU: graph.Machines and their solvers run on it.
type Backend struct {
	dev     *driver.Device
	device  graph.Device // describes the GPU
	gpu     kernels.GPU
	library kernels.Library // computes matrix products; nil without cuBLASLt
	modules *kernels.Modules

	collectives collectives
}

// Open opens GPU n, counted from 0. The error is an *Unavailable if GPU n does not exist or cannot be used.
func Open(n int, opts ...Option) (*Backend, error) {
	dev, err := driver.Open(n, append(opts, driver.WithCause(launchError))...)
	if err != nil {
		return nil, err
	}
	p := dev.Properties()
	gpu := kernels.GPU{
		Capability: p.Capability, SharedPerBlock: p.SharedPerBlock, SharedPerSM: p.SharedPerSM, SMs: p.SMs,
		EncodeTensorMap: dev.EncodeTensorMap,
	}
	b := &Backend{dev: dev, gpu: gpu, modules: kernels.NewModules(dev)}
	c := &b.collectives
	c.dev, c.library, c.connectTime, c.endTime = dev, sync.OnceValues(nccl.Open), time.Minute, 10*time.Second
	if _, alone := dev.Driver().(interface{ NoLibraries() }); alone {
		c.library = func() (*nccl.Library, error) { return nil, new(nccl.Missing) }
	}
	lt, err := openLibrary(dev)
	if err != nil {
		return nil, errors.Join(err, dev.Close())
	}
	library := "no " + libraryName
	if lt != nil {
		b.library, library = lt, libraryName+" "+lt.Version()
	}
	b.device = graph.Device{
		Name: p.Name, Kind: "cuda", Units: p.SMs, Capability: p.Capability, Memory: p.Memory,
		Features:  fmt.Sprintf("driver %d.%d, %s", p.Driver/1000, p.Driver%1000/10, library),
		Alignment: driver.Alignment, Half: true,
	}
	return b, nil
}

// Count returns the number of GPUs of this host that the driver shows. The error is an *Unavailable if it shows none.
func Count() (int, error) {
	n, err := driver.Count()
	return n, fault.In("cuda", "", err)
}

// openLibrary returns cuBLASLt. If that cannot be used it logs the reason and returns nil: then our own kernels compute
// the products. A fake driver (NoLibraries) also gets nil.
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

// Number returns the number of the GPU: the N of cuda:N.
func (b *Backend) Number() int { return b.dev.Properties().Number }

func (b *Backend) Device() graph.Device { return b.device }

// Alloc implements graph.Backend. The error is a *NoMemory if too little memory is free.
func (b *Backend) Alloc(bytes int) (graph.Memory, error) {
	m, err := b.dev.Alloc(bytes)
	if err != nil {
		return nil, err
	}
	return m, nil
}

// MemoryUsed returns the bytes of GPU memory in use, as the driver reports them: by this program, its CUDA context
// included, and by all others. It does not wait for enqueued work.
func (b *Backend) MemoryUsed() (int64, error) { return b.dev.MemoryUsed() }

// Synchronize waits until everything that was enqueued in all streams has ended.
func (b *Backend) Synchronize() error { return b.dev.Synchronize() }

// NewStream implements graph.Backend: it returns a *Stream.
func (b *Backend) NewStream() (graph.Stream, error) { return b.streamOf(b.dev.NewStream()) }

// NewUrgentStream is NewStream with the highest priority: see graph.Backend.
func (b *Backend) NewUrgentStream() (graph.Stream, error) { return b.streamOf(b.dev.NewUrgentStream()) }

func (b *Backend) streamOf(s *driver.Stream, err error) (graph.Stream, error) {
	if err != nil {
		return nil, err
	}
	return &Stream{backend: b, queue: s}, nil
}

// Adopt implements graph.Backend. It adopts a *Value of this backend whose address is aligned to driver.Alignment.
func (b *Backend) Adopt(dst *cpu.Buf, v gorgonia.Value, want spec.Operand) (bool, error) {
	if v == nil {
		return false, fmt.Errorf("no value, want %v", want)
	}
	if err := value.Check(v, want.Dtype, want.Shape); err != nil {
		return false, err
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

// Close releases the device. It frees what is still open on it and reports that as an error. NCCL has ten seconds to
// end its work with the other ranks; then, or if the Group fails, Close aborts it. If it does not end within ten
// seconds of that, the device is not released, since that would wait for NCCL's work: Close may be called again.
func (b *Backend) Close() error {
	errs := []error{b.collectives.close()}
	if errors.Is(errs[0], nccl.ErrNotEnded) {
		return errs[0]
	}
	if b.library != nil {
		errs = append(errs, b.library.Close())
		b.library = nil
	}
	return errors.Join(append(errs, b.dev.Close())...)
}

// Select opens a backend by its name:
//
//	cpu      the processor
//	cuda:N   GPU N
//	auto     GPU 0, or the processor if no GPU can be used
//
// If auto finds a GPU or a driver that is too old, or a driver that does not start, it uses the processor and logs the
// reason. Any other failure of a GPU is an error. Describe names the device that was chosen.
func Select(name string, opts ...Option) (graph.Backend, error) {
	if name == "cpu" {
		return graph.NewCPU(0), nil
	}
	n, auto := 0, name == "auto"
	if !auto {
		number, isGPU := strings.CutPrefix(name, "cuda:")
		var err error
		if n, err = strconv.Atoi(number); err != nil || !isGPU {
			return nil, fault.In("cuda", "", fault.Of("Device", "device", "%q, want auto, cpu or cuda:N", name))
		}
	}
	b, err := Open(n, opts...)
	if none := (*Unavailable)(nil); auto && errors.As(err, &none) {
		if none.Reason != ReasonDriver && none.Reason != ReasonNoDevice {
			slog.Warn("cuda: the GPU is not used", "reason", err)
		}
		return graph.NewCPU(0), nil
	}
	if err != nil {
		return nil, fault.In("cuda", "", err)
	}
	return b, nil
}

// Describe names the device of b in a line, such as "cuda:0 (NVIDIA H200)" or "cpu (amd64, avx512, 2 workers)".
func Describe(b graph.Backend) string {
	if value.IsNil(b) {
		return "no device"
	}
	if gpu, ok := b.(*Backend); ok {
		return gpu.dev.String()
	}
	d := b.Device()
	return fmt.Sprintf("%s (%s, %s, %d workers)", d.Kind, d.Name, d.Features, d.Units)
}

// The errors of this package. Find them with errors.As.
type (
	// Unavailable is the error of Open without a usable GPU. Its Reason is one of the constants below; its Detail says
	// what was found and what is wanted. Any other error of Open is the failure of a GPU that is present.
	Unavailable = driver.Unavailable

	// NoMemory is the error of an allocation that is too large, on the device or in pinned memory of the host. It has
	// the bytes that were requested and the bytes that are free.
	NoMemory = driver.NoMemory

	// Fault is the failure of work that an earlier call enqueued, such as an illegal address in a kernel. It lists the
	// launches that may have caused it, stream by stream, newest first. With WithBlockingLaunches that is one launch.
	// After a Fault only Backend.Close works.
	Fault = driver.Fault

	// Launched names a launch in a Fault: the op, and the kernel.
	Launched = driver.Launched

	// DriverError is the failure of one call of the CUDA driver, with the driver's name and text for it.
	DriverError = driver.Error

	// Reason says why a GPU is unavailable.
	Reason = driver.Reason
)

// The reasons of an Unavailable.
const (
	ReasonDriver    = driver.ReasonDriver    // there is no driver library
	ReasonNoDevice  = driver.ReasonNoDevice  // the driver has no device
	ReasonOrdinal   = driver.ReasonOrdinal   // the device number is out of range
	ReasonOldDevice = driver.ReasonOldDevice // the compute capability is below 8.0
	ReasonOldDriver = driver.ReasonOldDriver // the driver is older than CUDA 12.0
	ReasonStart     = driver.ReasonStart     // the driver does not start
)

// launchError returns the cause of a fault, with the kernel if every launch that may have failed belongs to it.
func launchError(f *driver.Fault) error {
	l := &graph.LaunchError{Err: f.Err}
	if f.Count == len(f.Suspects) {
		l.Kernel = ownerOf(f.Suspects)
	}
	return l
}

// ownerOf returns the kernel that all launches belong to, or nil.
func ownerOf(list []*driver.Launched) graph.Kernel {
	var owner graph.Kernel
	for _, l := range list {
		k, _ := l.Owner.(graph.Kernel)
		if len(l.Parts) > 0 {
			k = ownerOf(l.Parts)
		}
		if k == nil || owner != nil && k != owner {
			return nil
		}
		owner = k
	}
	return owner
}
