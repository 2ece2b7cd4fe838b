package graph_test

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"time"
	"unsafe"

	G "gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/graph"
	"github.com/gorgonia-nsa/nsa/internal/cpu"
	"github.com/gorgonia-nsa/nsa/ops"
)

// fake is a device whose memory the host cannot read: values there are of a type of its own, copies are counted, and
// everything that is enqueued runs no earlier than it must, at Synchronize. It computes by the CPU's kernels.
type fake struct {
	cpu     graph.Backend
	missing string // name of a Spec that it has no kernel for
	fault   string // panic of Launch
	half    bool   // it can store bfloat16, and computes in float32
	failAt  int    // number of the call, from 1, that does nothing and fails; 0 for none
	calls   int    // that may fail, so far
	failed  string // the call that did

	open, memory, streams  int // Close not called yet, bytes, streams
	uploads, downloads     int
	launches, synchronized int
	captures, replays      int

	// offers and storage, if not nil, change what Offers and Storage return.
	offers  func(s graph.Site, list []graph.Implementation) []graph.Implementation
	reason  graph.Reason // for which a picky implementation refuses; ReasonShape if it is not set
	storage func(s graph.Site, in, out []tensor.Dtype)

	all []*fakeStream
}

func newFake() *fake     { return &fake{cpu: graph.NewCPU(1), open: 1} }
func newHalfFake() *fake { return &fake{cpu: graph.NewCPU(1), open: 1, half: true} }

// call counts a call and returns the failure that it is to have.
func (f *fake) call(name string) error {
	if f.calls++; f.calls == f.failAt {
		f.failed = name
		return fmt.Errorf("%s fails", name)
	}
	return nil
}

func (f *fake) Device() graph.Device {
	return graph.Device{Name: "fake", Kind: "fake", Units: 1, Capability: 10, Alignment: 256, Half: f.half}
}

func (f *fake) Offers(s graph.Site) []graph.Implementation {
	if s.Spec == nil || s.Spec.Name() == f.missing {
		return nil
	}
	list := []graph.Implementation{fakeImplementation{f, "plain"}}
	switch s.Spec.Name() {
	case "sliding window":
		list = []graph.Implementation{fakeImplementation{f, "narrow"}, list[0]}
	case "squares":
		list = []graph.Implementation{fakeImplementation{f, "unbound"}, list[0]}
	}
	if f.offers != nil {
		list = f.offers(s, list)
	}
	return list
}

func (f *fake) Alloc(bytes int) (graph.Memory, error) {
	if err := f.call("alloc"); err != nil {
		return nil, err
	}
	m, err := f.cpu.Alloc(bytes)
	f.memory += bytes
	return fakeMemory{m, f}, err
}

func (f *fake) NewStream() (graph.Stream, error) {
	if err := f.call("new stream"); err != nil {
		return nil, err
	}
	s, err := f.cpu.NewStream()
	f.streams++
	stream := &fakeStream{fake: f, cpu: s}
	f.all = append(f.all, stream)
	return stream, err
}

func (f *fake) Synchronize() error {
	var errs []error
	for _, s := range f.all {
		errs = append(errs, s.Synchronize())
	}
	return errors.Join(errs...)
}

func (f *fake) Adopt(dst *cpu.Buf, v G.Value, want ops.Operand) (bool, error) {
	d, ok := v.(*fakeValue)
	if !ok {
		return false, nil
	}
	if d.arg.Dtype != want.Dtype || !d.arg.Shape.Eq(want.Shape) {
		return false, fmt.Errorf("got %v, want %v", d.arg.Operand, want)
	}
	*dst = *d.arg.Buf
	return true, nil
}

func (f *fake) Close() error { f.open--; return f.cpu.Close() }

type fakeMemory struct {
	graph.Memory
	fake *fake
}

func (m fakeMemory) Free() error { m.fake.memory -= m.Bytes(); return nil }

// fakeImplementation is the CPU's kernel. One that is narrow takes four columns, a picky one nothing, and one that is unbound
// fails to bind.
type fakeImplementation struct {
	fake *fake
	name string
}

func (i fakeImplementation) Name() string { return i.name }

func (i fakeImplementation) Guard(s graph.Site) error {
	switch d := s.In[0].Shape; {
	case i.name == "picky":
		return graph.Refuse(cmp.Or(i.fake.reason, graph.ReasonShape), "always")
	case i.name == "narrow" && d[len(d)-1] > 4:
		return graph.Refuse(graph.ReasonShape, "key dim %d, want at most 4", d[len(d)-1])
	}
	return nil
}

func (i fakeImplementation) Bind(s graph.Site, in, out []ops.Arg) (graph.Kernel, error) {
	if err := i.fake.call("bind"); err != nil {
		return nil, err
	}
	if i.name == "unbound" {
		return nil, fmt.Errorf("no library: %w", graph.Refuse(graph.ReasonMissing, "libfake.so"))
	}
	k, err := bindHalf(i.fake.cpu, s, in, out)
	return &fakeKernel{Kernel: k, args: slices.Concat(in, out)}, err
}

type fakeKernel struct {
	graph.Kernel
	args  []ops.Arg
	bound []cpu.Buf // that Prepare saw
}

func (k *fakeKernel) Prepare(s graph.Stream, _ *cpu.Buf) error {
	if err := s.(*fakeStream).fake.call("prepare"); err != nil {
		return err
	}
	k.bound = k.bound[:0]
	for _, a := range k.args {
		k.bound = append(k.bound, *a.Buf)
	}
	return nil
}

func (k *fakeKernel) Launch(s graph.Stream, work *cpu.Buf) error {
	stream := s.(*fakeStream)
	cells := make([]cpu.Buf, len(k.args)) // addresses are read when it is enqueued
	for i, a := range k.args {
		cells[i] = *a.Buf
	}
	if stream.capturing && k.bound != nil && !slices.Equal(k.bound, cells) {
		return errors.New("captured without Prepare")
	}
	swap := func() {
		for i, a := range k.args {
			cells[i], *a.Buf = *a.Buf, cells[i]
		}
	}
	run := func() error {
		swap()
		defer swap()
		if err := k.Kernel.Launch(stream.cpu, work); err != nil {
			return &graph.LaunchError{Kernel: k, Err: err}
		}
		return nil
	}
	if stream.fake.fault != "" {
		panic(stream.fake.fault)
	}
	if err := stream.fake.call("launch"); err != nil {
		return err
	}
	stream.fake.launches++
	stream.enqueue(run)
	return nil
}

type fakeStream struct {
	fake      *fake
	cpu       graph.Stream
	queue     []func() error
	capturing bool
	captured  []func() error
}

func (s *fakeStream) enqueue(f func() error) {
	if s.capturing {
		s.captured = append(s.captured, f)
		return
	}
	s.queue = append(s.queue, f)
}

// call is fake's, of what may not be recorded.
func (s *fakeStream) call(name string) error {
	if s.capturing {
		return errors.New(name + " during a capture")
	}
	return s.fake.call(name)
}

func (s *fakeStream) Upload(dst ops.Arg, src G.Value) error {
	if err := s.call("upload"); err != nil {
		return err
	}
	to, from := copyOf(dst), src
	if d, ok := src.(*fakeValue); ok {
		from = s.cpu.View(d.arg)
	} else {
		s.fake.uploads++
		var err error
		if from, err = G.CloneValue(src); err != nil {
			return err
		}
	}
	s.enqueue(func() error { return s.cpu.Upload(to, from) })
	return nil
}

func (s *fakeStream) Download(dst G.Value, src ops.Arg) error {
	if err := s.call("download"); err != nil {
		return err
	}
	s.fake.downloads++
	from := copyOf(src)
	s.enqueue(func() error { return s.cpu.Download(dst, from) })
	return nil
}

func (s *fakeStream) View(a ops.Arg) G.Value {
	return &fakeValue{ops.NewValue(a.Operand), copyOf(a), s}
}

// copyOf returns an operand that stays where a is now.
func copyOf(a ops.Arg) ops.Arg {
	b := *a.Buf
	return ops.Arg{Operand: a.Operand, Buf: &b}
}

func (s *fakeStream) NewReadback(o ops.Operand) (graph.Readback, error) {
	if err := s.fake.call("new readback"); err != nil {
		return nil, err
	}
	return &fakeReadback{s, ops.NewValue(o)}, nil
}

type fakeReadback struct {
	stream *fakeStream
	value  G.Value
}

func (r *fakeReadback) Fetch(src ops.Arg) error { return r.stream.Download(r.value, src) }
func (r *fakeReadback) Value() (G.Value, error) { return r.value, r.stream.Synchronize() }
func (r *fakeReadback) Close() error            { return nil }

func (s *fakeStream) NewEvent() (graph.Event, error) {
	e, err := s.cpu.NewEvent()
	return &fakeEvent{e, s}, err
}

type fakeEvent struct {
	graph.Event
	stream *fakeStream
}

func (e *fakeEvent) Record() error { e.stream.enqueue(e.Event.Record); return nil }

func (e *fakeEvent) Since(start graph.Event) (time.Duration, error) {
	if err := e.stream.Synchronize(); err != nil {
		return 0, err
	}
	return e.Event.Since(start.(*fakeEvent).Event)
}

func (s *fakeStream) BeginCapture() error {
	if err := s.call("begin capture"); err != nil {
		return err
	}
	s.fake.captures++
	s.capturing, s.captured = true, nil
	return nil
}

func (s *fakeStream) EndCapture() (graph.Replay, error) {
	s.capturing = false
	if err := s.fake.call("end capture"); err != nil {
		return nil, err
	}
	return fakeReplay(s.captured), nil
}

func (s *fakeStream) Synchronize() error {
	if err := s.fake.call("synchronize"); err != nil {
		return err
	}
	s.fake.synchronized++
	queue := s.queue
	s.queue = nil
	for _, f := range queue {
		if err := f(); err != nil {
			return err
		}
	}
	return nil
}

func (s *fakeStream) Close() error { s.fake.streams--; return nil }

type fakeReplay []func() error

func (r fakeReplay) Launch(s graph.Stream) error {
	stream := s.(*fakeStream)
	if err := stream.fake.call("replay"); err != nil {
		return err
	}
	stream.fake.replays++
	stream.queue = append(stream.queue, r...)
	return nil
}

func (r fakeReplay) Close() error { return nil }

// fakeValue is a value in the fake device's memory.
type fakeValue struct {
	G.Value // zeros of the same type and shape, on the host
	arg     ops.Arg
	stream  *fakeStream
}

func (v *fakeValue) Uintptr() uintptr        { return uintptr(v.arg.Pointer()) }
func (v *fakeValue) Pointer() unsafe.Pointer { return v.arg.Pointer() }
func (v *fakeValue) Format(s fmt.State, _ rune) {
	fmt.Fprintf(s, "%v on the fake device", v.arg.Operand)
}

func (v *fakeValue) HostValue() (G.Value, error) {
	host := ops.NewValue(v.arg.Operand)
	return host, errors.Join(v.stream.Download(host, v.arg), v.stream.Synchronize())
}

func (v *fakeValue) Data() interface{} {
	host, err := v.HostValue()
	if err != nil {
		return err
	}
	return host.Data()
}
