package optim

import (
	"math"

	"github.com/gorgonia-nsa/nsa/internal/fault"
)

// Schedule gives the learning rate of each step. Steps count from 0.
type Schedule interface {
	At(step int) float64
}

// Constant is a Schedule with one learning rate for all steps.
type Constant float64

func (c Constant) At(int) float64 { return float64(c) }

// WarmupCosine is a Schedule. The learning rate rises linearly to LR over Warmup steps, then follows half a cosine down
// to LR*Floor at step Total, and stays there. If Total is not above Warmup, step Warmup+1 is at LR*Floor.
type WarmupCosine struct {
	LR     float64 // highest learning rate
	Warmup int     // steps of warm-up; step Warmup-1 already has LR
	Total  int     // steps of the whole schedule
	Floor  float64 // last learning rate divided by the highest, in [0, 1]
}

// WarmupLinear is a Schedule that rises as WarmupCosine does, then falls linearly to LR*Floor at step Total, and stays
// there.
type WarmupLinear WarmupCosine

// Validate returns an error that names the value that is out of its range.
func (w WarmupLinear) Validate() error { return WarmupCosine(w).Validate() }

func (w WarmupLinear) At(step int) float64 {
	return WarmupCosine(w).at(step, func(x float64) float64 { return 1 - x })
}

// Validate returns an error that names the value that is out of its range.
func (w WarmupCosine) Validate() error { return fault.In("optim", "schedule", w.check()) }

// check is Validate without the name of this package in its error.
func (w WarmupCosine) check() error {
	switch {
	case !(w.LR > 0) || math.IsInf(w.LR, 1):
		return fault.Of("LR", "learning rate", "is %v, want a positive number", w.LR)
	case w.Warmup < 0:
		return fault.Of("Warmup", "warm-up", "of %d steps, want at least 0", w.Warmup)
	case w.Total < 0:
		return fault.Between("Steps Total", "%d steps in all, want at least 0", w.Total)
	case !(w.Floor >= 0 && w.Floor <= 1):
		return fault.Of("Floor", "floor", "is %v, want a number in [0, 1]", w.Floor)
	}
	return nil
}

func (w WarmupCosine) At(step int) float64 {
	return w.at(step, func(x float64) float64 { return 0.5 * (1 + math.Cos(math.Pi*x)) })
}

// at returns the learning rate of a step. fall falls from fall(0) = 1 to fall(1) = 0.
func (w WarmupCosine) at(step int, fall func(x float64) float64) float64 {
	if step < w.Warmup {
		return w.LR * float64(step+1) / float64(w.Warmup)
	}
	x := min(1, float64(step-w.Warmup)/float64(max(1, w.Total-w.Warmup)))
	return w.LR * (w.Floor + (1-w.Floor)*fall(x))
}
