package ops

// counted is a Spec of matrix products or of attention.
type counted interface{ flops(in []Operand) float64 }

// FLOPs returns the floating-point operations of the products in an op with these inputs, a multiplication and an addition
// being two; of attention, those of the pairs of a query and a key that are seen. It is 0 for an op without products.
func FLOPs(s Spec, in []Operand) float64 {
	if c, ok := s.(counted); ok {
		return c.flops(in)
	}
	return 0
}

// attentionFLOPs counts perKey operations for each element of a key and perValue for each of a value, for each pair of a
// query and a key in each head of q [B,S,Hq,D]. Forward these are 2 and 2, in the gradient 6 and 4.
func attentionFLOPs(a attentionSpec, in []Operand, perKey, perValue float64) float64 {
	q, v := in[0].Shape, in[2].Shape
	return float64(q[0]*q[2]) * a.pairs(in) * (perKey*float64(q[3]) + perValue*float64(v[3]))
}
