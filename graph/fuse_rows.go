package graph

import (
	"slices"

	"github.com/gorgonia-nsa/nsa/ops"
)

// addNorm makes one AddRMSNormOp of a sum of two and the RMSNorm that reads it first. The bits are the same in the graph's
// types; in half precision the norm may read the sum before it is rounded.
func (f *fuser) addNorm(norm *step) error {
	op, ok := norm.spec.(ops.RMSNormOp)
	if !ok {
		return nil
	}
	add, _, ok := written[ops.AddOp](f, norm.in[0])
	if !ok || len(add.in) != 2 || !sameType(add.in[0], add.in[1], add.out[0], norm.out[0]) {
		return nil
	}
	_, err := f.replace([]*step{add, norm}, ops.AddRMSNormOp(op), []*operand{add.in[0], add.in[1], norm.in[1]}, []*operand{add.out[0], norm.out[0]})
	return err
}

// normGradAdd makes one RMSNormGradAddOp of the gradient of an RMSNorm and the sum of it and the gradient that comes around
// the block. The bits are the same in the graph's types; in half precision one rounding is left out.
func (f *fuser) normGradAdd(add *step) error {
	if _, ok := add.spec.(ops.AddOp); !ok || len(add.in) != 2 {
		return nil
	}
	for i, v := range add.in {
		grad, op, ok := written[ops.RMSNormGradOp](f, v)
		residual := add.in[1-i]
		if !ok || v != grad.out[0] || !sameType(v, residual, add.out[0]) {
			continue
		}
		in := append(slices.Clip(grad.in), residual)
		if done, err := f.replace([]*step{add, grad}, ops.RMSNormGradAddOp(op), in, []*operand{add.out[0], grad.out[1]}); done || err != nil {
			return err
		}
	}
	return nil
}

// linearSiLU makes one LinearSiLUOp of a linear layer and the SiLU that reads it. The layer's own result stays, for the
// gradient of SiLU. The bits are the same in the graph's types; in half precision SiLU may read it before it is rounded.
func (f *fuser) linearSiLU(silu *step) error {
	if _, ok := silu.spec.(ops.SiLUOp); !ok {
		return nil
	}
	linear, op, ok := written[ops.LinearOp](f, silu.in[0])
	if !ok || !sameType(linear.out[0], silu.out[0]) {
		return nil
	}
	_, err := f.replace([]*step{silu, linear}, ops.LinearSiLUOp(op), linear.in, []*operand{silu.out[0], linear.out[0]})
	return err
}
