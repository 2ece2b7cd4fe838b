package ref

// Linear returns x Wᵀ + bias: x [...,in], w [out,in], bias [out] or nil -> [...,out].
func Linear(x, w, bias *Tensor) *Tensor {
	in, out := w.Shape[1], w.Shape[0]
	shape := append([]int(nil), x.Shape...)
	shape[len(shape)-1] = out
	y := New(shape...)
	for i := range size(shape) / out {
		row, dst := x.Data[i*in:(i+1)*in], y.Data[i*out:(i+1)*out]
		for j := range dst {
			dst[j] = dot(row, w.Row(j))
		}
		if bias != nil {
			axpy(1, bias.Data, dst)
		}
	}
	return y
}

// LinearGrad returns the gradients of Linear with respect to x, w and bias from dy [...,out].
func LinearGrad(x, w, dy *Tensor) (dx, dw, dbias *Tensor) {
	in, out := w.Shape[1], w.Shape[0]
	dx, dw, dbias = like(x), like(w), New(out)
	for i := range len(dy.Data) / out {
		row, drow, dst := x.Data[i*in:(i+1)*in], dx.Data[i*in:(i+1)*in], dy.Data[i*out:(i+1)*out]
		for j, g := range dst {
			axpy(g, w.Row(j), drow)
			axpy(g, row, dw.Row(j))
		}
		axpy(1, dst, dbias.Data)
	}
	return dx, dw, dbias
}

// Embedding returns the rows of w [V,dim] that ids names: [len(ids),dim].
func Embedding(w *Tensor, ids []int32) *Tensor {
	y := New(len(ids), w.Shape[1])
	for i, id := range ids {
		copy(y.Row(i), w.Row(int(id)))
	}
	return y
}

// EmbeddingGrad returns dw [V,dim] from dy [len(ids),dim]: each row is the sum of dy over the places of its id.
func EmbeddingGrad(dy *Tensor, ids []int32, V int) *Tensor {
	dw := New(V, dy.Last())
	for i, id := range ids {
		axpy(1, dy.Data[i*dy.Last():(i+1)*dy.Last()], dw.Row(int(id)))
	}
	return dw
}

// GatedSum returns the sum of gate*output over the branches: gates [B,S,Hq,n], each of the n outputs
// [B,S,Hq,Dv] -> [B,S,Hq,Dv]. NSA has three branches, in the order compressed, selected, window.
func GatedSum(gates *Tensor, outputs ...*Tensor) *Tensor {
	y := like(outputs[0])
	n, dv := gates.Last(), y.Last()
	for i := range len(gates.Data) / n {
		for j, o := range outputs {
			axpy(gates.Data[i*n+j], o.Data[i*dv:(i+1)*dv], y.Data[i*dv:(i+1)*dv])
		}
	}
	return y
}

// GatedSumGrad returns the gradients of GatedSum with respect to the gates and each output from dy [B,S,Hq,Dv].
func GatedSumGrad(gates, dy *Tensor, outputs ...*Tensor) (dgates *Tensor, doutputs []*Tensor) {
	dgates = like(gates)
	n, dv := gates.Last(), dy.Last()
	for j, o := range outputs {
		do := like(o)
		for i := range len(gates.Data) / n {
			row := dy.Data[i*dv : (i+1)*dv]
			axpy(gates.Data[i*n+j], row, do.Data[i*dv:(i+1)*dv])
			dgates.Data[i*n+j] = dot(row, o.Data[i*dv:(i+1)*dv])
		}
		doutputs = append(doutputs, do)
	}
	return dgates, doutputs
}
