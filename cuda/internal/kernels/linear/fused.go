package linear

import (
	"slices"

	"github.com/gorgonia-nsa/nsa/cuda/internal/kernels"
	"github.com/gorgonia-nsa/nsa/cuda/internal/kernels/matmul"
	"github.com/gorgonia-nsa/nsa/cuda/internal/kernels/memory"
	"github.com/gorgonia-nsa/nsa/graph"
	"github.com/gorgonia-nsa/nsa/ops/spec/linear"
)

// Several linear layers of one input are one product. Their weights lie one after the other in memory, or are copied
// there. One kernel splits or joins the columns. So x is read once: for a layer of 128 outputs, reading x takes longer
// than the product.

func fusedEntries() []kernels.Entry {
	half, float, documents := kernels.Half, kernels.Float, kernels.Documents()
	mixed, gain := kernels.Mixed("x"), kernels.Float32("gain")
	grads := kernels.WeightGrad("dws").Repeated()
	gradIn := kernels.In(float("x", "dy", "others").Repeated(), documents)
	return kernels.Entries(
		kernels.EntryFor[linear.Fused]{
			Name:  few,
			Types: kernels.In(half("x", "w", "parameters").Repeated(), documents).Out(half("ys").Repeated()),
			Guard: guardFewFused(false), Launches: fewFused,
		},
		kernels.EntryFor[linear.Fused]{
			Name:  few,
			Types: kernels.In(mixed, half("w", "parameters").Repeated(), gain, documents).Out(half("ys").Repeated()),
			Guard: guardFewFused(true), Launches: fewFused,
		},
		kernels.EntryFor[linear.Fused]{ // with the cast after it
			Name:  few,
			Types: kernels.In(mixed, half("w"), gain).Out(kernels.Float32("y")),
			Guard: guardFewFused(true), Launches: fewFused,
		},
		kernels.EntryFor[linear.Fused]{
			Types:    kernels.In(float("x", "w", "parameters").Repeated(), documents).Out(float("ys").Repeated()),
			Products: fusedProducts, Guard: guardFused, Launches: fused,
		},
		kernels.EntryFor[linear.FusedGrad]{
			Types:    gradIn.Out(float("dx"), grads),
			Products: fusedGradProducts, Guard: guardFusedGrad, Launches: fusedGrad,
		},
		kernels.EntryFor[linear.FusedGrad]{ // without dx
			Types: gradIn.Out(grads), Products: fusedGradProducts, Guard: guardFusedGrad, Launches: fusedGrad,
		},
	)
}

// fewFusedRows is the layers of an op for few rows.
func fewFusedRows(c *kernels.Call, op linear.Fused) fewRows {
	x, ws, _, _ := linear.SplitFused(op, len(c.Out), c.In)
	return fewRows{x, ws, c.Out, op.Norm != 0}
}

// guardFewFused returns the guard of layers of the RMSNorm of x, or of x itself.
func guardFewFused(norm bool) func(*kernels.Call, linear.Fused) error {
	return func(c *kernels.Call, op linear.Fused) error {
		switch {
		case norm != (op.Norm != 0):
			return graph.Refuse(graph.ReasonShape, "has a norm: %v, want %v", op.Norm != 0, norm)
		case slices.Contains(op.Rotated[:len(c.Out)], true):
			return graph.Refuse(graph.ReasonShape, "a result is rotated, which the kernel does not do")
		}
		return fewFusedRows(c, op).guard(c)
	}
}

func fewFused(b *kernels.Builder, op linear.Fused) {
	_, _, biases, gain := linear.SplitFused(op, len(b.Out), b.In)
	fewFusedRows(&b.Call, op).add(b, func(p *fewParams) {
		for i := range b.Out {
			if p.activation[i] = int32(op.Activation[i]); op.Bias[i] {
				p.bias[i], biases = biases[0].Ref, biases[1:]
			}
		}
		if op.Norm != 0 {
			p.gain, p.eps = gain[0].Ref, float32(op.Norm)
		}
	})
}

func fusedProducts(c *kernels.Call, op linear.Fused) []kernels.Product {
	x, ws, biases, _ := linear.SplitFused(op, len(c.Out), c.In)
	in, bias := ws[0].Dim(1), len(biases) > 0
	p := kernels.Product{Type: c.Type, Out: c.Type, M: x.N() / in, N: totalRows(ws), K: in, TransB: true, Bias: bias}
	return []kernels.Product{p}
}

func totalRows(ws []kernels.Operand) (total int64) {
	for _, w := range ws {
		total += w.Dim(0)
	}
	return total
}

// fusedColumns returns the results as columns of one matrix.
func fusedColumns(c *kernels.Call, op linear.Fused) columns {
	_, ws, _, _ := linear.SplitFused(op, len(c.Out), c.In)
	y := columns{rotated: op.Rotated, rope: op.RoPE}
	for i, w := range ws {
		y.parts, y.cols = append(y.parts, c.Out[i:i+1]), append(y.cols, w.Dim(0))
	}
	return y
}

func guardFused(c *kernels.Call, op linear.Fused) error {
	if op.Norm != 0 || op.Activation != [linear.MaxFused]linear.Activation{} {
		return graph.Refuse(graph.ReasonShape, "has a norm or an activation, which a matrix product does not compute")
	}
	return fusedColumns(c, op).guard(c)
}

// fused adds x [rows,in], w_i [out_i,in], biases -> y_i [rows,out_i].
func fused(b *kernels.Builder, op linear.Fused) {
	x, ws, biases, _ := linear.SplitFused(op, len(b.Out), b.In)
	p, y, size := fusedProducts(&b.Call, op)[0], fusedColumns(&b.Call, op), int64(b.Type.Bytes())
	w, copies := gather(b, ws)
	bias := kernels.Ref(0)
	if len(biases) > 0 {
		bias = b.Work(p.N * size)
		at := bias
		for i, cols := range y.cols {
			c := memory.Copy{To: at, Bytes: cols * size}
			if op.Bias[i] {
				c.From, biases = biases[0].Ref, biases[1:]
			}
			copies, at = append(copies, c), at.Plus(c.Bytes)
		}
	}
	memory.AddCopies(b, copies...)
	y.joint = b.Work(p.M * p.N * size)
	matmul.AddProduct(b, p, x.Ref, w, bias, y.joint)
	y.addSplit(b)
}

// fusedGradProducts returns the products of dw and, if there is a dx, of dx.
func fusedGradProducts(c *kernels.Call, op linear.FusedGrad) []kernels.Product {
	dws, _ := fusedGrads(c, op)
	total, in, rows := totalRows(dws), int64(op.In), c.In[0].N()/int64(op.In)
	dw := kernels.Product{Type: c.Type, Out: dws[0].Type(), M: total, N: in, K: rows, TransA: true}
	if op.WeightsOnly {
		return []kernels.Product{dw}
	}
	return []kernels.Product{dw, {Type: c.Type, Out: c.Type, M: rows, N: in, K: total}}
}

// fusedGradColumns returns all dy as columns of one matrix.
func fusedGradColumns(c *kernels.Call, op linear.FusedGrad) columns {
	_, dys, _ := linear.SplitFusedGrad(op, c.In)
	dy := columns{parts: dys, rotated: op.Rotated, rope: op.RoPE}
	dws, _ := fusedGrads(c, op)
	for _, dw := range dws {
		dy.cols = append(dy.cols, dw.Dim(0))
	}
	return dy
}

// fusedGrads returns dw_i and dx, or x if there is no dx.
func fusedGrads(c *kernels.Call, op linear.FusedGrad) (dws []kernels.Operand, dx kernels.Operand) {
	if op.WeightsOnly {
		return c.Out, c.In[0]
	}
	return c.Out[1:], c.Out[0]
}

func guardFusedGrad(c *kernels.Call, op linear.FusedGrad) error {
	dws, dx := fusedGrads(c, op)
	for _, dw := range dws {
		if dw.Type() != dws[0].Type() || dx.Type() != c.Type {
			const text = "dx is %v, dw are %v and %v, want dx of %v and all dw of one type"
			return graph.Refuse(graph.ReasonType, text, dx, dws[0], dw, c.Type)
		}
	}
	return fusedGradColumns(c, op).guard(c)
}

// fusedGrad adds x [rows,in], dy_i [rows,out_i], w_i [out_i,in] -> dx [rows,in], dw_i [out_i,in]. w_i and dx are
// optional.
func fusedGrad(b *kernels.Builder, op linear.FusedGrad) {
	x, _, ws := linear.SplitFusedGrad(op, b.In)
	dws, dx := fusedGrads(&b.Call, op)
	products, dy := fusedGradProducts(&b.Call, op), fusedGradColumns(&b.Call, op)
	dy.joint = b.Work(products[0].K * products[0].M * int64(b.Type.Bytes()))
	dy.addJoin(b)
	dw, copies := gather(b, dws)
	matmul.AddProduct(b, products[0], dy.joint, x.Ref, 0, dw)
	for i, c := range copies {
		copies[i].From, copies[i].To = c.To, c.From
	}
	memory.AddCopies(b, copies...)
	if !op.WeightsOnly {
		w, copies := gather(b, ws)
		memory.AddCopies(b, copies...)
		matmul.AddProduct(b, products[1], dy.joint, w, 0, dx.Ref)
	}
}

// gather returns memory that holds the arrays one after the other, and the copies that fill it. If the arrays already
// lie so, it returns their own memory and no copies.
func gather(b *kernels.Builder, list []kernels.Operand) (to kernels.Ref, copies []memory.Copy) {
	if !slices.ContainsFunc(list[1:], func(o kernels.Operand) bool { return !o.Adjacent }) {
		return list[0].Ref, nil
	}
	total := int64(0)
	for _, o := range list {
		total += int64(o.Bytes())
	}
	to = b.Work(total)
	at := to
	for _, o := range list {
		copies = append(copies, memory.Copy{From: o.Ref, To: at, Bytes: int64(o.Bytes())})
		at = at.Plus(int64(o.Bytes()))
	}
	return to, copies
}
