package graph

import (
	"errors"
	"fmt"
	"runtime"
	"slices"
	"time"
	"unsafe"

	G "gorgonia.org/gorgonia"

	"github.com/gorgonia-nsa/nsa/internal/cpu"
	"github.com/gorgonia-nsa/nsa/internal/memory"
	"github.com/gorgonia-nsa/nsa/ops/spec"
	"github.com/gorgonia-nsa/nsa/ops/spec/collective"
)

// cpuAlignment is the size in bytes of a cache line and of the widest vector.
const cpuAlignment = 64

// cpuBackend runs the kernels that every spec.Spec has, in memory of the Go heap.
type cpuBackend struct{ workers int }

// NewCPU returns the backend of the host's processor. Its kernels run on the given number of goroutines; 0 means
// GOMAXPROCS. Results do not depend on this number.
func NewCPU(workers int) Backend {
	if workers <= 0 {
		workers = runtime.GOMAXPROCS(0)
	}
	return &cpuBackend{workers}
}

func (b *cpuBackend) Device() Device {
	total, _ := memory.Total()
	return Device{
		Name: runtime.GOARCH, Kind: "cpu", Units: b.workers, Memory: total, Features: cpu.Level(),
		Alignment: cpuAlignment, Host: true, Half: cpu.HasBF16(), OnlyBF16: true,
	}
}

// Offers implements Backend: each Spec's own kernel.
func (b *cpuBackend) Offers(s Call) []Implementation {
	if s.Spec == nil {
		return nil
	}
	if op, ok := s.Spec.(collective.Collective); ok && s.Group != nil {
		return []Implementation{cpuCollective{op: op, group: s.Group}}
	}
	return []Implementation{cpuImplementation{b.workers}}
}

// Alloc implements Backend. If the process cannot have so many bytes, the error names both sizes.
func (b *cpuBackend) Alloc(bytes int) (Memory, error) {
	if bytes < 0 {
		return nil, fmt.Errorf("cpu: cannot allocate %d bytes", bytes)
	}
	if err := memory.CheckTotal(bytes); err != nil {
		return nil, fmt.Errorf("cpu: %w", err)
	}
	return &cpuMemory{cpu.AlignedBytes(bytes)}, nil
}

// NewStream implements Backend. A wrong SIMD level in the environment variable NSA_CPU is an error.
func (b *cpuBackend) NewStream() (Stream, error) {
	if err := cpu.LevelError(); err != nil {
		return nil, err
	}
	return &cpuStream{team: cpu.NewTeam(b.workers)}, nil
}

// Adopt implements Backend. Host values are used in place. A value that is not row-major is copied in each call.
func (b *cpuBackend) Adopt(dst *cpu.Buf, v G.Value, want spec.Operand) (bool, error) {
	err := spec.PointAtValue(dst, v, want)
	return err == nil, err
}

// Synchronize implements Backend. Calls of a CPU stream return after their work has ended.
func (b *cpuBackend) Synchronize() error { return nil }

func (b *cpuBackend) Close() error { return nil }

type cpuMemory struct{ bytes []byte }

func (m *cpuMemory) Bytes() int { return len(m.bytes) }

func (m *cpuMemory) Place(b *cpu.Buf, offset, bytes int) {
	b.Set(unsafe.Pointer(unsafe.SliceData(m.bytes[offset:offset+bytes])), bytes)
}

// Free leaves the memory to the garbage collector, since values may still lie in it.
func (m *cpuMemory) Free() error { return nil }

// cpuImplementation runs the kernel of the Spec itself.
type cpuImplementation struct{ workers int }

func (cpuImplementation) Name() string { return "cpu" }

// Guard implements Implementation: Specs compute in the graph's types, and in bfloat16 if the processor does.
func (cpuImplementation) Guard(s Call) error {
	for _, o := range slices.Concat(s.In, s.Out) {
		if spec.IsHalf(o.Dtype) && !(o.Dtype == spec.BFloat16 && cpu.HasBF16()) {
			return Refuse(ReasonDevice, "%v: this cpu does not compute in it", o)
		}
	}
	return nil
}

func (i cpuImplementation) Bind(s Call, in, out []spec.Arg) (Kernel, error) {
	k := new(cpuKernel)
	spec.BindBF16(&k.kernel, s.Spec, in, out)
	k.work = k.kernel.WorkBytes(i.workers)
	return k, nil
}

type cpuKernel struct {
	kernel cpu.Kernel
	work   int
}

func (k *cpuKernel) WorkBytes() int                 { return k.work }
func (k *cpuKernel) Prepare(Stream, *cpu.Buf) error { return nil }

func (k *cpuKernel) Launch(s Stream, work *cpu.Buf) error {
	stream, ok := s.(*cpuStream)
	if !ok {
		return fmt.Errorf("launch of a cpu kernel on a stream of type %T", s)
	}
	return stream.team.Run(&k.kernel, work)
}

// cpuStream runs all work before the call returns, in the goroutine of the caller and those of its team.
type cpuStream struct {
	team *cpu.Team
	cell cpu.Buf // points at the host value during a copy
}

func (s *cpuStream) Upload(dst spec.Arg, src G.Value) error {
	if err := spec.PointAtValue(&s.cell, src, dst.Operand); err != nil {
		return err
	}
	copy(hostBytes(dst.Buf), hostBytes(&s.cell))
	return nil
}

func (s *cpuStream) Download(dst G.Value, src spec.Arg) error {
	if err := spec.PointAtValue(&s.cell, dst, src.Operand); err != nil {
		return err
	}
	copy(hostBytes(&s.cell), hostBytes(src.Buf))
	return nil
}

// NewReadback implements Stream. Copies are made at once.
func (s *cpuStream) NewReadback(o spec.Operand) (Readback, error) {
	return &cpuReadback{s, spec.NewValue(o)}, nil
}

type cpuReadback struct {
	stream *cpuStream
	value  G.Value
}

func (r *cpuReadback) Fetch(src spec.Arg) error { return r.stream.Download(r.value, src) }
func (r *cpuReadback) Value() (G.Value, error)  { return r.value, nil }
func (r *cpuReadback) Close() error             { return nil }

// NewEvent implements Stream. The device's clock is the host's.
func (s *cpuStream) NewEvent() (Event, error) { return new(cpuEvent), nil }

type cpuEvent struct{ at time.Time }

func (e *cpuEvent) Record() error { e.at = time.Now(); return nil }
func (e *cpuEvent) Close() error  { return nil }

// Done implements Event: calls of a CPU stream return after their work has ended.
func (e *cpuEvent) Done() (bool, error) { return true, nil }

func (e *cpuEvent) Since(start Event) (time.Duration, error) {
	from, ok := start.(*cpuEvent)
	if !ok {
		return 0, fmt.Errorf("cpu: time since an event of type %T", start)
	}
	return e.at.Sub(from.at), nil
}

var errNoCapture = errors.New("cpu: captures are not supported")

func (s *cpuStream) After(Stream) error          { return nil }
func (s *cpuStream) BeginCapture() error         { return errNoCapture }
func (s *cpuStream) EndCapture() (Replay, error) { return nil, errNoCapture }
func (s *cpuStream) View(a spec.Arg) G.Value     { return hostView(a) }
func (s *cpuStream) Synchronize() error          { return nil }
func (s *cpuStream) Close() error                { return nil }
