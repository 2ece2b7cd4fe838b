package ops

import (
	"gorgonia.org/gorgonia"

	"github.com/gorgonia-nsa/nsa/ops/spec"
	"github.com/gorgonia-nsa/nsa/ops/spec/norm"
	"github.com/gorgonia-nsa/nsa/ops/spec/pointwise"
)

// SiLU returns x*sigmoid(x), elementwise, of any shape (arXiv 1702.03118).
func SiLU(x *gorgonia.Node) (*gorgonia.Node, error) { return spec.Apply(pointwise.SiLU{}, x) }

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
	return spec.ApplyWithDocuments(pointwise.RoPE{Base: base, Start: start}, opts, x)
}

// Softmax returns exp(x)/sum(exp(x)) over the last axis of x. x has rank 1 or more. A row that holds only -Inf gives
// zeros.
func Softmax(x *gorgonia.Node) (*gorgonia.Node, error) { return spec.Apply(norm.Softmax{}, x) }
