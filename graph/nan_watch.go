package graph

import (
	"errors"
	"fmt"
	"math"

	G "gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/internal/cpu"
	"github.com/gorgonia-nsa/nsa/ops/spec"
)

// watchResult returns an error if the main result of s has a NaN or Inf that the options ask for.
func (m *Machine) watchResult(s *step) (err error) {
	result := s.out[0]
	want := result.arg.Operand
	switch dt := want.Dtype; {
	// pairs, as an int32: no host value has such a type. Alignment leaves room after an odd last element
	case spec.IsHalf(dt):
		want = spec.Operand{Dtype: tensor.Int32, Shape: tensor.Shape{(want.Elements() + 1) / 2}}
	case dt != tensor.Float32 && dt != tensor.Float64:
		return nil
	}
	v := m.state[result.id].host
	if result.kind == fromKernel {
		v = spec.NewValue(want)
		if err := errors.Join(m.stream.Download(v, spec.Arg{Operand: want, Buf: result.arg.Buf}),
			m.stream.Synchronize()); err != nil {
			return err
		}
	}
	if err := spec.PointAtValue(&m.cell, v, want); err != nil {
		return err
	}
	var at func(i int) float64
	switch dt := result.arg.Dtype; dt {
	case tensor.Float64:
		list := cpu.Slice[float64](&m.cell)
		at = func(i int) float64 { return list[i] }
	case tensor.Float32:
		list := cpu.Slice[float32](&m.cell)
		at = func(i int) float64 { return float64(list[i]) }
	default:
		list := cpu.Slice[int32](&m.cell)
		at = func(i int) float64 { return halfKind(dt, uint16(list[i/2]>>(16*(i%2)))) }
	}
	for i := range result.arg.Elements() {
		if x := at(i); m.opts.watchNaN && math.IsNaN(x) || m.opts.watchInf && math.IsInf(x, 0) {
			return fmt.Errorf("NaN or Inf found: element %d of the result%s is %v", i, m.nearby(s), x)
		}
	}
	return nil
}

// halfKind returns NaN or an infinity if bits are one in half precision, else 0.
func halfKind(dt tensor.Dtype, bits uint16) float64 {
	exponent := uint16(0x7c00)
	if dt == spec.BFloat16 {
		exponent = 0x7f80
	}
	switch sign := 1 - 2*int(bits>>15); {
	case bits&exponent != exponent:
		return 0
	case bits&^exponent&0x7fff != 0:
		return math.NaN()
	default:
		return math.Inf(sign)
	}
}

// nearby describes where the result of s is in the graph: the input whose gradient it is, or else the nearest input of
// floats before it, such as a weight. Scalars do not count. It is "" if there is no such input.
func (m *Machine) nearby(s *step) string {
	if wrt := s.out[0].wrt; len(wrt) > 0 {
		return ", the gradient of " + wrt[0].Name() + ","
	}
	seen := map[*G.Node]bool{}
	for near := (G.Nodes{s.node}); len(near) > 0; {
		var next G.Nodes
		for _, n := range near {
			if dt := n.Dtype(); n.Op() == nil && n.Dims() > 0 && (dt == tensor.Float32 || dt == tensor.Float64) {
				return ", near " + n.Name() + ","
			}
			for _, in := range m.order.inputs[n] {
				if !seen[in] {
					seen[in] = true
					next = append(next, in)
				}
			}
		}
		near = next
	}
	return ""
}
