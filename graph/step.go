package graph

import (
	"errors"
	"fmt"
	"slices"

	G "gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/internal/cpu"
	"github.com/gorgonia-nsa/nsa/internal/value"
	"github.com/gorgonia-nsa/nsa/ops/spec"
)

// Step runs the graph and the update of WithOptimizer as one. With WithGradSums the run is the last one of the sums.
// The next Step does not cast the weights to half precision again, because the update has written these copies: after
// changing weights on the device by other means, call Refresh or RunAll first.
//
// If the norm of the gradients is not finite, no weight changes. On the CPU Step then returns ErrNotFinite; on a device
// only the norm shows it.
func (m *Machine) Step() error {
	if m != nil && m.plan != nil && m.update == nil {
		return errNoOptimizer
	}
	return m.runWith(true)
}

var errNoOptimizer = errors.New("graph: machine: step: made without WithOptimizer")

func (m *Machine) beginUpdate() error {
	h, err := m.opts.optimizer.Begin()
	if err != nil {
		return err
	}
	h.Write(m.update.hyper.node.Value().(*tensor.Dense).Float64s())
	return nil
}

// checkAddresses checks the places of the weights, if an address has changed.
func (m *Machine) checkAddresses() error {
	if m.checkedAt == m.addressChanges+1 {
		return nil
	}
	if err := m.update.overlapping(); err != nil {
		return err
	}
	m.checkedAt = m.addressChanges + 1
	return nil
}

// checkNorm returns an error if the norm is not finite and the host can read it without waiting. The error names the
// first weight whose gradient is not finite.
func (m *Machine) checkNorm() error {
	if !m.device.Host {
		return nil
	}
	norm := cpu.Slice[float64](m.update.norm.arg.Buf)[0]
	if !value.NotFinite(norm) {
		return nil
	}
	notFinite := func(w trainedWeight) bool { return anyElement(w.grad.arg, value.NotFinite) }
	if i := slices.IndexFunc(m.update.weights, notFinite); i >= 0 {
		return fmt.Errorf("%w: their global norm is %v, from %s", ErrNotFinite, norm, m.update.weights[i].value.node.Name())
	}
	if m.sharded {
		return fmt.Errorf("%w: their global norm is %v, from a weight of another rank, or the sum of squares overflows",
			ErrNotFinite, norm)
	}
	return fmt.Errorf("%w: their global norm is %v: the sum of squares overflows", ErrNotFinite, norm)
}

// anyElement reports whether bad is true for an element of an operand of floats in host memory.
func anyElement(a spec.Arg, bad func(float64) bool) bool {
	if a.Dtype == tensor.Float32 {
		return slices.ContainsFunc(cpu.Slice[float32](a.Buf), func(x float32) bool { return bad(float64(x)) })
	}
	return slices.ContainsFunc(cpu.Slice[float64](a.Buf), bad)
}

// zeroDuals sets the gradients of weights to zero that a TapeMachine with gorgonia.BindDualValues adds up over its
// runs, as Gorgonia's solvers do.
func (m *Machine) zeroDuals() {
	for _, w := range m.update.weights {
		n := w.value.node
		if n.Deriv() == nil {
			continue
		}
		if grad, err := n.Grad(); err == nil && n.Deriv().Value() != grad {
			G.ZeroValue(grad)
		}
	}
}

// OptimizerState is the memory of an Optimizer in a machine: two moments of each weight, named first.w and second.w (of
// a weight of Muon only first.w), and the norm of the last step's gradients. It may be used until the machine is
// closed, by the goroutine that runs the machine.
type OptimizerState struct {
	m        *Machine
	hostNorm *tensor.Dense
}

// Moments returns the types and shapes of the moments by their names.
func (s *OptimizerState) Moments() map[string]spec.Operand {
	list := map[string]spec.Operand{}
	for _, x := range s.m.update.moments {
		list[x.name] = x.of.arg.Operand
	}
	return list
}

// Read returns copies of all moments. It waits for the work of all runs so far. With WithShardedStates all ranks call
// it together.
func (s *OptimizerState) Read() (map[string]*tensor.Dense, error) {
	if err := s.m.begin(); err != nil {
		return nil, err
	}
	defer s.m.use.end()
	list := map[string]*tensor.Dense{}
	for _, x := range s.m.update.moments {
		host := spec.NewValue(x.of.arg.Operand)
		d, ok := host.(*tensor.Dense)
		if !ok { // a scalar
			d = tensor.New(tensor.Of(x.of.arg.Dtype), tensor.WithShape())
			host = d
		}
		if err := s.read(x, host); err != nil {
			return nil, fmt.Errorf("%s: %w", x.name, err)
		}
		list[x.name] = d
	}
	return list, errors.Join(s.m.stream.Synchronize(), s.m.groupError())
}

// read copies a moment, of this rank or another one, to host.
func (s *OptimizerState) read(x moment, host G.Value) error {
	if !s.m.sharded {
		return s.m.stream.Download(host, x.value.arg)
	}
	var cell cpu.Buf
	if err := spec.PointAtValue(&cell, host, x.of.arg.Operand); err != nil {
		return err
	}
	var own []byte
	if x.value != nil {
		if err := errors.Join(s.m.stream.Download(host, x.value.arg), s.m.stream.Synchronize()); err != nil {
			return err
		}
		own = hostBytes(&cell)
	}
	all, err := s.m.group.AllGather(x.name, own)
	if err != nil {
		return err
	}
	if theirs := all[x.owner]; copy(hostBytes(&cell), theirs) != cell.Bytes() {
		return fmt.Errorf("rank %d sent %d bytes, want %d", x.owner, len(theirs), cell.Bytes())
	}
	return nil
}

// Write copies values of all moments to the machine.
func (s *OptimizerState) Write(moments map[string]*tensor.Dense) error {
	if err := s.m.begin(); err != nil {
		return err
	}
	defer s.m.use.end()
	for _, x := range s.m.update.moments {
		v := moments[x.name]
		if v == nil {
			return fmt.Errorf("no tensor %s", x.name)
		}
		if x.value == nil { // another rank's
			continue
		}
		if err := s.m.stream.Upload(x.value.arg, v); err != nil {
			return fmt.Errorf("%s: %w", x.name, err)
		}
	}
	return s.m.stream.Synchronize()
}

// Norm returns the global norm of the gradients of the last step before they were clipped, 0 before the first step. On
// an asynchronous device it waits for the step.
func (s *OptimizerState) Norm() (float64, error) {
	if err := s.m.begin(); err != nil {
		return 0, err
	}
	defer s.m.use.end()
	if s.hostNorm == nil {
		s.hostNorm = tensor.New(tensor.Of(tensor.Float64), tensor.WithShape(1))
	}
	if err := errors.Join(s.m.stream.Download(s.hostNorm, s.m.update.norm.arg), s.m.stream.Synchronize()); err != nil {
		return 0, err
	}
	return s.hostNorm.Float64s()[0], nil
}

// NormReader returns an AsyncReader of the norm, float64 (1), which ends with the machine.
func (s *OptimizerState) NormReader() (*AsyncReader, error) {
	if err := s.m.begin(); err != nil {
		return nil, err
	}
	defer s.m.use.end()
	r, err := newAsyncReader("the norm", s.m.update.norm.arg, s.m.stream.NewReadback)
	if err != nil {
		return nil, fmt.Errorf("graph: machine: %w", err)
	}
	r.machine, r.use = s.m, &s.m.use
	s.m.readers = append(s.m.readers, r)
	return r, nil
}
