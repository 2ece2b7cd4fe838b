package ref

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
