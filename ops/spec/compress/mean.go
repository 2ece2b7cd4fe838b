package compress

import (
	"cmp"

	"gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/internal/cpu"
	"github.com/gorgonia-nsa/nsa/ops/spec"
)

// Mean is the Spec of CompressMean: x and optionally a table of documents -> y.
type Mean struct {
	BlockLen int // l: tokens of a block
	Stride   int // d: tokens between the starts of two blocks
}

func (Mean) Name() string       { return "compress mean" }
func (Mean) InputNames() string { return "x documents" }

func (op Mean) Blocks() spec.CompressionBlocks {
	return spec.CompressionBlocks{BlockLen: op.BlockLen, Stride: op.Stride}
}

func (op Mean) Infer(in []spec.Operand) ([]spec.Operand, error) {
	in, table := spec.SplitTable(in, 1)
	if err := cmp.Or(spec.WantInputs(in, spec.FloatInput("x", 4)), spec.CheckBlocks(op.BlockLen, op.Stride)); err != nil {
		return nil, err
	}
	s := in[0].Shape
	return []spec.Operand{{Dtype: in[0].Dtype, Shape: tensor.Shape{s[0], spec.CompressedRows(s[1], op.BlockLen,
		op.Stride), s[2], s[3]}}}, spec.CheckTable(table, s[0], s[1])
}

func (op Mean) Bind(k *cpu.Kernel, in, out []spec.Arg) {
	in, table := spec.SplitTable(in, 1)
	spec.ByType(in[0].Dtype, bindCompressMean[float32], bindCompressMean[float64])(k,
		compressionOf(in[0].Shape, op.Blocks(), table), in[0], out[0])
}

func (op Mean) Grad(_ []bool, in gorgonia.Nodes, _, dy *gorgonia.Node) (gorgonia.Nodes, error) {
	return spec.ApplyOutputs(MeanGrad{op.BlockLen, op.Stride, in[0].Shape()[1]}, 1,
		append(gorgonia.Nodes{dy}, in[1:]...)...)
}

// MeanGrad is the Spec of the gradient of CompressMean: dy [B,Nc,Hkv,D] and optionally a table of documents -> dx
// [B,S,Hkv,D]. The dx of a token is the sum of dy/l over the blocks that cover it, in ascending order. Tokens after the
// last block get zero.
type MeanGrad struct {
	BlockLen int // l, as in Mean
	Stride   int // d, as in Mean
	Tokens   int // S
}

func (MeanGrad) Name() string { return "gradient of compress mean" }

func (op MeanGrad) Blocks() spec.CompressionBlocks {
	return spec.CompressionBlocks{BlockLen: op.BlockLen, Stride: op.Stride}
}

func (op MeanGrad) Infer(in []spec.Operand) ([]spec.Operand, error) {
	in, table := spec.SplitTable(in, 1)
	if err := cmp.Or(spec.WantInputs(in, spec.FloatInput("dy", 4)), spec.WantPositive("tokens S", op.Tokens)); err != nil {
		return nil, err
	}
	s := in[0].Shape
	x := spec.Operand{Dtype: in[0].Dtype, Shape: tensor.Shape{s[0], op.Tokens, s[2], s[3]}}
	y, err := Mean{op.BlockLen, op.Stride}.Infer([]spec.Operand{x})
	if err != nil {
		return nil, err
	}
	return []spec.Operand{x}, cmp.Or(spec.WantShape("dy", s, y[0].Shape...), spec.CheckTable(table, s[0], op.Tokens))
}

func (op MeanGrad) Bind(k *cpu.Kernel, in, out []spec.Arg) {
	in, table := spec.SplitTable(in, 1)
	spec.ByType(in[0].Dtype, bindCompressMeanGrad[float32], bindCompressMeanGrad[float64])(k,
		compressionOf(out[0].Shape, op.Blocks(), table), in[0], out[0])
}

// compression holds the sizes of a compression of x [B,S,Hkv,D].
type compression struct {
	b, h, d        int // batch, heads, dim
	spec.Sequences     // the keys are the blocks; a row may have none
}

func compressionOf(x tensor.Shape, c spec.CompressionBlocks, table []spec.Arg) compression {
	n := spec.NumCompressed(x[1], c.BlockLen, c.Stride)
	return compression{x[0], x[2], x[3], spec.SequencesOf(table, x[1], n, c)}
}

// width returns the number of elements of a token, over all heads.
func (c compression) width() int { return c.h * c.d }

// covering returns the positions [first,end) of the blocks that cover token i, and at, the token's index in the first
// of these blocks; in each later block the index is stride less. Positions and tokens count over all rows: up to
// b*RowKeys and b*RowTokens.
func (c compression) covering(i int) (first, end, at int) {
	seq := c.OfToken(i/c.RowTokens, i%c.RowTokens)
	t := i%c.RowTokens - seq.FirstToken
	first = max(0, t-c.BlockLen+c.Stride) / c.Stride
	from := seq.Row*c.RowKeys + seq.FirstKey
	return from + first, from + min(seq.Keys, t/c.Stride+1), t - first*c.Stride
}

// token returns the first token of the block at position p, or -1 if there is no block. Both count over all rows, as in
// covering.
func (c compression) token(p int) int {
	b, i := p/c.RowKeys, p%c.RowKeys
	seq, ok := c.OfKey(b, i)
	if !ok {
		return -1
	}
	return b*c.RowTokens + seq.FirstToken + (i-seq.FirstKey)*c.Stride
}

func bindCompressMean[T cpu.Float](k *cpu.Kernel, c compression, x, y spec.Arg) {
	if c.RowKeys == 0 {
		spec.BindClear[T](k, y)
		return
	}
	width := c.width()
	spec.BindRows(k, c.b*c.RowKeys, c.BlockLen*width, func(lo, hi int) {
		for p := lo; p < hi; p++ {
			sum, first := cpu.Slice[T](y.Buf)[p*width:][:width], c.token(p)
			if first < 0 {
				clear(sum)
				continue
			}
			spec.AddRows(sum, cpu.Slice[T](x.Buf)[first*width:(first+c.BlockLen)*width], width)
			cpu.Scale(sum, 1/T(c.BlockLen))
		}
	})
}

func bindCompressMeanGrad[T cpu.Float](k *cpu.Kernel, c compression, dy, dx spec.Arg) {
	width := c.width()
	spec.BindRows(k, c.b*c.RowTokens, width, func(lo, hi int) {
		for i := lo; i < hi; i++ {
			row := cpu.Slice[T](dx.Buf)[i*width:][:width]
			clear(row)
			first, end, _ := c.covering(i)
			for p := first; p < end; p++ {
				cpu.Axpy(1/T(c.BlockLen), cpu.Slice[T](dy.Buf)[p*width:][:width], row)
			}
		}
	})
}
