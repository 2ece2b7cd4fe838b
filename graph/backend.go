package graph

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	G "gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/internal/cpu"
	"github.com/gorgonia-nsa/nsa/ops/spec"
)

// Device describes where a Backend runs.
type Device struct {
	Name       string // for people, such as "NVIDIA H200"
	Kind       string // "cpu", "cuda"
	Units      int    // workers of a CPU, multiprocessors of a GPU
	Capability int    // compute capability, ten times the major number plus the minor one; 0 on a CPU
	Memory     int64  // total bytes; 0 if not known
	Features   string // what else the choice of kernels depends on, such as the SIMD level of a CPU
	Alignment  int    // bytes, of every operand in memory from Alloc: a power of two, at least 8
	Host       bool   // the device's memory is the host's: ops read and write it by their own Do, without copies
	Half       bool   // the device computes in half precision, too: see Backend.Storage
	OnlyBF16   bool   // the device's only type of half precision is bfloat16
}

// Backend is a device with kernels. It knows nothing of graphs: a Machine makes the plan, places the operands in the
// backend's memory, binds kernels to them and launches the kernels in order.
//
// A cell (*cpu.Buf, within spec.Arg) holds the device address of an operand. A kernel is bound to its cells once. The
// address in a cell may change between runs, so kernels read their cells at each launch.
//
// Several machines in several goroutines may use a Backend at once. Only one goroutine may use a Stream and what is
// bound for it.
type Backend interface {
	Device() Device

	// Offers returns the implementations of an op in order of preference, none for an op that the backend does not
	// implement. It may include implementations whose guard refuses the call: then the plan can say why. The result is
	// for this call alone.
	Offers(Call) []Implementation

	// Storage returns the types that the operands of a call should have if activations are stored in half, which is
	// spec.BFloat16 or spec.Float16. The call's In have their types so far, its Out those of the graph. The machine
	// puts a spec.Cast before each input whose type has to change, and gives the outputs the returned types. Storage
	// may change float32 to half and half to float32, nothing else. It is called only if Device().Half.
	Storage(s Call, half tensor.Dtype) (in, out []tensor.Dtype)

	// Alloc returns zeroed memory of the device, aligned to at least Device().Alignment.
	Alloc(bytes int) (Memory, error)

	// NewStream returns a new stream of the device. A backend may also have NewUrgentStream, for a stream whose work goes
	// before that of the others: collective ops run there.
	NewStream() (Stream, error)

	// Adopt points dst to the memory of v and returns true if kernels can read v in place: it is on this device,
	// row-major and aligned for every kernel. It returns false if the caller must upload v. A Host backend never does:
	// it points dst to a row-major copy if necessary. It is an error if v differs from want in type or shape, or is on
	// another device.
	Adopt(dst *cpu.Buf, v G.Value, want spec.Operand) (ok bool, err error)

	// Synchronize waits until all work that was enqueued in all streams has ended.
	Synchronize() error

	// Close frees the backend's own resources. All memory must be freed and all streams closed before.
	Close() error
}

// Call describes an op and its operands to a backend.
type Call struct {
	Op      G.Op      // nil for a Spec that is not the op of a node
	Spec    spec.Spec // nil for an op that is not of package ops
	In, Out []spec.Operand
	// of In, then Out: whether the operand lies directly after the one before it in memory, of a collective op after
	// padding to Device.Alignment; known from dispatch on, nil for none
	Adjacent []bool
	// of In: whether it is an input of WithConstantInputs or a copy of one: no step writes it while the op may run
	Constant []bool
	Policy   Policy
	Group    Group // of WithGroup; nil for none
}

// Check returns an *Unsupported error if the Spec does not accept the call's inputs, or infers other shapes for its
// outputs. Few Specs accept half precision, so Check also tries float32 instead.
func (s Call) Check() error {
	if s.Spec == nil {
		return nil
	}
	if err := cmp.Or(spec.CheckSizes("input", s.In), spec.CheckSizes("output", s.Out)); err != nil {
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
	if !slices.EqualFunc(out, s.Out, func(a, b spec.Operand) bool { return a.Shape.Eq(b.Shape) }) {
		return Refuse(ReasonShape, "outputs %v, want %v", s.Out, out)
	}
	return nil
}

// Implementation is one way to run an op on a device.
type Implementation interface {
	// Name identifies the implementation in plans and counters, such as "cpu" or "window wgmma".
	Name() string
	// Guard returns nil if the implementation can run the call, else an *Unsupported error. The result depends on the call
	// and the device alone.
	Guard(Call) error
	// Bind returns the kernel for the operands in and out, whose cells hold no address yet. After an *Unsupported error
	// the machine tries the next implementation; any other error ends the planning.
	Bind(call Call, in, out []spec.Arg) (Kernel, error)
}

// Cost is the least that an op has to do: the arithmetic of its products, and one read or write of each operand.
type Cost struct {
	FLOPs float64 // see spec.FLOPs
	Bytes float64
}

// Cost returns the cost of the op, as spec.FLOPs counts it.
func (s Call) Cost() Cost {
	var c Cost
	if s.Spec != nil {
		c.FLOPs = spec.FLOPs(s.Spec, s.In)
	}
	for _, list := range [][]spec.Operand{s.In, s.Out} {
		for _, o := range list {
			c.Bytes += float64(o.Bytes())
		}
	}
	return c
}

// Kernel is an op bound to its operands. It writes every element of its outputs. An output may be an input as well (the
// sums of WithGradSums: a pointwise.Add with the total as first term and as result); otherwise they do not overlap.
type Kernel interface {
	// WorkBytes returns the bytes of work memory that a launch needs beside the operands.
	WorkBytes() int
	// Prepare does what a capture cannot hold, such as an upload of addresses. It is called before each launch or
	// replay and outside of captures, with the work memory that Launch gets.
	Prepare(s Stream, work *cpu.Buf) error
	// Launch enqueues the kernel on s, a stream of the same backend. work holds at least WorkBytes, aligned like an
	// operand; its content is undefined. Launch allocates nothing once warm. Like any other call, it may return the
	// error of work that was enqueued earlier, as a *LaunchError.
	Launch(s Stream, work *cpu.Buf) error
}

// KeepsWork is a Kernel that may keep something in its work memory from run to run. If it does, the memory is its own, and
// starts with zeros.
type KeepsWork interface {
	Kernel
	KeepsWork() bool
}

// Memory is a block of device memory.
type Memory interface {
	Bytes() int
	// Place points b to the given number of bytes at offset.
	Place(b *cpu.Buf, offset, bytes int)
	// Free gives the memory back. No work that uses it may still be running.
	Free() error
}

// Stream is a queue of copies and kernels that run in order, possibly after the calls that enqueue them have returned.
type Stream interface {
	// Upload copies src, a row-major host value or a View of the same backend, to dst. The caller may change a host
	// value as soon as Upload returns.
	Upload(dst spec.Arg, src G.Value) error
	// Download copies src to the host value dst, whose elements are defined after Synchronize.
	Download(dst G.Value, src spec.Arg) error
	// View returns a value over the device memory of a. On a Host backend ops can read it. Elsewhere, when it is asked
	// for its data, it waits for s and copies them to the host. The value keeps the address that a has now. Its dynamic
	// type is a pointer, so a machine may compare values by ==.
	View(a spec.Arg) G.Value

	// NewReadback returns a Readback for operands like o. It copies to the host without waiting for other work.
	NewReadback(o spec.Operand) (Readback, error)
	// NewEvent returns an Event of this stream, to measure time on the device.
	NewEvent() (Event, error)

	// After makes what is enqueued in this stream from now on wait for what s, a stream of the same backend, holds now. In
	// a capture of s both are recorded; EndCapture then needs the captured stream to have come After the other one. In a
	// capture of this stream, s must be in it, too: anything else is an error.
	After(s Stream) error

	// BeginCapture starts a recording: until EndCapture, launches are recorded and not run. No copies may come in
	// between. It is not called on a Host backend.
	BeginCapture() error
	// EndCapture returns the recording. If recording failed, it returns the error, and the stream works as if there had
	// been no capture.
	EndCapture() (Replay, error)

	// Synchronize waits until all enqueued work has ended, and returns its first error.
	Synchronize() error
	Close() error
}

// Readback is host memory for copies of operands, one copy at a time.
type Readback interface {
	// Fetch enqueues a copy of src after the work in the stream so far. It overwrites the copy before it.
	Fetch(src spec.Arg) error
	// Value waits for the last Fetch, but not for later work, and returns the value, in host memory. The value is valid
	// until the next Fetch.
	Value() (G.Value, error)
	Close() error
}

// Event is a mark in a stream.
type Event interface {
	// Record puts the mark after the work in the stream so far. It must not be captured.
	Record() error
	// Since returns the device's time from start to the mark. It waits for both.
	Since(start Event) (time.Duration, error)
	// Done reports, without waiting, whether the work before the mark has ended.
	Done() (bool, error)
	Close() error
}

// Replay is a recorded sequence of launches. It may hold the addresses that the cells had during the recording: record
// again if one has changed.
type Replay interface {
	// Launch enqueues the sequence on s. An error that its kernels have caused is a *LaunchError.
	Launch(s Stream) error
	Close() error
}

// LaunchError is the failure of one kernel of a Replay, or of a kernel that was enqueued earlier.
type LaunchError struct {
	Kernel Kernel // nil if it is not known which kernel failed
	Err    error
}

// Error returns the kernel's own error.
func (e *LaunchError) Error() string { return fmt.Sprint(e.Err) }

// Unwrap returns the kernel's own error.
func (e *LaunchError) Unwrap() error { return e.Err }

func isRemote(v G.Value) bool {
	_, ok := v.(remoteValue)
	return ok
}

// remoteValue is a value that is not on the host.
type remoteValue interface{ HostValue() (G.Value, error) }
