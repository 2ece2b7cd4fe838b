package optim

import (
	"fmt"
	"strconv"
	"strings"

	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/graph/nn"
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
func (s *AdamW) State() (st AdamWState, err error) {
	defer named(&err, "state: ")
	switch {
	case s.closed:
		return st, errClosed
	case s.pending != nil:
		return *s.pending, nil
	case s.plan == nil:
		return st, nil
	}
	all, err := s.plan.save()
	if err != nil {
		return st, err
	}
	return AdamWState{s.step, all}, nil
}

// maxSteps is the largest number of steps that a float64 counts exactly.
const maxSteps = 1 << 53

// SetState makes the solver go on from a state; from the zero value it begins anew. Moments that are not finite, and
// negative ones of squares, are an error. Before the first step the weights are not known yet: the state's tensors are read
// in that step, and a state that does not fit them is an error of it. On an error the solver's state is as it was before.
func (s *AdamW) SetState(st AdamWState) (err error) {
	defer named(&err, "state: ")
	switch {
	case s.closed:
		return errClosed
	case st.Step < 0 || int64(st.Step) > maxSteps:
		return fmt.Errorf("%d steps, want at least 0 and at most %d", st.Step, int64(maxSteps))
	case s.plan == nil:
		s.pending = &st
	default:
		if err := s.plan.restore(st); err != nil {
			return err
		}
	}
	s.step = st.Step
	return nil
}

// What a file of a state is made of: the number of steps in the metadata, and two tensors for each weight.
const (
	stepKey      = "adamw.step"
	firstPrefix  = "first."
	secondPrefix = "second."
)

// Save writes the state to path as safetensors: the moments of a weight w are first.w and second.w, the number of steps is
// adamw.step in the metadata. The file is written aside and renamed.
func (st AdamWState) Save(path string) (err error) {
	defer named(&err, "save: ")
	f := nn.File{Tensors: make(map[string]*tensor.Dense, 2*len(st.Moments)), Metadata: map[string]string{stepKey: strconv.Itoa(st.Step)}}
	for name, m := range st.Moments {
		f.Tensors[firstPrefix+name], f.Tensors[secondPrefix+name] = m.First, m.Second
	}
	return f.Write(path)
}

// LoadAdamWState reads what AdamWState.Save wrote. Whether it fits the weights SetState or the next step says.
func LoadAdamWState(path string) (st AdamWState, err error) {
	defer named(&err, "load: ")
	f, err := nn.ReadFile(path)
	if err != nil {
		return st, err
	}
	if st, err = stateOf(f); err != nil {
		return AdamWState{}, fmt.Errorf("%s: %w", path, err)
	}
	return st, nil
}

func stateOf(f nn.File) (st AdamWState, err error) {
	text, ok := f.Metadata[stepKey]
	if !ok {
		return st, fmt.Errorf("no %s in the metadata: not a state of AdamW", stepKey)
	}
	if st.Step, err = strconv.Atoi(text); err != nil {
		return st, fmt.Errorf("%s: %w", stepKey, err)
	}
	st.Moments = make(map[string]Moments, len(f.Tensors)/2)
	for key, d := range f.Tensors {
		if name, ok := strings.CutPrefix(key, firstPrefix); ok {
			st.Moments[name] = Moments{d, f.Tensors[secondPrefix+name]}
		} else if name, ok := strings.CutPrefix(key, secondPrefix); ok {
			st.Moments[name] = Moments{f.Tensors[firstPrefix+name], d}
		} else {
			return st, fmt.Errorf("tensor %s is not of a state of AdamW", key)
		}
	}
	for name, m := range st.Moments {
		if m.First == nil || m.Second == nil {
			return st, fmt.Errorf("%s has one moment, want two", name)
		}
	}
	return st, nil
}
