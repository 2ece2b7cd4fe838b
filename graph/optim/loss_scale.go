package optim

import (
	"encoding/json"
	"fmt"

	"github.com/gorgonia-nsa/nsa/internal/value"
)

// Bounds of a LossScale, and the number of good steps that double it.
const (
	firstLossScale = 1 << 16
	minLossScale   = 1
	maxLossScale   = 1 << 24
	goodSteps      = 1000
)

// LossScale keeps the gradients of fp16 within its range (Micikevicius et al. 2018, arXiv 1710.03740, section 3.2). A
// step whose gradients overflow changes no weight and halves the scale; a thousand good steps double it.
type LossScale struct {
	value float64 // scale of the next step
	good  int     // steps since the last change
}

// NewLossScale returns a scale of 2^16. It stays between 1 and 2^24.
func NewLossScale() *LossScale { return &LossScale{value: firstLossScale} }

// lossScaleState is a LossScale in JSON.
type lossScaleState struct {
	Value float64 `json:"value"`
	Good  int     `json:"good"`
}

// MarshalJSON writes a scale for a checkpoint. The scale that UnmarshalJSON reads behaves as the one that was written.
func (l *LossScale) MarshalJSON() ([]byte, error) {
	return json.Marshal(lossScaleState{l.value, l.good})
}

func (l *LossScale) UnmarshalJSON(data []byte) error {
	var s lossScaleState
	if err := json.Unmarshal(data, &s); err != nil {
		return fmt.Errorf("optim: loss scale: %w", err)
	}
	if !(s.Value >= minLossScale && s.Value <= maxLossScale) || s.Good < 0 || s.Good >= goodSteps {
		return fmt.Errorf("optim: loss scale %v after %d good steps, want %d to %d and 0 to %d", s.Value, s.Good,
			minLossScale, maxLossScale, goodSteps-1)
	}
	l.value, l.good = s.Value, s.Good
	return nil
}

// Value returns the scale of the next step.
func (l *LossScale) Value() float64 { return l.value }

// Adjust takes the norm of the gradients of a step that had the given scale; it may be the step before the last. It
// reports whether the gradients have overflowed and a smaller scale may help. The step has then changed nothing: see
// AdamW.UncountStep.
func (l *LossScale) Adjust(norm, scale float64) (skipped bool) {
	if value.NotFinite(norm) {
		if scale <= minLossScale {
			return false
		}
		if scale <= l.value { // no earlier step has halved it already
			l.value, l.good = max(minLossScale, scale/2), 0
		}
		return true
	}
	if l.good++; l.good == goodSteps {
		l.value, l.good = min(maxLossScale, 2*l.value), 0
	}
	return false
}
