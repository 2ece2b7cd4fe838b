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

// The names of the entries of linear layers for few rows of x, and of those with an own product for warpgroups.
const (
	few   = "cuda few"
	wgmma = "cuda wgmma"
)

// The most rows of x for the two kernels of few_rows.cu. In linear_few one block has all rows and 8 features. In
// linear_rows a block has 32 rows and 16 features.
const (
	maxRowsOfOneBlock = 16
	maxFewRows        = 64
)

// fewRows is layers with weights ws and results ys of few rows x, or of their RMSNorm.
type fewRows struct {
	x      kernels.Operand
	ws, ys []kernels.Operand
	norm   bool
}

// fewLayer is the layer of x and w, the first inputs.
func fewLayer(c *kernels.Call) fewRows { return fewRows{x: c.In[0], ws: c.In[1:2], ys: c.Out[:1]} }

// size returns the rows of x, their length, and the features of a block.
func (f fewRows) size() (rows, k, features int64) {
	k = f.ws[0].Dim(1)
	if rows = f.x.N() / k; rows > maxRowsOfOneBlock {
		return rows, k, 16
	}
	return rows, k, 8
}

// shared is the dynamic shared memory of a block: with a norm it has its factor and the rows.
func (f fewRows) shared() int64 {
	if !f.norm {
		return 0
	}
	rows, k, _ := f.size()
	return 16*kernels.CeilDiv(k, 4) + rows*(16*kernels.CeilDiv(k, 8)+64)
}

func (f fewRows) guard(c *kernels.Call) error {
	const static = 16 << 10 // more static shared memory than the kernel has
	rows, k, features := f.size()
	switch {
	case rows > maxFewRows:
		return graph.Refuse(graph.ReasonShape, "%d rows, want at most %d", rows, maxFewRows)
	case k > math.MaxInt32/4:
		return graph.Refuse(graph.ReasonSize, "rows of %d elements, want less than 2^29", k)
	}
	tiles := int64(0)
	for _, w := range f.ws {
		if tiles += kernels.CeilDiv(w.Dim(0), features); w.Dim(0) > math.MaxInt32/2 || tiles > math.MaxInt32/2 {
			return graph.Refuse(graph.ReasonSize, "%d features, want less than 2^30", w.Dim(0))
		}
	}
	if limit := int64(c.GPU.SharedPerBlock) - static; f.norm && (rows > maxRowsOfOneBlock || f.shared() > limit) {
		return graph.Refuse(graph.ReasonShape, "RMSNorm of %d rows of %d elements, want at most %d rows in %d bytes of "+
			"shared memory", rows, k, maxRowsOfOneBlock, limit)
	}
	return nil
}

// add adds the launch. complete sets what p has beside x, w and y.
func (f fewRows) add(b *kernels.Builder, complete func(p *fewParams)) {
	rows, k, features := f.size()
	p := &fewParams{x: f.x.Ref, parts: int32(len(f.ws)), rows: int32(rows), k: int32(k)}
	p.wide = kernels.Flag(f.ys[0].Type() == kernels.F32)
	complete(p)
	kernel, grid, threads := "linear_few", kernels.Line(0), int64(256)
	if rows > maxRowsOfOneBlock {
		kernel, grid.Y = "linear_rows", int(kernels.CeilDiv(rows, 32))
	}
	for i, w := range f.ws {
		p.w[i], p.y[i], p.n[i], p.first[i] = w.Ref, f.ys[i].Ref, int32(w.Dim(0)), int32(grid.X)
		grid.X += int(kernels.CeilDiv(w.Dim(0), features))
	}
	if f.norm {
		p.wideX = kernels.Flag(f.x.Type() == kernels.F32)
	}
	if k > 1536 {
		threads = 512
	}
	b.AddLaunch(b.Type.Name(kernel), grid, kernels.Line(threads), f.shared(), p)
	readBeforeWait := slices.Concat([]kernels.Ref{p.gain}, p.w[:len(f.ws)], p.bias[:len(f.ws)])
	written := func(o kernels.Operand) bool { return slices.Contains(readBeforeWait, o.Ref) && !o.Constant }
	if !slices.ContainsFunc(b.In, written) {
		b.Overlap()
	}
}
