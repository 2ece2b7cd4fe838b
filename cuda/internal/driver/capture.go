package driver

import (
	"errors"
	"fmt"
	"unsafe"
)

// Replay is a captured sequence of launches, copies from and to pinned memory, and fills, with the addresses and values that
// they had when they were captured. It may be replayed in any stream of its device, and its runs do not overlap.
type Replay struct {
	d        *Device
	graph    Handle
	exec     Handle // the executable graph, 0 once closed
	launched Launched
}

// BeginCapture makes the stream record what is enqueued, instead of running it, until EndCapture. Uploads, downloads, events and
// waiting are errors meanwhile. Other streams and other goroutines go on as usual.
func (s *Stream) BeginCapture() error {
	return s.do("begin capture", func() error {
		if s.capture != nil {
			return errCapturing
		}
		if err := s.call(s.d.fn.StreamBeginCapture, s.h, captureRelaxed); err != nil {
			return err
		}
		s.capture = &Replay{d: s.d, launched: Launched{Op: "captured graph"}}
		return nil
	})
}

// Capturing reports whether a capture is under way.
func (s *Stream) Capturing() bool { return s.capture != nil && !s.abandoned }

// EndCapture returns what was recorded, ready to be replayed. After an error the stream is as before BeginCapture.
func (s *Stream) EndCapture() (*Replay, error) {
	const what = "end capture"
	if !s.Capturing() {
		return nil, s.d.failed(what, errors.New("no capture is under way"))
	}
	if err := s.enter(); err != nil {
		s.abandoned = true
		return nil, s.d.failed(what, err)
	}
	defer s.d.leave()
	p := s.capture
	if err := s.endCapture(); err != nil {
		s.abandoned = true // to be dropped now, or else in the next call
		return nil, s.d.failed(what, errors.Join(err, s.drop()))
	}
	if err := get(s.d, s.d.fn.GraphInstantiateWithFlags, &p.exec, p.graph, 0); err != nil {
		return nil, s.d.failed(what, errors.Join(err, p.Close()))
	}
	return p, nil
}

// drop ends an abandoned capture, with the context current. If it fails, s.abandoned stays set and the next call tries again.
func (s *Stream) drop() error {
	var state int32
	if err := s.check(s.d.fn.StreamIsCapturing, s.d.fn.StreamIsCapturing.Ask(s.h, uintptr(unsafe.Pointer(&state)))); err != nil {
		return err
	}
	if state != CaptureNone {
		p := s.capture
		err := s.endCapture()
		if err == nil {
			return s.d.settle(p, p.destroy())
		}
		if !errors.Is(err, CaptureInvalidated) {
			return err
		}
	}
	s.capture, s.abandoned = nil, false
	return nil
}

// endCapture takes what was captured over into the Replay, which is then the device's to free.
func (s *Stream) endCapture() error {
	var graph Handle
	if err := s.check(s.d.fn.StreamEndCapture, s.d.fn.StreamEndCapture.Ask(s.h, uintptr(unsafe.Pointer(&graph)))); err != nil {
		return err
	}
	s.capture.graph = graph
	s.d.adopt(s.capture, kind{"captured graph", 0})
	s.capture, s.abandoned = nil, false
	return nil
}

// Replay enqueues what was captured. It allocates nothing.
func (s *Stream) Replay(p *Replay) error {
	if p == nil || p.d != s.d {
		return s.d.failed("replay", errForeign)
	}
	return s.do("replay", func() error {
		if p.exec == 0 {
			return fmt.Errorf("the captured graph is %w", errClosed)
		}
		if s.capture != nil {
			return errCapturing
		}
		if err := s.call(s.d.fn.GraphLaunch, p.exec, s.h); err != nil {
			return err
		}
		return s.enqueued(&p.launched)
	})
}

// Close frees the captured graph. A run of it that is under way goes on.
func (p *Replay) Close() error { return p.d.free(p, "close captured graph") }

func (p *Replay) destroy() error {
	if err := release(p.d, &p.exec, p.d.fn.GraphExecDestroy); err != nil {
		return err
	}
	return release(p.d, &p.graph, p.d.fn.GraphDestroy)
}
