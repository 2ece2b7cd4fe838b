package pointwise

import (
	"math"

	"github.com/gorgonia-nsa/nsa/cuda/internal/kernels"
	"github.com/gorgonia-nsa/nsa/graph"
	"github.com/gorgonia-nsa/nsa/ops/spec/pointwise"
)

func ropeEntries() []kernels.Entry {
	return kernels.Entries(kernels.EntryFor[pointwise.RoPE]{
		Types: kernels.In(kernels.Float("x"), kernels.Documents()).Out(kernels.Float("y")),
		Guard: guardRoPE, Launches: rope,
	})
}

// Rotary is Rotary of rope.cuh.
type Rotary struct{ log2Base, a, n, low, b float64 }

// RotaryOf returns the angles of op.
func RotaryOf(op pointwise.RoPE) Rotary {
	a, n, low, b := op.Scaling.Terms()
	return Rotary{math.Log2(op.Base), a, n, low, b}
}

// ropeParams is RoPEParams of rope.cu.
type ropeParams struct {
	x, y, documents, starts kernels.Ref
	tokens, seq, start      int64
	rotary                  Rotary
	heads, dim, inverse, _  int32
}

func guardRoPE(c *kernels.Call, _ pointwise.RoPE) error { return CheckRoPE(c.In[0]) }

// CheckRoPE refuses sizes of x [B,S,heads,dim] that kernels with RoPE do not take.
func CheckRoPE(x kernels.Operand) error {
	switch heads, dim := x.Dim(2), x.Dim(3); {
	case dim > 4096:
		return graph.Refuse(graph.ReasonShape, "dim is %d, want an even number up to 4096", dim)
	case heads > math.MaxInt32:
		return graph.Refuse(graph.ReasonSize, "heads is %d, want at most 2^31-1", heads)
	}
	return nil
}

// rope adds x [B,S,heads,dim] -> y, rotated by the positions from op.Start on, or back if op.Inverse.
func rope(b *kernels.Builder, op pointwise.RoPE) {
	x, y := b.In[0], b.Out[0]
	seq, heads, dim := x.Dim(1), x.Dim(2), x.Dim(3)
	p := &ropeParams{
		x: x.Ref, y: y.Ref, documents: b.Documents, starts: b.Starts, tokens: x.Dim(0) * seq, seq: seq,
		start: int64(op.Start), rotary: RotaryOf(op), heads: int32(heads), dim: int32(dim), inverse: kernels.Flag(op.Inverse),
	}
	perThread := int64(2)
	if dim%b.Type.Lanes() == 0 {
		perThread = b.Type.Lanes()
	}
	block := kernels.Threads()
	grid := min(kernels.CeilDiv(p.tokens*(dim/perThread), block.Threads()), 1<<12)
	b.AddLaunch(b.Type.Name("rope"), kernels.Line(grid), block, dim/2*8, p)
}
