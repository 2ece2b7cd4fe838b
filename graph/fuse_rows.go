package graph

import (
	"slices"

	"github.com/gorgonia-nsa/nsa/ops"
)

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
