package fakedriver

import (
	"slices"

	"github.com/gorgonia-nsa/nsa/cuda"
)

func (d *Driver) StreamBeginCapture(h cuda.StreamHandle, _ int32) cuda.Result {
	d.mu.Lock()
	defer d.mu.Unlock()
	s, r := d.queue("StreamBeginCapture", h)
	if r != cuda.Success {
		return r
	}
	if s.capturing != cuda.CaptureNone {
		return cuda.InvalidValue
	}
	s.capturing, s.captured = cuda.CaptureActive, nil
	return r
}

// capturing returns the stream of a call that a broken capture does not refuse.
func (d *Driver) capturing(method string, h cuda.StreamHandle) (*stream, cuda.Result) {
	g, r := d.within(method)
	if r != cuda.Success {
		return nil, r
	}
	if s := d.streams[h]; s != nil && s.gpu == g {
		return s, r
	}
	return nil, cuda.InvalidHandle
}

func (d *Driver) StreamIsCapturing(h cuda.StreamHandle) (cuda.CaptureStatus, cuda.Result) {
	d.mu.Lock()
	defer d.mu.Unlock()
	s, r := d.capturing("StreamIsCapturing", h)
	if r != cuda.Success {
		return cuda.CaptureNone, r
	}
	return s.capturing, r
}

// BreakCapture invalidates all captures under way, as a call that is not allowed in them does.
func (d *Driver) BreakCapture() {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, s := range d.streams {
		if s.capturing != cuda.CaptureNone {
			s.capturing = cuda.CaptureBroken
		}
	}
}

func (d *Driver) StreamEndCapture(h cuda.StreamHandle) (cuda.GraphHandle, cuda.Result) {
	d.mu.Lock()
	defer d.mu.Unlock()
	s, r := d.capturing("StreamEndCapture", h)
	if r != cuda.Success {
		return 0, r
	}
	was := s.capturing
	s.capturing = cuda.CaptureNone
	switch was {
	case cuda.CaptureNone:
		return 0, cuda.InvalidValue
	case cuda.CaptureBroken:
		return 0, cuda.CaptureInvalidated
	}
	g := cuda.GraphHandle(d.handle())
	d.graphs[g] = &graph{s.gpu, s.captured}
	s.captured = nil
	return g, r
}

func (d *Driver) GraphInstantiate(h cuda.GraphHandle) (cuda.GraphExecHandle, cuda.Result) {
	d.mu.Lock()
	defer d.mu.Unlock()
	g, r := d.within("GraphInstantiate")
	if r != cuda.Success {
		return 0, r
	}
	x := d.graphs[h]
	if x == nil || x.gpu != g {
		return 0, cuda.InvalidHandle
	}
	e := cuda.GraphExecHandle(d.handle())
	d.execs[e] = &graph{g, slices.Clone(x.ops)}
	return e, r
}

func (d *Driver) GraphLaunch(e cuda.GraphExecHandle, h cuda.StreamHandle) cuda.Result {
	d.mu.Lock()
	defer d.mu.Unlock()
	s, r := d.queue("GraphLaunch", h)
	if r != cuda.Success {
		return r
	}
	x := d.execs[e]
	if x == nil || x.gpu != s.gpu {
		return cuda.InvalidHandle
	}
	s.add(op{kind: replay, graph: x})
	return r
}

func (d *Driver) GraphDestroy(h cuda.GraphHandle) cuda.Result {
	d.mu.Lock()
	defer d.mu.Unlock()
	if _, r := d.within("GraphDestroy"); r != cuda.Success {
		return r
	}
	if d.graphs[h] == nil {
		return cuda.InvalidHandle
	}
	delete(d.graphs, h)
	return cuda.Success
}

func (d *Driver) GraphExecDestroy(h cuda.GraphExecHandle) cuda.Result {
	d.mu.Lock()
	defer d.mu.Unlock()
	if _, r := d.within("GraphExecDestroy"); r != cuda.Success {
		return r
	}
	if d.execs[h] == nil {
		return cuda.InvalidHandle
	}
	delete(d.execs, h)
	return cuda.Success
}
