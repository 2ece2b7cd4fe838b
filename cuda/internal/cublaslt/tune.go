package cublaslt

import (
	"errors"
	"fmt"
	"time"

	"github.com/gorgonia-nsa/nsa/cuda/internal/driver"
)

// Candidates returns the number of algorithms that the library has proposed, those that it takes to be fast first. Run uses
// the first, unless Choose or Tune has changed that.
func (p *Plan) Candidates() int { return len(p.candidates) }

// Chosen returns the index of the algorithm that Run uses.
func (p *Plan) Chosen() int { return p.chosen }

// Choose makes Run use algorithm i. Its bits may be others, and so may WorkBytes.
func (p *Plan) Choose(i int) error {
	if i < 0 || i >= len(p.candidates) {
		return fmt.Errorf("cublaslt: %v: got algorithm %d, want 0 to %d", p.m, i, len(p.candidates)-1)
	}
	p.choose(i)
	return nil
}

// margin is what an algorithm must take of another's time to be preferred to it: less is within what times vary.
const margin = 0.98

// Tune runs the algorithms that do with workBytes of work memory, runs times each, and chooses the fastest by the clock of the
// device, the earlier one of two that are about as fast: measured, and so perhaps another one next time, with other bits. It
// waits for the stream. The other arguments are those of Run. After an error the choice is what it was.
func (p *Plan) Tune(s *driver.Stream, op *driver.Launched, a, b, bias, c, work driver.DevicePtr, workBytes, runs int) (err error) {
	if s == nil || runs < 1 {
		return fmt.Errorf("cublaslt: %v: got %d runs in stream %p, want 1 or more in one", p.m, runs, s)
	}
	var ends [2]*driver.Event
	for i := range ends {
		if ends[i], err = s.Device().NewEvent(true); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, ends[i].Close()) }()
	}
	before, best, least := p.chosen, -1, time.Duration(0)
	defer func() {
		if err != nil || best < 0 {
			best = before
		}
		p.choose(best)
	}()
	for i := range p.candidates {
		if p.candidates[i].work > uint64(workBytes) {
			continue
		}
		p.choose(i)
		t, err := p.time(s, ends, runs, func() error { return p.Run(s, op, a, b, bias, c, work) })
		if err != nil {
			return err
		}
		if best < 0 || float64(t) < margin*float64(least) {
			best, least = i, t
		}
	}
	return nil
}

// time returns how long the given number of runs take, after one more.
func (p *Plan) time(s *driver.Stream, ends [2]*driver.Event, runs int, run func() error) (time.Duration, error) {
	if err := errors.Join(run(), s.Record(ends[0])); err != nil {
		return 0, err
	}
	for range runs {
		if err := run(); err != nil {
			return 0, err
		}
	}
	if err := errors.Join(s.Record(ends[1]), ends[1].Synchronize()); err != nil {
		return 0, err
	}
	return ends[1].Since(ends[0])
}
