package ops

import (
	"cmp"
	"fmt"
	"math"

	"gorgonia.org/gorgonia"

	"github.com/gorgonia-nsa/nsa/internal/cpu"
)

// RoPE returns the rotary position embedding of x [B,S,H,D] (arXiv 2104.09864): the pair (2i, 2i+1) of each head at token s
// is rotated by the angle (start+s)*base^(-2i/D). D is even. start is the position of the first token of every row or document: 0,
// or the number of earlier tokens if x continues a sequence. x has a gradient.
func RoPE(x *gorgonia.Node, base float64, start int, opts ...Option) (*gorgonia.Node, error) {
	return applyWithDocuments(RoPEOp{Base: base, Start: start}, opts, x)
}

// RoPEOp is the Spec of RoPE and of its gradient, the inverse rotation: x [B,S,H,D] and optionally a table of documents -> y
// [B,S,H,D].
type RoPEOp struct {
	Base    float64 // base of the geometric series of the angles
	Start   int     // position of the first token
	Inverse bool    // rotate by the opposite angle
}

// maxStart bounds Start: angles are float64, and at much larger positions their fractions of a turn have no digits left.
const maxStart = math.MaxInt32

func (op RoPEOp) Name() string {
	if op.Inverse {
		return "inverse rope"
	}
	return "rope"
}

func (RoPEOp) blocks() compressionBlocks { return compressionBlocks{} }

func (op RoPEOp) Infer(in []Operand) ([]Operand, error) {
	in, table := splitTable(in, 1)
	if err := wantInputs(in, floatInput("x", 4)); err != nil {
		return nil, err
	}
	if d := in[0].last(); d%2 != 0 {
		return nil, fmt.Errorf("dim %d of x %v is odd, want an even one", d, in[0].Shape)
	}
	if op.Start < 0 || op.Start > maxStart {
		return nil, fmt.Errorf("start is %d, want 0 to %d", op.Start, maxStart)
	}
	return in[:1], cmp.Or(wantPositiveFloat("base", op.Base), checkTable(table, in[0].Shape[0], in[0].Shape[1]))
}

// Bind implements Spec. Angles and their cos and sin are float64 for both types of x. y may be x.
func (op RoPEOp) Bind(k *cpu.Kernel, in, out []Arg) {
	byType(in[0].Dtype, bindRoPE[float32], bindRoPE[float64])(k, op, in[0], in[1:], out[0])
}

// rotationBlock is the number of tokens of a block. The rotation of a token is the rotation of its block's first token, followed by
// the rotation of its position in the block. So two small tables replace one with S rows, which would take much of a layer's memory and
// much of the time to bind it.
const rotationBlock = 64

func bindRoPE[T cpu.Float](k *cpu.Kernel, op RoPEOp, x Arg, table []Arg, y Arg) {
	b, s, h, d := x.Shape[0], x.Shape[1], x.Shape[2], x.Shape[3]
	blockRotations := op.rotations(cpu.CeilDiv(s, rotationBlock), op.Start, rotationBlock, d)
	tokenRotations := op.rotations(rotationBlock, 0, 1, d)
	seqs, scratch := sequencesOf(table, s, s, op.blocks()), cpu.Scratch[T](k, d)
	tokens := rowsPerPiece(h * d)
	k.Phase(cpu.CeilDiv(b*s, tokens), func(piece int, w *cpu.Worker) {
		lo, hi := pieceBounds(piece, tokens, b*s)
		rotation := scratch.Local(w)
		for i := lo; i < hi; i++ {
			t := i%s - seqs.ofToken(i/s, i%s).firstToken
			compose(rotation, blockRotations[t/rotationBlock*d:][:d], tokenRotations[t%rotationBlock*d:][:d])
			for at := i * h * d; at < (i+1)*h*d; at += d {
				rotate(cpu.Slice[T](y.Buf)[at:][:d], cpu.Slice[T](x.Buf)[at:][:d], rotation)
			}
		}
	})
}

// rotations returns a table [n,d] for the n positions first, first+step, ...: for each pair of a head the cos and sin of its angle.
func (op RoPEOp) rotations(n, first, step, d int) []float64 {
	table := make([]float64, n*d)
	for i := 0; i < d; i += 2 {
		freq := math.Pow(op.Base, -float64(i)/float64(d))
		for j := range n {
			sin, cos := math.Sincos(float64(first+j*step) * freq)
			if op.Inverse {
				sin = -sin
			}
			table[j*d+i], table[j*d+i+1] = cos, sin
		}
	}
	return table
}

// compose sets dst to the rotations in p followed by the rotations in q.
func compose[T cpu.Float](dst []T, p, q []float64) {
	dst, q = dst[:len(p)], q[:len(p)]
	for i := 1; i < len(p); i += 2 {
		a, b, c, s := p[i-1], p[i], q[i-1], q[i]
		dst[i-1], dst[i] = T(a*c-b*s), T(a*s+b*c)
	}
}

// rotate rotates each pair of x by the angle whose cos and sin are in rotation.
func rotate[T cpu.Float](dst, x, rotation []T) {
	dst, rotation = dst[:len(x)], rotation[:len(x)]
	for i := 1; i < len(x); i += 2 {
		a, b, cos, sin := x[i-1], x[i], rotation[i-1], rotation[i]
		dst[i-1], dst[i] = a*cos-b*sin, a*sin+b*cos
	}
}

func (op RoPEOp) Grad(_ []bool, in gorgonia.Nodes, _, dy *gorgonia.Node) (gorgonia.Nodes, error) {
	op.Inverse = !op.Inverse
	return applyOutputs(op, 1, append(gorgonia.Nodes{dy}, in[1:]...)...)
}
