package optimizer

import (
	"errors"
	"fmt"
	"math"

	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/internal/cpu"
	"github.com/gorgonia-nsa/nsa/ops/spec"
)

// SumSquares is the Spec of sums of squares: tensors of one type and any shapes -> float64 [n], a sum for each run of
// spec.PieceElements elements of a tensor; the last run of a tensor may be shorter.
type SumSquares struct{}

func (SumSquares) Name() string       { return "sum of squares" }
func (SumSquares) InsertedBy() string { return insertedBy }

// insertedBy says how the ops of this package come into a plan.
const insertedBy = "graph.WithOptimizer inserts it"

func (SumSquares) Infer(in []spec.Operand) ([]spec.Operand, error) {
	if len(in) == 0 {
		return nil, errors.New("no tensors")
	}
	want := make([]spec.InputRule, len(in))
	for i := range want {
		want[i] = spec.FloatInput(spec.Numbered("tensor", i), 0).OrMore()
	}
	runs := len(piecesOf(len(in), func(i int) int { return in[i].Elements() }))
	return []spec.Operand{{Dtype: tensor.Float64, Shape: tensor.Shape{runs}}}, spec.WantInputs(in, want...)
}

func (SumSquares) Bind(k *cpu.Kernel, in, out []spec.Arg) {
	spec.ByType(in[0].Dtype, bindSumSquares[float32], bindSumSquares[float64])(k, in, out[0])
}

func bindSumSquares[T cpu.Float](k *cpu.Kernel, in []spec.Arg, sums spec.Arg) {
	pieces := piecesOf(len(in), func(i int) int { return in[i].Elements() })
	k.Phase(len(pieces), func(i int, _ *cpu.Worker) {
		p := pieces[i]
		cpu.Slice[float64](sums.Buf)[i] = cpu.SumSquares(cpu.Slice[T](in[p.tensor].Buf)[p.lo:p.hi])
	})
}

// GradNorm is the Spec of the global norm of gradients: hyper, float64 [10] as Hyper.Write writes it, and the sums of
// squares of all gradients, float64 [n] -> norm, float64 [1], divided by the scale of the gradients.
type GradNorm struct{}

func (GradNorm) Name() string       { return "gradient norm" }
func (GradNorm) InsertedBy() string { return insertedBy }

func (GradNorm) Infer(in []spec.Operand) ([]spec.Operand, error) {
	if len(in) != 2 {
		return nil, fmt.Errorf("%d inputs, want 2", len(in))
	}
	if in[1].Dtype != tensor.Float64 || in[1].Shape.Dims() != 1 {
		return nil, fmt.Errorf("squares is %v, want float64 [n]", in[1])
	}
	return []spec.Operand{normOperand}, wantScalars(in[:1])
}

func (GradNorm) Bind(k *cpu.Kernel, in, out []spec.Arg) {
	k.Phase(1, func(int, *cpu.Worker) {
		sum := 0.0
		for _, s := range cpu.Slice[float64](in[1].Buf) {
			sum += s
		}
		cpu.Slice[float64](out[0].Buf)[0] = math.Sqrt(sum) * cpu.Slice[float64](in[0].Buf)[hyperUnscale]
	})
}
