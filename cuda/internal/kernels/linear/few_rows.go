package linear

import (
	"math"
	"slices"

	"github.com/gorgonia-nsa/nsa/cuda/internal/kernels"
	"github.com/gorgonia-nsa/nsa/graph"
	"github.com/gorgonia-nsa/nsa/ops/spec/linear"
)

// fewParams is FewParams of few_rows.cu.
type fewParams struct {
	x, gain              kernels.Ref
	w, bias, y           [linear.MaxFused]kernels.Ref
	hidden, residual     kernels.Ref
	n, first, activation [linear.MaxFused]int32
	parts, rows, k       int32
	wide, wideX          int32
	eps                  float32
}

// few is the name of the entries of linear layers for few rows of x. They come before all others.
const few = "cuda few"

// The most rows of x for the two kernels of few_rows.cu. In linear_few one block has all rows and 8 features. In linear_rows a block has
// 32 rows and 16 features.
const (
	maxRowsOfOneBlock = 16
	maxFewRows        = 64
)

func fewEntries() []kernels.Entry {
	return kernels.Entries(
		kernels.EntryFor[linear.Linear]{Name: few, Storage: "hhh*>h", Build: fewLinear},
		kernels.EntryFor[linear.Linear]{Name: few, Storage: "hh>f", Build: fewLinear}, // with the cast after it
		kernels.EntryFor[linear.LinearSiLU]{Name: few, Storage: "hhh*>hh", Build: fewLinearSiLU},
		kernels.EntryFor[linear.LinearAdd]{Name: few, Storage: "hha>a", Build: fewLinearAdd},
		kernels.EntryFor[linear.Fused]{Name: few, Storage: "hhh*d>h*", Build: fewLinears(false)},
		kernels.EntryFor[linear.Fused]{Name: few, Storage: "ahh*fd>h*", Build: fewLinears(true)},
		kernels.EntryFor[linear.Fused]{Name: few, Storage: "ahf>f", Build: fewLinears(true)}, // with the cast after it
	)
}

// launchFew adds the launch that computes ys from x by the layers with weights ws. complete sets the rest of the argument.
func launchFew(b *kernels.Builder, x kernels.Operand, ws, ys []kernels.Operand, complete func(p *fewParams)) error {
	k := ws[0].Dim(1)
	rows := x.N() / k
	switch {
	case rows > maxFewRows:
		return graph.Refuse(graph.ReasonShape, "%d rows, want at most %d", rows, maxFewRows)
	case k > math.MaxInt32/4:
		return graph.Refuse(graph.ReasonSize, "rows of %d elements, want less than 2^29", k)
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
			return graph.Refuse(graph.ReasonShape, "RMSNorm of %d rows of %d elements, want at most %d rows in %d bytes of shared memory", rows, k, maxRowsOfOneBlock, b.GPU.SharedPerBlock-static)
		}
	}
	threads := int64(256)
	if k > 1536 {
		threads = 512
	}
	b.Launch(b.Type.Name(kernel), kernels.Dim{X: int(tiles), Y: int(blocks), Z: 1}, kernels.Line(threads), shared, p)
	readBeforeWait := slices.Concat([]kernels.Ref{p.gain}, p.w[:len(ws)], p.bias[:len(ws)])
	if !slices.ContainsFunc(b.In, func(o kernels.Operand) bool { return slices.Contains(readBeforeWait, o.Ref) && !o.Constant }) {
		b.Overlap()
	}
	return nil
}

func fewLinear(b *kernels.Builder, _ linear.Linear) error {
	return launchFew(b, b.In[0], b.In[1:2], b.Out[:1], func(p *fewParams) {
		if len(b.In) == 3 {
			p.bias[0] = b.In[2].Ref
		}
	})
}

func fewLinearSiLU(b *kernels.Builder, _ linear.LinearSiLU) error {
	return launchFew(b, b.In[0], b.In[1:2], b.Out[:1], func(p *fewParams) {
		if p.hidden, p.activation[0] = b.Out[1].Ref, int32(linear.ActivationSiLU); len(b.In) == 3 {
			p.bias[0] = b.In[2].Ref
		}
	})
}

func fewLinearAdd(b *kernels.Builder, _ linear.LinearAdd) error {
	if b.TypeOf(b.In[2]) != b.TypeOf(b.Out[0]) {
		return graph.Refuse(graph.ReasonType, "residual is %v, the result %v, want one type", b.In[2].Dtype, b.Out[0].Dtype)
	}
	return launchFew(b, b.In[0], b.In[1:2], b.Out, func(p *fewParams) { p.residual = b.In[2].Ref })
}

// fewLinears returns the build function for layers of the RMSNorm of x, or of x itself.
func fewLinears(norm bool) func(*kernels.Builder, linear.Fused) error {
	return func(b *kernels.Builder, op linear.Fused) error {
		n := len(b.Out)
		switch {
		case norm != (op.Norm != 0):
			return graph.Refuse(graph.ReasonShape, "has a norm: %v, want %v", op.Norm != 0, norm)
		case slices.Contains(op.Rotated[:n], true):
			return graph.Refuse(graph.ReasonShape, "a result is rotated, which the kernel does not do")
		}
		x, ws, biases, gain := linear.SplitFused(op, n, b.In)
		return launchFew(b, x, ws, b.Out, func(p *fewParams) {
			for i := range n {
				if p.activation[i] = int32(op.Activation[i]); op.Bias[i] {
					p.bias[i], biases = biases[0].Ref, biases[1:]
				}
			}
			if norm {
				p.gain, p.eps = gain[0].Ref, float32(op.Norm)
			}
		})
	}
}
