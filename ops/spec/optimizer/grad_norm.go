package optimizer

import (
	"errors"
	"math"

	"github.com/gorgonia-nsa/nsa/internal/cpu"
	"github.com/gorgonia-nsa/nsa/ops/spec"
)

// GradNorm is the Spec of the global norm of gradients: hyper, float64 [10] as Hyper.Write writes it, and gradients of
// one type and any shapes -> norm, float64 [1], of all gradients together, divided by their scale.
type GradNorm struct{}

func (GradNorm) Name() string       { return "gradient norm" }
func (GradNorm) InsertedBy() string { return insertedBy }

// insertedBy says how the ops of this package come into a plan.
const insertedBy = "graph.WithOptimizer inserts it"

func (GradNorm) Infer(in []spec.Operand) ([]spec.Operand, error) {
	if len(in) < 2 {
		return nil, errors.New("no gradients")
	}
	if err := wantScalars(in[:1]); err != nil {
		return nil, err
	}
	want := make([]spec.InputRule, len(in)-1)
	for i := range want {
		want[i] = spec.FloatInput(spec.Numbered("grad", i), 0).OrMore()
	}
	return []spec.Operand{normOperand}, spec.WantInputs(in[1:], want...)
}

func (GradNorm) Bind(k *cpu.Kernel, in, out []spec.Arg) {
	spec.ByType(in[1].Dtype, bindGradNorm[float32], bindGradNorm[float64])(k, in[0], in[1:], out[0])
}

func bindGradNorm[T cpu.Float](k *cpu.Kernel, hyper spec.Arg, grads []spec.Arg, norm spec.Arg) {
	pieces := piecesOf(len(grads), func(i int) int { return grads[i].Elements() })
	sums := cpu.Work[float64](k, len(pieces))
	k.Phase(len(pieces), func(i int, _ *cpu.Worker) {
		p := pieces[i]
		cpu.Slice[float64](sums)[i] = cpu.SumSquares(cpu.Slice[T](grads[p.tensor].Buf)[p.lo:p.hi])
	})
	k.Phase(1, func(int, *cpu.Worker) {
		sum := 0.0
		for _, s := range cpu.Slice[float64](sums) {
			sum += s
		}
		cpu.Slice[float64](norm.Buf)[0] = math.Sqrt(sum) * cpu.Slice[float64](hyper.Buf)[hyperUnscale]
	})
}
