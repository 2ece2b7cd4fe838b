package optim

import (
	"fmt"

	"gorgonia.org/tensor"
)

// AdamWState is what a solver needs to go on where another one has stopped.
type AdamWState struct {
	Step    int                // steps taken
	Moments map[string]Moments // by the weights' names
}

// Moments are the moving averages of a weight's gradient and of its square, in the weight's shape and type.
type Moments struct{ First, Second *tensor.Dense }

// State returns a copy of the solver's state; before the first step, the state that was set. The options are not part
// of it.
func (s *AdamW) State() (AdamWState, error) {
	if s.closed {
		return AdamWState{}, fmt.Errorf("optim: adamw: state: %w", errClosed)
	}
	if s.plan == nil {
		if s.pending != nil {
			return *s.pending, nil
		}
		return AdamWState{}, nil
	}
	all, err := s.plan.save()
	if err != nil {
		return AdamWState{}, fmt.Errorf("optim: adamw: state: %w", err)
	}
	return AdamWState{s.step, all}, nil
}

// maxSteps is the largest number of steps that a float64 counts exactly.
const maxSteps = 1 << 53

// SetState makes the solver go on from a state; from the zero value it begins anew. Moments that are not finite, and
// negative ones of squares, are an error. Before the first step the weights are not known yet: the state's tensors are read
// in that step, and a state that does not fit them is an error of it. On an error the solver's state is as it was before.
func (s *AdamW) SetState(st AdamWState) error {
	switch {
	case s.closed:
		return fmt.Errorf("optim: adamw: state: %w", errClosed)
	case st.Step < 0 || int64(st.Step) > maxSteps:
		return fmt.Errorf("optim: adamw: state: %d steps, want at least 0 and at most %d", st.Step, int64(maxSteps))
	case s.plan == nil:
		s.pending = &st
	default:
		if err := s.plan.restore(st); err != nil {
			return fmt.Errorf("optim: adamw: state: %w", err)
		}
	}
	s.step = st.Step
	return nil
}
