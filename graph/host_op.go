package graph

import (
	"fmt"
	"slices"

	G "gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/ops/spec"
)

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
