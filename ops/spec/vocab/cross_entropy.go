package vocab

import (
	"fmt"
	"math"

	"gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/internal/cpu"
	"github.com/gorgonia-nsa/nsa/ops/spec"
	"github.com/gorgonia-nsa/nsa/ops/spec/norm"
)

// CrossEntropy is the Spec of CrossEntropy: logits, targets -> loss, lse, losses. Of the targets' shape are lse, the log
// of the sum of the exponentials of each row of logits, which the gradient needs, and losses, those of which loss is the
// mean; 0 for a target of -1.
type CrossEntropy struct{}

func (CrossEntropy) Name() string       { return "cross entropy" }
func (CrossEntropy) InputNames() string { return "logits targets" }

func (CrossEntropy) Infer(in []spec.Operand) ([]spec.Operand, error) {
	if err := spec.WantInputs(in, spec.FloatInput("logits", 0).OrMore(), spec.IndexInput("targets",
		0).OrMore()); err != nil {
		return nil, err
	}
	s := in[0].Shape
	if n := s.Dims(); n != 2 && n != 3 {
		return nil, fmt.Errorf("logits has rank %d %v, want rank 2 or 3", n, s)
	}
	rows := s[:s.Dims()-1].Clone()
	each := spec.Operand{Dtype: in[0].Dtype, Shape: rows}
	return []spec.Operand{{Dtype: in[0].Dtype, Shape: tensor.Shape{}}, each, each},
		spec.WantShape("targets", in[1].Shape, rows...)
}

func (CrossEntropy) Bind(k *cpu.Kernel, in, out []spec.Arg) {
	spec.BindCheck(k, CrossEntropy{}, in)
	spec.ByType(in[0].Dtype, bindCrossEntropy[float32], bindCrossEntropy[float64])(k, in[0], in[1], out)
}

func (CrossEntropy) CheckedInput() int { return 1 }

func (CrossEntropy) Check(in []spec.Operand, b *cpu.Buf) error {
	return checkTokens("target", spec.Arg{Operand: in[1], Buf: b}, in[0].Last(), -1)
}

// bindCrossEntropy sums the losses of each piece's rows in float64, then the pieces in ascending order.
func bindCrossEntropy[T cpu.Float](k *cpu.Kernel, logits, targets spec.Arg, out []spec.Arg) {
	loss, lse, losses := out[0], out[1], out[2]
	vocab, rows := logits.Last(), targets.Elements()
	size := spec.RowsPerPiece(vocab)
	sums := cpu.Work[float64](k, cpu.CeilDiv(rows, size))
	exps := cpu.Scratch[T](k, min(vocab, norm.ExpBlock))
	k.Phase(cpu.CeilDiv(rows, size), func(piece int, w *cpu.Worker) {
		lo, hi := spec.PieceBounds(piece, size, rows)
		sum, exp := 0.0, exps.Local(w)
		for i := lo; i < hi; i++ {
			row := cpu.Slice[T](logits.Buf)[i*vocab:][:vocab]
			top := cpu.Max(row)
			logSum := math.Log(norm.ExpSum(exp, row, top))
			cpu.Slice[T](lse.Buf)[i] = T(float64(top) + logSum)
			own := 0.0
			if target := cpu.Slice[int32](targets.Buf)[i]; target >= 0 {
				own = logSum + (float64(top) - float64(row[target])) // the distance first: a large logit would swallow logSum
			}
			cpu.Slice[T](losses.Buf)[i] = T(own)
			sum += own
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
func countTargets(targets spec.Arg) int {
	n := 0
	for _, t := range cpu.Slice[int32](targets.Buf) {
		if t >= 0 {
			n++
		}
	}
	return n
}

func (CrossEntropy) Grad(_ []bool, in gorgonia.Nodes, loss, dloss *gorgonia.Node) (gorgonia.Nodes, error) {
	lse, err := spec.Output(loss, 1)
	if err != nil {
		return nil, err
	}
	return spec.ApplyOutputs(CrossEntropyGrad{}, 1, in[0], in[1], lse, dloss)
}

// CrossEntropyGrad is the Spec of the gradient of CrossEntropy: logits, targets, lse, dloss (scalar) -> dlogits =
// (exp(logits-lse) - onehot(target))*dloss/count, where count is the number of targets that are not -1. The rows of the
// other targets are zero. The softmax is computed in the memory of dlogits.
type CrossEntropyGrad struct{}

func (CrossEntropyGrad) Name() string { return "gradient of cross entropy" }

func (CrossEntropyGrad) Infer(in []spec.Operand) ([]spec.Operand, error) {
	in, err := spec.InferWithMore(CrossEntropy{}, 2, in, spec.LikeOutput{Name: "lse", Output: 1},
		spec.LikeOutput{Name: "dloss", Output: 0})
	if err != nil {
		return nil, err
	}
	return in[:1], nil
}

func (CrossEntropyGrad) Bind(k *cpu.Kernel, in, out []spec.Arg) {
	spec.BindCheck(k, CrossEntropy{}, in)
	spec.ByType(in[0].Dtype, bindCrossEntropyGrad[float32], bindCrossEntropyGrad[float64])(k, in, out[0])
}

func bindCrossEntropyGrad[T cpu.Float](k *cpu.Kernel, in []spec.Arg, dlogits spec.Arg) {
	logits, targets, lse, dloss := in[0], in[1], in[2], in[3]
	vocab, rows := logits.Last(), targets.Elements()
	scale := cpu.Work[T](k, 1) // dloss/count
	k.Phase(1, func(int, *cpu.Worker) {
		cpu.Slice[T](scale)[0] = cpu.Slice[T](dloss.Buf)[0] / T(max(1, countTargets(targets)))
	})
	spec.BindRows(k, rows, vocab, func(lo, hi int) {
		for i := lo; i < hi; i++ {
			dst, target := cpu.Slice[T](dlogits.Buf)[i*vocab:][:vocab], cpu.Slice[int32](targets.Buf)[i]
			if target < 0 {
				clear(dst)
				continue
			}
			row, l := cpu.Slice[T](logits.Buf)[i*vocab:][:vocab], cpu.Slice[T](lse.Buf)[i]
			if norm.IsLarge(l) { // lse is too coarse, see large
				top := cpu.Max(row)
				cpu.Scale(dst, T(1/norm.ExpSum(dst, row, top)))
			} else {
				cpu.ExpSum(dst, row, 1, l)
			}
			dst[target]--
			cpu.Scale(dst, cpu.Slice[T](scale)[0])
		}
	})
}
