package compress

import (
	"cmp"
	"slices"

	"gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/internal/cpu"
	"github.com/gorgonia-nsa/nsa/ops/spec"
	"github.com/gorgonia-nsa/nsa/ops/spec/pointwise"
)

// MLP is the Spec of CompressMLP: x, pe, w1, w2 and optionally a table of documents -> y, hidden. The second output
// [B,Nc,Hkv,hidden] is W1·vec(block+pe), saved for the gradient. It is small, about hidden/(d*D) times the size of x.
// Without it the gradient would compute the largest product again.
type MLP struct {
	BlockLen int // l: tokens of a block
	Stride   int // d: tokens between the starts of two blocks
}

func (MLP) Name() string       { return "compress mlp" }
func (MLP) InputNames() string { return "x pe w1 w2 documents" }

func (op MLP) Blocks() spec.CompressionBlocks {
	return spec.CompressionBlocks{BlockLen: op.BlockLen, Stride: op.Stride}
}

func (op MLP) Infer(in []spec.Operand) ([]spec.Operand, error) {
	in, table := spec.SplitTable(in, 4)
	if err := spec.WantInputs(in, spec.FloatInput("x", 4), spec.FloatInput("pe", 2), spec.FloatInput("w1", 2),
		spec.FloatInput("w2", 2)); err != nil {
		return nil, err
	}
	y, err := Mean(op).Infer(append(in[:1:1], table...))
	if err != nil {
		return nil, err
	}
	d, hidden := in[0].Last(), in[2].Shape[0]
	s := y[0].Shape
	return append(y, spec.Operand{Dtype: in[0].Dtype, Shape: tensor.Shape{s[0], s[1], s[2], hidden}}), cmp.Or(
		spec.WantShape("pe", in[1].Shape, op.BlockLen, d),
		spec.WantShape("w1", in[2].Shape, hidden, op.BlockLen*d),
		spec.WantShape("w2", in[3].Shape, d, hidden),
	)
}

// FLOPs counts the two products of each block and head.
func (op MLP) FLOPs(in []spec.Operand) float64 {
	x, w1 := in[0].Shape, in[2].Shape
	return 2 * float64(x[0]*spec.NumCompressed(x[1], op.BlockLen, op.Stride)*x[2]) * float64(w1[0]) * float64(w1[1]+x[3])
}

func (op MLP) Bind(k *cpu.Kernel, in, out []spec.Arg) {
	in, table := spec.SplitTable(in, 4)
	spec.ByType(in[0].Dtype, bindCompressMLP[float32], bindCompressMLP[float64])(k,
		compressionOf(in[0].Shape, op.Blocks(), table), in, out)
}

// TakesBF16 reports whether x, the parameters and hidden are bf16: both products then multiply in it.
func (op MLP) TakesBF16(in, out []spec.Arg) bool {
	return spec.AllBF16(in[:4]...) && spec.AllBF16(out[1])
}

func (op MLP) Grad(_ []bool, in gorgonia.Nodes, y, dy *gorgonia.Node) (gorgonia.Nodes, error) {
	hidden, err := spec.Output(y, 1)
	if err != nil {
		return nil, err
	}
	return spec.ApplyOutputs(MLPGrad(op), 4, append(slices.Clone(in), hidden, dy)...)
}

// MLPGrad is the Spec of the gradient of CompressMLP: the inputs of CompressMLP, hidden, dy -> dx, dpe, dw1, dw2.
type MLPGrad struct {
	BlockLen int // l, as in MLP
	Stride   int // d, as in MLP
}

func (MLPGrad) Name() string { return "gradient of compress mlp" }

func (op MLPGrad) Blocks() spec.CompressionBlocks {
	return spec.CompressionBlocks{BlockLen: op.BlockLen, Stride: op.Stride}
}

func (op MLPGrad) Infer(in []spec.Operand) ([]spec.Operand, error) {
	in, err := spec.InferWithMore(MLP(op), spec.InputsWithTable(in, 4), in,
		spec.LikeOutput{Name: "hidden", Output: 1}, spec.LikeOutput{Name: "dy", Output: 0})
	if err != nil {
		return nil, err
	}
	return in[:4], nil
}

// FLOPs counts two products for each product of the forward op. That of dpe has a single row and does not count.
func (op MLPGrad) FLOPs(in []spec.Operand) float64 { return 2 * MLP(op).FLOPs(in) }

func (op MLPGrad) Bind(k *cpu.Kernel, in, out []spec.Arg) {
	in, table := spec.SplitTable(in, 4)
	spec.BindRounded(k, out, func(out []spec.Arg) {
		spec.ByType(in[0].Dtype, bindCompressMLPGrad[float32], bindCompressMLPGrad[float64])(k,
			compressionOf(in[0].Shape, op.Blocks(), table), in, out)
	})
}

// TakesBF16 reports whether all inputs but a table are bf16: the products then multiply in it.
func (op MLPGrad) TakesBF16(in, _ []spec.Arg) bool {
	in, _ = spec.SplitTable(in, 4)
	return spec.AllBF16(in...)
}

// bindCompressMLP gathers rows [l*D] into work memory, one for each block and head, and multiplies them by the weights.
func bindCompressMLP[T cpu.Float](k *cpu.Kernel, c compression, in, out []spec.Arg) {
	x, pe, w1, w2, y, hidden := in[0], in[1], in[2], in[3], out[0], out[1]
	if c.RowKeys == 0 {
		spec.BindRounded(k, out, func(out []spec.Arg) {
			for _, o := range out {
				spec.BindClear[T](k, o)
			}
		})
		return
	}
	rows, width := c.b*c.RowKeys*c.h, w1.Shape[0]
	from, act := newBlockRows[T](k, c, x, pe), spec.WorkLike(k, hidden)
	for i := range from.parts() {
		n := from.bindGather(i)
		spec.BindProducts(k, x, cpu.Product{M: n, N: width, TransB: true, Terms: []cpu.Term{{K: c.BlockLen * c.d,
			A: from.rows, B: w1.Buf}}, C: from.bindView(i, hidden), SiLU: from.bindView(i, act),
			HalfC: hidden.Dtype == spec.BFloat16})
	}
	spec.BindProducts(k, x, cpu.Product{M: rows, N: c.d, TransB: true, Terms: []cpu.Term{{K: width, A: act.Buf,
		B: w2.Buf}}, C: y.Buf, HalfC: y.Dtype == spec.BFloat16})
}

// bindCompressMLPGrad goes back through the second product, the SiLU and the first product. One piece of work adds up
// all the dx of a token. If the inputs are bf16, products take them and what is rounded to it; all else is T.
func bindCompressMLPGrad[T cpu.Float](k *cpu.Kernel, c compression, in, out []spec.Arg) {
	x, pe, w1, w2 := in[0], in[1], in[2], in[3]
	dx, dpe, dw1, dw2 := out[0], out[1], out[2], out[3]
	if c.RowKeys == 0 {
		for _, o := range out {
			spec.BindClear[T](k, o)
		}
		return
	}
	wide := spec.InType(k, dx.Dtype, in[4:]...)
	hidden, dy := wide[0], wide[1]
	rounded := func(a spec.Arg) spec.Arg { return spec.InType(k, x.Dtype, a)[0] }
	rows, width, cols := c.b*c.RowKeys*c.h, w1.Shape[0], c.BlockLen*c.d
	if c.HasDocuments() {
		dy = spec.BindCopy[T](k, dy)
		spec.BindClearUnused[T](k, c.Sequences, dy)
	}

	act := spec.WorkLike(k, hidden)
	pointwise.SiLU{}.Bind(k, []spec.Arg{hidden}, []spec.Arg{act})
	spec.BindClearUnused[T](k, c.Sequences, act)
	dy = rounded(dy)
	spec.BindProducts(k, x, cpu.Product{M: c.d, N: width, TransA: true, Terms: []cpu.Term{{K: rows, A: dy.Buf,
		B: rounded(act).Buf}}, C: dw2.Buf})
	dhidden := act // reuses the memory of act, which is not needed any more
	spec.BindProducts(k, x, cpu.Product{M: rows, N: width, Terms: []cpu.Term{{K: c.d, A: dy.Buf, B: w2.Buf}},
		C: dhidden.Buf})
	pointwise.SiLUGrad{}.Bind(k, []spec.Arg{hidden, dhidden}, []spec.Arg{dhidden})
	spec.BindClearUnused[T](k, c.Sequences, dhidden)

	// pe is added to every row, so its gradient is the sum of the gradients of the rows.
	sum := spec.WorkLike(k, spec.Arg{Operand: spec.Operand{Dtype: dx.Dtype, Shape: tensor.Shape{width}}})
	spec.BindColumnSums[T](k, dhidden.Buf, rows, width, sum.Buf)
	spec.BindProducts(k, x, cpu.Product{M: 1, N: cols, Terms: []cpu.Term{{K: width, A: rounded(sum).Buf, B: w1.Buf}},
		C: dpe.Buf})

	from := newBlockRows[T](k, c, x, pe)
	dhidden = rounded(dhidden)
	dw, drows := dw1, from.rows // gradients of w1 and of the rows from one part
	if from.half {
		drows = cpu.Work[T](k, from.size*c.BlockLen*c.width())
	}
	spec.BindClear[T](k, dx)
	for i := range from.parts() {
		n := from.bindGather(i)
		dh := from.bindView(i, dhidden)
		if i == 1 {
			dw = spec.WorkLike(k, dw1)
		}
		spec.BindProducts(k, x, cpu.Product{M: width, N: cols, TransA: true, Terms: []cpu.Term{{K: n, A: dh,
			B: from.rows}}, C: dw.Buf})
		if i > 0 {
			pointwise.Add{}.Bind(k, []spec.Arg{dw1, dw}, []spec.Arg{dw1})
		}
		spec.BindProducts(k, x, cpu.Product{M: n, N: cols, Terms: []cpu.Term{{K: width, A: dh, B: w1.Buf}}, C: drows})
		from.bindScatter(i, drows, dx)
	}
}

// blockRows holds a row [l*D] for each block and head of one part of the blocks, with pe added. A position without
// a block has rows of zeros, whose products are zero.
type blockRows[T cpu.Float] struct {
	compression
	k     *cpu.Kernel
	x, pe spec.Arg // in T
	half  bool     // the rows are rounded to bf16
	size  int      // blocks of a part
	rows  *cpu.Buf // rows of one part: [size*Hkv,l*D]
}

// newBlockRows cuts the blocks into parts of about 4 Mi elements, but at most 8 parts, since each part needs products
// of its own.
func newBlockRows[T cpu.Float](k *cpu.Kernel, c compression, x, pe spec.Arg) *blockRows[T] {
	const partElements, maxParts = 4 << 20, 8
	n := c.b * c.RowKeys
	g := &blockRows[T]{compression: c, k: k, x: x, pe: pe, half: x.Dtype == spec.BFloat16,
		size: min(n, max(1, partElements/(c.BlockLen*c.width()), cpu.CeilDiv(n, maxParts)))}
	if elements := g.size * c.BlockLen * c.width(); g.half {
		wide := spec.InType(k, tensor.Float32, x, pe)
		g.x, g.pe, g.rows = wide[0], wide[1], cpu.Work[cpu.BFloat16](k, elements)
	} else {
		g.rows = cpu.Work[T](k, elements)
	}
	return g
}

func (g *blockRows[T]) parts() int { return cpu.CeilDiv(g.b*g.RowKeys, g.size) }

// part returns the positions [from,to) of the blocks of part i, counted over all rows.
func (g *blockRows[T]) part(i int) (from, to int) { return spec.PieceBounds(i, g.size, g.b*g.RowKeys) }

// bindGather adds a phase that gathers part i, and returns the number of its rows.
func (g *blockRows[T]) bindGather(i int) int {
	from, to := g.part(i)
	cols := g.BlockLen * g.d
	var scratch cpu.Region[T]
	if g.half {
		scratch = cpu.Scratch[T](g.k, cols)
	}
	size := spec.RowsPerPiece(g.BlockLen * g.width())
	g.k.Phase(cpu.CeilDiv(to-from, size), func(piece int, w *cpu.Worker) {
		x, pe, row := cpu.Slice[T](g.x.Buf), cpu.Slice[T](g.pe.Buf), scratch.Local(w)
		lo, hi := spec.PieceBounds(piece, size, to-from)
		for i := lo * g.h; i < hi*g.h; i++ {
			token, head := g.token(from+i/g.h), i%g.h
			if !g.half {
				row = cpu.Slice[T](g.rows)[i*cols:][:cols]
			}
			if token < 0 {
				clear(row)
			}
			for j := 0; j < g.BlockLen && token >= 0; j++ {
				cpu.Add(row[j*g.d:][:g.d], x[((token+j)*g.h+head)*g.d:][:g.d], pe[j*g.d:][:g.d])
			}
			if g.half {
				cpu.RoundBF16(cpu.Slice[cpu.BFloat16](g.rows)[i*cols:], any(row).([]float32))
			}
		}
	})
	return (to - from) * g.h
}

// bindScatter adds a phase for drows, the gradients of the rows of part i: it adds them to the dx of the tokens that
// the rows came from.
func (g *blockRows[T]) bindScatter(i int, drows *cpu.Buf, dx spec.Arg) {
	from, to := g.part(i)
	cols := g.BlockLen * g.d
	spec.BindRows(g.k, g.b*g.RowTokens, g.width(), func(lo, hi int) {
		for i := lo; i < hi; i++ {
			first, end, at := g.covering(i)
			for p := max(from, first); p < min(to, end); p++ {
				j := at - (p-first)*g.Stride // index of the token in block p
				rows := cpu.Slice[T](drows)[(p-from)*g.h*cols+j*g.d:]
				for head := range g.h {
					dst := cpu.Slice[T](dx.Buf)[(i*g.h+head)*g.d:][:g.d]
					cpu.Add(dst, dst, rows[head*cols:][:g.d])
				}
			}
		}
	})
}

// bindView returns a cell for the rows of part i in a [B,Nc,Hkv,width]. It adds a phase that sets the cell in every
// run.
func (g *blockRows[T]) bindView(i int, a spec.Arg) *cpu.Buf {
	from, to := g.part(i)
	bytes := g.h * a.Last() * int(a.Dtype.Size())
	view := new(cpu.Buf)
	g.k.Phase(1, func(int, *cpu.Worker) { cpu.Hold(view, cpu.Slice[byte](a.Buf)[from*bytes:to*bytes]) })
	return view
}
