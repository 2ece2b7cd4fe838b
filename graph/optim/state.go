package optim

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/graph"
	"github.com/gorgonia-nsa/nsa/graph/safetensors"
	"github.com/gorgonia-nsa/nsa/internal/cpu"
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
	if s.state == nil {
		st.Tensors = maps.Clone(s.pending.Tensors)
		for name, x := range st.Tensors {
			st.Tensors[name] = x.Clone().(*tensor.Dense)
		}
		return st, nil
	}
	if st.Tensors, err = s.state.Read(); err != nil {
		return safetensors.File{}, err
	}
	return st, nil
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
	if s.state == nil {
		s.pending = safetensors.File{Metadata: st.Metadata, Tensors: maps.Clone(st.Tensors)}
		for name, x := range s.pending.Tensors { // the caller may change its own
			s.pending.Tensors[name] = x.Clone().(*tensor.Dense)
		}
	} else if err := restore(s.state, step, st.Tensors); err != nil {
		return err
	}
	s.step = step
	return nil
}

// restore copies the moments after step steps to a machine. It first checks all of them: it refuses numbers that cannot
// be averages of gradients or of their squares. A state of no steps may have no tensors: its moments are zero.
func restore(to *graph.OptimizerState, step int, tensors map[string]*tensor.Dense) error {
	moments := to.Moments()
	if step == 0 && len(tensors) == 0 {
		tensors = map[string]*tensor.Dense{}
		for name, o := range moments {
			tensors[name] = tensor.New(tensor.Of(o.Dtype), tensor.WithShape(o.Shape...))
		}
	}
	if len(tensors) != len(moments) {
		return fmt.Errorf("%d tensors, want %d: two moments of each weight, one of those of Muon", len(tensors),
			len(moments))
	}
	for _, name := range slices.Sorted(maps.Keys(moments)) {
		x := tensors[name]
		if x == nil {
			return fmt.Errorf("no tensor %s", name)
		}
		host := new(cpu.Buf)
		err := spec.PointAtValue(host, x, moments[name])
		switch {
		case err != nil:
			return fmt.Errorf("%s: %w", name, err)
		case anyElement(moments[name].Dtype, host, value.NotFinite):
			return fmt.Errorf("%s: not all elements are finite", name)
		case strings.HasPrefix(name, secondPrefix) && anyElement(moments[name].Dtype, host,
			func(x float64) bool { return x < 0 }):
			return fmt.Errorf("%s: an average of squares is negative", name)
		}
	}
	return to.Write(tensors)
}

// anyElement reports whether bad is true for an element of floats in host memory.
func anyElement(dt tensor.Dtype, b *cpu.Buf, bad func(float64) bool) bool {
	if dt == tensor.Float32 {
		return slices.ContainsFunc(cpu.Slice[float32](b), func(x float32) bool { return bad(float64(x)) })
	}
	return slices.ContainsFunc(cpu.Slice[float64](b), bad)
}
