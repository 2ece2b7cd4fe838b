package matmul

import (
	"math"
	"slices"

	"github.com/gorgonia-nsa/nsa/cuda/internal/kernels"
	"github.com/gorgonia-nsa/nsa/graph"
	"github.com/gorgonia-nsa/nsa/ops"
)

// fewParams is FewParams of few.cu.
type fewParams struct {
	x, gain              kernels.Ref
	w, bias, y           [ops.MaxLinears]kernels.Ref
	hidden, residual     kernels.Ref
	n, first, activation [ops.MaxLinears]int32
	parts, rows, k       int32
	wide, wideX          int32
	eps                  float32
}

// few is the name of the implementations of linear layers for few rows of x. They come before all others.
const few = "cuda few"

// The most rows of x for the two kernels of few.cu. In linear_few one block has all rows and 8 features. In linear_rows a block has
// 32 rows and 16 features.
const (
	maxRowsOfOneBlock = 16
	maxFewRows        = 64
)

func fewLinears() []kernels.Row {
	return kernels.Rows(
		kernels.Implementation[ops.LinearOp]{Name: few, Storage: "hhh*>h", Build: fewLinear},
		kernels.Implementation[ops.LinearOp]{Name: few, Storage: "hh>f", Build: fewLinear}, // with the cast after it
		kernels.Implementation[ops.LinearSiLUOp]{Name: few, Storage: "hhh*>hh", Build: fewLinearSiLU},
		kernels.Implementation[ops.LinearAddOp]{Name: few, Storage: "hha>a", Build: fewLinearAdd},
		kernels.Implementation[ops.LinearsOp]{Name: few, Storage: "hhh*d>h*", Guard: checkNorm(false), Build: fewLinearsOf},
		kernels.Implementation[ops.LinearsOp]{Name: few, Storage: "ahh*fd>h*", Guard: checkNorm(true), Build: fewLinearsOf},
		kernels.Implementation[ops.LinearsOp]{Name: few, Storage: "ahf>f", Guard: checkNorm(true), Build: fewLinearsOf}, // with the cast after it
	)
}

// checkNorm returns the guard of implementations for linear layers of the RMSNorm of x, or of x itself.
func checkNorm(norm bool) func(b *kernels.Builder, op ops.LinearsOp) error {
	return func(_ *kernels.Builder, op ops.LinearsOp) error {
		if norm != (op.Norm != 0) {
			return graph.Refuse(graph.ReasonShape, "eps of the norm is %v, want one: %v", op.Norm, norm)
		}
		return nil
	}
}

// launchFew adds the launch that computes ys from x by the layers with weights ws. complete sets the rest of the argument.
func launchFew(b *kernels.Builder, x kernels.Operand, ws, ys []kernels.Operand, complete func(p *fewParams)) error {
	k := ws[0].Dim(1)
	rows := x.N() / k
	switch {
	case rows > maxFewRows:
		return graph.Refuse(graph.ReasonShape, "%d rows, want at most %d", rows, maxFewRows)
	case k > math.MaxInt32/4:
		return graph.Refuse(graph.ReasonSize, "rows of %d, want less than 2^29", k)
	}
	p := &fewParams{x: x.Ref, parts: int32(len(ws)), rows: int32(rows), k: int32(k), wide: kernels.Flag(b.TypeOf(ys[0]) == kernels.F32)}
	complete(p)
	kernel, features, blocks := "linear_few", int64(8), int64(1)
	if rows > maxRowsOfOneBlock {
		kernel, features, blocks = "linear_rows", 16, kernels.CeilDiv(rows, 32)
	}
	tiles := int64(0)
	for i, w := range ws {
		p.w[i], p.y[i], p.n[i], p.first[i] = w.Ref, ys[i].Ref, int32(w.Dim(0)), int32(tiles)
		if tiles += kernels.CeilDiv(w.Dim(0), features); w.Dim(0) > math.MaxInt32/2 || tiles > math.MaxInt32/2 {
			return graph.Refuse(graph.ReasonSize, "%d features, want less than 2^30", w.Dim(0))
		}
	}
	shared := int64(0)
	if p.gain != 0 {
		const static = 16 << 10 // more static shared memory than the kernel has
		p.wideX = kernels.Flag(b.TypeOf(x) == kernels.F32)
		if shared = 16*kernels.CeilDiv(k, 4) + rows*(16*kernels.CeilDiv(k, 8)+64); rows > maxRowsOfOneBlock || shared > int64(b.GPU.SharedPerBlock)-static {
			return graph.Refuse(graph.ReasonShape, "%d rows of %d with RMSNorm, want at most %d in %d bytes", rows, k, maxRowsOfOneBlock, b.GPU.SharedPerBlock-static)
		}
	}
	threads := int64(256)
	if k > 1536 {
		threads = 512
	}
	b.Launch(b.Type.Name(kernel), kernels.Dim{X: int(tiles), Y: int(blocks), Z: 1}, kernels.Line(threads), shared, p)
	readBeforeWait := slices.Concat([]kernels.Ref{p.gain}, p.w[:len(ws)], p.bias[:len(ws)])
	if !slices.ContainsFunc(b.In, func(o kernels.Operand) bool { return slices.Contains(readBeforeWait, o.Ref) && !o.Held }) {
		b.Overlap()
	}
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
		if p.hidden, p.activation[0] = b.Out[1].Ref, int32(ops.ActivationSiLU); len(b.In) == 3 {
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
	if slices.Contains(op.Rotated[:n], true) {
		return graph.Refuse(graph.ReasonShape, "a result is rotated, which its kernel does not do")
	}
	x, ws, biases, gain := ops.SplitLinears(op, n, b.In)
	return launchFew(b, x, ws, b.Out, func(p *fewParams) {
		for i := range n {
			if p.activation[i] = int32(op.Activation[i]); op.Bias[i] {
				p.bias[i], biases = biases[0].Ref, biases[1:]
			}
		}
		if op.Norm != 0 {
			p.gain, p.eps = gain[0].Ref, float32(op.Norm)
		}
	})
}
