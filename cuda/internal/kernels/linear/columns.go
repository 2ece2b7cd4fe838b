package linear

import (
	"math"

	"github.com/gorgonia-nsa/nsa/cuda/internal/kernels"
	pointwisekernels "github.com/gorgonia-nsa/nsa/cuda/internal/kernels/pointwise"
	"github.com/gorgonia-nsa/nsa/graph"
	"github.com/gorgonia-nsa/nsa/ops/spec/linear"
	"github.com/gorgonia-nsa/nsa/ops/spec/pointwise"
)

// columnsParams is ColumnsParams of columns.cu.
type columnsParams struct {
	joint                     kernels.Ref
	part                      [linear.MaxFused][linear.MaxTerms]kernels.Ref
	documents                 kernels.Ref
	rows, seq, start          int64
	log2Base                  float64
	end                       [linear.MaxFused]int32
	rotated                   [linear.MaxFused]int32
	parts, dim, inverse, wide int32
}

// Columns is a matrix whose columns are those of several parts, side by side. Joint is [rows, sum of Cols], part i is [rows,...]
// with Cols[i] columns, and all are of b.Type. Join sums the terms of a part. Both copies rotate the parts in Rotated, [B,S,H,D] of
// one D, by RoPE.
type Columns struct {
	Joint   kernels.Ref
	Parts   [][]kernels.Operand
	Cols    []int64
	Rotated [linear.MaxFused]bool
	RoPE    pointwise.RoPE
}

// Split adds the copy of the joint matrix to its parts. It refuses sizes that the kernel does not take.
func (c Columns) Split(b *kernels.Builder) error { return c.launch(b, "split_columns") }

// Join adds the copy of the parts to the joint matrix. It refuses sizes that the kernel does not take.
func (c Columns) Join(b *kernels.Builder) error { return c.launch(b, "join_columns") }

// argument returns the argument of both kernels. Its wide is 1 if all parts and heads begin at multiples of 16 bytes.
func (c Columns) argument(b *kernels.Builder) (*columnsParams, error) {
	p := &columnsParams{joint: c.Joint, documents: b.Documents, rows: c.Parts[0][0].N() / c.Cols[0], parts: int32(len(c.Parts)), wide: 1}
	end := int64(0)
	for i, terms := range c.Parts {
		part := terms[0]
		if end += c.Cols[i]; end > math.MaxInt32 {
			return nil, graph.Refuse(graph.ReasonSize, "%d columns, want at most %d", end, math.MaxInt32)
		}
		for t, x := range terms {
			p.part[i][t] = x.Ref
		}
		p.end[i], p.rotated[i] = int32(end), kernels.Flag(c.Rotated[i])
		size := c.Cols[i]
		if c.Rotated[i] {
			if err := pointwisekernels.CheckRoPE(part); err != nil {
				return nil, err
			}
			if size = part.Dim(3); part.Dim(2)*size != c.Cols[i] || p.dim > 0 && p.seq != part.Dim(1) {
				return nil, graph.Refuse(graph.ReasonShape, "rotated part %v, want %d columns for each token, and as many tokens as other rotated parts", part, c.Cols[i])
			}
			p.seq, p.dim, p.start = part.Dim(1), int32(size), int64(c.RoPE.Start)
			p.log2Base, p.inverse = math.Log2(c.RoPE.Base), kernels.Flag(c.RoPE.Inverse)
		}
		p.wide &= kernels.Flag(size%b.Type.Lanes() == 0)
	}
	if p.dim == 0 {
		p.seq = p.rows
	}
	return p, nil
}

func (c Columns) launch(b *kernels.Builder, kernel string) error {
	const (
		tilePositions, tileSequences = 16, 2 // of a block; the first is kTilePositions
		maxThreads, maxGrid          = 512, 1<<16 - 1
		maxShared                    = 48 << 10
	)
	p, err := c.argument(b)
	if err != nil {
		return err
	}
	cols := int64(p.end[p.parts-1])
	pairs, packs, threads := int64(p.dim/2), max(1, cols/b.Type.Lanes()), int64(256)
	shared := pairs * 8
	if wide := shared + tilePositions*pairs*8; p.wide == 1 && wide <= maxShared {
		shared = wide
	} else {
		p.wide = 0
	}
	if packs <= maxThreads { // whole rows
		threads = kernels.RoundUp(packs*max(1, threads/packs), 32)
	}
	sequences := kernels.CeilDiv(p.rows/p.seq, tileSequences)
	if b.Documents != 0 {
		if sequences = p.rows / p.seq; sequences > maxGrid {
			return graph.Refuse(graph.ReasonSize, "%d rows of documents, want at most %d", sequences, maxGrid)
		}
	}
	grid := kernels.Dim{X: int(kernels.CeilDiv(p.seq, tilePositions)), Y: int(min(sequences, maxGrid)), Z: 1}
	b.Launch(b.Type.Name(kernel), grid, kernels.Line(threads), shared, p)
	return nil
}
