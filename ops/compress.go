package ops

import (
	"cmp"

	"gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/internal/cpu"
)

// CompressMean returns the mean of each compression block of keys or values: x [B,S,Hkv,D] -> [B,Nc,Hkv,D], where block i
// covers the tokens [i*stride, i*stride+blockLen) and Nc = NumCompressed(S, blockLen, stride). This is the simplest phi of
// NSA (arXiv 2502.11089, equation 7). If S < blockLen, there is no block and the output is one row of zeros. It is an error if
// stride does not divide blockLen. x has a gradient.
func CompressMean(x *gorgonia.Node, blockLen, stride int, opts ...Option) (*gorgonia.Node, error) {
	return applyWithDocuments(CompressMeanOp{blockLen, stride}, opts, x)
}

// CompressMeanOp is the Spec of CompressMean: x and optionally a table of documents -> y.
type CompressMeanOp struct {
	BlockLen int // l: tokens of a block
	Stride   int // d: tokens between the starts of two blocks
}

func (CompressMeanOp) Name() string { return "compress mean" }

func (op CompressMeanOp) blocks() compressionBlocks { return compressionBlocks{op.BlockLen, op.Stride} }

func (op CompressMeanOp) Infer(in []Operand) ([]Operand, error) {
	in, table := splitTable(in, 1)
	if err := cmp.Or(wantInputs(in, floatInput("x", 4)), checkBlocks(op.BlockLen, op.Stride)); err != nil {
		return nil, err
	}
	s := in[0].Shape
	return []Operand{{in[0].Dtype, tensor.Shape{s[0], compressedRows(s[1], op.BlockLen, op.Stride), s[2], s[3]}}}, checkTable(table, s[0], s[1])
}

func (op CompressMeanOp) Bind(k *cpu.Kernel, in, out []Arg) {
	in, table := splitTable(in, 1)
	byType(in[0].Dtype, bindCompressMean[float32], bindCompressMean[float64])(k, compressionOf(in[0].Shape, op.blocks(), table), in[0], out[0])
}

func (op CompressMeanOp) Grad(_ []bool, in gorgonia.Nodes, _, dy *gorgonia.Node) (gorgonia.Nodes, error) {
	return applyOutputs(CompressMeanGradOp{op.BlockLen, op.Stride, in[0].Shape()[1]}, 1, append(gorgonia.Nodes{dy}, in[1:]...)...)
}

// CompressMeanGradOp is the Spec of the gradient of CompressMean: dy [B,Nc,Hkv,D] and optionally a table of documents -> dx
// [B,S,Hkv,D]. The dx of a token is the sum of dy/l over the blocks that cover it, in ascending order. Tokens after the last
// block get zero.
type CompressMeanGradOp struct {
	BlockLen int // l, as in CompressMeanOp
	Stride   int // d, as in CompressMeanOp
	Tokens   int // S
}

func (CompressMeanGradOp) Name() string { return "gradient of compress mean" }

func (op CompressMeanGradOp) blocks() compressionBlocks {
	return compressionBlocks{op.BlockLen, op.Stride}
}

func (op CompressMeanGradOp) Infer(in []Operand) ([]Operand, error) {
	in, table := splitTable(in, 1)
	if err := cmp.Or(wantInputs(in, floatInput("dy", 4)), wantPositive("tokens S", op.Tokens)); err != nil {
		return nil, err
	}
	s := in[0].Shape
	x := Operand{in[0].Dtype, tensor.Shape{s[0], op.Tokens, s[2], s[3]}}
	y, err := CompressMeanOp{op.BlockLen, op.Stride}.Infer([]Operand{x})
	if err != nil {
		return nil, err
	}
	return []Operand{x}, cmp.Or(wantShape("dy", s, y[0].Shape...), checkTable(table, s[0], op.Tokens))
}

func (op CompressMeanGradOp) Bind(k *cpu.Kernel, in, out []Arg) {
	in, table := splitTable(in, 1)
	byType(in[0].Dtype, bindCompressMeanGrad[float32], bindCompressMeanGrad[float64])(k, compressionOf(out[0].Shape, op.blocks(), table), in[0], out[0])
}

// compression holds the sizes of a compression of x [B,S,Hkv,D].
type compression struct {
	b, h, d   int // batch, heads, dim
	sequences     // the keys are the blocks; a row may have none
}

func compressionOf(x tensor.Shape, c compressionBlocks, table []Arg) compression {
	n := NumCompressed(x[1], c.blockLen, c.stride)
	return compression{x[0], x[2], x[3], sequencesOf(table, x[1], n, c)}
}

// width returns the number of elements of a token, over all heads.
func (c compression) width() int { return c.h * c.d }

// covering returns the positions [first,end) of the blocks that cover token i, and at, the token's index in the first of these blocks;
// in each later block the index is stride less. Positions and tokens count over all rows: up to b*rowKeys and b*rowTokens.
func (c compression) covering(i int) (first, end, at int) {
	seq := c.ofToken(i/c.rowTokens, i%c.rowTokens)
	t := i%c.rowTokens - seq.firstToken
	first = max(0, t-c.blockLen+c.stride) / c.stride
	from := seq.row*c.rowKeys + seq.firstKey
	return from + first, from + min(seq.keys, t/c.stride+1), t - first*c.stride
}

// token returns the first token of the block at position p, or -1 if there is no block. Both count over all rows, as in covering.
func (c compression) token(p int) int {
	b, i := p/c.rowKeys, p%c.rowKeys
	seq, ok := c.ofKey(b, i)
	if !ok {
		return -1
	}
	return b*c.rowTokens + seq.firstToken + (i-seq.firstKey)*c.stride
}

func bindCompressMean[T cpu.Float](k *cpu.Kernel, c compression, x, y Arg) {
	if c.rowKeys == 0 {
		bindClear[T](k, y)
		return
	}
	width := c.width()
	bindRows(k, c.b*c.rowKeys, c.blockLen*width, func(lo, hi int) {
		for p := lo; p < hi; p++ {
			sum, first := cpu.Slice[T](y.Buf)[p*width:][:width], c.token(p)
			if first < 0 {
				clear(sum)
				continue
			}
			addRows(sum, cpu.Slice[T](x.Buf)[first*width:(first+c.blockLen)*width], width)
			cpu.Scale(sum, 1/T(c.blockLen))
		}
	})
}

func bindCompressMeanGrad[T cpu.Float](k *cpu.Kernel, c compression, dy, dx Arg) {
	width := c.width()
	bindRows(k, c.b*c.rowTokens, width, func(lo, hi int) {
		for i := lo; i < hi; i++ {
			row := cpu.Slice[T](dx.Buf)[i*width:][:width]
			clear(row)
			first, end, _ := c.covering(i)
			for p := first; p < end; p++ {
				cpu.Axpy(1/T(c.blockLen), cpu.Slice[T](dy.Buf)[p*width:][:width], row)
			}
		}
	})
}
