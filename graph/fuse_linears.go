package graph

import (
	"slices"

	"github.com/gorgonia-nsa/nsa/ops"
)

// linears makes one LinearsOp of linear layers that read one input: a projection of it to queries, keys, values and gates,
// say. The bits are the same.
func (f *fuser) linears(s *step) error {
	group := group[ops.LinearOp](f, s)
	if len(group) < 2 {
		return nil
	}
	var op ops.LinearsOp
	var ws, biases, ys []*operand
	for i, l := range group {
		op.Heads[i], op.Bias[i] = l.spec.(ops.LinearOp).Heads, len(l.in) == 3
		ws, biases, ys = append(ws, l.in[1]), append(biases, l.in[2:]...), append(ys, l.out[0])
	}
	_, err := f.replace(group, op, slices.Concat(s.in[:1], ws, biases), ys)
	return err
}

// linearsWeightGrad makes one LinearsWeightGradOp of the gradients by weights of linear layers that read one input, where
// the last of them is. The bits are the same.
func (f *fuser) linearsWeightGrad(s *step) error {
	group := group[ops.LinearWeightGradOp](f, s)
	if len(group) < 2 {
		return nil
	}
	op := ops.LinearsWeightGradOp{In: s.spec.(ops.LinearWeightGradOp).In}
	in, out := s.in[:1:1], []*operand{}
	for i, l := range group {
		op.Out[i] = l.spec.(ops.LinearWeightGradOp).Out
		in, out = append(in, l.in[1]), append(out, l.out[0])
	}
	_, err := f.replace(group, op, in, out)
	return err
}

// group returns the steps of an S that read what s reads first, in the same types, if s is the first of them.
func group[S ops.Spec](f *fuser, s *step) (group []*step) {
	if _, ok := s.spec.(S); !ok {
		return nil
	}
	for _, r := range f.readers[s.in[0]] {
		if _, ok := r.spec.(S); ok && r.in[0] == s.in[0] && sameType(r.in[1], s.in[1]) && sameType(r.out[0], s.out[0]) {
			group = append(group, r)
		}
	}
	if group[0] != s {
		return nil
	}
	return group[:min(len(group), ops.MaxLinears)]
}

// linearsInputGrad makes one LinearsInputGradOp of gradients of linear layers by their input that are added up there and
// nowhere else. Other terms of the sum stay, behind the new one. Terms are added in another order and, in half precision, without being rounded first: the results differ by roundings.
func (f *fuser) linearsInputGrad(add *step) error {
	if _, ok := add.spec.(ops.AddOp); !ok {
		return nil
	}
	var op ops.LinearsInputGradOp
	var old []*step
	var dys, ws, others []*operand
	for _, v := range add.in {
		s, spec, ok := written[ops.LinearInputGradOp](f, v)
		if ok && len(old) > 0 {
			ok = len(old) < ops.MaxLinears && spec.Axes == op.Axes && sameType(s.in[0], dys[0]) && sameType(s.in[1], ws[0])
		}
		if !ok || len(f.readers[v]) > 1 || !f.inner(v, add) || !sameType(v, add.out[0]) {
			others = append(others, v)
			continue
		}
		if len(old) == 0 {
			op.Axes = spec.Axes
		}
		op.Heads[len(old)] = spec.Heads
		old, dys, ws = append(old, s), append(dys, s.in[0]), append(ws, s.in[1])
	}
	if len(old) < 2 {
		return nil
	}
	in := slices.Concat(dys, ws)
	if len(others) == 0 {
		_, err := f.replace(append(old, add), op, in, add.out)
		return err
	}
	at, terms := f.at[add], add.in
	sum := f.newOperand(nil, "sum of gradients of linears", fromKernel, add.out[0].arg.Operand)
	f.remove(add)
	add.in = append([]*operand{sum}, others...)
	f.put(at, add)
	ok, err := f.replace(old, op, in, []*operand{sum})
	if !ok {
		f.remove(add)
		add.in = terms
		f.put(at, add)
	}
	return err
}
