package optim

import (
	"fmt"
	"maps"
	"strconv"
	"strings"

	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/graph/safetensors"
	"github.com/gorgonia-nsa/nsa/internal/fault"
	"github.com/gorgonia-nsa/nsa/internal/quote"
	"github.com/gorgonia-nsa/nsa/internal/value"
	"github.com/gorgonia-nsa/nsa/ops/spec"
)

// A state has the number of steps in its metadata, and two tensors for each weight; for a weight of Muon only the first
// one.
const (
	stepKey      = "adamw.step"
	firstPrefix  = "first."
	secondPrefix = "second."
)

// moment is a moving average of a weight's gradient or of its square, in the weight's shape and type.
type moment struct {
	name string // name of the tensor in a state
	spec.Arg
}

// State returns a copy of what another solver needs to go on from here; File.Write and safetensors.Read keep it in a
// file. The tensors first.w and second.w are the moments of a weight w (only first.w if w is of Muon). The number of
// steps is adamw.step in the metadata. Before the first step the tensors are those of SetState. The options are not
// part of the state.
func (s *AdamW) State() (st safetensors.File, err error) {
	defer fault.Name(&err, "optim", "adamw: state")
	if s.closed {
		return st, errClosed
	}
	st.Metadata = map[string]string{stepKey: strconv.Itoa(s.step)}
	if s.bound == nil {
		st.Tensors = maps.Clone(s.pending.Tensors)
		for name, x := range st.Tensors {
			st.Tensors[name] = x.Clone().(*tensor.Dense)
		}
		return st, nil
	}
	st.Tensors = map[string]*tensor.Dense{}
	for _, m := range s.bound.moments {
		host := newHost(m.Operand)
		if err := s.bound.stream.Download(host, m.Arg); err != nil {
			return safetensors.File{}, fmt.Errorf("%s: %w", m.name, err)
		}
		st.Tensors[m.name] = host
	}
	return st, s.bound.stream.Synchronize()
}

// maxSteps is the largest number of steps that a float64 counts exactly.
const maxSteps = 1 << 53

// SetState makes the solver go on from a state, or start afresh from the zero value. Moments that are not finite are an
// error, and so are negative averages of squares. Before the first step the weights are not known yet: that step reads
// the state's tensors, and returns an error if they do not fit the weights. On an error the solver's state does not
// change.
func (s *AdamW) SetState(st safetensors.File) (err error) {
	defer fault.Name(&err, "optim", "adamw: state")
	if s.closed {
		return errClosed
	}
	step := 0
	if text, ok := st.Metadata[stepKey]; ok {
		if step, err = strconv.Atoi(text); err != nil {
			return fmt.Errorf("%s: %w", stepKey, quote.Error(err))
		}
	} else if st.Tensors != nil || st.Metadata != nil {
		return fmt.Errorf("no %s in the metadata: not a state of AdamW", stepKey)
	}
	if step < 0 || int64(step) > maxSteps {
		return fmt.Errorf("%d steps, want at least 0 and at most %d", step, int64(maxSteps))
	}
	for name, x := range st.Tensors {
		if x == nil {
			return fmt.Errorf("no tensor %s", name)
		}
	}
	if s.bound == nil {
		s.pending = safetensors.File{Metadata: st.Metadata, Tensors: maps.Clone(st.Tensors)}
		for name, x := range s.pending.Tensors { // the caller may change its own
			s.pending.Tensors[name] = x.Clone().(*tensor.Dense)
		}
	} else if err := s.bound.restore(step, st.Tensors); err != nil {
		return err
	}
	s.step = step
	return nil
}

// restore copies the moments after step steps from the host. It first checks all of them: it refuses numbers that
// cannot be averages of gradients or of their squares. A state of no steps may have no tensors: its moments are zero.
func (b *boundAdamW) restore(step int, tensors map[string]*tensor.Dense) error {
	if step == 0 && len(tensors) == 0 {
		tensors = map[string]*tensor.Dense{}
		for _, m := range b.moments {
			tensors[m.name] = newHost(m.Operand)
		}
	}
	if len(tensors) != len(b.moments) {
		return fmt.Errorf("%d tensors, want %d: two moments of each weight, one of those of Muon", len(tensors),
			len(b.moments))
	}
	for _, m := range b.moments {
		host := newArg(m.Operand)
		if tensors[m.name] == nil {
			return fmt.Errorf("no tensor %s", m.name)
		}
		err := spec.PointAtValue(host.Buf, tensors[m.name], m.Operand)
		switch {
		case err != nil:
			return fmt.Errorf("%s: %w", m.name, err)
		case anyElement(host, value.NotFinite):
			return fmt.Errorf("%s: not all elements are finite", m.name)
		case strings.HasPrefix(m.name, secondPrefix) && anyElement(host, func(x float64) bool { return x < 0 }):
			return fmt.Errorf("%s: an average of squares is negative", m.name)
		}
	}
	for _, m := range b.moments {
		if err := b.stream.Upload(m.Arg, tensors[m.name]); err != nil {
			return fmt.Errorf("%s: %w", m.name, err)
		}
	}
	return b.stream.Synchronize()
}
