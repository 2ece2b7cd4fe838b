package graph

import (
	"math"
	"reflect"

	G "gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/internal/cpu"
)

// batchNormOf returns the BatchNormOp that op is, or is the gradient of; else nil.
func batchNormOf(op G.Op) *G.BatchNormOp {
	switch gorgoniaType(op) {
	case "BatchNormOp", "batchnormDiffOp":
		if n, ok := op.(*G.BatchNormOp); ok {
			return n
		}
		n, _ := reflect.Indirect(reflect.ValueOf(op)).FieldByName("BatchNormOp").Interface().(*G.BatchNormOp)
		return n
	}
	return nil
}

// setTraining tells t whether a run trains. The running statistics of a BatchNormOp go on from run to run, and from training to evaluation and
// back, though its SetTraining resets them: only those of a new op, which are all zero, are set to mean 0 and variance 1.
func setTraining(t G.TrainModeOp, training bool) error {
	op, _ := t.(G.Op)
	n := batchNormOf(op)
	if n == nil || !training {
		return t.SetTraining(training)
	}
	mean, variance := n.Stats()
	switch {
	case allZero(mean.Data()) && allZero(variance.Data()):
		return n.SetTraining(true)
	case boolField(n, "training"):
		return nil
	}
	mean, variance = mean.Clone().(tensor.Tensor), variance.Clone().(tensor.Tensor)
	if err := n.SetTraining(true); err != nil {
		return err
	}
	return n.SetStats(mean, variance)
}

// batchNormGrad returns the gradient from the input x[0], [B,C,...], and the gradient g of the result, x[1]: by the statistics of the
// batch as groupNormGrad does, in evaluation g/sqrt(running variance + eps). Gorgonia takes another variance in evaluation.
func batchNormGrad[T cpu.Float](n *G.BatchNormOp, shape tensor.Shape) func(y []T, x [][]T) {
	training, eps := fieldOf(n, "training"), fieldOf(n, "epsilon").Float()
	channels, area := shape[1], tensor.ProdInts(shape[2:])
	count := shape[0] * area
	in, grad, out := make([]T, count), make([]T, count), make([]T, count)
	inChannel := groupNormGrad[T](count, eps)
	return func(y []T, x [][]T) {
		for c := range channels {
			rows := func(f func(at, row int)) { // places of a channel's numbers, which are contiguous in an image
				for b := range shape[0] {
					f((b*channels+c)*area, b*area)
				}
			}
			if !training.Bool() {
				_, variance := n.Stats()
				running, _ := variance.Data().([]T)
				rstd := 1 / math.Sqrt(float64(running[c])+eps)
				rows(func(at, _ int) {
					for i, g := range x[1][at:][:area] {
						y[at+i] = T(float64(g) * rstd)
					}
				})
				continue
			}
			rows(func(at, row int) {
				copy(in[row:], x[0][at:][:area])
				copy(grad[row:], x[1][at:][:area])
			})
			inChannel(out, [][]T{in, grad})
			rows(func(at, row int) { copy(y[at:][:area], out[row:]) })
		}
	}
}
