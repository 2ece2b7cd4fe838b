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
func attentionFLOPs(q, v Operand, perKey, perValue, pairs float64) float64 {
	return float64(q.Shape[0]*q.Shape[2]) * pairs * (perKey*float64(q.Shape[3]) + perValue*float64(v.Shape[3]))
}

// sumOverQueries adds up the keys that the queries 0 to s-1 see.
func sumOverQueries(s int, keys func(t int) int) float64 {
	n := 0
	for t := range s {
		n += keys(t)
	}
	return float64(n)
}

func windowPairs(s, window int) float64 {
	return sumOverQueries(s, func(t int) int { return min(t+1, window) })
}

func compressedPairs(s, length, stride int) float64 {
	return sumOverQueries(s, func(t int) int { return NumVisible(t, length, stride) })
}

// selectedPairs counts the keys of n blocks, of which the newest ends at the query.
func selectedPairs(s, block, n int) float64 {
	return sumOverQueries(s, func(t int) int { return min(t+1, (n-1)*block+t%block+1) })
}
