package fakedriver

import (
	"unsafe"

	"github.com/gorgonia-nsa/nsa/cuda/internal/driver"
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
	dst, src driver.DevicePtr
	host     unsafe.Pointer
	n        int // bytes; of dynamic shared memory for a kernel
	value    uint32
	f        *function
	grid     driver.Grid
	block    driver.Block
	args     [maxWords]uint64
	event    *event
	id       int // of the record
	graph    *graph
}

type stream struct {
	*gpu
	queue     []op
	next      int // the first that has not run
	capturing driver.CaptureStatus
	captured  []op
}

type event struct {
	*gpu
	timing   bool
	stream   *stream
	recorded int // number of the last record, 0 before the first
	came     int // likewise, that has run
	time     float32
}

type graph struct {
	*gpu
	ops []op
}

// add enqueues o, or records it.
func (s *stream) add(o op) *op {
	q := &s.queue
	if s.capturing != driver.CaptureNone {
		q = &s.captured
	}
	*q = append(*q, o)
	return &(*q)[len(*q)-1]
}

// queue returns the stream of a call that enqueues.
func (d *Driver) queue(method string, h driver.StreamHandle) (*stream, driver.Result) {
	s, r := lookup(d, method, d.streams, h)
	if r == driver.Success && s.capturing == driver.CaptureBroken {
		return nil, driver.CaptureInvalidated
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
	if g.problem != driver.Success {
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
func (d *Driver) finish(s *stream) driver.Result {
	for len(s.queue) > 0 {
		d.step(s)
	}
	return s.gpu.problem
}

// drain runs all streams of g.
func (d *Driver) drain(g *gpu) driver.Result {
	for _, s := range d.streams {
		if s.gpu == g {
			d.finish(s)
		}
	}
	return g.problem
}

func (d *Driver) CtxSynchronize() driver.Result {
	d.mu.Lock()
	defer d.mu.Unlock()
	g, r := d.within("CtxSynchronize")
	if r != driver.Success {
		return r
	}
	return d.drain(g)
}

func (d *Driver) StreamCreate(uint32) (driver.StreamHandle, driver.Result) {
	d.mu.Lock()
	defer d.mu.Unlock()
	g, r := d.within("StreamCreate")
	if r != driver.Success {
		return 0, r
	}
	h := driver.StreamHandle(d.handle())
	d.streams[h] = &stream{gpu: g}
	return h, r
}

func (d *Driver) StreamDestroy(h driver.StreamHandle) driver.Result {
	d.mu.Lock()
	defer d.mu.Unlock()
	s, r := d.queue("StreamDestroy", h)
	if r != driver.Success {
		return r
	}
	delete(d.streams, h)
	return d.finish(s)
}

func (d *Driver) StreamSynchronize(h driver.StreamHandle) driver.Result {
	d.mu.Lock()
	defer d.mu.Unlock()
	s, r := d.queue("StreamSynchronize", h)
	if r != driver.Success {
		return r
	}
	if s.capturing != driver.CaptureNone {
		s.capturing = driver.CaptureBroken
		return driver.CaptureUnsupported
	}
	return d.finish(s)
}

func (d *Driver) StreamWaitEvent(h driver.StreamHandle, eh driver.EventHandle) driver.Result {
	d.mu.Lock()
	defer d.mu.Unlock()
	s, r := d.queue("StreamWaitEvent", h)
	if r != driver.Success {
		return r
	}
	e := d.events[eh]
	if e == nil {
		return driver.InvalidHandle
	}
	s.add(op{kind: wait, event: e, id: e.recorded})
	return r
}

func (d *Driver) EventCreate(flags uint32) (driver.EventHandle, driver.Result) {
	d.mu.Lock()
	defer d.mu.Unlock()
	g, r := d.within("EventCreate")
	if r != driver.Success {
		return 0, r
	}
	h := driver.EventHandle(d.handle())
	d.events[h] = &event{gpu: g, timing: flags&driver.EventDisableTiming == 0}
	return h, r
}

func (d *Driver) EventDestroy(h driver.EventHandle) driver.Result {
	return destroy(d, "EventDestroy", d.events, h)
}

func (d *Driver) EventRecord(eh driver.EventHandle, h driver.StreamHandle) driver.Result {
	d.mu.Lock()
	defer d.mu.Unlock()
	s, r := d.queue("EventRecord", h)
	if r != driver.Success {
		return r
	}
	e := d.events[eh]
	if e == nil || e.gpu != s.gpu {
		return driver.InvalidHandle
	}
	e.recorded++
	e.stream = s
	s.add(op{kind: record, event: e, id: e.recorded})
	return r
}

func (d *Driver) EventSynchronize(h driver.EventHandle) driver.Result {
	d.mu.Lock()
	defer d.mu.Unlock()
	e, r := lookup(d, "EventSynchronize", d.events, h)
	if r != driver.Success {
		return r
	}
	for e.came < e.recorded && len(e.stream.queue) > 0 {
		d.step(e.stream)
	}
	return e.gpu.problem
}

// EventQuery runs one thing that is before the event.
func (d *Driver) EventQuery(h driver.EventHandle) driver.Result {
	d.mu.Lock()
	defer d.mu.Unlock()
	e, r := lookup(d, "EventQuery", d.events, h)
	if r != driver.Success || e.came == e.recorded {
		return r
	}
	d.step(e.stream)
	if e.gpu.problem != driver.Success {
		return e.gpu.problem
	}
	return driver.NotReady
}

func (d *Driver) EventElapsedTime(start, end driver.EventHandle) (float32, driver.Result) {
	d.mu.Lock()
	defer d.mu.Unlock()
	a, r := lookup(d, "EventElapsedTime", d.events, start)
	if r != driver.Success {
		return 0, r
	}
	b := d.events[end]
	switch {
	case b == nil || !a.timing || !b.timing || a.recorded == 0 || b.recorded == 0:
		return 0, driver.InvalidHandle
	case a.came < a.recorded || b.came < b.recorded:
		return 0, driver.NotReady
	}
	return b.time - a.time, r
}
