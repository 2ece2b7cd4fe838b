package matmul

import (
	"math"

	"github.com/gorgonia-nsa/nsa/cuda/internal/kernels"
	"github.com/gorgonia-nsa/nsa/graph"
	"github.com/gorgonia-nsa/nsa/ops"
)

// fewParams is FewParams of few.cu.
type fewParams struct {
	x                kernels.Ref
	w, bias, y       [ops.MaxLinears]kernels.Ref
	hidden, residual kernels.Ref
	n, first         [ops.MaxLinears]int32
	parts, rows, k   int32
	wide             int32
}

// few is the name of the rows of linear layers of few rows, which stand before all others.
const few = "cuda few"

// fewRows are the rows of x up to which few.cu is preferred: it reads the weights once for 8 of them.
const fewRows = 16

func fewLinears() []kernels.Row {
	return kernels.Rows(
		kernels.Op[ops.LinearOp]{Name: few, Storage: "hhh*>h", Build: fewLinear},
		kernels.Op[ops.LinearOp]{Name: few, Storage: "hh>f", Build: fewLinear}, // with the cast behind it
		kernels.Op[ops.LinearSiLUOp]{Name: few, Storage: "hhh*>hh", Build: fewLinearSiLU},
		kernels.Op[ops.LinearAddOp]{Name: few, Storage: "hha>a", Build: fewLinearAdd},
		kernels.Op[ops.LinearsOp]{Name: few, Storage: "hhh*d>h*", Build: fewLinearsOf},
	)
}

// launchFew adds the launch of layers ws of x into ys. with, if not nil, changes the argument.
func launchFew(b *kernels.Builder, x kernels.Operand, ws, ys []kernels.Operand, with func(p *fewParams)) error {
	k := ws[0].Dim(1)
	rows := x.N() / k
	switch {
	case rows > fewRows:
		return graph.Refuse(graph.ReasonShape, "%d rows, want at most %d", rows, fewRows)
	case k > math.MaxInt32/2:
		return graph.Refuse(graph.ReasonSize, "rows of %d, want less than 2^30", k)
	}
	p := &fewParams{x: x.Ref, parts: int32(len(ws)), rows: int32(rows), k: int32(k), wide: kernels.Flag(b.TypeOf(ys[0]) == kernels.F32)}
	tiles := int64(0)
	for i, w := range ws {
		p.w[i], p.y[i], p.n[i], p.first[i] = w.Ref, ys[i].Ref, int32(w.Dim(0)), int32(tiles)
		if tiles += kernels.Pieces(w.Dim(0), 16); w.Dim(0) > math.MaxInt32/2 || tiles > math.MaxInt32/2 {
			return graph.Refuse(graph.ReasonSize, "%d features, want less than 2^30", w.Dim(0))
		}
	}
	if with != nil {
		with(p)
	}
	b.Launch(b.Type.Name("linear_few"), kernels.Dim{X: int(tiles), Y: int(kernels.Pieces(rows, 8)), Z: 1}, kernels.Threads(), 0, p)
	return nil
}

func fewLinear(b *kernels.Builder, _ ops.LinearOp) error {
	return launchFew(b, b.In[0], b.In[1:2], b.Out[:1], func(p *fewParams) {
		if len(b.In) == 3 {
			p.bias[0] = b.In[2].Ref
		}
	})
}

func fewLinearSiLU(b *kernels.Builder, _ ops.LinearSiLUOp) error {
	return launchFew(b, b.In[0], b.In[1:2], b.Out[:1], func(p *fewParams) {
		if p.hidden = b.Out[1].Ref; len(b.In) == 3 {
			p.bias[0] = b.In[2].Ref
		}
	})
}

func fewLinearAdd(b *kernels.Builder, _ ops.LinearAddOp) error {
	if b.TypeOf(b.In[2]) != b.TypeOf(b.Out[0]) {
		return graph.Refuse(graph.ReasonType, "residual of %v, want %v as the result", b.In[2].Dtype, b.Out[0].Dtype)
	}
	return launchFew(b, b.In[0], b.In[1:2], b.Out, func(p *fewParams) { p.residual = b.In[2].Ref })
}

func fewLinearsOf(b *kernels.Builder, op ops.LinearsOp) error {
	n := len(b.Out)
	for i := range n {
		if op.Turned[i] {
			return graph.Refuse(graph.ReasonShape, "a result is rotated, which its kernel does not do")
		}
	}
	return launchFew(b, b.In[0], b.In[1:1+n], b.Out, func(p *fewParams) {
		biases := b.In[1+n:]
		for i := range n {
			if op.Bias[i] {
				p.bias[i], biases = biases[0].Ref, biases[1:]
			}
		}
	})
}
