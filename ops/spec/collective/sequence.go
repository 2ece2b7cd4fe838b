package collective

import (
	"gorgonia.org/gorgonia"

	"github.com/gorgonia-nsa/nsa/internal/cpu"
	"github.com/gorgonia-nsa/nsa/ops/spec"
)

// Chunks returns which two of the 2*ranks chunks of a sequence a rank has, from 0: one from the front and one from the
// back, so that all ranks have as many pairs of a token and one before it (zigzag).
func Chunks(rank, ranks int) [2]int { return [2]int{rank, 2*ranks - 1 - rank} }

// GatherSequence is the Spec of GatherSequence: x0 [2B,n,...], ... -> [B,2n*Ranks,...], whole sequences in order, where
// rows 2b and 2b+1 of a rank's x are its Chunks of sequence b.
type GatherSequence struct{ Ranks int }

func (GatherSequence) Name() string             { return "gather-sequence" }
func (op GatherSequence) Of() (ranks, root int) { return op.Ranks, 0 }

func (op GatherSequence) Infer(in []spec.Operand) ([]spec.Operand, error) {
	return inferSequence(op, in, 2, 1, 1, 2*op.Ranks)
}

func (op GatherSequence) Combine(_ int, x []spec.Arg, y spec.Arg) {
	to, bytes := cpu.Slice[byte](y.Buf), int(y.Dtype.Size())
	for rank := range op.Ranks {
		from := cpu.Slice[byte](x[rank].Buf)
		EachChunk(rank, op.Ranks, x[rank].Operand, func(own, whole, n int) {
			copy(to[whole*bytes:], from[own*bytes:(own+n)*bytes])
		})
	}
}

func (op GatherSequence) Bind(k *cpu.Kernel, in, out []spec.Arg) { bind(k, op, in, out) }

func (op GatherSequence) Grad(_ []bool, in gorgonia.Nodes, _, dy *gorgonia.Node) (gorgonia.Nodes, error) {
	return grad(ScatterSequence(op), in, dy)
}

// ScatterSequence is the Spec of ScatterSequence: x0 [B,2n*Ranks,...], ... -> [2B,n,...], a rank's Chunks of the sums over
// the ranks.
type ScatterSequence struct{ Ranks int }

func (ScatterSequence) Name() string             { return "scatter-sequence" }
func (op ScatterSequence) Of() (ranks, root int) { return op.Ranks, 0 }

func (op ScatterSequence) Infer(in []spec.Operand) ([]spec.Operand, error) {
	return inferSequence(op, in, 1, 2, 2*op.Ranks, 1)
}

func (op ScatterSequence) Combine(rank int, x []spec.Arg, y spec.Arg) {
	EachChunk(rank, op.Ranks, y.Operand, func(own, whole, n int) { sum(x, y, false, own, whole, n) })
}

func (op ScatterSequence) Bind(k *cpu.Kernel, in, out []spec.Arg) { bind(k, op, in, out) }

func (op ScatterSequence) Grad(_ []bool, in gorgonia.Nodes, _, dy *gorgonia.Node) (gorgonia.Nodes, error) {
	return grad(GatherSequence(op), in, dy)
}

// inferSequence is the shape rule of an op that makes rowsTo rows of each rowsFrom rows, and tokensTo tokens of each
// tokensFrom of a row.
func inferSequence(op Collective, in []spec.Operand, rowsFrom, rowsTo, tokensFrom, tokensTo int) ([]spec.Operand, error) {
	out, err := infer(op, in, 0, rowsFrom, rowsTo)
	if err == nil {
		out, err = infer(op, out, 1, tokensFrom, tokensTo)
	}
	return out, err
}

// EachChunk calls f for each chunk of a rank's part [2B,n,...] of sequences: n elements from element own of the part on
// are those from element whole of the sequences [B,2n*ranks,...] on.
func EachChunk(rank, ranks int, part spec.Operand, f func(own, whole, n int)) {
	n := part.Elements() / part.Shape[0]
	for b := range part.Shape[0] / 2 {
		for i, chunk := range Chunks(rank, ranks) {
			f((2*b+i)*n, (2*ranks*b+chunk)*n, n)
		}
	}
}
