package graph

import (
	"slices"

	"github.com/gorgonia-nsa/nsa/ops/spec/attention"
	"github.com/gorgonia-nsa/nsa/ops/spec/decode"
	"github.com/gorgonia-nsa/nsa/ops/spec/linear"
	"github.com/gorgonia-nsa/nsa/ops/spec/norm"
	"github.com/gorgonia-nsa/nsa/ops/spec/pointwise"
)

// normGradAdd fuses the gradient of an RMSNorm and its sum with the residual's gradient into one
// norm.RMSNormGradAdd. The bits are the same in the graph's types; in half precision there is one rounding less.
func (f *fuser) normGradAdd(add *step) error {
	if _, ok := add.spec.(pointwise.Add); !ok || len(add.in) != 2 {
		return nil
	}
	for i, v := range add.in {
		grad, op, ok := written[norm.RMSNormGrad](f, v)
		residual := add.in[1-i]
		if !ok || v != grad.out[0] || !sameType(v, residual, add.out[0]) {
			continue
		}
		in := append(slices.Clip(grad.in), residual)
		if done, err := f.replace([]*step{add, grad}, norm.RMSNormGradAdd(op), in,
			[]*planValue{add.out[0], grad.out[1]}); done || err != nil {
			return err
		}
	}
	return nil
}

// gateSigmoid fuses the sigmoid of the gates into the gradient of a gated sum, and then into the gated sum if nothing
// else reads the sigmoid. In half precision the gates are then not rounded.
func (f *fuser) gateSigmoid(s *step) error {
	if s.spec != (pointwise.GatedSum{}) {
		return nil
	}
	gates := s.in[0]
	sigmoid, _, ok := written[pointwise.Sigmoid](f, gates)
	if !ok {
		return nil
	}
	for _, back := range slices.Clone(f.readers[gates]) {
		grad, op, ok := written[pointwise.GatedSumGrad](f, back.in[len(back.in)-1])
		if _, is := back.spec.(pointwise.SigmoidGrad); !is || !ok || op != (pointwise.GatedSumGrad{}) ||
			grad.in[0] != gates || back.in[1] != grad.out[0] {
			continue
		}
		in, out := slices.Concat(sigmoid.in, grad.in[1:]), slices.Concat(back.out, grad.out[1:])
		if _, err := f.replace([]*step{back, grad}, pointwise.GatedSumGrad{Sigmoid: true}, in, out); err != nil {
			return err
		}
	}
	_, err := f.replace([]*step{s, sigmoid}, pointwise.GatedSum{Sigmoid: true}, slices.Concat(sigmoid.in, s.in[1:]), s.out)
	return err
}

// decodeGates fuses the linear layer and the sigmoid that compute the gates into a step of decoding. The bits are the
// same in the graph's types; in half precision neither logits nor gates are rounded.
func (f *fuser) decodeGates(s *step) error {
	op, ok := s.spec.(decode.Step)
	if !ok || op.GateLayer || op.Cache.Dense() {
		return nil
	}
	at := op.Inputs().Gates
	sigmoid, _, ok := written[pointwise.Sigmoid](f, s.in[at])
	if !ok {
		return nil
	}
	linear, layer, ok := written[linear.Linear](f, sigmoid.in[0])
	if !ok || !layer.Dots || len(linear.in) != 3 {
		return nil
	}
	op.GateLayer = true
	_, err := f.replace([]*step{s, sigmoid, linear}, op, slices.Concat(s.in[:at], linear.in, s.in[at+1:]), s.out)
	return err
}

// deltas makes the gradient of a gated sum of attention branches compute delta = rowsum(do·o) of each branch: it reads
// o and writes do anyway. The gradients of the branches then read delta instead of o. The bits are the same in the
// graph's types.
func (f *fuser) deltas(s *step) error {
	op, ok := s.spec.(pointwise.GatedSumGrad)
	if !ok || op.Deltas {
		return nil
	}
	n := len(s.in) - 2
	grads := make([]*step, n) // of the branches
	for i := range n {
		for _, r := range f.readers[s.out[1+i]] {
			if _, ok := attention.WithDelta(r.spec); ok {
				if o, _, do := attention.GradInputs(r.in); o == s.in[1+i] && do == s.out[1+i] {
					grads[i] = r
				}
			}
		}
		if grads[i] == nil {
			return nil
		}
	}
	out, deltas := slices.Clone(s.out), make([]*planValue, n)
	for i, g := range grads {
		_, lse, _ := attention.GradInputs(g.in)
		deltas[i] = f.newValue(nil, "delta of "+s.in[1+i].name, fromKernel, lse.arg.Operand)
		out = append(out, deltas[i])
	}
	op.Deltas = true
	if done, err := f.replace([]*step{s}, op, s.in, out); !done {
		return err
	}
	for i, g := range grads {
		spec, _ := attention.WithDelta(g.spec)
		in := slices.Clone(g.in)
		attention.SetDelta(in, deltas[i])
		if _, err := f.replace([]*step{g}, spec, in, g.out); err != nil {
			return err
		}
	}
	return nil
}
