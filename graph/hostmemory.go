package graph

import (
	"reflect"
	"slices"
	"strings"

	G "gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/ops"
)

// hostMemory is the memory for results of Gorgonia's ops, which would allocate it in each run. The memory of a value that no
// node shows is used again after its last reader, within a run and in later runs, or the last reader writes its result in
// place.
type hostMemory struct {
	free  map[string][]*tensor.Dense // by type and shape
	made  map[string]int             // number of tensors allocated, by type and shape
	owned map[*tensor.Dense]string   // results that share memory with no other value, with their type and shape
}

// hostCall says how the machine runs an op of Gorgonia. The zero value calls its Do.
type hostCall struct {
	kind        string // type and shape of the result, by which hostMemory keeps memory
	prealloc    bool   // call UsePreallocDo, as a TapeMachine does: the Do of some ops computes something else
	elementwise bool   // the operands have the result's type and shape: call UsePreallocDo or, for one operand, UnsafeDo
	owns        bool   // the result of Do shares memory with no operand

	// reduce, if not nil, is called for each of the axes along. These are ascending.
	reduce func(*tensor.Dense, ...int) (*tensor.Dense, error)
	along  []int
}

// hostCallOf returns how to run the op of n on the operands in.
func hostCallOf(n *G.Node, in []*operand) (c hostCall) {
	op := n.Op()
	if n.IsScalar() {
		return c
	}
	c.kind = ops.Operand{Dtype: n.Dtype(), Shape: n.Shape()}.String()
	_, ok := op.(G.UsePreallocDoer)
	c.prealloc = ok && op.CallsExtern() && op.ReturnsPtr()
	name := gorgoniaType(op)
	switch name {
	case "sliceOp", "concatOp":
		c.owns = true
	case "elemBinOp":
		c.elementwise = strings.HasSuffix(op.String(), " false") && strings.Contains("+-⊙÷", strings.TrimSuffix(op.String(), " false"))
	case "elemUnaryOp":
		c.elementwise = true
	case "sumOp", "maxOp": // package tensor reduces wrongly along an axis in the middle of four
		along := reflect.Indirect(reflect.ValueOf(op)).FieldByName("along")
		if along.Kind() != reflect.Slice || in[0].arg.Shape.Dims() < 4 {
			break
		}
		for i := range along.Len() {
			c.along = append(c.along, int(along.Index(i).Int()))
		}
		slices.Sort(c.along)
		if c.reduce = (*tensor.Dense).Sum; name == "maxOp" {
			c.reduce = (*tensor.Dense).Max
		}
	}
	for _, s := range in {
		c.elementwise = c.elementwise && s.arg.Dtype == n.Dtype() && s.arg.Shape.Eq(n.Shape()) && s.arg.Elements() > 1
	}
	return c
}

// alloc returns memory for a result. Its content is undefined.
func (h *hostMemory) alloc(st *step) *tensor.Dense {
	kind := st.host.kind
	if free := h.free[kind]; len(free) > 0 {
		h.free[kind] = free[:len(free)-1]
		h.owned[free[len(free)-1]] = kind
		return free[len(free)-1]
	}
	d := tensor.New(tensor.Of(st.node.Dtype()), tensor.WithShape(st.node.Shape()...))
	h.made[kind]++
	h.owned[d] = kind
	return d
}

// do runs an op of Gorgonia.
func (h *hostMemory) do(st *step, args []G.Value) (G.Value, error) {
	op := st.node.Op()
	switch {
	case st.host.prealloc:
		d := h.alloc(st)
		d.Zero()
		return op.(G.UsePreallocDoer).UsePreallocDo(d, args...)
	case st.host.elementwise && rowMajor(args):
		if h.isLast(st, args) {
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
	if len(st.host.along) > 0 {
		if x, ok := args[0].(*tensor.Dense); ok {
			return st.host.reduceAxes(x)
		}
	}
	v, err := op.Do(args...)
	if d, ok := v.(*tensor.Dense); ok && err == nil && st.host.owns {
		h.owned[d] = st.host.kind
	}
	return v, err
}

// reduceAxes reduces x along one axis after the other. For each, it reshapes x to three axes with this one in the middle.
func (c *hostCall) reduceAxes(x *tensor.Dense) (G.Value, error) {
	if !ops.IsRowMajor(x) {
		x = x.Clone().(*tensor.Dense).Materialize().(*tensor.Dense)
	}
	shape := x.Shape().Clone()
	for _, k := range slices.Backward(c.along) {
		x = x.ShallowClone()
		before, after := ops.Operand{Shape: shape[:k]}, ops.Operand{Shape: shape[k+1:]}
		if err := x.Reshape(before.Elements(), shape[k], after.Elements()); err != nil {
			return nil, err
		}
		var err error
		if x, err = c.reduce(x, 1); err != nil {
			return nil, err
		}
		shape = slices.Delete(shape, k, k+1)
	}
	return x, nil
}

// isLast reports whether st may write its result to the first operand: no other value shares its memory, and st is its last
// reader.
func (h *hostMemory) isLast(st *step, args []G.Value) bool {
	d, ok := args[0].(*tensor.Dense)
	if _, owned := h.owned[d]; !ok || !owned || len(args) == 2 && args[0] == args[1] {
		return false
	}
	return st.host.elementwise && slices.Contains(st.dead, st.in[0])
}

// rowMajor reports whether all values are row-major tensors without gaps.
func rowMajor(values []G.Value) bool {
	for _, v := range values {
		if d, ok := v.(*tensor.Dense); !ok || !ops.IsRowMajor(d) {
			return false
		}
	}
	return true
}

// disownShared removes values from owned that share memory after st has returned result; v is the value that st's node gets.
func (h *hostMemory) disownShared(st *step, args []G.Value, result, v G.Value) {
	d, _ := result.(*tensor.Dense)
	for _, a := range args {
		if a != result && overlap(a, result) {
			delete(h.owned, d)
			if a, ok := a.(*tensor.Dense); ok {
				delete(h.owned, a)
			}
		}
	}
	if v != result || st.out[0].keep {
		delete(h.owned, d)
	}
}

// release keeps the memory of a value that nothing reads any more for later results.
func (h *hostMemory) release(v G.Value) {
	d, _ := v.(*tensor.Dense)
	kind, ok := h.owned[d]
	if !ok {
		return
	}
	delete(h.owned, d)
	if len(h.free[kind]) < h.made[kind] {
		h.free[kind] = append(h.free[kind], d)
	}
}
