package fakedriver

import (
	"slices"

	"github.com/gorgonia-nsa/nsa/cuda/internal/driver"
)

func (d *Driver) StreamBeginCapture(h driver.StreamHandle, _ int32) driver.Result {
	d.mu.Lock()
	defer d.mu.Unlock()
	s, r := d.queue("StreamBeginCapture", h)
	if r != driver.Success {
		return r
	}
	if s.capturing != driver.CaptureNone {
		return driver.InvalidValue
	}
	s.capturing, s.captured = driver.CaptureActive, nil
	return r
}

func (d *Driver) StreamIsCapturing(h driver.StreamHandle) (driver.CaptureStatus, driver.Result) {
	d.mu.Lock()
	defer d.mu.Unlock()
	s, r := lookup(d, "StreamIsCapturing", d.streams, h)
	if r != driver.Success {
		return driver.CaptureNone, r
	}
	return s.capturing, r
}

// BreakCapture invalidates all captures under way, as a call that is not allowed in them does.
func (d *Driver) BreakCapture() {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, s := range d.streams {
		if s.capturing != driver.CaptureNone {
			s.capturing = driver.CaptureBroken
		}
	}
}

func (d *Driver) StreamEndCapture(h driver.StreamHandle) (driver.GraphHandle, driver.Result) {
	d.mu.Lock()
	defer d.mu.Unlock()
	s, r := lookup(d, "StreamEndCapture", d.streams, h)
	if r != driver.Success {
		return 0, r
	}
	was := s.capturing
	s.capturing = driver.CaptureNone
	switch was {
	case driver.CaptureNone:
		return 0, driver.InvalidValue
	case driver.CaptureBroken:
		return 0, driver.CaptureInvalidated
	}
	g := driver.GraphHandle(d.handle())
	d.graphs[g] = &graph{s.gpu, s.captured}
	s.captured = nil
	return g, r
}

func (d *Driver) GraphInstantiate(h driver.GraphHandle) (driver.GraphExecHandle, driver.Result) {
	d.mu.Lock()
	defer d.mu.Unlock()
	g, r := lookup(d, "GraphInstantiate", d.graphs, h)
	if r != driver.Success {
		return 0, r
	}
	e := driver.GraphExecHandle(d.handle())
	d.execs[e] = &graph{g.gpu, slices.Clone(g.ops)}
	return e, r
}

func (d *Driver) GraphLaunch(e driver.GraphExecHandle, h driver.StreamHandle) driver.Result {
	d.mu.Lock()
	defer d.mu.Unlock()
	s, r := d.queue("GraphLaunch", h)
	if r != driver.Success {
		return r
	}
	x := d.execs[e]
	if x == nil || x.gpu != s.gpu {
		return driver.InvalidHandle
	}
	s.add(op{kind: replay, graph: x})
	return r
}

func (d *Driver) GraphDestroy(h driver.GraphHandle) driver.Result {
	return destroy(d, "GraphDestroy", d.graphs, h)
}

func (d *Driver) GraphExecDestroy(h driver.GraphExecHandle) driver.Result {
	return destroy(d, "GraphExecDestroy", d.execs, h)
}
