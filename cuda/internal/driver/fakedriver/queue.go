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
	queue    []op
	next     int      // the index of the first op that has not run
	capture  *capture // that the stream is in, or nil
	unjoined bool     // its part of the capture holds what no other stream has waited for
}

// capture is a capture under way, of one stream or of several.
type capture struct {
	origin *stream // that began it
	broken bool
	ops    []op
}

type event struct {
	*gpu
	stream   *stream
	recorded int      // number of the last record, 0 before the first
	capture  *capture // that holds the last record, or nil
	ended    int      // number of the last record that has run
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
	if c := s.capture; c != nil {
		q, s.unjoined = &c.ops, s != c.origin
	}
	*q = append(*q, o)
	return &(*q)[len(*q)-1]
}

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
		if s, ok := x.(*stream); ok && s.capture != nil {
			s.capture.broken = true
		}
	}
}

// state returns a capture state of package driver.
func (s *stream) state() int32 {
	switch {
	case s.capture == nil:
		return driver.CaptureNone
	case s.capture.broken:
		return driver.CaptureBroken
	}
	return driver.CaptureActive
}

// refuse breaks captures and returns why.
func refuse(why driver.Result, list ...*capture) driver.Result {
	for _, c := range list {
		c.broken = true
	}
	return why
}

var queueCalls = map[string]handler{
	"CtxSynchronize":           func(d *Driver, g *gpu, _ []uintptr) driver.Result { return d.drain(g) },
	"StreamCreateWithPriority": func(d *Driver, g *gpu, a []uintptr) driver.Result { return d.put(a[0], &stream{gpu: g}) },
	"StreamDestroy": inStream(0, func(d *Driver, s *stream, a []uintptr) driver.Result {
		delete(d.objects, a[0])
		return d.finish(s)
	}),
	"EventCreate":  func(d *Driver, g *gpu, a []uintptr) driver.Result { return d.put(a[0], &event{gpu: g}) },
	"EventDestroy": destroy[*event](),
	"EventRecord": enqueue(1, func(_ *Driver, s *stream, e *event, _ []uintptr) driver.Result {
		e.recorded++
		e.stream, e.capture = s, s.capture
		unjoined := s.unjoined
		s.add(op{event: e, id: e.recorded})
		s.unjoined = unjoined
		return driver.Success
	}),
	"EventSynchronize": on(0, func(d *Driver, e *event, _ []uintptr) driver.Result {
		if e.capture != nil {
			return driver.CapturedEvent
		}
		for e.ended < e.recorded && len(e.stream.queue) > 0 {
			d.step(e.stream)
		}
		return e.problem
	}),
	// each query runs an op, so that polling comes to an end
	"EventQuery": on(0, func(d *Driver, e *event, _ []uintptr) driver.Result {
		if e.capture != nil {
			return driver.CapturedEvent
		}
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
		case e.capture == nil && s.capture != nil:
			return refuse(driver.CaptureIsolation, s.capture)
		case e.capture == nil:
			for e.ended < e.recorded && len(from.queue) > 0 {
				d.step(from)
			}
		case e.capture != from.capture: // it has ended
			return driver.CapturedEvent
		case s.capture == nil:
			s.capture, s.unjoined = e.capture, true
		case s.capture != e.capture:
			return refuse(driver.CaptureMerge, s.capture, e.capture)
		case s != from:
			from.unjoined, s.unjoined = false, s != s.capture.origin
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
		if s.capture != nil {
			return driver.InvalidValue
		}
		s.capture = &capture{origin: s}
		return driver.Success
	}),
	"StreamIsCapturing": on(0, func(_ *Driver, s *stream, a []uintptr) driver.Result { return set(a[1], s.state()) }),
	"StreamEndCapture": on(0, func(d *Driver, s *stream, a []uintptr) driver.Result {
		c := s.capture
		if c == nil || c.origin != s {
			return driver.InvalidValue
		}
		unjoined := false
		for _, x := range d.objects {
			if part, ok := x.(*stream); ok && part.capture == c {
				unjoined = unjoined || part.unjoined
				part.capture, part.unjoined = nil, false
			}
		}
		switch {
		case c.broken:
			return driver.CaptureInvalidated
		case unjoined:
			return driver.CaptureUnjoined
		}
		return d.put(a[1], &graph{s.gpu, c.ops})
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
