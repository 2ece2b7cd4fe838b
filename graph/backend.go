package graph

import (
	"cmp"
	"slices"
	"time"

	G "gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/internal/cpu"
	"github.com/gorgonia-nsa/nsa/ops"
)

// Device describes where a Backend runs.
type Device struct {
	Name       string // for people, such as "NVIDIA H200"
	Kind       string // "cpu", "cuda"
	Units      int    // workers of a CPU, multiprocessors of a GPU
	Capability int    // compute capability, ten times the major number plus the minor one; 0 on a CPU
	Memory     int64  // bytes in all; 0 where that is not known
	Features   string // what else the choice of kernels depends on, such as the SIMD level of a CPU
	Alignment  int    // of every operand in memory from Alloc, in bytes: a power of two, at least 8
	Host       bool   // the device's memory is the host's: ops read and write it by their own Do, without copies
	Half       bool   // the device computes in half precision, too: see Backend.Storage
}

// Backend is a device with kernels. It does not know of graphs: a Machine plans, places the operands in the backend's
// memory, binds kernels to them and launches these in order.
//
// A cell (*cpu.Buf, within ops.Arg) holds the device address of an operand. Cells are bound to kernels once and may be
// pointed elsewhere between runs, so kernels read them anew at each launch.
//
// A Backend may be used by several machines at once, from several goroutines; a Stream, and what is bound for it, by one.
type Backend interface {
	Device() Device

	// Offers returns the implementations of an op in order of preference, none for an op that the backend does not know.
	// It may offer what a guard refuses later: then the plan can say why. What it returns is for this site alone.
	Offers(Site) []Implementation

	// Storage returns the types in which the operands of a site should lie where activations are stored in half,
	// ops.BFloat16 or ops.Float16. The site's In are as they lie so far, its Out as the graph has them. A machine puts an
	// ops.CastOp before an input that should be of another type, and makes the outputs of the types that it is told: only
	// float32 and half may take each other's place. It is called only where Device().Half.
	Storage(s Site, half tensor.Dtype) (in, out []tensor.Dtype)

	// Alloc returns zeroed memory of the device, aligned to Device().Alignment at least.
	Alloc(bytes int) (Memory, error)

	// NewStream returns a new queue of the device.
	NewStream() (Stream, error)

	// Adopt makes dst hold the memory of v where v lives on this device already, row-major and aligned for every kernel:
	// no copy, no allocation. ok is false for a value that must be uploaded; a Host backend uploads none. A value of
	// another type or shape than want, or of another device, is an error.
	Adopt(dst *cpu.Buf, v G.Value, want ops.Operand) (ok bool, err error)

	// Synchronize waits until everything that was enqueued in all streams has ended.
	Synchronize() error

	// Close frees what the backend itself holds. Memory and streams must have been freed before.
	Close() error
}

// Site is a place in a graph that wants an implementation.
type Site struct {
	Op      G.Op     // nil for a Spec that is no op of the graph
	Spec    ops.Spec // nil for an op that is not of package ops
	In, Out []ops.Operand
	Follows []bool // of In, then Out: whether it lies right behind the one before; known from dispatch on, nil for none
	Held    []bool // of In: whether it is an input of WithHeldInputs or a copy of one, which no step of the graph writes while the op may run
	Policy  Policy
}

// Check refuses a site whose Spec does not take its inputs, or does not return the shapes of its outputs. Few Specs know of half
// precision, so it may count as float32.
func (s Site) Check() error {
	if s.Spec == nil {
		return nil
	}
	if err := cmp.Or(ops.CheckSizes("input", s.In), ops.CheckSizes("output", s.Out)); err != nil {
		return Refuse(ReasonSize, "%v", err)
	}
	out, err := s.Spec.Infer(s.In)
	if err != nil {
		in := slices.Clone(s.In)
		for i := range in {
			in[i].Dtype = graphType(in[i].Dtype)
		}
		out, err = s.Spec.Infer(in)
	}
	if err != nil {
		return Refuse(ReasonShape, "%v", err)
	}
	if !slices.EqualFunc(out, s.Out, func(a, b ops.Operand) bool { return a.Shape.Eq(b.Shape) }) {
		return Refuse(ReasonShape, "outputs %v, want %v", s.Out, out)
	}
	return nil
}

// Implementation is one way to run an op on a device.
type Implementation interface {
	// Name identifies the implementation in plans and counters, such as "cpu" or "window wgmma".
	Name() string
	// Guard returns nil if the implementation can run the site, or *Unsupported. It depends on the site and the device
	// alone.
	Guard(Site) error
	// Bind returns the kernel for the operands behind in and out, whose cells are not placed yet. An *Unsupported error
	// selects the next implementation, any other one ends the planning.
	Bind(site Site, in, out []ops.Arg) (Kernel, error)
}

// Cost is what an op has to do at the least: the arithmetic of its products, and its operands read or written once.
type Cost struct {
	FLOPs float64 // see ops.FLOPs
	Bytes float64
}

// Cost returns the cost of the op, as ops.FLOPs counts it.
func (s Site) Cost() Cost {
	var c Cost
	if s.Spec != nil {
		c.FLOPs = ops.FLOPs(s.Spec, s.In)
	}
	for _, list := range [][]ops.Operand{s.In, s.Out} {
		for _, o := range list {
			c.Bytes += float64(o.Bytes())
		}
	}
	return c
}

// Kernel is an op bound to its operands. It writes every element of its outputs and reads none of them first.
type Kernel interface {
	// WorkBytes returns the work memory that a launch needs beside the operands.
	WorkBytes() int
	// Prepare does what a capture cannot hold, such as an upload of addresses. It is called before each launch or replay,
	// with the memory that Launch has: outside of captures.
	Prepare(s Stream, work *cpu.Buf) error
	// Launch enqueues the kernel on s, which must be of the same backend; work holds at least WorkBytes, aligned like an
	// operand and undefined. It allocates nothing once warm. An error of what had been enqueued earlier may come here and
	// in any other call: as a *LaunchError.
	Launch(s Stream, work *cpu.Buf) error
}

// Memory is a block of device memory.
type Memory interface {
	Bytes() int
	// Place makes b hold bytes at offset.
	Place(b *cpu.Buf, offset, bytes int)
	// Free gives the memory back. Nothing that uses it may be under way.
	Free() error
}

// Stream is a queue of copies and kernels that run in order, possibly after the calls that enqueue them have returned.
type Stream interface {
	// Upload copies src, a row-major host value or a View of the same backend, to dst. A host value may change as soon as
	// Upload returns.
	Upload(dst ops.Arg, src G.Value) error
	// Download copies src to the host value dst, whose elements are defined after Synchronize.
	Download(dst G.Value, src ops.Arg) error
	// View returns a value over device memory: on a Host backend one that ops can read, elsewhere one that copies to the
	// host when it is asked for its data, after waiting for s. It holds the address that a has now, and is a pointer.
	View(a ops.Arg) G.Value

	// NewReadback returns a way to copy operands like o to the host without waiting for other work.
	NewReadback(o ops.Operand) (Readback, error)
	// NewEvent returns a mark in this stream, to measure time on the device.
	NewEvent() (Event, error)

	// BeginCapture makes launches be recorded instead of run, until EndCapture. Copies must not come between. On a Host
	// backend it is not called.
	BeginCapture() error
	// EndCapture returns what was recorded. Where recording failed it returns the error, and the stream goes on as if
	// there had been no capture.
	EndCapture() (Replay, error)

	// Synchronize waits until all that was enqueued has ended, and returns its first error.
	Synchronize() error
	Close() error
}

// Readback is a place of the host for copies of one operand at a time.
type Readback interface {
	// Fetch enqueues a copy of src behind what has been enqueued in the stream so far. A copy before it is lost.
	Fetch(src ops.Arg) error
	// Value waits for the last Fetch, but not for what has been enqueued after it, and returns the value, in host memory:
	// it holds until the next Fetch.
	Value() (G.Value, error)
	Close() error
}

// Event is a mark in a stream.
type Event interface {
	// Record puts the mark behind what has been enqueued so far. It must not be captured.
	Record() error
	// Since returns the device's time from start to the mark. It waits for both.
	Since(start Event) (time.Duration, error)
	Close() error
}

// Replay is a recorded sequence of launches. It may keep the addresses that the cells held when it was recorded: where one
// has changed, record again.
type Replay interface {
	// Launch enqueues the sequence on s. An error that its kernels have caused is a *LaunchError.
	Launch(s Stream) error
	Close() error
}

// LaunchError is the failure of one kernel of a Replay, or of one that had been enqueued earlier.
type LaunchError struct {
	Kernel Kernel // nil where it is not known which of several it was
	Err    error
}

// Error returns the kernel's own error.
func (e *LaunchError) Error() string { return e.Err.Error() }

// Unwrap returns the kernel's own error.
func (e *LaunchError) Unwrap() error { return e.Err }
