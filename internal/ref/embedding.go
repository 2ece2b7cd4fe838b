package ref

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
