package ops

import (
	"cmp"
	"slices"

	"gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/internal/cpu"
)

// CompressMLP returns W2·silu(W1·vec(block+pe)) for each compression block and head of keys or values: x [B,S,Hkv,D] ->
// [B,Nc,Hkv,D], with the blocks of CompressMean. This is the learned phi of NSA with its intra-block position embedding
// (arXiv 2502.11089, equation 7). The heads share pe [l,D], w1 [hidden,l*D] and w2 [D,hidden]. vec is row-major, with the
// position in the block as the outer axis. If S < blockLen, the output is one row of zeros and no gradient passes. x, pe, w1
// and w2 have gradients.
func CompressMLP(x, pe, w1, w2 *gorgonia.Node, blockLen, stride int, opts ...Option) (*gorgonia.Node, error) {
	return applyWithDocuments(CompressMLPOp{blockLen, stride}, opts, x, pe, w1, w2)
}

// CompressMLPOp is the Spec of CompressMLP: x, pe, w1, w2 and optionally a table of documents -> y, hidden. The second output
// [B,Nc,Hkv,hidden] is W1·vec(block+pe), saved for the gradient. It is small, about hidden/(d*D) times the size of x. Without it
// the gradient would compute the largest product again.
type CompressMLPOp struct {
	BlockLen int // l: tokens of a block
	Stride   int // d: tokens between the starts of two blocks
}

func (CompressMLPOp) Name() string { return "compress mlp" }

func (op CompressMLPOp) blocks() compressionBlocks { return compressionBlocks{op.BlockLen, op.Stride} }

func (op CompressMLPOp) Infer(in []Operand) ([]Operand, error) {
	in, table := splitTable(in, 4)
	if err := wantInputs(in, floatInput("x", 4), floatInput("pe", 2), floatInput("w1", 2), floatInput("w2", 2)); err != nil {
		return nil, err
	}
	y, err := CompressMeanOp(op).Infer(append(in[:1:1], table...))
	if err != nil {
		return nil, err
	}
	d, hidden := in[0].last(), in[2].Shape[0]
	s := y[0].Shape
	return append(y, Operand{in[0].Dtype, tensor.Shape{s[0], s[1], s[2], hidden}}), cmp.Or(
		wantShape("pe", in[1].Shape, op.BlockLen, d),
		wantShape("w1", in[2].Shape, hidden, op.BlockLen*d),
		wantShape("w2", in[3].Shape, d, hidden),
	)
}

// flops counts the two products of each block and head.
func (op CompressMLPOp) flops(in []Operand) float64 {
	x, w1 := in[0].Shape, in[2].Shape
	return 2 * float64(x[0]*NumCompressed(x[1], op.BlockLen, op.Stride)*x[2]) * float64(w1[0]) * float64(w1[1]+x[3])
}

func (op CompressMLPOp) Bind(k *cpu.Kernel, in, out []Arg) {
	in, table := splitTable(in, 4)
	byType(in[0].Dtype, bindCompressMLP[float32], bindCompressMLP[float64])(k, compressionOf(in[0].Shape, op.blocks(), table), in, out)
}

func (op CompressMLPOp) Grad(_ []bool, in gorgonia.Nodes, y, dy *gorgonia.Node) (gorgonia.Nodes, error) {
	hidden, err := Output(y, 1)
	if err != nil {
		return nil, err
	}
	return applyOutputs(CompressMLPGradOp(op), 4, append(slices.Clone(in), hidden, dy)...)
}

// CompressMLPGradOp is the Spec of the gradient of CompressMLP: the inputs of CompressMLP, hidden, dy -> dx, dpe, dw1, dw2.
type CompressMLPGradOp struct {
	BlockLen int // l, as in CompressMLPOp
	Stride   int // d, as in CompressMLPOp
}

func (CompressMLPGradOp) Name() string { return "gradient of compress mlp" }

func (op CompressMLPGradOp) blocks() compressionBlocks {
	return compressionBlocks{op.BlockLen, op.Stride}
}

func (op CompressMLPGradOp) Infer(in []Operand) ([]Operand, error) {
	in, err := inferWithMore(CompressMLPOp(op), inputsWithTable(in, 4), in, likeOutput{"hidden", 1}, likeOutput{"dy", 0})
	if err != nil {
		return nil, err
	}
	return in[:4], nil
}

// flops counts two products for each product of the forward op. That of dpe has a single row and does not count.
func (op CompressMLPGradOp) flops(in []Operand) float64 { return 2 * CompressMLPOp(op).flops(in) }

func (op CompressMLPGradOp) Bind(k *cpu.Kernel, in, out []Arg) {
	in, table := splitTable(in, 4)
	byType(in[0].Dtype, bindCompressMLPGrad[float32], bindCompressMLPGrad[float64])(k, compressionOf(in[0].Shape, op.blocks(), table), in, out)
}

// bindCompressMLP gathers rows [l*D] into work memory, one for each block and head, and multiplies them by the weights.
func bindCompressMLP[T cpu.Float](k *cpu.Kernel, c compression, in, out []Arg) {
	x, pe, w1, w2, y, hidden := in[0], in[1], in[2], in[3], out[0], out[1]
	if c.rowKeys == 0 {
		bindClear[T](k, y)
		bindClear[T](k, hidden)
		return
	}
	rows, width := c.b*c.rowKeys*c.h, w1.Shape[0]
	from := newBlockRows[T](k, c, x, pe)
	for i := range from.parts() {
		n := from.bindGather(i)
		to := from.bindView(i, hidden.Buf, width)
		cpu.Products[T](k, cpu.Product{M: n, N: width, TransB: true, Terms: []cpu.Term{{K: c.blockLen * c.d, A: from.rows, B: w1.Buf}}, C: to})
	}
	act := workLike(k, hidden)
	SiLUOp{}.Bind(k, []Arg{hidden}, []Arg{act})
	cpu.Products[T](k, cpu.Product{M: rows, N: c.d, TransB: true, Terms: []cpu.Term{{K: width, A: act.Buf, B: w2.Buf}}, C: y.Buf})
}

// bindCompressMLPGrad goes back through the second product, the SiLU and the first product. One piece of work adds up all the dx
// of a token.
func bindCompressMLPGrad[T cpu.Float](k *cpu.Kernel, c compression, in, out []Arg) {
	x, pe, w1, w2, hidden, dy := in[0], in[1], in[2], in[3], in[4], in[5]
	dx, dpe, dw1, dw2 := out[0], out[1], out[2], out[3]
	if c.rowKeys == 0 {
		for _, o := range out {
			bindClear[T](k, o)
		}
		return
	}
	rows, width, cols := c.b*c.rowKeys*c.h, w1.Shape[0], c.blockLen*c.d
	if c.hasDocuments() {
		dy = bindCopy[T](k, dy)
		bindClearUnused[T](k, c.sequences, dy)
	}

	act := workLike(k, hidden)
	SiLUOp{}.Bind(k, []Arg{hidden}, []Arg{act})
	bindClearUnused[T](k, c.sequences, act)
	cpu.Products[T](k, cpu.Product{M: c.d, N: width, TransA: true, Terms: []cpu.Term{{K: rows, A: dy.Buf, B: act.Buf}}, C: dw2.Buf})
	dhidden := act // reuses the memory of act, which is not needed any more
	cpu.Products[T](k, cpu.Product{M: rows, N: width, Terms: []cpu.Term{{K: c.d, A: dy.Buf, B: w2.Buf}}, C: dhidden.Buf})
	SiLUGradOp{}.Bind(k, []Arg{hidden, dhidden}, []Arg{dhidden})
	bindClearUnused[T](k, c.sequences, dhidden)

	// pe is added to every row, so its gradient is the sum of the gradients of the rows.
	sum := cpu.Work[T](k, width)
	bindColumnSums[T](k, dhidden.Buf, rows, width, sum)
	cpu.Products[T](k, cpu.Product{M: 1, N: cols, Terms: []cpu.Term{{K: width, A: sum, B: w1.Buf}}, C: dpe.Buf})

	from := newBlockRows[T](k, c, x, pe)
	dw := dw1 // gradient of w1 from one part
	bindClear[T](k, dx)
	for i := range from.parts() {
		n := from.bindGather(i)
		dh := from.bindView(i, dhidden.Buf, width)
		if i == 1 {
			dw = workLike(k, dw1)
		}
		cpu.Products[T](k, cpu.Product{M: width, N: cols, TransA: true, Terms: []cpu.Term{{K: n, A: dh, B: from.rows}}, C: dw.Buf})
		if i > 0 {
			AddOp{}.Bind(k, []Arg{dw1, dw}, []Arg{dw1})
		}
		cpu.Products[T](k, cpu.Product{M: n, N: cols, Terms: []cpu.Term{{K: width, A: dh, B: w1.Buf}}, C: from.rows})
		from.bindScatter(i, dx)
	}
}

// blockRows holds a row [l*D] for each block and head of one part of the blocks, with pe added. A position without
// a block has rows of zeros, whose products are zero.
type blockRows[T cpu.Float] struct {
	compression
	k     *cpu.Kernel
	x, pe Arg
	size  int      // blocks of a part
	rows  *cpu.Buf // rows of one part: [size*Hkv,l*D]
}

// newBlockRows cuts the blocks into parts of about 4 Mi elements, but at most 8 parts, since each part needs products of its own.
func newBlockRows[T cpu.Float](k *cpu.Kernel, c compression, x, pe Arg) blockRows[T] {
	const partElements, maxParts = 4 << 20, 8
	n := c.b * c.rowKeys
	size := min(n, max(1, partElements/(c.blockLen*c.width()), cpu.CeilDiv(n, maxParts)))
	return blockRows[T]{c, k, x, pe, size, cpu.Work[T](k, size*c.blockLen*c.width())}
}

func (g blockRows[T]) parts() int { return cpu.CeilDiv(g.b*g.rowKeys, g.size) }

// part returns the positions [from,to) of the blocks of part i, counted over all rows.
func (g blockRows[T]) part(i int) (from, to int) { return pieceBounds(i, g.size, g.b*g.rowKeys) }

// bindGather adds a phase that gathers part i, and returns the number of its rows.
func (g blockRows[T]) bindGather(i int) int {
	from, to := g.part(i)
	cols := g.blockLen * g.d
	bindRows(g.k, to-from, g.blockLen*g.width(), func(lo, hi int) {
		x, pe := cpu.Slice[T](g.x.Buf), cpu.Slice[T](g.pe.Buf)
		for i := lo; i < hi; i++ {
			token := g.token(from + i)
			rows := cpu.Slice[T](g.rows)[i*g.h*cols:]
			if token < 0 {
				clear(rows[:g.h*cols])
				continue
			}
			for j := range g.blockLen {
				for head := range g.h {
					cpu.Add(rows[head*cols+j*g.d:][:g.d], x[((token+j)*g.h+head)*g.d:][:g.d], pe[j*g.d:][:g.d])
				}
			}
		}
	})
	return (to - from) * g.h
}

// bindScatter adds a phase for the rows of part i, which are gradients now: it adds them to the dx of the tokens that they came from.
func (g blockRows[T]) bindScatter(i int, dx Arg) {
	from, to := g.part(i)
	cols := g.blockLen * g.d
	bindRows(g.k, g.b*g.rowTokens, g.width(), func(lo, hi int) {
		for i := lo; i < hi; i++ {
			first, end, at := g.covering(i)
			for p := max(from, first); p < min(to, end); p++ {
				j := at - (p-first)*g.stride // index of the token in block p
				rows := cpu.Slice[T](g.rows)[(p-from)*g.h*cols+j*g.d:]
				for head := range g.h {
					dst := cpu.Slice[T](dx.Buf)[(i*g.h+head)*g.d:][:g.d]
					cpu.Add(dst, dst, rows[head*cols:][:g.d])
				}
			}
		}
	})
}

// bindView returns a cell for the rows of part i in b [B*Nc*Hkv,width]. It adds a phase that sets the cell in every run.
func (g blockRows[T]) bindView(i int, b *cpu.Buf, width int) *cpu.Buf {
	from, to := g.part(i)
	view := new(cpu.Buf)
	g.k.Phase(1, func(int, *cpu.Worker) { cpu.Hold(view, cpu.Slice[T](b)[from*g.h*width:to*g.h*width]) })
	return view
}
