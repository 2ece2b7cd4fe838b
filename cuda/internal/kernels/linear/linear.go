// Package linear holds the kernels and entries of linear layers.
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

// Entries returns the entries of the linear layer.
func Entries() []kernels.Entry {
	return slices.Concat(fewEntries(), biasEntries(), kernels.Entries(
		kernels.EntryFor[linear.Linear]{Storage: "ttt*>t", Products: kernels.Always[linear.Linear], Build: forward},
		kernels.EntryFor[linear.Linear]{Storage: "hh>f", Products: kernels.Always[linear.Linear], Build: forward}, // with the cast after it
		kernels.EntryFor[linear.InputGrad]{Storage: "tt>t", Products: kernels.Always[linear.InputGrad], Build: inputGrad},
		kernels.EntryFor[linear.WeightGrad]{Storage: "tt>w", Products: kernels.Always[linear.WeightGrad], Build: weightGrad},
		kernels.EntryFor[linear.LinearAdd]{Storage: "tta>a", Products: kernels.Always[linear.LinearAdd], Build: linearAdd},
		kernels.EntryFor[linear.Fused]{Storage: "ttt*d>t*", Products: kernels.Always[linear.Fused], Build: linears},
		kernels.EntryFor[linear.FusedGrad]{Storage: "ttt*d>tw*", Products: kernels.Always[linear.FusedGrad], Build: linearsGrad},
		kernels.EntryFor[linear.FusedGrad]{Storage: "ttt*d>w*", Products: kernels.Always[linear.FusedGrad], Build: linearsGrad}, // without dx
	))
}

// linear adds x [rows,in], w [out,in], and a bias or none -> y [rows,out].
func forward(b *kernels.Builder, _ linear.Linear) error {
	p, bias := linearProduct(b, b.In)
	p.Out = b.TypeOf(b.Out[0])
	matmul.Multiply(b, p, b.In[0].Ref, b.In[1].Ref, bias, b.Out[0].Ref)
	return nil
}

// linearProduct returns the product of x and w, and the Ref of the bias, 0 for none. in holds x, w, and a bias or none.
func linearProduct(b *kernels.Builder, in []kernels.Operand) (p kernels.Product, bias kernels.Ref) {
	x, w := in[0], in[1]
	if len(in) == 3 {
		bias = in[2].Ref
	}
	return kernels.Product{Type: b.Type, Out: b.Type, M: x.N() / w.Dim(1), N: w.Dim(0), K: w.Dim(1), TransB: true}, bias
}

// linearAdd adds x, w, residual -> y, the last two [rows,out] and of one type. A library adds the residual to its float32 sums, our
// kernels to the product as it is stored in y.
func linearAdd(b *kernels.Builder, _ linear.LinearAdd) error {
	x, w, residual, y := b.In[0], b.In[1], b.In[2], b.Out[0]
	p, _ := linearProduct(b, b.In[:2])
	p.Out = b.TypeOf(y)
	if b.TypeOf(residual) != p.Out {
		return graph.Refuse(graph.ReasonType, "residual is %v, the result %v, want one type", residual.Dtype, y.Dtype)
	}
	if b.Library != nil {
		b.LibraryProduct(p, x.Ref, w.Ref, 0, residual.Ref, y.Ref)
		return nil
	}
	matmul.Multiply(b, p, x.Ref, w.Ref, 0, y.Ref)
	return pointwisekernels.Add(b, y, y, residual)
}

// inputGrad adds dy [rows,out], w [out,in] -> dx [rows,in].
func inputGrad(b *kernels.Builder, _ linear.InputGrad) error {
	dy, w := b.In[0], b.In[1]
	p := kernels.Product{Type: b.Type, Out: b.Type, M: dy.N() / w.Dim(0), N: w.Dim(1), K: w.Dim(0)}
	matmul.Multiply(b, p, dy.Ref, w.Ref, 0, b.Out[0].Ref)
	return nil
}

// weightGrad adds x [rows,in], dy [rows,out] -> dw [out,in].
func weightGrad(b *kernels.Builder, op linear.WeightGrad) error {
	x, dy, dw := b.In[0], b.In[1], b.Out[0]
	p := kernels.Product{Type: b.Type, Out: b.TypeOf(dw), M: int64(op.Out), N: int64(op.In), K: x.N() / int64(op.In), TransA: true}
	matmul.Multiply(b, p, dy.Ref, x.Ref, 0, dw.Ref)
	return nil
}

func biasEntries() []kernels.Entry {
	return kernels.Entries(kernels.EntryFor[linear.BiasGrad]{Storage: "t>w", Build: biasGrad})
}

// biasGrad adds dy [rows,out] -> db [out].
func biasGrad(b *kernels.Builder, op linear.BiasGrad) error {
	dy, db := b.In[0], b.Out[0]
	cols := int64(op.Out)
	sums.ColumnSum(b, dy.Ref, db.Ref, b.TypeOf(db), dy.N()/cols, cols)
	return nil
}
