// Package linear holds the kernels of linear layers: what comes before, after and in place of the products of package
// matmul.
package linear

import (
	"slices"

	"github.com/gorgonia-nsa/nsa/cuda/internal/kernels"
	"github.com/gorgonia-nsa/nsa/cuda/internal/kernels/matmul"
	"github.com/gorgonia-nsa/nsa/cuda/internal/kernels/sums"
	"github.com/gorgonia-nsa/nsa/graph"
	"github.com/gorgonia-nsa/nsa/ops/spec/linear"
)

// Entries returns the entries of the ops. Those for few rows come before all others.
func Entries() []kernels.Entry { return slices.Concat(linearEntries(), fusedEntries()) }

// linearEntries returns the entries of a layer and of its gradients. An entry with Products and without a Guard is
// guarded by its products: Entry.Guard refuses those that Product.Complete or cuBLASLt refuses. Its kernel is one of
// cuBLASLt or of package matmul: see matmul.AddProduct. BiasGrad takes all sizes.
func linearEntries() []kernels.Entry {
	float, half, mixed, grad := kernels.Float, kernels.Half, kernels.Mixed, kernels.WeightGrad
	type layer = kernels.EntryFor[linear.Linear]
	in := kernels.In(half("x", "w", "bias").Repeated())
	wide := kernels.In(half("x", "w")).Out(kernels.Float32("y")) // with the cast after it
	return kernels.Entries(
		layer{Name: few, Types: in.Out(half("y")), Guard: guardFewLinear, Launches: fewLinear},
		layer{Name: few, Types: wide, Guard: guardFewLinear, Launches: fewLinear},
		layer{ // the general forward, guarded by its product
			Types:    kernels.In(float("x", "w", "bias").Repeated()).Out(float("y")),
			Products: linearProducts, Launches: forward,
		},
		layer{Types: wide, Products: linearProducts, Launches: forward},
		kernels.EntryFor[linear.LinearSiLU]{
			Name: few, Types: in.Out(half("y", "hidden")), Guard: guardFewLinearSiLU, Launches: fewLinearSiLU,
		},
		kernels.EntryFor[linear.LinearSiLU]{
			Name: wgmma, Types: in.Out(half("y", "hidden")), Guard: guardLinearSiLU, Launches: linearSiLU,
		},
		kernels.EntryFor[linear.LinearAdd]{
			Name:  few,
			Types: kernels.In(half("x", "w"), mixed("residual")).Out(mixed("y")),
			Guard: guardFewLinearAdd, Launches: fewLinearAdd,
		},
		kernels.EntryFor[linear.LinearAdd]{
			Types:    kernels.In(float("x", "w"), mixed("residual")).Out(mixed("y")),
			Products: linearAddProducts, Guard: guardLinearAdd, Launches: linearAdd,
		},
		kernels.EntryFor[linear.InputGrad]{
			Types:    kernels.In(float("dy", "w")).Out(float("dx")),
			Products: inputGradProducts, Launches: inputGrad,
		},
		kernels.EntryFor[linear.InputGradSiLU]{
			Name: wgmma, Types: kernels.In(half("dy", "w", "h")).Out(half("dh")), Guard: guardInputGradSiLU, Launches: inputGradSiLU,
		},
		kernels.EntryFor[linear.WeightGrad]{
			Types:    kernels.In(float("x", "dy")).Out(grad("dw")),
			Products: weightGradProducts, Launches: weightGrad,
		},
		kernels.EntryFor[linear.BiasGrad]{Types: kernels.In(float("dy")).Out(grad("db")), Launches: biasGrad},
	)
}

// product returns the product of x and w, the first inputs.
func product(c *kernels.Call) kernels.Product {
	x, w := c.In[0], c.In[1]
	return kernels.Product{
		Type: c.Type, Out: c.Out[0].Type(), M: x.N() / w.Dim(1), N: w.Dim(0), K: w.Dim(1), TransB: true,
	}
}

func linearProducts(c *kernels.Call, _ linear.Linear) []kernels.Product {
	p := product(c)
	p.Bias = len(c.In) == 3
	return []kernels.Product{p}
}

// forward adds x [rows,in], w [out,in], and a bias or none -> y [rows,out].
func forward(b *kernels.Builder, _ linear.Linear) {
	matmul.AddProduct(b, product(&b.Call), b.In[0].Ref, b.In[1].Ref, refOf(b.In, 2), b.Out[0].Ref)
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

func guardLinearSiLU(c *kernels.Call, _ linear.LinearSiLU) error {
	return matmul.CheckSiLU(c, product(c))
}

// linearSiLU adds x [rows,in], w [out,in], and a bias or none -> silu(h), h [rows,out].
func linearSiLU(b *kernels.Builder, _ linear.LinearSiLU) {
	matmul.AddProductAndSiLU(b, product(&b.Call), b.In[0].Ref, b.In[1].Ref, refOf(b.In, 2), b.Out[1].Ref, b.Out[0].Ref)
}

func guardFewLinearAdd(c *kernels.Call, op linear.LinearAdd) error {
	if err := guardLinearAdd(c, op); err != nil {
		return err
	}
	return fewLayer(c).guard(c)
}

func fewLinearAdd(b *kernels.Builder, _ linear.LinearAdd) {
	fewLayer(&b.Call).add(b, func(p *fewParams) { p.residual = b.In[2].Ref })
}

func linearAddProducts(c *kernels.Call, _ linear.LinearAdd) []kernels.Product {
	p := product(c)
	p.Residual = true
	return []kernels.Product{p}
}

func guardLinearAdd(c *kernels.Call, _ linear.LinearAdd) error {
	if residual, y := c.In[2], c.Out[0]; residual.Type() != y.Type() {
		return graph.Refuse(graph.ReasonType, "residual is %v, the result %v, want one type", residual, y)
	}
	return nil
}

// linearAdd adds x, w, residual -> y, the last two [rows,out] and of one type.
func linearAdd(b *kernels.Builder, _ linear.LinearAdd) {
	matmul.AddProductAndResidual(b, product(&b.Call), b.In[0].Ref, b.In[1].Ref, b.In[2], b.Out[0])
}

func inputGradProducts(c *kernels.Call, _ linear.InputGrad) []kernels.Product {
	return []kernels.Product{inputProduct(c)}
}

// inputProduct returns the product of dy and w, the first inputs.
func inputProduct(c *kernels.Call) kernels.Product {
	dy, w := c.In[0], c.In[1]
	return kernels.Product{Type: c.Type, Out: c.Type, M: dy.N() / w.Dim(0), N: w.Dim(1), K: w.Dim(0)}
}

// inputGrad adds dy [rows,out], w [out,in] -> dx [rows,in].
func inputGrad(b *kernels.Builder, _ linear.InputGrad) {
	matmul.AddProduct(b, inputProduct(&b.Call), b.In[0].Ref, b.In[1].Ref, 0, b.Out[0].Ref)
}

func guardInputGradSiLU(c *kernels.Call, _ linear.InputGradSiLU) error {
	return matmul.CheckSiLU(c, inputProduct(c))
}

// inputGradSiLU adds dy [rows,out], w [out,in], h [rows,in] -> dh [rows,in].
func inputGradSiLU(b *kernels.Builder, _ linear.InputGradSiLU) {
	matmul.AddProductTimesSiLUGrad(b, inputProduct(&b.Call), b.In[0].Ref, b.In[1].Ref, b.In[2].Ref, b.Out[0].Ref)
}

func weightGradProducts(c *kernels.Call, op linear.WeightGrad) []kernels.Product {
	in, dw := int64(op.In), c.Out[0].Type()
	return []kernels.Product{{Type: c.Type, Out: dw, M: int64(op.Out), N: in, K: c.In[0].N() / in, TransA: true}}
}

// weightGrad adds x [rows,in], dy [rows,out] -> dw [out,in].
func weightGrad(b *kernels.Builder, op linear.WeightGrad) {
	matmul.AddProduct(b, weightGradProducts(&b.Call, op)[0], b.In[1].Ref, b.In[0].Ref, 0, b.Out[0].Ref)
}

// biasGrad adds dy [rows,out] -> db [out].
func biasGrad(b *kernels.Builder, op linear.BiasGrad) {
	dy, db, cols := b.In[0], b.Out[0], int64(op.Out)
	sums.AddColumns(b, dy.Ref, db.Ref, db.Type(), dy.N()/cols, cols)
}
