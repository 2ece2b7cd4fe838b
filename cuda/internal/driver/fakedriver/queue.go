package fakedriver

import "github.com/gorgonia-nsa/nsa/cuda/internal/driver"

// op is an entry of a stream: a launch of a kernel, the record of an event, a captured graph, a copy or a fill.
type op struct {
	f      *function
	launch Launch
	args   [maxArgs]byte

	event *event
	id    int // of the record

	graph *executable

	dst, src []byte
	value    byte // of a fill, which has no src
}

type stream struct {
	*gpu
	queue     []op
	next      int   // the index of the first op that has not run
	capturing int32 // a capture state of package driver
	captured  []op
	origin    *stream // whose capture this one has joined, or nil
	unjoined  bool    // the origin has not waited for it since
}

type event struct {
	*gpu
	stream   *stream
	recorded int  // number of the last record, 0 before the first
	captured bool // the last record was captured
	ended    int  // number of the last record that has run
	time     float32
}

type graph struct {
	*gpu
	ops []op
}

type executable struct{ graph }

// add enqueues o, or records it.
func (s *stream) add(o op) *op {
	q := &s.queue
	if s.capturing != driver.CaptureNone {
		if q = &s.captured; s.origin != nil {
			q, s.unjoined = &s.origin.captured, true
		}
	}
	*q = append(*q, o)
	return &(*q)[len(*q)-1]
}

// step runs the next op in s.
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
	switch {
	case o.f != nil:
		d.launched[o.f.name]++
		if run := d.kernels[o.f.name].Run; run != nil {
			o.launch.Args = o.args[:o.f.Args]
			run(&o.launch)
		}
	case o.event != nil:
		o.event.ended, o.event.time = o.id, d.clock
	case o.graph != nil:
		for i := range o.graph.ops {
			d.run(g, &o.graph.ops[i])
		}
	case o.src != nil:
		copy(o.dst, o.src)
	default:
		fill(o.dst, o.value)
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
	for _, x := range d.objects {
		if s, ok := x.(*stream); ok && s.gpu == g {
			d.finish(s)
		}
	}
	return g.problem
}

// BreakCapture invalidates all captures under way, as a call that a capture forbids does.
func (d *Driver) BreakCapture() {
	defer d.lock()()
	for _, x := range d.objects {
		if s, ok := x.(*stream); ok && s.capturing != driver.CaptureNone {
			s.capturing = driver.CaptureBroken
		}
	}
}

var queueCalls = map[string]handler{
	"CtxSynchronize": func(d *Driver, g *gpu, _ []uintptr) driver.Result { return d.drain(g) },
	"StreamCreate":   func(d *Driver, g *gpu, a []uintptr) driver.Result { return d.put(a[0], &stream{gpu: g}) },
	"StreamDestroy": inStream(0, func(d *Driver, s *stream, a []uintptr) driver.Result {
		delete(d.objects, a[0])
		return d.finish(s)
	}),
	"EventCreate":  func(d *Driver, g *gpu, a []uintptr) driver.Result { return d.put(a[0], &event{gpu: g}) },
	"EventDestroy": destroy[*event](),
	"EventRecord": enqueue(1, func(_ *Driver, s *stream, e *event, _ []uintptr) driver.Result {
		e.recorded++
		e.stream, e.captured = s, s.capturing != driver.CaptureNone
		s.add(op{event: e, id: e.recorded})
		return driver.Success
	}),
	"EventSynchronize": on(0, func(d *Driver, e *event, _ []uintptr) driver.Result {
		for e.ended < e.recorded && len(e.stream.queue) > 0 {
			d.step(e.stream)
		}
		return e.problem
	}),
	// each query runs an op, so that polling comes to an end
	"EventQuery": on(0, func(d *Driver, e *event, _ []uintptr) driver.Result {
		if e.ended < e.recorded && len(e.stream.queue) > 0 {
			d.step(e.stream)
			return driver.NotReady
		}
		return e.problem
	}),
	// An event of a capture brings the stream into it, or joins the other stream. Any other event runs that stream at once.
	"StreamWaitEvent": inStream(0, func(d *Driver, s *stream, a []uintptr) driver.Result {
		e, ok := d.objects[a[1]].(*event)
		if !ok || e.gpu != s.gpu {
			return driver.InvalidHandle
		}
		from := e.stream
		switch {
		case from == nil:
		case e.captured && from.capturing == driver.CaptureNone:
			return driver.InvalidValue
		case e.captured && s.capturing == driver.CaptureNone:
			s.capturing, s.origin, s.unjoined = driver.CaptureActive, from, true
		case e.captured && from.origin == s:
			from.unjoined = false
		default:
			for e.ended < e.recorded && len(from.queue) > 0 {
				d.step(from)
			}
		}
		return e.problem
	}),
	"EventElapsedTime": on(1, func(d *Driver, start *event, a []uintptr) driver.Result {
		end, ok := d.objects[a[2]].(*event)
		switch {
		case !ok || start.recorded == 0 || end.recorded == 0:
			return driver.InvalidHandle
		case start.ended < start.recorded || end.ended < end.recorded:
			return driver.NotReady
		}
		return set(a[0], end.time-start.time)
	}),
	"StreamBeginCapture": inStream(0, func(_ *Driver, s *stream, _ []uintptr) driver.Result {
		if s.capturing != driver.CaptureNone {
			return driver.InvalidValue
		}
		s.capturing, s.captured = driver.CaptureActive, nil
		return driver.Success
	}),
	"StreamIsCapturing": on(0, func(_ *Driver, s *stream, a []uintptr) driver.Result { return set(a[1], s.capturing) }),
	"StreamEndCapture": on(0, func(d *Driver, s *stream, a []uintptr) driver.Result {
		was := s.capturing
		s.capturing = driver.CaptureNone
		for _, x := range d.objects {
			if side, ok := x.(*stream); ok && side.origin == s {
				if side.unjoined {
					was = driver.CaptureBroken
				}
				side.capturing, side.origin, side.unjoined = driver.CaptureNone, nil, false
			}
		}
		switch was {
		case driver.CaptureNone:
			return driver.InvalidValue
		case driver.CaptureBroken:
			return driver.CaptureInvalidated
		}
		return d.put(a[1], &graph{s.gpu, s.captured})
	}),
	"GraphInstantiateWithFlags": on(1, func(d *Driver, g *graph, a []uintptr) driver.Result {
		return d.put(a[0], &executable{*g})
	}),
	"GraphLaunch": enqueue(1, func(_ *Driver, s *stream, x *executable, _ []uintptr) driver.Result {
		s.add(op{graph: x})
		return driver.Success
	}),
	"GraphDestroy":     destroy[*graph](),
	"GraphExecDestroy": destroy[*executable](),
}
