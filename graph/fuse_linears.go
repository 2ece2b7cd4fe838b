package graph

import (
	"slices"

	"github.com/gorgonia-nsa/nsa/ops/spec"
	"github.com/gorgonia-nsa/nsa/ops/spec/linear"
	"github.com/gorgonia-nsa/nsa/ops/spec/norm"
	"github.com/gorgonia-nsa/nsa/ops/spec/pointwise"
)

// linears fuses linear layers of one input, such as the projections to queries, keys, values and gates, and the RoPEs
// of their results into one linear.Fused. The bits are the same in the graph's types; in half precision a library may
// sum a wider product in another order.
func (f *fuser) linears(s *step) error {
	layers := readersOfInput[linear.Linear](f, s)
	if len(layers) < 2 {
		return nil
	}
	slices.Reverse(layers) // the order of their gradients; see joinWeights
	op := linear.Fused{Dots: s.spec.(linear.Linear).Dots}
	rotated := rotations{rotated: &op.Rotated, rope: &op.RoPE}
	var ropes []*step
	var ws, biases, ys []*planValue
	for i, l := range layers {
		linear := l.spec.(linear.Linear)
		if linear.Dots != op.Dots {
			return nil
		}
		op.Heads[i], op.Bias[i] = linear.Heads, len(l.in) == 3
		y := l.out[0]
		if r := f.readers[y]; len(r) == 1 && f.readOnlyBy(y, r...) && rotated.add(i, r[0]) {
			ropes, y = append(ropes, r[0]), r[0].out[0]
		}
		ws, biases, ys = append(ws, l.in[1]), append(biases, l.in[2:]...), append(ys, y)
	}
	_, err := f.replace(append(layers, ropes...), op, slices.Concat(s.in[:1], ws, biases, rotated.table), ys)
	return err
}

// rotations are the RoPEs that a fused step includes.
type rotations struct {
	rotated *[linear.MaxFused]bool
	rope    *pointwise.RoPE
	dim     int          // head dimension of all of them; 0 before the first one
	table   []*planValue // the table of documents or the start, if there is one
}

// add adds s as the RoPE of layer i, if it is a RoPE like those before.
func (t *rotations) add(i int, s *step) bool {
	op, ok := s.spec.(pointwise.RoPE)
	if !ok || !sameType(s.in[0], s.out[0]) {
		return false
	}
	shape := s.in[0].arg.Shape
	dim := shape[len(shape)-1]
	if t.dim != 0 && (dim != t.dim || op != *t.rope || !slices.Equal(t.table, s.in[1:])) {
		return false
	}
	t.rotated[i], *t.rope, t.dim, t.table = true, op, dim, s.in[1:]
	return true
}

// readersOfInput returns the steps with a Spec S that read the first operand of s, in the same types, but at most
// linear.MaxFused. It returns none unless s is the first of them.
func readersOfInput[S spec.Spec](f *fuser, s *step) (layers []*step) {
	if _, ok := s.spec.(S); !ok {
		return nil
	}
	for _, r := range f.readers[s.in[0]] {
		if _, ok := r.spec.(S); ok && r.in[0] == s.in[0] && !slices.Contains(layers, r) &&
			sameType(r.in[1], s.in[1]) && sameType(r.out[0], s.out[0]) {
			layers = append(layers, r)
		}
	}
	if layers[0] != s {
		return nil
	}
	return slices.Clip(layers[:min(len(layers), linear.MaxFused)])
}

// linearsGrad fuses the gradients of linear layers of one input into one linear.FusedGrad: those by the weights; those
// by the input, if one sum adds them all and nothing else reads them; and the sums and RoPEs that compute the gradients
// of the layers' results. Other terms of the input's sum stay: the new term stands where the first term that it
// replaces stood. Terms are added in another order and, in half precision, sums are not rounded first: so dx differs by
// roundings. The other results are as in linears.
func (f *fuser) linearsGrad(s *step) error {
	weights := readersOfInput[linear.WeightGrad](f, s)
	if len(weights) < 2 {
		return nil
	}
	inputs, add := f.inputGrads(weights)
	op := linear.FusedGrad{In: s.spec.(linear.WeightGrad).In, WeightsOnly: add == nil}
	rotated := rotations{rotated: &op.Rotated, rope: &op.RoPE}
	old := slices.Concat(weights, inputs)
	in, ws, out := s.in[:1:1], []*planValue{}, []*planValue{}
	for i, w := range weights {
		dy, readers := w.in[1], weights[i:i+1]
		if add != nil {
			ws, readers = append(ws, inputs[i].in[1]), []*step{w, inputs[i]}
		}
		if rope := f.writer[dy]; rope != nil && f.readOnlyBy(dy, readers...) && rotated.add(i, rope) {
			old, readers, dy = append(old, rope), []*step{rope}, rope.in[0]
		}
		terms := []*planValue{dy}
		if sum, _, ok := written[pointwise.Add](f, dy); ok && f.readOnlyBy(dy, readers...) &&
			len(sum.in) <= linear.MaxTerms && sameType(append(sum.in[:len(sum.in):len(sum.in)], dy)...) {
			old, terms = append(old, sum), sum.in
		}
		in, out, op.Terms[i] = append(in, terms...), append(out, w.out[0]), len(terms)
	}
	if add == nil {
		_, err := f.replace(old, op, append(in, rotated.table...), out)
		return err
	}
	in = slices.Concat(in, ws, rotated.table)
	others, place := otherTerms(add, inputs)
	if len(others) == 0 {
		_, err := f.replace(append(old, add), op, in, append(add.out[:1:1], out...))
		return err
	}
	terms := add.in
	sum := f.newValue(nil, "sum of gradients of linears", fromKernel, add.out[0].arg.Operand)
	f.reread(add, slices.Insert(others, place, sum))
	ok, err := f.replace(old, op, in, append([]*planValue{sum}, out...))
	if !ok {
		f.reread(add, terms)
	}
	return err
}

// otherTerms returns the terms of the sum add that grads do not compute. place is the index among them at which the
// first term that grads compute would stand.
func otherTerms(add *step, grads []*step) (others []*planValue, place int) {
	place = -1
	for _, v := range add.in {
		if !slices.ContainsFunc(grads, func(s *step) bool { return s.out[0] == v }) {
			others = append(others, v)
		} else if place < 0 {
			place = len(others)
		}
	}
	return others, place
}

// inputGrads returns the gradients of layers by their input, in the order of weights, the gradients by their weights.
// add is the step that sums them. Both are nil if one gradient is missing or is not in that sum alone.
func (f *fuser) inputGrads(weights []*step) (list []*step, add *step) {
	for _, w := range weights {
		dy := w.in[1]
		at := slices.IndexFunc(f.readers[dy], func(r *step) bool {
			_, ok := r.spec.(linear.InputGrad)
			if !ok || r.in[0] != dy || slices.Contains(list, r) || list != nil && !sameType(r.in[1], list[0].in[1]) {
				return false
			}
			sum := f.sumOf(r.out[0])
			return sum != nil && (add == nil || sum == add)
		})
		if at < 0 {
			return nil, nil
		}
		list = append(list, f.readers[dy][at])
		add = f.sumOf(list[len(list)-1].out[0])
	}
	return list, add
}

// sumOf returns the pointwise.Add that alone reads v in v's type, nil if there is none.
func (f *fuser) sumOf(v *planValue) *step {
	r := f.readers[v]
	if len(r) != 1 || !f.readOnlyBy(v, r...) {
		return nil
	}
	if _, ok := r[0].spec.(pointwise.Add); !ok || !sameType(v, r[0].out[0]) {
		return nil
	}
	return r[0]
}

func (f *fuser) reread(s *step, in []*planValue) {
	at := f.index[s]
	f.remove(s)
	s.in = in
	f.put(at, s)
}

// linearAdd fuses a linear layer without a bias and the sum of its result and a residual into one linear.LinearAdd; the
// sum has the type of the residual. The bits are the same in the graph's types; in half precision the result is not
// rounded before it is added.
func (f *fuser) linearAdd(add *step) error {
	if _, ok := add.spec.(pointwise.Add); !ok || len(add.in) != 2 {
		return nil
	}
	for i, v := range add.in {
		lin, op, ok := written[linear.Linear](f, v)
		residual := add.in[1-i]
		if !ok || len(lin.in) > 2 || !sameType(residual, add.out[0]) {
			continue
		}
		in := append(slices.Clip(lin.in), residual)
		if done, err := f.replace([]*step{lin, add}, linear.LinearAdd(op), in, add.out); done || err != nil {
			return err
		}
	}
	return nil
}

// linearCast fuses a linear layer without a bias and the cast of its result to float32 into one linear.Linear, if
// nothing else reads the result, as with the logits of a language model. This stores float32 and rounds nothing to half
// precision. Layers with a bias stay: a library has no bias for a result of another type.
func (f *fuser) linearCast(cast *step) error {
	if _, ok := cast.spec.(spec.Cast); !ok || spec.IsHalf(cast.out[0].arg.Dtype) {
		return nil
	}
	linear, op, ok := written[linear.Linear](f, cast.in[0])
	if !ok || len(linear.in) > 2 {
		return nil
	}
	_, err := f.replace([]*step{cast, linear}, op, linear.in, cast.out)
	return err
}

// asLinears returns the linear.Fused that s is or, for a single linear layer, the one that computes the same.
func asLinears(s *step) (op linear.Fused, ok bool) {
	switch spec := s.spec.(type) {
	case linear.Fused:
		return spec, true
	case linear.Linear:
		op.Heads[0], op.Bias[0], op.Dots = spec.Heads, len(s.in) == 3, spec.Dots
		return op, true
	}
	return op, false
}

// linearActivation fuses linear layers and a SiLU or a sigmoid into one linear.Fused, if nothing else reads the result
// that the activation reads, and the plan has no derivatives. The bits are the same in the graph's types; in half
// precision the result is not rounded before the activation. In a plan with derivatives a rule must not avoid a
// rounding only because some value is not kept: the bits would depend on what is kept, and two trainings would drift
// apart.
func (f *fuser) linearActivation(s *step) error {
	var a linear.Activation
	switch s.spec.(type) {
	case pointwise.SiLU:
		a = linear.ActivationSiLU
	case pointwise.Sigmoid:
		a = linear.ActivationSigmoid
	default:
		return nil
	}
	linears := f.writer[s.in[0]]
	if linears == nil || !sameType(s.in[0], s.out[0]) || f.trains {
		return nil
	}
	op, ok := asLinears(linears)
	if i := slices.Index(linears.out, s.in[0]); ok && op.Activation[i] == linear.ActivationNone && !op.Rotated[i] {
		op.Activation[i] = a
		out := slices.Clone(linears.out)
		out[i] = s.out[0]
		_, err := f.replace([]*step{linears, s}, op, linears.in, out)
		return err
	}
	return nil
}

// normLinears fuses linear layers and the RMSNorm that computes their input into one linear.Fused, if nothing else
// reads that input and the plan has no derivatives. The bits are the same in the graph's types; on a device sums may be
// in another order.
func (f *fuser) normLinears(s *step) error {
	op, ok := asLinears(s)
	if !ok || op.Norm != 0 || f.trains {
		return nil
	}
	norm, rms, ok := written[norm.RMSNorm](f, s.in[0])
	x, in := s.in[0].arg.Shape, s.in[1].arg.Shape[1]
	if !ok || x[len(x)-1] != in {
		return nil
	}
	op.Norm = rms.Eps
	_, ws, biases, table := linear.SplitFused(op, len(s.out), s.in)
	inputs := slices.Concat(norm.in[:1], ws, biases, norm.in[1:], table)
	_, err := f.replace([]*step{norm, s}, op, inputs, s.out)
	return err
}

// linearSiLU fuses a linear layer and the SiLU that reads its result into one linear.LinearSiLU. The layer's own
// result stays, for the gradient of SiLU. The bits are the same in the graph's types; in half precision SiLU may read
// the result before it is rounded.
func (f *fuser) linearSiLU(silu *step) error {
	if _, ok := silu.spec.(pointwise.SiLU); !ok {
		return nil
	}
	lin, op, ok := written[linear.Linear](f, silu.in[0])
	if !ok || !sameType(lin.out[0], silu.out[0]) {
		return nil
	}
	_, err := f.replace([]*step{silu, lin}, linear.LinearSiLU(op), lin.in, []*planValue{silu.out[0], lin.out[0]})
	return err
}

// siluGrad fuses the gradient of a SiLU and that of the linear layer that reads its result into one InputGradSiLU. The
// bits are the same in the graph's types; in half precision the layer's gradient is not rounded before it is multiplied.
func (f *fuser) siluGrad(silu *step) error {
	if _, ok := silu.spec.(pointwise.SiLUGrad); !ok {
		return nil
	}
	h, dy := silu.in[0], silu.in[1]
	lin, op, ok := written[linear.InputGrad](f, dy)
	if !ok || !sameType(h, dy, silu.out[0]) {
		return nil
	}
	_, err := f.replace([]*step{silu, lin}, linear.InputGradSiLU(op), append(slices.Clip(lin.in), h), silu.out)
	return err
}
