package pointwise

import (
	"cmp"
	"fmt"
	"math"

	"gorgonia.org/gorgonia"

	"github.com/gorgonia-nsa/nsa/internal/cpu"
	"github.com/gorgonia-nsa/nsa/ops/spec"
)

// RoPE is the Spec of RoPE and of its gradient, the inverse rotation: x [B,S,H,D] and optionally a table of documents
// or a start -> y [B,S,H,D].
type RoPE struct {
	Base    float64 // base of the geometric series of the angles
	Start   int     // position of the first token
	Inverse bool    // rotate by the opposite angle
	Scaling RoPEScaling
}

// RoPEScaling divides the angles of a RoPE, so that a model reads longer texts than it was trained with. The zero value
// divides none.
//
// With Factor alone all angles are divided by it (position interpolation, arXiv 2306.15595). With Original it depends on
// how often a pair turns in so many tokens, as in Llama 3.1: at most Low times, and its angle is divided by Factor; High
// times or more, and it stays; between these the angle changes linearly with the number of turns.
type RoPEScaling struct {
	Factor    float64 // above 0; 0 in the zero value alone
	Low, High float64 // turns in Original tokens, Low less than High
	Original  int     // tokens of a text in training; 0: all angles are divided by Factor
}

// Validate returns an error that names what is wrong.
func (s RoPEScaling) Validate() error {
	switch {
	case s == RoPEScaling{}:
		return nil
	case s.Original < 0:
		return fmt.Errorf("original context of the rotary scaling is %d, want at least 0", s.Original)
	case s.Original == 0 && (s.Low != 0 || s.High != 0) || s.Original > 0 && !(s.Low >= 0 && s.Low < s.High && s.High <= math.MaxFloat64):
		return fmt.Errorf("rotary scaling between %v and %v turns in %d tokens, want a range if there are tokens", s.Low, s.High, s.Original)
	}
	return spec.WantPositiveFloat("factor of the rotary scaling", s.Factor)
}

// Terms returns a, n, low and b: a frequency of f turns a token becomes f*(t + (1-t)*a), where t = (n*f - low)*b, but
// at least 0 and at most 1.
func (s RoPEScaling) Terms() (a, n, low, b float64) {
	if s.Original > 0 {
		n, low, b = float64(s.Original), s.Low, 1/(s.High-s.Low)
	}
	return 1 / cmp.Or(s.Factor, 1), n, low, b
}

// Frequency returns the angle of pair i of d dimensions between one token and the next, in radians.
func (op RoPE) Frequency(i, d int) float64 {
	freq := math.Pow(op.Base, -float64(2*i)/float64(d))
	a, n, low, b := op.Scaling.Terms()
	t := min(max((n*freq/(2*math.Pi)-low)*b, 0), 1)
	return freq * (t + (1-t)*a)
}

// maxStart bounds Start: angles are float64, and at much larger positions their fractions of a turn have no digits
// left.
const maxStart = math.MaxInt32

func (RoPE) InputNames() string { return "x documents" }

func (RoPE) MaxTokens([]spec.Operand) int { return maxStart }

func (op RoPE) Name() string {
	if op.Inverse {
		return "inverse rope"
	}
	return "rope"
}

func (RoPE) Blocks() spec.CompressionBlocks { return spec.CompressionBlocks{} }

func (op RoPE) Infer(in []spec.Operand) ([]spec.Operand, error) {
	in, table := spec.SplitTable(in, 1)
	if err := spec.WantInputs(in, spec.FloatInput("x", 4)); err != nil {
		return nil, err
	}
	if d := in[0].Last(); d%2 != 0 {
		return nil, fmt.Errorf("dim %d of x %v is odd, want an even one", d, in[0].Shape)
	}
	if op.Start < 0 || op.Start > maxStart {
		return nil, fmt.Errorf("start is %d, want 0 to %d", op.Start, maxStart)
	}
	return in[:1], cmp.Or(spec.WantPositiveFloat("base", op.Base), op.Scaling.Validate(),
		spec.CheckTable(table, in[0].Shape[0], in[0].Shape[1]))
}

// Bind implements Spec. Angles and their cos and sin are float64 for both types of x. y may be x.
func (op RoPE) Bind(k *cpu.Kernel, in, out []spec.Arg) {
	spec.ByType(in[0].Dtype, bindRoPE[float32], bindRoPE[float64])(k, op, in[0], in[1:], out[0])
}

// RotationBlock is the number of tokens of a block. The rotation of a token is the rotation of its block's first token,
// followed by the rotation of its position in the block. So two small tables replace one with S rows, which would take
// much of a layer's memory and much of the time to bind it.
const RotationBlock = 64

func bindRoPE[T cpu.Float](k *cpu.Kernel, op RoPE, x spec.Arg, table []spec.Arg, y spec.Arg) {
	b, s, h, d := x.Shape[0], x.Shape[1], x.Shape[2], x.Shape[3]
	tokenRotations := op.Rotations(RotationBlock, 0, 1, d)
	seqs, scratch := spec.SequencesOf(table, s, maxStart, op.Blocks()), cpu.Scratch[T](k, d)
	blockScratch := cpu.Scratch[float64](k, d) // for the rotation of a block of a sequence with a start
	seqs.BindCheckStart(k)
	var blockRotations []float64
	if !seqs.HasStart() {
		blockRotations = op.Rotations(cpu.CeilDiv(s, RotationBlock), op.Start, RotationBlock, d)
	}
	tokens := spec.RowsPerPiece(h * d)
	k.Phase(cpu.CeilDiv(b*s, tokens), func(piece int, w *cpu.Worker) {
		lo, hi := spec.PieceBounds(piece, tokens, b*s)
		rotation, current, block := scratch.Local(w), -1, []float64(nil)
		for i := lo; i < hi; i++ {
			seq := seqs.OfToken(i/s, i%s)
			t := seq.Start + i%s - seq.FirstToken
			if n := t / RotationBlock; blockRotations != nil {
				block = blockRotations[n*d:][:d]
			} else if n != current {
				block, current = blockScratch.Local(w), n
				op.setRotations(block, op.Start+n*RotationBlock, 1, d)
			}
			Compose(rotation, block, tokenRotations[t%RotationBlock*d:][:d])
			for at := i * h * d; at < (i+1)*h*d; at += d {
				Rotate(cpu.Slice[T](y.Buf)[at:][:d], cpu.Slice[T](x.Buf)[at:][:d], rotation)
			}
		}
	})
}

// Rotations returns a table [n,d] for the n positions first, first+step, ...: for each pair of a head the cos and sin
// of its angle.
func (op RoPE) Rotations(n, first, step, d int) []float64 {
	table := make([]float64, n*d)
	op.setRotations(table, first, step, d)
	return table
}

// setRotations sets a table of Rotations.
func (op RoPE) setRotations(table []float64, first, step, d int) {
	for i := 0; i < d; i += 2 {
		freq := op.Frequency(i/2, d)
		for j := range len(table) / d {
			sin, cos := math.Sincos(float64(first+j*step) * freq)
			if op.Inverse {
				sin = -sin
			}
			table[j*d+i], table[j*d+i+1] = cos, sin
		}
	}
}

// Compose sets dst to the rotations in p followed by the rotations in q.
func Compose[T cpu.Float](dst []T, p, q []float64) {
	dst, q = dst[:len(p)], q[:len(p)]
	for i := 1; i < len(p); i += 2 {
		a, b, c, s := p[i-1], p[i], q[i-1], q[i]
		dst[i-1], dst[i] = T(a*c-b*s), T(a*s+b*c)
	}
}

// Rotate rotates each pair of x by the angle whose cos and sin are in rotation.
func Rotate[T cpu.Float](dst, x, rotation []T) {
	dst, rotation = dst[:len(x)], rotation[:len(x)]
	for i := 1; i < len(x); i += 2 {
		a, b, cos, sin := x[i-1], x[i], rotation[i-1], rotation[i]
		dst[i-1], dst[i] = a*cos-b*sin, a*sin+b*cos
	}
}

func (op RoPE) Grad(_ []bool, in gorgonia.Nodes, _, dy *gorgonia.Node) (gorgonia.Nodes, error) {
	op.Inverse = !op.Inverse
	return spec.ApplyOutputs(op, 1, append(gorgonia.Nodes{dy}, in[1:]...)...)
}
