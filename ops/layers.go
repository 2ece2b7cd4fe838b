package ops

import (
	"errors"
	"fmt"

	"gorgonia.org/gorgonia"

	"github.com/gorgonia-nsa/nsa/ops/spec"
	"github.com/gorgonia-nsa/nsa/ops/spec/linear"
	"github.com/gorgonia-nsa/nsa/ops/spec/norm"
	"github.com/gorgonia-nsa/nsa/ops/spec/pointwise"
	"github.com/gorgonia-nsa/nsa/ops/spec/vocab"
)

// SiLU returns x*sigmoid(x), elementwise, of any shape (arXiv 1702.03118).
func SiLU(x *gorgonia.Node) (*gorgonia.Node, error) { return spec.Apply(pointwise.SiLU{}, x) }

// SwiGLU returns SiLU(gate)*up, elementwise, of inputs of one shape (arXiv 2002.05202). Both have gradients.
func SwiGLU(gate, up *gorgonia.Node) (*gorgonia.Node, error) {
	return spec.Apply(pointwise.SwiGLU{}, gate, up)
}

// Sigmoid returns 1/(1+exp(-x)), elementwise, of any shape.
func Sigmoid(x *gorgonia.Node) (*gorgonia.Node, error) { return spec.Apply(pointwise.Sigmoid{}, x) }

// Add returns the sum of one or more inputs of the same shape, added in their order in one pass.
//
// The gradient of the first input is the node of the sum's gradient. Each other input gets a copy of it. If all shared
// one node, a change of one input's gradient would change the others: Gorgonia's solvers zero a gradient after use, and
// some of its ops work in place.
func Add(xs ...*gorgonia.Node) (*gorgonia.Node, error) { return spec.Apply(pointwise.Add{}, xs...) }

// Repeat returns x [B,...] with each row `times` times, one after the other: [B*times,...]. The gradient is the sum of a
// row's copies.
func Repeat(x *gorgonia.Node, times int) (*gorgonia.Node, error) {
	return spec.Apply(pointwise.Repeat{Times: times}, x)
}

// RMSNorm returns x/sqrt(mean(x²) + eps)*weight over the last axis (arXiv 1910.07467): x [...,dim] of rank 2 or more,
// weight [dim]. eps is positive. x and weight have gradients.
func RMSNorm(x, weight *gorgonia.Node, eps float64) (*gorgonia.Node, error) {
	return spec.Apply(norm.RMSNorm{Eps: eps}, x, weight)
}

// RoPE returns the rotary position embedding of x [B,S,H,D] (arXiv 2104.09864): the pair (2i, 2i+1) of each head at
// token s is rotated by the angle (start+s)*base^(-2i/D). D is even. start is the position of the first token of every
// row or document: 0, or the number of earlier tokens if x continues a sequence. x has a gradient.
func RoPE(x *gorgonia.Node, base float64, start int, opts ...Option) (*gorgonia.Node, error) {
	return ScaledRoPE(x, base, RoPEScaling{}, start, opts...)
}

// RoPEScaling makes the rotations of a RoPE slower; see ScaledRoPE.
type RoPEScaling = pointwise.RoPEScaling

// ScaledRoPE is RoPE with angles that scaling divides.
func ScaledRoPE(x *gorgonia.Node, base float64, scaling RoPEScaling, start int, opts ...Option) (*gorgonia.Node, error) {
	return spec.ApplyWithDocuments(pointwise.RoPE{Base: base, Scaling: scaling, Start: start}, opts, x)
}

// Softmax returns exp(x)/sum(exp(x)) over the last axis of x. x has rank 1 or more. A row that holds only -Inf gives
// zeros.
func Softmax(x *gorgonia.Node) (*gorgonia.Node, error) { return spec.Apply(norm.Softmax{}, x) }

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

// CrossEntropy returns, as a scalar, the mean in nats of -log softmax(logits)[target] over the targets that are not -1;
// 0 if all are -1. logits are [B,S,V] or [N,V], targets [B,S] or [N] of int32 or int. int is converted on the host
// first, as in Embedding. A target outside [-1,V) is an error of the run that names the target, its position and V.
// logits have a gradient.
func CrossEntropy(logits, targets *gorgonia.Node) (*gorgonia.Node, error) {
	targets, err := spec.Int32Input(vocab.CrossEntropy{}, "targets", targets)
	if err != nil {
		return nil, err
	}
	return spec.Apply(vocab.CrossEntropy{}, logits, targets)
}

// Losses returns the losses of which the result of CrossEntropy is the mean, in nats: of the targets' shape, 0 where the
// target is -1. They have no gradient.
func Losses(crossEntropy *gorgonia.Node) (*gorgonia.Node, error) {
	if crossEntropy != nil {
		if s, _ := spec.SpecOf(crossEntropy.Op()); s == (vocab.CrossEntropy{}) {
			return spec.Output(crossEntropy, 2)
		}
	}
	return nil, errors.New("ops: losses: not a result of CrossEntropy")
}

// Embedding returns the rows of weight [V,dim] that ids [B,S] names: [B,S,dim]. ids are int32 or int; int is converted
// on the host first, so int32 is better for a device. An id outside [0,V) is an error of the run that names the id, its
// position and V. weight has a gradient.
func Embedding(weight, ids *gorgonia.Node) (*gorgonia.Node, error) {
	ids, err := spec.Int32Input(vocab.Embedding{}, "ids", ids)
	if err != nil {
		return nil, err
	}
	return spec.Apply(vocab.Embedding{}, weight, ids)
}
