package graph

import (
	"errors"
	"fmt"
	"slices"

	G "gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/ops/spec"
)

// runOnHost runs an op by its own Do.
func (m *Machine) runOnHost(s *step) error {
	args := m.args[:len(s.in)]
	defer clear(args)
	if err := m.loadArgs(args, s); err != nil {
		return err
	}
	result, err := m.callOp(s, args)
	if err != nil {
		return err
	}
	v, err := m.valueOf(s, args, result)
	if err != nil {
		return err
	}
	m.hostMem.disownShared(s, args, result, v)
	out := s.out[0]
	m.state[out.id].host = v
	if out.kernelReads {
		if err := m.checkValues(out, v); err != nil {
			return err
		}
		if err := m.send(out, v); err != nil {
			return err
		}
	}
	return nil
}

// loadArgs sets args to the host values of the operands of s. It copies those on the device to the host, once in each
// run.
func (m *Machine) loadArgs(args []G.Value, s *step) error {
	wait := false
	for i, v := range s.in {
		if in := &m.state[v.id]; in.remote && in.copied != m.run {
			if err := m.download(v); err != nil {
				return fmt.Errorf("input %d: %w", i, err)
			}
			wait = true
		}
		args[i] = m.state[v.id].host
	}
	if wait {
		return m.stream.Synchronize()
	}
	return nil
}

// callOp calls the op of s and checks the type and the size of its result.
func (m *Machine) callOp(s *step, args []G.Value) (G.Value, error) {
	result, err := m.hostMem.do(s, args)
	for i, v := range s.in { // some ops, such as Concat of rows, reshape their operands
		if d, ok := args[i].(*tensor.Dense); ok && !slices.Equal(d.Shape(), v.arg.Shape) {
			err = errors.Join(err, restore(d, v.arg.Shape))
		}
	}
	if err != nil {
		return nil, err
	}
	if result == nil {
		return nil, errors.New("the op returned no value")
	}
	want := s.out[0].arg.Operand
	if got := (spec.Operand{Dtype: result.Dtype(), Shape: result.Shape()}); got.Dtype != want.Dtype ||
		got.Elements() != want.Elements() {
		return nil, fmt.Errorf("the op returned %v, want %v", got, want)
	}
	return result, nil
}

// valueOf returns the value for the node of s: result, in the node's shape. It copies a result in the arena, whose
// memory is used again, and a kept one that shares memory with an operand, because solvers write to gradients and
// weights.
func (m *Machine) valueOf(s *step, args []G.Value, result G.Value) (v G.Value, err error) {
	v = result
	to := s.out[0]
	shared := func(a G.Value) bool { return overlap(a, result) }
	if m.inOwnMemory(v) || to.keep && slices.ContainsFunc(args, shared) && !m.hostMem.mayOverwriteFirst(s, args) {
		if v, err = G.CloneValue(v); err != nil {
			return nil, err
		}
	}
	v = conform(v, to.arg.Operand)
	if d, ok := v.(*tensor.Dense); ok && to.keep {
		tensor.WithEngine(G.StandardEngine{})(d) // as the results of a TapeMachine have
	}
	return v, nil
}

// releaseDead forgets the host values that nothing reads after s, a kernel or an op on the host that has run or that
// the run skips. Their memory is used again, unless the value of s lies in it.
func (m *Machine) releaseDead(s *step) {
	out := &m.state[s.out[0].id]
	for _, d := range s.dead {
		dead := &m.state[d.id]
		if dead == out || dead.host != out.host {
			m.hostMem.release(dead.host)
		}
		dead.host = nil
	}
}
