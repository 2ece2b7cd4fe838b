package linear

import (
	"slices"

	"github.com/gorgonia-nsa/nsa/cuda/internal/kernels"
	"github.com/gorgonia-nsa/nsa/cuda/internal/kernels/matmul"
	"github.com/gorgonia-nsa/nsa/cuda/internal/kernels/memory"
	"github.com/gorgonia-nsa/nsa/graph"
	"github.com/gorgonia-nsa/nsa/ops/spec/linear"
)

// Several linear layers of one input are one product. Their weights lie one after the other in memory, or are copied there. One kernel
// splits or joins the columns. So x is read once: for a layer of 128 outputs, reading x takes longer than the product.

// linears adds x [rows,in], w_i [out_i,in], biases -> y_i [rows,out_i].
func linears(b *kernels.Builder, op linear.Fused) error {
	if op.Norm != 0 || op.Activation != [linear.MaxFused]linear.Activation{} {
		return graph.Refuse(graph.ReasonShape, "has a norm or an activation, which a matrix product does not compute")
	}
	x, ws, biases, _ := linear.SplitFused(op, len(b.Out), b.In)
	in, size := ws[0].Dim(1), int64(b.Type.Bytes())
	y := Columns{Rotated: op.Rotated, RoPE: op.RoPE}
	total := int64(0)
	for i, w := range ws {
		y.Parts = append(y.Parts, b.Out[i:i+1])
		y.Cols = append(y.Cols, w.Dim(0))
		total += w.Dim(0)
	}
	w, copies := gather(b, ws)
	bias := kernels.Ref(0)
	if len(biases) > 0 {
		bias = b.Work(total * size)
		at := bias
		for i, cols := range y.Cols {
			c := memory.Transfer{To: at, Bytes: cols * size}
			if op.Bias[i] {
				c.From, biases = biases[0].Ref, biases[1:]
			}
			copies, at = append(copies, c), at.Plus(c.Bytes)
		}
	}
	memory.Copy(b, copies...)
	p := kernels.Product{Type: b.Type, Out: b.Type, M: x.N() / in, N: total, K: in, TransB: true}
	y.Joint = b.Work(p.M * total * size)
	matmul.Multiply(b, p, x.Ref, w, bias, y.Joint)
	return y.Split(b)
}

// linearsGrad adds x [rows,in], dy_i [rows,out_i], w_i [out_i,in] -> dx [rows,in], dw_i [out_i,in]. w_i and dx are optional.
func linearsGrad(b *kernels.Builder, op linear.FusedGrad) error {
	dws, dx := b.Out, b.In[0]
	if !op.WeightsOnly {
		dx, dws = b.Out[0], b.Out[1:]
	}
	x, dys, ws := linear.SplitFusedGrad(op, b.In)
	out := b.TypeOf(dws[0])
	for _, dw := range dws {
		if b.TypeOf(dw) != out || b.TypeOf(dx) != b.Type {
			return graph.Refuse(graph.ReasonType, "dx is %v, dw are %v and %v, want dx of %v and all dw of one type", dx.Dtype, dws[0].Dtype, dw.Dtype, b.Type)
		}
	}
	dy := Columns{Parts: dys, Rotated: op.Rotated, RoPE: op.RoPE}
	total := int64(0)
	for _, dw := range dws {
		dy.Cols = append(dy.Cols, dw.Dim(0))
		total += dw.Dim(0)
	}
	in := int64(op.In)
	count := x.N() / in
	dy.Joint = b.Work(count * total * int64(b.Type.Bytes()))
	if err := dy.Join(b); err != nil {
		return err
	}
	dw, copies := gather(b, dws)
	matmul.Multiply(b, kernels.Product{Type: b.Type, Out: out, M: total, N: in, K: count, TransA: true}, dy.Joint, x.Ref, 0, dw)
	for i, c := range copies {
		copies[i].From, copies[i].To = c.To, c.From
	}
	memory.Copy(b, copies...)
	if !op.WeightsOnly {
		w, copies := gather(b, ws)
		memory.Copy(b, copies...)
		matmul.Multiply(b, kernels.Product{Type: b.Type, Out: b.Type, M: count, N: in, K: total}, dy.Joint, w, 0, dx.Ref)
	}
	return nil
}

// gather returns memory that holds the arrays one after the other, and the copies that fill it. If the arrays already lie so, it
// returns their own memory and no copies.
func gather(b *kernels.Builder, list []kernels.Operand) (to kernels.Ref, copies []memory.Transfer) {
	if !slices.ContainsFunc(list[1:], func(o kernels.Operand) bool { return !o.Follows }) {
		return list[0].Ref, nil
	}
	total := int64(0)
	for _, o := range list {
		total += int64(o.Bytes())
	}
	to = b.Work(total)
	at := to
	for _, o := range list {
		copies = append(copies, memory.Transfer{From: o.Ref, To: at, Bytes: int64(o.Bytes())})
		at = at.Plus(int64(o.Bytes()))
	}
	return to, copies
}
