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

// setTraining tells t whether a run trains. The running statistics of a BatchNormOp go on from run to run, and from
// training to evaluation and back, though its SetTraining resets them: only those of a new op, which are all zero, are
// set to mean 0 and variance 1.
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

// batchNormGrad returns the gradient in evaluation from the gradient g of the result, x[1], of this shape:
// g/sqrt(running variance + eps). Gorgonia takes another variance.
func batchNormGrad[T cpu.Float](n *G.BatchNormOp, shape tensor.Shape) func(y []T, x [][]T) {
	eps, channels, area := fieldOf(n, "epsilon").Float(), shape[1], tensor.ProdInts(shape[2:])
	return func(y []T, x [][]T) {
		_, variance := n.Stats()
		running, _ := variance.Data().([]T)
		for i, g := range x[1] {
			y[i] = T(float64(g) / math.Sqrt(float64(running[i/area%channels])+eps))
		}
	}
}
