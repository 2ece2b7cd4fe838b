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
	set
	kernel
	record
	replay
)

// op is what a stream holds.
type op struct {
	kind     opKind
	dst, src driver.DevicePtr
	host     unsafe.Pointer
	n        int // bytes; of dynamic shared memory for a kernel
	value    uint8
	f        *function
	grid     driver.Grid
	block    driver.Block
	args     [maxArgs]byte
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
	ended    int // number of the last record that has run
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
	case set:
		b := d.at(g, o.dst, o.n)
		for i := range b {
			b[i] = o.value
		}
	case kernel:
		d.launched[o.f.name]++
		if run := d.kernels[o.f.name].Run; run != nil {
			d.launch = Launch{o.grid, o.block, o.n, o.args[:o.f.Args], d, g}
			run(&d.launch)
		}
	case record:
		o.event.ended, o.event.time = o.id, d.clock
	case replay:
		for i := range o.graph.ops {
			d.run(g, &o.graph.ops[i])
		}
	}
}

// finish runs all of s and returns the state of the context.
func (d *Driver) finish(s *stream) driver.Result {
	for len(s.queue) > 0 {
		d.step(s)
	}
	return s.problem
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
	defer d.lock()()
	g, r := d.within("CtxSynchronize")
	if r != driver.Success {
		return r
	}
	return d.drain(g)
}

func (d *Driver) StreamCreate(uint32) (driver.StreamHandle, driver.Result) {
	return create(d, "StreamCreate", d.streams, func(g *gpu) *stream { return &stream{gpu: g} })
}

func (d *Driver) StreamDestroy(h driver.StreamHandle) driver.Result {
	return d.inStream("StreamDestroy", h, func(s *stream) driver.Result {
		delete(d.streams, h)
		return d.finish(s)
	})
}

func (d *Driver) StreamSynchronize(h driver.StreamHandle) driver.Result {
	return d.inStream("StreamSynchronize", h, func(s *stream) driver.Result {
		if s.capturing != driver.CaptureNone {
			s.capturing = driver.CaptureBroken
			return driver.CaptureUnsupported
		}
		return d.finish(s)
	})
}

func (d *Driver) EventCreate(flags uint32) (driver.EventHandle, driver.Result) {
	return create(d, "EventCreate", d.events, func(g *gpu) *event {
		return &event{gpu: g, timing: flags&driver.EventDisableTiming == 0}
	})
}

func (d *Driver) EventDestroy(h driver.EventHandle) driver.Result {
	return destroy(d, "EventDestroy", d.events, h)
}

func (d *Driver) EventRecord(eh driver.EventHandle, h driver.StreamHandle) driver.Result {
	return d.inStream("EventRecord", h, func(s *stream) driver.Result {
		e := d.events[eh]
		if e == nil || e.gpu != s.gpu {
			return driver.InvalidHandle
		}
		e.recorded++
		e.stream = s
		s.add(op{kind: record, event: e, id: e.recorded})
		return driver.Success
	})
}

func (d *Driver) EventSynchronize(h driver.EventHandle) driver.Result {
	return use(d, "EventSynchronize", d.events, h, func(e *event) driver.Result {
		for e.ended < e.recorded && len(e.stream.queue) > 0 {
			d.step(e.stream)
		}
		return e.problem
	})
}

func (d *Driver) EventQuery(h driver.EventHandle) driver.Result {
	return use(d, "EventQuery", d.events, h, func(e *event) driver.Result {
		if e.ended < e.recorded {
			return driver.NotReady
		}
		return driver.Success
	})
}

func (d *Driver) EventElapsedTime(start, end driver.EventHandle) (float32, driver.Result) {
	return ask(d, "EventElapsedTime", d.events, start, func(a *event) (float32, driver.Result) {
		b := d.events[end]
		switch {
		case b == nil || !a.timing || !b.timing || a.recorded == 0 || b.recorded == 0:
			return 0, driver.InvalidHandle
		case a.ended < a.recorded || b.ended < b.recorded:
			return 0, driver.NotReady
		}
		return b.time - a.time, driver.Success
	})
}

func (d *Driver) StreamBeginCapture(h driver.StreamHandle, _ int32) driver.Result {
	return d.inStream("StreamBeginCapture", h, func(s *stream) driver.Result {
		if s.capturing != driver.CaptureNone {
			return driver.InvalidValue
		}
		s.capturing, s.captured = driver.CaptureActive, nil
		return driver.Success
	})
}

func (d *Driver) StreamIsCapturing(h driver.StreamHandle) (driver.CaptureStatus, driver.Result) {
	return ask(d, "StreamIsCapturing", d.streams, h, func(s *stream) (driver.CaptureStatus, driver.Result) {
		return s.capturing, driver.Success
	})
}

// BreakCapture invalidates all captures under way, as a call that is not allowed in them does.
func (d *Driver) BreakCapture() {
	defer d.lock()()
	for _, s := range d.streams {
		if s.capturing != driver.CaptureNone {
			s.capturing = driver.CaptureBroken
		}
	}
}

func (d *Driver) StreamEndCapture(h driver.StreamHandle) (driver.GraphHandle, driver.Result) {
	return ask(d, "StreamEndCapture", d.streams, h, func(s *stream) (driver.GraphHandle, driver.Result) {
		was := s.capturing
		s.capturing = driver.CaptureNone
		switch was {
		case driver.CaptureNone:
			return 0, driver.InvalidValue
		case driver.CaptureBroken:
			return 0, driver.CaptureInvalidated
		}
		return put(d, d.graphs, &graph{s.gpu, s.captured}), driver.Success
	})
}

func (d *Driver) GraphInstantiate(h driver.GraphHandle) (driver.GraphExecHandle, driver.Result) {
	return ask(d, "GraphInstantiate", d.graphs, h, func(g *graph) (driver.GraphExecHandle, driver.Result) {
		return put(d, d.execs, &graph{g.gpu, g.ops}), driver.Success
	})
}

func (d *Driver) GraphLaunch(e driver.GraphExecHandle, h driver.StreamHandle) driver.Result {
	return d.inStream("GraphLaunch", h, func(s *stream) driver.Result {
		x := d.execs[e]
		if x == nil || x.gpu != s.gpu {
			return driver.InvalidHandle
		}
		s.add(op{kind: replay, graph: x})
		return driver.Success
	})
}

func (d *Driver) GraphDestroy(h driver.GraphHandle) driver.Result {
	return destroy(d, "GraphDestroy", d.graphs, h)
}

func (d *Driver) GraphExecDestroy(h driver.GraphExecHandle) driver.Result {
	return destroy(d, "GraphExecDestroy", d.execs, h)
}
