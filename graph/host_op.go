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

// loadArgs sets args to the host values of the operands of s. It copies those on the device to the host, once in each run.
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
	if got := (spec.Operand{Dtype: result.Dtype(), Shape: result.Shape()}); got.Dtype != want.Dtype || got.Elements() != want.Elements() {
		return nil, fmt.Errorf("the op returned %v, want %v", got, want)
	}
	return result, nil
}

// restore undoes what an op has done to the header of its operand.
func restore(d *tensor.Dense, shape tensor.Shape) error {
	d.UT() // first: Reshape moves the elements of a transposed tensor
	if len(shape) == 0 || slices.Equal(d.Shape(), shape) {
		return nil
	}
	return d.Reshape(shape...)
}

// valueOf returns the value for the node of s: result, in the node's shape. It copies a result in the arena, whose memory is
// used again, and a kept one that shares memory with an operand, because solvers write to gradients and weights.
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

// conform returns v in the shape of its node. An op may return the same elements in another shape: Gorgonia's ops return one
// element as a scalar. If v cannot be reshaped, conform returns v itself. A node without axes gets a G.Scalar: the next op may
// refuse a tensor.
func conform(v G.Value, want spec.Operand) G.Value {
	if len(want.Shape) == 0 {
		return scalar(v)
	}
	if slices.Equal(v.Shape(), want.Shape) { // Shape.Eq takes a row or a column for a vector
		return v
	}
	var d *tensor.Dense
	switch v := v.(type) {
	case *tensor.Dense:
		d = v.ShallowClone()
	case G.Scalar:
		d = tensor.New(tensor.FromScalar(v.Data()))
	default:
		return v
	}
	if err := d.Reshape(want.Shape...); err != nil {
		return v
	}
	return d
}

// scalar returns the element of a tensor of one element as a scalar of Gorgonia, and any other v itself.
func scalar(v G.Value) G.Value {
	d, ok := v.(*tensor.Dense)
	if !ok || d.Shape().TotalSize() != 1 {
		return v
	}
	switch x := d.Get(0).(type) {
	case float64:
		return G.NewF64(x)
	case float32:
		return G.NewF32(x)
	case int:
		return G.NewI(x)
	case int32:
		return G.NewI32(x)
	case int64:
		return G.NewI64(x)
	case byte:
		return G.NewU8(x)
	case bool:
		return G.NewB(x)
	}
	return v
}

// hostCall says how the machine runs an op of Gorgonia. The zero value calls its Do.
type hostCall struct {
	typeAndShape string // of the result: hostMemory keeps memory by it
	prealloc     bool   // call UsePreallocDo, as a TapeMachine does: the Do of some ops computes something else
	elementwise  bool   // the operands have the result's type and shape: call UsePreallocDo or, for one operand, UnsafeDo
	owns         bool   // the result of Do shares memory with no operand
	overwrites   bool   // Do overwrites its operands: give it copies
	ctcGrad      bool   // the result of Do is -Inf after the end of each text: clear it there

	sumAlong []int // if not empty, sum along one of these axes after the other. They are ascending

	byIndices *byIndices     // if not nil, call its do
	own       ownOp          // if not nil, call its do
	evalOnly  *G.BatchNormOp // if not nil, only if this op is in evaluation
}

// hostCallOf returns how to run the op of n on the operands in.
func hostCallOf(n *G.Node, in []*planValue) (c hostCall) {
	op := n.Op()
	c.own = ownOpOf(n, in)
	if n.IsScalar() {
		return c
	}
	c.typeAndShape = spec.Operand{Dtype: n.Dtype(), Shape: n.Shape()}.String()
	_, ok := op.(G.UsePreallocDoer)
	c.prealloc = ok && op.CallsExtern() && op.ReturnsPtr()
	c.byIndices = byIndicesOf(op)
	switch gorgoniaType(op) {
	case "sliceOp", "concatOp":
		c.owns = true
	case "yoloOp":
		c.overwrites = true
	case "ctcLossDiffOp":
		c.ctcGrad = true
	case "batchnormDiffOp":
		c.evalOnly = batchNormOf(op)
	case "elemBinOp":
		c.elementwise = slices.Contains([]string{"+ false", "- false", "⊙ false"}, op.String()) || c.own != nil
	case "elemUnaryOp":
		c.elementwise = true
	case "minBetween", "maxBetween":
		c.elementwise = c.own != nil
	case "sumOp": // package tensor adds wrongly along an axis in the middle of four
		if in[0].arg.Shape.Dims() >= 4 {
			c.sumAlong = intsField(op, "along")
			slices.Sort(c.sumAlong)
		}
	}
	for _, s := range in {
		c.elementwise = c.elementwise && s.arg.Dtype == n.Dtype() && s.arg.Shape.Eq(n.Shape()) && s.arg.Elements() > 1
	}
	return c
}

// do runs an op of Gorgonia.
func (h *hostMemory) do(st *step, args []G.Value) (G.Value, error) {
	op := st.node.Op()
	switch {
	case st.host.own != nil && (st.host.evalOnly == nil || !boolField(st.host.evalOnly, "training")):
		return h.doOwn(st, args)
	case st.host.byIndices != nil:
		d := h.alloc(st)
		return d, st.host.byIndices.do(d, args)
	case st.host.prealloc:
		d := h.alloc(st)
		d.Zero()
		return op.(G.UsePreallocDoer).UsePreallocDo(d, args...)
	case st.host.elementwise && allRowMajor(args):
		if h.mayOverwriteFirst(st, args) {
			return op.(G.UnsafeDoer).UnsafeDo(args...)
		}
		d := h.alloc(st)
		if len(args) == 2 {
			return op.(G.UsePreallocDoer).UsePreallocDo(d, args...)
		}
		if err := tensor.Copy(d, args[0].(*tensor.Dense)); err != nil { // CopyTo refuses a part of a vector
			return nil, err
		}
		return op.(G.UnsafeDoer).UnsafeDo(d)
	}
	if len(st.host.sumAlong) > 0 {
		if x, ok := args[0].(*tensor.Dense); ok {
			return st.host.sum(x)
		}
	}
	if st.host.overwrites {
		for i, a := range args {
			var err error
			if args[i], err = G.CloneValue(a); err != nil {
				return nil, err
			}
		}
	}
	v, err := op.Do(args...)
	if err == nil && st.host.ctcGrad {
		err = clearBeyond(v, args[2])
	}
	if d, ok := v.(*tensor.Dense); ok && err == nil && st.host.owns {
		h.owned[d] = st.host.typeAndShape
	}
	return v, err
}

// allRowMajor reports whether all values are row-major tensors without gaps.
func allRowMajor(values []G.Value) bool {
	for _, v := range values {
		if d, ok := v.(*tensor.Dense); !ok || !spec.IsRowMajor(d) {
			return false
		}
	}
	return true
}

// sum adds x up along one axis after the other. For each, it reshapes x to three axes with this one in the middle.
func (c *hostCall) sum(x *tensor.Dense) (G.Value, error) {
	x = toRowMajor(x).(*tensor.Dense)
	shape := x.Shape().Clone()
	for _, k := range slices.Backward(c.sumAlong) {
		x = x.ShallowClone()
		before, after := spec.Operand{Shape: shape[:k]}, spec.Operand{Shape: shape[k+1:]}
		if err := x.Reshape(before.Elements(), shape[k], after.Elements()); err != nil {
			return nil, err
		}
		var err error
		if x, err = x.Sum(1); err != nil {
			return nil, err
		}
		shape = slices.Delete(shape, k, k+1)
	}
	return x, nil
}

// clearBeyond clears the gradient of log-probabilities, [T,B,C], after the length of each of the B texts.
func clearBeyond(grad, lengths G.Value) error {
	d, ok := grad.(*tensor.Dense)
	list, isInts := lengths.Data().([]int)
	if !ok || !isInts || d.Dims() != 3 {
		return fmt.Errorf("the gradient is %T of shape %v with lengths %T", grad, grad.Shape(), lengths.Data())
	}
	row := d.Shape()[2] * int(d.Dtype().Size())
	for t := range d.Shape()[0] {
		for b, n := range list {
			if t >= n {
				clear(d.Raw[(t*len(list)+b)*row:][:row])
			}
		}
	}
	return nil
}
