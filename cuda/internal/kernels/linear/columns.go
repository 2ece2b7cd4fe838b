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
	documents, starts         kernels.Ref
	rows, seq, start          int64
	rotary                    pointwisekernels.Rotary
	end                       [linear.MaxFused]int32
	rotated                   [linear.MaxFused]int32
	parts, dim, inverse, wide int32
}

// columns is a matrix whose columns are those of several parts, side by side. joint is [rows, sum of cols], part i is
// [rows,...] with cols[i] columns, and all are of b.Type. A join sums the terms of a part. Splits and joins rotate the
// parts in rotated, [B,S,H,D] of one D, by rope.
type columns struct {
	joint   kernels.Ref
	parts   [][]kernels.Operand
	cols    []int64
	rotated [linear.MaxFused]bool
	rope    pointwise.RoPE
}

// addSplit adds the copy of the joint matrix to its parts.
func (m columns) addSplit(b *kernels.Builder) { m.add(b, "split_columns") }

// addJoin adds the copy of the parts to the joint matrix.
func (m columns) addJoin(b *kernels.Builder) { m.add(b, "join_columns") }

// maxGridRows is the most rows of a grid.
const maxGridRows = 1<<16 - 1

// guard refuses sizes that the kernels do not take.
func (m columns) guard(c *kernels.Call) error {
	rows := m.parts[0][0].N() / m.cols[0]
	end, seq := int64(0), int64(0)
	for i, terms := range m.parts {
		part := terms[0]
		if end += m.cols[i]; end > math.MaxInt32 {
			return graph.Refuse(graph.ReasonSize, "%d columns, want at most %d", end, math.MaxInt32)
		}
		if !m.rotated[i] {
			continue
		}
		if err := pointwisekernels.CheckRoPE(part); err != nil {
			return err
		}
		if part.Dim(2)*part.Dim(3) != m.cols[i] || seq > 0 && seq != part.Dim(1) {
			return graph.Refuse(graph.ReasonShape, "rotated part %v, want %d columns for each token, and as many tokens "+
				"as other rotated parts", part, m.cols[i])
		}
		seq = part.Dim(1)
	}
	if n := rows / max(1, seq); ownRotations(c) && seq > 0 && n > maxGridRows {
		return graph.Refuse(graph.ReasonSize, "%d rows of documents or with a start, want at most %d", n, maxGridRows)
	}
	return nil
}

// ownRotations reports whether each row of the batch has rotations of its own: those of its documents or of its start.
func ownRotations(c *kernels.Call) bool { return c.Documents != 0 || c.Starts != 0 }

// argument returns the argument of both kernels. Its wide is 1 if all parts and heads begin at multiples of 16 bytes.
func (m columns) argument(c *kernels.Call) *columnsParams {
	rows, end := m.parts[0][0].N()/m.cols[0], int64(0)
	p := &columnsParams{joint: m.joint, documents: c.Documents, starts: c.Starts, rows: rows, seq: rows,
		parts: int32(len(m.parts)), wide: 1}
	for i, terms := range m.parts {
		part, size := terms[0], m.cols[i]
		for t, x := range terms {
			p.part[i][t] = x.Ref
		}
		end += size
		p.end[i], p.rotated[i] = int32(end), kernels.Flag(m.rotated[i])
		if m.rotated[i] {
			size = part.Dim(3)
			p.seq, p.dim, p.start = part.Dim(1), int32(size), int64(m.rope.Start)
			p.rotary, p.inverse = pointwisekernels.RotaryOf(m.rope), kernels.Flag(m.rope.Inverse)
		}
		p.wide &= kernels.Flag(size%c.Type.Lanes() == 0)
	}
	return p
}

func (m columns) add(b *kernels.Builder, kernel string) {
	const (
		tilePositions, tileSequences = 16, 2 // of a block; the first is kTilePositions
		maxThreads, maxShared        = 512, 48 << 10
	)
	p := m.argument(&b.Call)
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
	if ownRotations(&b.Call) {
		sequences = p.rows / p.seq
	}
	grid := kernels.Dim{X: int(kernels.CeilDiv(p.seq, tilePositions)), Y: int(min(sequences, maxGridRows)), Z: 1}
	b.AddLaunch(b.Type.Name(kernel), grid, kernels.Line(threads), shared, p)
}
