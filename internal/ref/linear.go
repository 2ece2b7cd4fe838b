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
