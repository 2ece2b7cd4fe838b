// Package linear holds the kernels of linear layers: what comes before, after and in place of the products of package matmul.
package linear

import (
	"slices"

	"github.com/gorgonia-nsa/nsa/cuda/internal/kernels"
	"github.com/gorgonia-nsa/nsa/cuda/internal/kernels/matmul"
	pointwisekernels "github.com/gorgonia-nsa/nsa/cuda/internal/kernels/pointwise"
	"github.com/gorgonia-nsa/nsa/cuda/internal/kernels/sums"
	"github.com/gorgonia-nsa/nsa/graph"
	"github.com/gorgonia-nsa/nsa/ops/spec/linear"
)

// Entries returns the entries of the ops. Those for few rows come before all others.
func Entries() []kernels.Entry { return slices.Concat(linearEntries(), fusedEntries()) }

func linearEntries() []kernels.Entry {
	float, half, mixed, weightGrad := kernels.Float, kernels.Half, kernels.Mixed, kernels.WeightGrad
	layer := kernels.In(half("x", "w", "bias").Repeated())
	wide := kernels.In(half("x", "w")).Out(kernels.Float32("y")) // with the cast after it
	return kernels.Entries(
		kernels.EntryFor[linear.Linear]{Name: few, Types: layer.Out(half("y")), Guard: guardFewLinear, Launches: fewLinear},
		kernels.EntryFor[linear.Linear]{Name: few, Types: wide, Guard: guardFewLinear, Launches: fewLinear},
		kernels.EntryFor[linear.Linear]{
			Types:    kernels.In(float("x", "w", "bias").Repeated()).Out(float("y")),
			Products: kernels.Always[linear.Linear], Guard: guardLinear, Launches: forward,
		},
		kernels.EntryFor[linear.Linear]{Types: wide, Products: kernels.Always[linear.Linear], Guard: guardLinear, Launches: forward},
		kernels.EntryFor[linear.LinearSiLU]{
			Name: few, Types: layer.Out(half("y", "hidden")), Guard: guardFewLinearSiLU, Launches: fewLinearSiLU,
		},
		kernels.EntryFor[linear.LinearAdd]{
			Name: few, Types: kernels.In(half("x", "w"), mixed("residual")).Out(mixed("y")), Guard: guardFewLinearAdd, Launches: fewLinearAdd,
		},
		kernels.EntryFor[linear.LinearAdd]{
			Types:    kernels.In(float("x", "w"), mixed("residual")).Out(mixed("y")),
			Products: kernels.Always[linear.LinearAdd], Guard: guardLinearAdd, Launches: linearAdd,
		},
		kernels.EntryFor[linear.InputGrad]{
			Types:    kernels.In(float("dy", "w")).Out(float("dx")),
			Products: kernels.Always[linear.InputGrad], Guard: guardInputGrad, Launches: inputGrad,
		},
		kernels.EntryFor[linear.WeightGrad]{
			Types:    kernels.In(float("x", "dy")).Out(weightGrad("dw")),
			Products: kernels.Always[linear.WeightGrad], Guard: guardWeightGrad, Launches: addWeightGrad,
		},
		kernels.EntryFor[linear.BiasGrad]{Types: kernels.In(float("dy")).Out(weightGrad("db")), Launches: biasGrad},
	)
}

// product returns the product of x, w, and a bias or none, which are the first inputs.
func product(c *kernels.Call, bias bool) kernels.Product {
	x, w := c.In[0], c.In[1]
	return kernels.Product{
		Type: c.Type, Out: c.Out[0].Type(), M: x.N() / w.Dim(1), N: w.Dim(0), K: w.Dim(1), TransB: true, Bias: bias,
	}
}

func guardLinear(c *kernels.Call, _ linear.Linear) error {
	return c.CheckProducts(product(c, len(c.In) == 3))
}

// forward adds x [rows,in], w [out,in], and a bias or none -> y [rows,out].
func forward(b *kernels.Builder, _ linear.Linear) {
	matmul.AddProduct(b, product(&b.Call, len(b.In) == 3), b.In[0].Ref, b.In[1].Ref, refOf(b.In, 2), b.Out[0].Ref)
}

// refOf returns the Ref of operand i, null if there is none.
func refOf(list []kernels.Operand, i int) kernels.Ref {
	if i < len(list) {
		return list[i].Ref
	}
	return 0
}

func guardFewLinear(c *kernels.Call, _ linear.Linear) error { return fewLayer(c).guard(c) }

func fewLinear(b *kernels.Builder, _ linear.Linear) {
	fewLayer(&b.Call).add(b, func(p *fewParams) { p.bias[0] = refOf(b.In, 2) })
}

func guardFewLinearSiLU(c *kernels.Call, _ linear.LinearSiLU) error { return fewLayer(c).guard(c) }

func fewLinearSiLU(b *kernels.Builder, _ linear.LinearSiLU) {
	fewLayer(&b.Call).add(b, func(p *fewParams) {
		p.hidden, p.activation[0], p.bias[0] = b.Out[1].Ref, int32(linear.ActivationSiLU), refOf(b.In, 2)
	})
}

func guardResidual(c *kernels.Call) error {
	if residual, y := c.In[2], c.Out[0]; residual.Type() != y.Type() {
		return graph.Refuse(graph.ReasonType, "residual is %v, the result %v, want one type", residual, y)
	}
	return nil
}

func guardFewLinearAdd(c *kernels.Call, _ linear.LinearAdd) error {
	if err := guardResidual(c); err != nil {
		return err
	}
	return fewLayer(c).guard(c)
}

func fewLinearAdd(b *kernels.Builder, _ linear.LinearAdd) {
	fewLayer(&b.Call).add(b, func(p *fewParams) { p.residual = b.In[2].Ref })
}

func guardLinearAdd(c *kernels.Call, _ linear.LinearAdd) error {
	if err := guardResidual(c); err != nil {
		return err
	}
	p := product(c, false)
	p.Residual = true
	return c.CheckProducts(p)
}

// linearAdd adds x, w, residual -> y, the last two [rows,out] and of one type. A library adds the residual to its float32 sums, our
// kernels to the product as it is stored in y.
func linearAdd(b *kernels.Builder, _ linear.LinearAdd) {
	p, x, w, residual, y := product(&b.Call, false), b.In[0], b.In[1], b.In[2], b.Out[0]
	if b.Library != nil {
		b.AddProduct(p, x.Ref, w.Ref, 0, residual.Ref, y.Ref)
		return
	}
	matmul.AddProduct(b, p, x.Ref, w.Ref, 0, y.Ref)
	pointwisekernels.AddSum(b, y, y, residual)
}

func inputProduct(c *kernels.Call) kernels.Product {
	dy, w := c.In[0], c.In[1]
	return kernels.Product{Type: c.Type, Out: c.Type, M: dy.N() / w.Dim(0), N: w.Dim(1), K: w.Dim(0)}
}

func guardInputGrad(c *kernels.Call, _ linear.InputGrad) error {
	return c.CheckProducts(inputProduct(c))
}

// inputGrad adds dy [rows,out], w [out,in] -> dx [rows,in].
func inputGrad(b *kernels.Builder, _ linear.InputGrad) {
	matmul.AddProduct(b, inputProduct(&b.Call), b.In[0].Ref, b.In[1].Ref, 0, b.Out[0].Ref)
}

func weightProduct(c *kernels.Call, op linear.WeightGrad) kernels.Product {
	return kernels.Product{
		Type: c.Type, Out: c.Out[0].Type(), M: int64(op.Out), N: int64(op.In), K: c.In[0].N() / int64(op.In), TransA: true,
	}
}

func guardWeightGrad(c *kernels.Call, op linear.WeightGrad) error {
	return c.CheckProducts(weightProduct(c, op))
}

// addWeightGrad adds x [rows,in], dy [rows,out] -> dw [out,in].
func addWeightGrad(b *kernels.Builder, op linear.WeightGrad) {
	matmul.AddProduct(b, weightProduct(&b.Call, op), b.In[1].Ref, b.In[0].Ref, 0, b.Out[0].Ref)
}

// biasGrad adds dy [rows,out] -> db [out].
func biasGrad(b *kernels.Builder, op linear.BiasGrad) {
	dy, db, cols := b.In[0], b.Out[0], int64(op.Out)
	sums.AddColumns(b, dy.Ref, db.Ref, db.Type(), dy.N()/cols, cols)
}
