// Package fakedevice is a second device for tests. It has memory of its own, streams and captures, and computes with
// the CPU's kernels.
package fakedevice

import (
	"cmp"
	"errors"
	"fmt"

	G "gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/graph"
	"github.com/gorgonia-nsa/nsa/internal/cpu"
	"github.com/gorgonia-nsa/nsa/ops/spec"
)

// Backend is a device whose memory the host cannot read. Its values have a type of their own, and it counts copies. It
// runs enqueued work as late as possible, in Synchronize. It computes with the CPU's kernels.
type Backend struct {
	cpu     graph.Backend
	Missing string // name of a Spec that the device has no kernel for
	Fault   string // if not empty, Launch panics with it
	Half    bool   // the device can store bfloat16; it computes in float32
	FailAt  int    // number, from 1, of the call that does nothing and fails; 0: none fails
	Calls   int    // number of calls so far that could fail
	Failed  string // name of the call that failed

	Open, MemoryInUse, Streams int // backends not closed yet, bytes, streams
	Uploads, Downloads         int
	Launches, Synchronized     int
	Captures, Replays          int
	MemoryAsked                int   // calls of MemoryUsed
	NoMeter                    error // error that MemoryUsed returns

	// Offered and Stored, if not nil, change the results of Offers and Storage.
	Offered func(s graph.Call, list []graph.Implementation) []graph.Implementation
	Reason  graph.Reason // reason for which a picky implementation refuses; ReasonShape if it is not set
	Stored  func(s graph.Call, in, out []tensor.Dtype)

	all []*stream
}

// New returns a device that computes in the types of the graph.
func New() *Backend { return &Backend{cpu: graph.NewCPU(1), Open: 1} }

// NewHalf returns a device that stores bfloat16, too.
func NewHalf() *Backend { return &Backend{cpu: graph.NewCPU(1), Open: 1, Half: true} }

// call counts a call. It returns an error if the call must fail.
func (f *Backend) call(name string) error {
	if f.Calls++; f.Calls == f.FailAt {
		f.Failed = name
		return fmt.Errorf("%s fails", name)
	}
	return nil
}

func (f *Backend) Device() graph.Device {
	return graph.Device{Name: "fake", Kind: "fake", Units: 1, Capability: 10, Alignment: 256, Half: f.Half}
}

func (f *Backend) Offers(s graph.Call) []graph.Implementation {
	if s.Spec == nil || s.Spec.Name() == f.Missing {
		return nil
	}
	list := []graph.Implementation{implementation{f, "plain"}}
	switch s.Spec.Name() {
	case "sliding window":
		list = []graph.Implementation{implementation{f, "narrow"}, list[0]}
	case "squares":
		list = []graph.Implementation{implementation{f, "unbound"}, list[0]}
	}
	if f.Offered != nil {
		list = f.Offered(s, list)
	}
	return list
}

func (f *Backend) Alloc(bytes int) (graph.Memory, error) {
	if err := f.call("alloc"); err != nil {
		return nil, err
	}
	m, err := f.cpu.Alloc(bytes)
	f.MemoryInUse += bytes
	return memory{m, f}, err
}

// MemoryUsed returns MemoryInUse and the error NoMeter.
func (f *Backend) MemoryUsed() (int64, error) {
	f.MemoryAsked++
	return int64(f.MemoryInUse), f.NoMeter
}

func (f *Backend) NewStream() (graph.Stream, error) {
	if err := f.call("new stream"); err != nil {
		return nil, err
	}
	s, err := f.cpu.NewStream()
	f.Streams++
	stream := &stream{fake: f, cpu: s}
	f.all = append(f.all, stream)
	return stream, err
}

func (f *Backend) Synchronize() error {
	var errs []error
	for _, s := range f.all {
		errs = append(errs, s.Synchronize())
	}
	return errors.Join(errs...)
}

func (f *Backend) Adopt(dst *cpu.Buf, v G.Value, want spec.Operand) (bool, error) {
	d, ok := v.(*value)
	if !ok {
		return false, nil
	}
	if d.arg.Dtype != want.Dtype || !d.arg.Shape.Eq(want.Shape) {
		return false, fmt.Errorf("got %v, want %v", d.arg.Operand, want)
	}
	*dst = *d.arg.Buf
	return true, nil
}

// Implementation returns an implementation that uses the CPU's kernels. The name sets its behaviour: "narrow" refuses
// more than four columns, "picky" refuses everything, and "unbound" fails to bind.
func (f *Backend) Implementation(name string) graph.Implementation { return implementation{f, name} }

func (f *Backend) Close() error { f.Open--; return f.cpu.Close() }

type memory struct {
	graph.Memory
	fake *Backend
}

func (m memory) Free() error { m.fake.MemoryInUse -= m.Bytes(); return nil }

type implementation struct {
	fake *Backend
	name string
}

func (i implementation) Name() string { return i.name }

func (i implementation) Guard(s graph.Call) error {
	switch d := s.In[0].Shape; {
	case i.name == "picky":
		return graph.Refuse(cmp.Or(i.fake.Reason, graph.ReasonShape), "always")
	case i.name == "narrow" && d[len(d)-1] > 4:
		return graph.Refuse(graph.ReasonShape, "key dim %d, want at most 4", d[len(d)-1])
	}
	return nil
}

func (i implementation) Bind(s graph.Call, in, out []spec.Arg) (graph.Kernel, error) {
	if err := i.fake.call("bind"); err != nil {
		return nil, err
	}
	if i.name == "unbound" {
		return nil, fmt.Errorf("no library: %w", graph.Refuse(graph.ReasonMissing, "libfake.so"))
	}
	return bind(i.fake.cpu, s, in, out)
}
