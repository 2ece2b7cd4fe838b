package ops

import (
	"fmt"
	"math"

	"gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/internal/cpu"
)

// CrossEntropy returns, as a scalar, the mean in nats of -log softmax(logits)[target] over the targets that are not -1; 0 if all
// are -1. logits are [B,S,V] or [N,V], targets [B,S] or [N] of int32 or int. int is converted on the host first, as in
// Embedding. A target outside [-1,V) is an error of the run that names the target, its position and V. logits have a gradient.
func CrossEntropy(logits, targets *gorgonia.Node) (*gorgonia.Node, error) {
	targets, err := int32Input(CrossEntropyOp{}, "targets", targets)
	if err != nil {
		return nil, err
	}
	return Apply(CrossEntropyOp{}, logits, targets)
}

// CrossEntropyOp is the Spec of CrossEntropy: logits, targets -> loss, lse. The second output, of the targets' shape, is
// the log of the sum of the exponentials of each row of logits, which the gradient needs.
type CrossEntropyOp struct{}

func (CrossEntropyOp) Name() string { return "cross entropy" }

func (CrossEntropyOp) Infer(in []Operand) ([]Operand, error) {
	if err := wantInputs(in, floatInput("logits", 0).orMore(), indexInput("targets", 0).orMore()); err != nil {
		return nil, err
	}
	s := in[0].Shape
	if n := s.Dims(); n != 2 && n != 3 {
		return nil, fmt.Errorf("logits has rank %d %v, want rank 2 or 3", n, s)
	}
	rows := s[:s.Dims()-1].Clone()
	return []Operand{{in[0].Dtype, tensor.Shape{}}, {in[0].Dtype, rows}}, wantShape("targets", in[1].Shape, rows...)
}

func (CrossEntropyOp) Bind(k *cpu.Kernel, in, out []Arg) {
	bindCheck(k, CrossEntropyOp{}, in)
	byType(in[0].Dtype, bindCrossEntropy[float32], bindCrossEntropy[float64])(k, in[0], in[1], out[0], out[1])
}

func (CrossEntropyOp) CheckedInput() int { return 1 }

func (CrossEntropyOp) Check(in []Operand, b *cpu.Buf) error {
	return checkTokens("target", Arg{in[1], b}, in[0].last(), -1)
}

// bindCrossEntropy sums the losses of each piece's rows in float64, then the pieces in ascending order.
func bindCrossEntropy[T cpu.Float](k *cpu.Kernel, logits, targets, loss, lse Arg) {
	vocab, rows := logits.last(), targets.Elements()
	size := rowsPerPiece(vocab)
	sums := cpu.Work[float64](k, cpu.CeilDiv(rows, size))
	exps := cpu.Scratch[T](k, min(vocab, expBlock))
	k.Phase(cpu.CeilDiv(rows, size), func(piece int, w *cpu.Worker) {
		lo, hi := pieceBounds(piece, size, rows)
		sum, exp := 0.0, exps.Local(w)
		for i := lo; i < hi; i++ {
			row := cpu.Slice[T](logits.Buf)[i*vocab:][:vocab]
			top := cpu.Max(row)
			logSum := math.Log(expSum(exp, row, top))
			cpu.Slice[T](lse.Buf)[i] = T(float64(top) + logSum)
			if target := cpu.Slice[int32](targets.Buf)[i]; target >= 0 {
				sum += logSum + (float64(top) - float64(row[target])) // the distance first: a large logit would swallow logSum
			}
		}
		cpu.Slice[float64](sums)[piece] = sum
	})
	k.Phase(1, func(int, *cpu.Worker) {
		sum := 0.0
		for _, s := range cpu.Slice[float64](sums) {
			sum += s
		}
		cpu.Slice[T](loss.Buf)[0] = T(sum / float64(max(1, countTargets(targets))))
	})
}

// countTargets returns the number of targets that are not ignored.
func countTargets(targets Arg) int {
	n := 0
	for _, t := range cpu.Slice[int32](targets.Buf) {
		if t >= 0 {
			n++
		}
	}
	return n
}

func (CrossEntropyOp) Grad(_ []bool, in gorgonia.Nodes, loss, dloss *gorgonia.Node) (gorgonia.Nodes, error) {
	lse, err := Output(loss, 1)
	if err != nil {
		return nil, err
	}
	return applyOutputs(CrossEntropyGradOp{}, 1, in[0], in[1], lse, dloss)
}

// CrossEntropyGradOp is the Spec of the gradient of CrossEntropy: logits, targets, lse, dloss (scalar) -> dlogits =
// (exp(logits-lse) - onehot(target))*dloss/count, where count is the number of targets that are not -1. The rows of the other
// targets are zero. The softmax is computed in the memory of dlogits.
type CrossEntropyGradOp struct{}

func (CrossEntropyGradOp) Name() string { return "gradient of cross entropy" }

func (CrossEntropyGradOp) Infer(in []Operand) ([]Operand, error) {
	in, err := inferWithMore(CrossEntropyOp{}, 2, in, likeOutput{"lse", 1}, likeOutput{"dloss", 0})
	if err != nil {
		return nil, err
	}
	return in[:1], nil
}

func (CrossEntropyGradOp) Bind(k *cpu.Kernel, in, out []Arg) {
	bindCheck(k, CrossEntropyOp{}, in)
	byType(in[0].Dtype, bindCrossEntropyGrad[float32], bindCrossEntropyGrad[float64])(k, in, out[0])
}

func bindCrossEntropyGrad[T cpu.Float](k *cpu.Kernel, in []Arg, dlogits Arg) {
	logits, targets, lse, dloss := in[0], in[1], in[2], in[3]
	vocab, rows := logits.last(), targets.Elements()
	scale := cpu.Work[T](k, 1) // dloss/count
	k.Phase(1, func(int, *cpu.Worker) {
		cpu.Slice[T](scale)[0] = cpu.Slice[T](dloss.Buf)[0] / T(max(1, countTargets(targets)))
	})
	bindRows(k, rows, vocab, func(lo, hi int) {
		for i := lo; i < hi; i++ {
			dst, target := cpu.Slice[T](dlogits.Buf)[i*vocab:][:vocab], cpu.Slice[int32](targets.Buf)[i]
			if target < 0 {
				clear(dst)
				continue
			}
			row, l := cpu.Slice[T](logits.Buf)[i*vocab:][:vocab], cpu.Slice[T](lse.Buf)[i]
			if isLarge(l) { // lse is too coarse, see large
				top := cpu.Max(row)
				cpu.Scale(dst, T(1/expSum(dst, row, top)))
			} else {
				cpu.ExpSum(dst, row, 1, l)
			}
			dst[target]--
			cpu.Scale(dst, cpu.Slice[T](scale)[0])
		}
	})
}
