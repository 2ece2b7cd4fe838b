package ops

import (
	"fmt"

	"gorgonia.org/gorgonia"

	"github.com/gorgonia-nsa/nsa/ops/spec"
	"github.com/gorgonia-nsa/nsa/ops/spec/linear"
)

// Linear returns x·Wᵀ + bias. w is [out,in], as PyTorch stores it. The trailing axes of x with the product in are
// contracted, so the output [B,S,Hq,Dv] of an attention op can be the input of a projection:
//
//	x [...,in] or [...,a,b] with a*b = in (up to four such axes)  ->  [...,out], or [...,h,out/h] with WithHeads(h)
//
// At least two leading axes ([B,S]) are kept, or one if only that gives the product in. If axes of size 1 allow several
// choices, as many axes as possible are contracted. x, w and the bias have gradients.
func Linear(x, w *gorgonia.Node, opts ...LinearOption) (*gorgonia.Node, error) {
	l := linearCall{inputs: gorgonia.Nodes{x, w}}
	for i, opt := range opts {
		if opt == nil {
			return nil, spec.ErrorIn(l.op, fmt.Errorf("option %d is nil", i))
		}
		if err := opt(&l); err != nil {
			return nil, spec.ErrorIn(l.op, err)
		}
	}
	return spec.Apply(l.op, l.inputs...)
}

// LinearOption is an option of Linear.
type LinearOption func(*linearCall) error

// linearCall holds what the options of Linear set.
type linearCall struct {
	op     linear.Linear
	inputs gorgonia.Nodes
}

// WithBias adds bias [out] to every row of the product.
func WithBias(bias *gorgonia.Node) LinearOption {
	return func(l *linearCall) error {
		l.inputs = append(l.inputs[:2], bias)
		return nil
	}
}

// WithHeads splits the last axis of the output into [h, out/h]. h must divide out.
func WithHeads(h int) LinearOption {
	return func(l *linearCall) error {
		l.op.Heads = h
		return spec.WantPositive("heads", h)
	}
}
