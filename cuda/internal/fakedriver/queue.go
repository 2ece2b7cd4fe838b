package fakedriver

import (
	"unsafe"

	"github.com/gorgonia-nsa/nsa/cuda"
)

type opKind int

const (
	copyIn opKind = iota
	copyOut
	copyOn
	set8
	set32
	kernel
	record
	wait
	replay
)

// op is what a queue holds.
type op struct {
	kind     opKind
	dst, src cuda.DevicePtr
	host     unsafe.Pointer
	n        int // bytes; of dynamic shared memory for a kernel
	value    uint32
	f        *function
	grid     cuda.Grid
	block    cuda.Block
	args     [maxWords]uint64
	event    *event
	id       int // of the record
	graph    *graph
}

type stream struct {
	gpu       *gpu
	queue     []op
	next      int // the first that has not run
	capturing cuda.CaptureStatus
	captured  []op
}

type event struct {
	gpu      *gpu
	timing   bool
	stream   *stream
	recorded int // number of the last record, 0 before the first
	came     int // likewise, that has run
	time     float32
}

type graph struct {
	gpu *gpu
	ops []op
}

// add enqueues o, or records it.
func (s *stream) add(o op) *op {
	q := &s.queue
	if s.capturing != cuda.CaptureNone {
		q = &s.captured
	}
	*q = append(*q, o)
	return &(*q)[len(*q)-1]
}

// queue returns the stream of a call that enqueues.
func (d *Driver) queue(method string, h cuda.StreamHandle) (*stream, cuda.Result) {
	g, r := d.within(method)
	if r != cuda.Success {
		return nil, r
	}
	s := d.streams[h]
	if s == nil || s.gpu != g {
		return nil, cuda.InvalidHandle
	}
	if s.capturing == cuda.CaptureBroken {
		return nil, cuda.CaptureInvalidated
	}
	return s, r
}

// step runs the first thing in s.
func (d *Driver) step(s *stream) {
	o := &s.queue[s.next]
	s.next++
	d.run(s.gpu, o)
	if s.next == len(s.queue) {
		s.queue, s.next = s.queue[:0], 0
	}
}

// run runs o, unless the context has failed.
func (d *Driver) run(g *gpu, o *op) {
	if g.problem != cuda.Success {
		return
	}
	d.clock += 0.01
	switch o.kind {
	case copyIn:
		copy(d.at(g, o.dst, o.n), unsafe.Slice((*byte)(o.host), o.n))
	case copyOut:
		copy(unsafe.Slice((*byte)(o.host), o.n), d.at(g, o.src, o.n))
	case copyOn:
		copy(d.at(g, o.dst, o.n), d.at(g, o.src, o.n))
	case set8:
		fill(d.at(g, o.dst, o.n), []byte{byte(o.value)})
	case set32:
		fill(d.at(g, o.dst, o.n), unsafe.Slice((*byte)(unsafe.Pointer(&o.value)), 4))
	case kernel:
		if o.f.Run != nil {
			d.launch = Launch{o.grid, o.block, o.n, d, o.f, &o.args}
			o.f.Run(&d.launch)
		}
	case record:
		o.event.came, o.event.time = o.id, d.clock
	case wait:
		for o.event.came < o.id && o.event.stream.next < len(o.event.stream.queue) {
			d.step(o.event.stream)
		}
	case replay:
		for i := range o.graph.ops {
			d.run(g, &o.graph.ops[i])
		}
	}
}

// fill repeats pattern.
func fill(b, pattern []byte) {
	for n := copy(b, pattern); n > 0 && n < len(b); n *= 2 {
		copy(b[n:], b[:n])
	}
}

// finish runs all of s and returns what the context has become.
func (d *Driver) finish(s *stream) cuda.Result {
	for len(s.queue) > 0 {
		d.step(s)
	}
	return s.gpu.problem
}

// drain runs all streams of g.
func (d *Driver) drain(g *gpu) cuda.Result {
	for _, s := range d.streams {
		if s.gpu == g {
			d.finish(s)
		}
	}
	return g.problem
}

func (d *Driver) CtxSynchronize() cuda.Result {
	d.mu.Lock()
	defer d.mu.Unlock()
	g, r := d.within("CtxSynchronize")
	if r != cuda.Success {
		return r
	}
	return d.drain(g)
}

func (d *Driver) StreamCreate(uint32) (cuda.StreamHandle, cuda.Result) {
	d.mu.Lock()
	defer d.mu.Unlock()
	g, r := d.within("StreamCreate")
	if r != cuda.Success {
		return 0, r
	}
	h := cuda.StreamHandle(d.handle())
	d.streams[h] = &stream{gpu: g}
	return h, r
}

func (d *Driver) StreamDestroy(h cuda.StreamHandle) cuda.Result {
	d.mu.Lock()
	defer d.mu.Unlock()
	s, r := d.queue("StreamDestroy", h)
	if r != cuda.Success {
		return r
	}
	delete(d.streams, h)
	return d.finish(s)
}

func (d *Driver) StreamSynchronize(h cuda.StreamHandle) cuda.Result {
	d.mu.Lock()
	defer d.mu.Unlock()
	s, r := d.queue("StreamSynchronize", h)
	if r != cuda.Success {
		return r
	}
	if s.capturing != cuda.CaptureNone {
		s.capturing = cuda.CaptureBroken
		return cuda.CaptureUnsupported
	}
	return d.finish(s)
}

func (d *Driver) StreamWaitEvent(h cuda.StreamHandle, eh cuda.EventHandle) cuda.Result {
	d.mu.Lock()
	defer d.mu.Unlock()
	s, r := d.queue("StreamWaitEvent", h)
	if r != cuda.Success {
		return r
	}
	e := d.events[eh]
	if e == nil {
		return cuda.InvalidHandle
	}
	s.add(op{kind: wait, event: e, id: e.recorded})
	return r
}

func (d *Driver) EventCreate(flags uint32) (cuda.EventHandle, cuda.Result) {
	d.mu.Lock()
	defer d.mu.Unlock()
	g, r := d.within("EventCreate")
	if r != cuda.Success {
		return 0, r
	}
	h := cuda.EventHandle(d.handle())
	d.events[h] = &event{gpu: g, timing: flags&cuda.EventDisableTiming == 0}
	return h, r
}

// event returns the event of a call.
func (d *Driver) event(method string, h cuda.EventHandle) (*event, cuda.Result) {
	g, r := d.within(method)
	if r != cuda.Success {
		return nil, r
	}
	e := d.events[h]
	if e == nil || e.gpu != g {
		return nil, cuda.InvalidHandle
	}
	return e, r
}

func (d *Driver) EventDestroy(h cuda.EventHandle) cuda.Result {
	d.mu.Lock()
	defer d.mu.Unlock()
	if _, r := d.event("EventDestroy", h); r != cuda.Success {
		return r
	}
	delete(d.events, h)
	return cuda.Success
}

func (d *Driver) EventRecord(eh cuda.EventHandle, h cuda.StreamHandle) cuda.Result {
	d.mu.Lock()
	defer d.mu.Unlock()
	s, r := d.queue("EventRecord", h)
	if r != cuda.Success {
		return r
	}
	e := d.events[eh]
	if e == nil || e.gpu != s.gpu {
		return cuda.InvalidHandle
	}
	e.recorded++
	e.stream = s
	s.add(op{kind: record, event: e, id: e.recorded})
	return r
}

func (d *Driver) EventSynchronize(h cuda.EventHandle) cuda.Result {
	d.mu.Lock()
	defer d.mu.Unlock()
	e, r := d.event("EventSynchronize", h)
	if r != cuda.Success {
		return r
	}
	for e.came < e.recorded && len(e.stream.queue) > 0 {
		d.step(e.stream)
	}
	return e.gpu.problem
}

// EventQuery runs one thing that is before the event.
func (d *Driver) EventQuery(h cuda.EventHandle) cuda.Result {
	d.mu.Lock()
	defer d.mu.Unlock()
	e, r := d.event("EventQuery", h)
	if r != cuda.Success || e.came == e.recorded {
		return r
	}
	d.step(e.stream)
	if e.gpu.problem != cuda.Success {
		return e.gpu.problem
	}
	return cuda.NotReady
}

func (d *Driver) EventElapsedTime(start, end cuda.EventHandle) (float32, cuda.Result) {
	d.mu.Lock()
	defer d.mu.Unlock()
	a, r := d.event("EventElapsedTime", start)
	if r != cuda.Success {
		return 0, r
	}
	b := d.events[end]
	switch {
	case b == nil || !a.timing || !b.timing || a.recorded == 0 || b.recorded == 0:
		return 0, cuda.InvalidHandle
	case a.came < a.recorded || b.came < b.recorded:
		return 0, cuda.NotReady
	}
	return b.time - a.time, r
}
