package kernels

import "math"

// RoPE is the rotary position embedding of x [B,S,Heads,Dim], Tokens = B*S, or the rotation back: rope.cu.
type RoPE struct {
	Type       Type
	Tokens     int64   // B*S
	Seq        int64   // S
	Heads, Dim int64   // Dim is even
	Base       float64 // of the angles' geometric series
	Start      int64   // position of the first token
	Inverse    bool    // turn back: the gradient
}

type ropeParams struct {
	x, y                   Ptr
	tokens, seq, start     int64
	log2Base               float64
	heads, dim, inverse, _ int32
}

// Forward appends y = x turned. y may be x.
func (op RoPE) Forward(to []Launch, x, y Ptr) ([]Launch, error) {
	const name = "rope"
	err := check(name, op.Type, size{"tokens", op.Tokens}, size{"heads", op.Heads}, size{"dim", op.Dim})
	switch {
	case err != nil:
		return to, err
	case op.Seq < 1 || op.Tokens%op.Seq != 0:
		return to, unsupported(name, "%d tokens are not sequences of %d", op.Tokens, op.Seq)
	case op.Dim%2 != 0 || op.Dim > 4096:
		return to, unsupported(name, "dim is %d, want an even number up to 4096", op.Dim)
	case op.Heads > math.MaxInt32:
		return to, unsupported(name, "heads is %d, want at most 2^31-1", op.Heads)
	case !(op.Base > 0) || math.IsInf(op.Base, 1):
		return to, unsupported(name, "base is %v, want a positive number", op.Base)
	case op.Start < 0 || op.Start > 1<<52-op.Seq:
		return to, unsupported(name, "start is %d, want 0 to 2^52", op.Start)
	}
	p := ropeParams{
		x: x, y: y, tokens: op.Tokens, seq: op.Seq, start: op.Start, log2Base: math.Log2(op.Base),
		heads: int32(op.Heads), dim: int32(op.Dim),
	}
	if op.Inverse {
		p.inverse = 1
	}
	each := int64(2)
	if op.Dim%op.Type.lanes() == 0 {
		each = op.Type.lanes()
	}
	grid := Dim{int(min(pieces(op.Tokens*(op.Dim/each), threadsOf(threads)), 1<<12)), 1, 1}
	return append(to, launch(names.rope[op.Type], grid, threads, int(op.Dim/2*8), &p)), nil
}

// threadsOf returns the number of threads of a block.
func threadsOf(d Dim) int64 { return int64(d.X) * int64(d.Y) * int64(d.Z) }
