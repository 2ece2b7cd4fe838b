package driver

import (
	"errors"
	"unsafe"
)

// Replay is a captured sequence of launches, copies and fills. It keeps the addresses and values that they had at the
// capture. It may be replayed in any stream of its device. Its runs do not overlap. A run that is under way continues
// after Close.
type Replay struct {
	owned
	graph    Handle
	exec     Handle // the executable graph
	launched Launched
	sides    []*Stream // other streams that the capture has recorded
}

// leave ends the parts of other streams in the capture.
func (p *Replay) leave() {
	for _, s := range p.sides {
		if s.capture == p {
			s.capture, s.side = nil, false
		}
	}
	p.sides = nil
}

// BeginCapture makes the stream record enqueued work instead of running it, until EndCapture. During the capture,
// uploads, downloads, events and waiting are errors. Other streams and other goroutines go on as usual.
func (s *Stream) BeginCapture() error {
	return s.doUncaptured("begin capture", &s.owned, func() error {
		if err := s.d.call(s.d.fn.StreamBeginCapture, s.h, captureRelaxed); err != nil {
			return err
		}
		p := &Replay{launched: Launched{Op: "captured graph"}}
		p.owned = owned{d: s.d, name: "captured graph", rank: rankGraph,
			parts: []part{{&p.exec, s.d.fn.GraphExecDestroy}, {&p.graph, s.d.fn.GraphDestroy}}}
		s.capture = p
		return nil
	})
}

// Capturing reports whether a capture is under way.
func (s *Stream) Capturing() bool { return s.capture != nil && !s.abandoned }

// EndCapture returns the recorded work, ready to be replayed. After an error the stream is as before BeginCapture.
func (s *Stream) EndCapture() (*Replay, error) {
	if !s.Capturing() || s.side {
		return nil, s.d.failed("end capture", errors.New("no capture is under way"))
	}
	p := s.capture
	s.abandoned = true // until it has ended
	return create(p, &p.owned, func() error {
		if err := s.endCapture(); err != nil {
			return errors.Join(err, s.drop())
		}
		p.leave()
		s.capture, s.abandoned = nil, false
		return get(s.d, s.d.fn.GraphInstantiateWithFlags, &p.exec, p.graph, 0)
	})
}

// endCapture ends the capture and stores its graph in s.capture.
func (s *Stream) endCapture() error {
	f := s.d.fn.StreamEndCapture
	return s.d.check(f, f.CallWithPointers(s.h, uintptr(unsafe.Pointer(&s.capture.graph))))
}

// drop ends a capture and frees its graph. The context must be current. If the capture does not end, s.abandoned stays
// as it is, and the next call tries again.
func (s *Stream) drop() error {
	var state int32
	f := s.d.fn.StreamIsCapturing
	if err := s.d.check(f, f.CallWithPointers(s.h, uintptr(unsafe.Pointer(&state)))); err != nil {
		return err
	}
	if state != CaptureNone {
		err := s.endCapture()
		if err != nil && !errors.Is(err, CaptureInvalidated) && !errors.Is(err, CaptureUnjoined) {
			return err
		}
	}
	p := s.capture
	p.leave()
	s.capture, s.abandoned = nil, false
	p.keep(p)
	return p.forget(p.destroy())
}

// Replay enqueues a run of p. It allocates nothing.
func (s *Stream) Replay(p *Replay) error {
	if p == nil || p.d != s.d {
		return s.d.failed("replay", errForeign)
	}
	return s.doUncaptured("replay", &p.owned, func() error {
		if err := s.d.call(s.d.fn.GraphLaunch, p.exec, s.h); err != nil {
			return err
		}
		return s.remember(&p.launched)
	})
}
