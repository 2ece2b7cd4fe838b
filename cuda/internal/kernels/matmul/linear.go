package matmul

import (
	"github.com/gorgonia-nsa/nsa/cuda/internal/kernels"
	"github.com/gorgonia-nsa/nsa/ops"
)

// Rows returns the implementations of the linear layer.
func Rows() []kernels.Row {
	return kernels.Rows(
		kernels.Op[ops.LinearOp]{Name: "cuda", Storage: "ttt*>t", Products: kernels.Always[ops.LinearOp], Build: linear},
		kernels.Op[ops.LinearInputGradOp]{Name: "cuda", Storage: "tt>t", Products: kernels.Always[ops.LinearInputGradOp], Build: inputGrad},
		kernels.Op[ops.LinearWeightGradOp]{Name: "cuda", Storage: "tt>w", Products: kernels.Always[ops.LinearWeightGradOp], Build: weightGrad},
		kernels.Op[ops.LinearsOp]{Name: "cuda", Storage: "ttt*>t*", Products: kernels.Always[ops.LinearsOp], Build: linears},
		kernels.Op[ops.LinearsGradOp]{Name: "cuda", Storage: "ttt*>.*", Products: kernels.Always[ops.LinearsGradOp], Build: linearsGrad},
	)
}

// linear adds x [rows,in], w [out,in], and a bias or none -> y [rows,out].
func linear(b *kernels.Builder, _ ops.LinearOp) error {
	x, w, bias := b.In[0], b.In[1], kernels.Ref(0)
	if len(b.In) == 3 {
		bias = b.In[2].Ref
	}
	p := kernels.Product{Type: b.Type, Out: b.Type, M: x.N() / w.Dim(1), N: w.Dim(0), K: w.Dim(1), TransB: true}
	Multiply(b, p, x.Ref, w.Ref, bias, b.Out[0].Ref)
	return nil
}

// inputGrad adds dy [rows,out], w [out,in] -> dx [rows,in].
func inputGrad(b *kernels.Builder, _ ops.LinearInputGradOp) error {
	dy, w := b.In[0], b.In[1]
	p := kernels.Product{Type: b.Type, Out: b.Type, M: dy.N() / w.Dim(0), N: w.Dim(1), K: w.Dim(0)}
	Multiply(b, p, dy.Ref, w.Ref, 0, b.Out[0].Ref)
	return nil
}

// weightGrad adds x [rows,in], dy [rows,out] -> dw [out,in].
func weightGrad(b *kernels.Builder, op ops.LinearWeightGradOp) error {
	x, dy, dw := b.In[0], b.In[1], b.Out[0]
	p := kernels.Product{Type: b.Type, Out: b.TypeOf(dw), M: int64(op.Out), N: int64(op.In), K: x.N() / int64(op.In), TransA: true}
	Multiply(b, p, dy.Ref, x.Ref, 0, dw.Ref)
	return nil
}
