package ref

// CrossEntropy returns the mean of -log softmax(logits)[target] in nats over the targets that are not negative.
// Negative targets (-1) are ignored. The result is 0 if all are negative. logits [...,V] has one row for each target.
func CrossEntropy(logits *Tensor, targets []int32) float64 {
	var sum float64
	lse := LogSumExp(logits)
	for i, y := range targets {
		if y >= 0 {
			sum += lse.Data[i] - logits.Data[i*logits.Last()+int(y)]
		}
	}
	return sum / float64(max(1, count(targets)))
}

// CrossEntropyGrad returns the gradient of CrossEntropy with respect to logits: (softmax - onehot(target)) / count in
// the rows of targets that are not negative, 0 in the others.
func CrossEntropyGrad(logits *Tensor, targets []int32) *Tensor {
	p, d, V, n := Softmax(logits), like(logits), logits.Last(), count(targets)
	for i, y := range targets {
		if y >= 0 {
			p.Data[i*V+int(y)]--
			axpy(1/float64(n), p.Data[i*V:(i+1)*V], d.Data[i*V:(i+1)*V])
		}
	}
	return d
}

// count returns the number of targets that are not negative.
func count(targets []int32) (n int) {
	for _, y := range targets {
		if y >= 0 {
			n++
		}
	}
	return n
}
