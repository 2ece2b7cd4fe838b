package ops_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/internal/cpu"
	"github.com/gorgonia-nsa/nsa/internal/opcases"
	"github.com/gorgonia-nsa/nsa/ops"
)

// BenchmarkOps runs each Spec of the large cases on all processors. It reports the operations of ops.FLOPs and the bytes of
// the operands, each read or written once. Model sizes are measured by go run ./bench -suite ops.
func BenchmarkOps(b *testing.B) {
	for _, c := range ofSize(opcases.Large) {
		plan, err := c.Plan()
		require.NoError(b, err)
		arrays := append(plan.Inputs, make([]array, plan.Arrays-len(plan.Inputs))...)
		for _, call := range plan.Calls {
			var in []array
			for _, i := range call.In {
				in = append(in, arrays[i])
			}
			for i, a := range outputs(b, call.Spec, tensor.Float32, in...) {
				arrays[call.Out[i]] = a
			}
			b.Run(c.Name+"/"+call.Spec.Name(), func(b *testing.B) { benchmark(b, call.Spec, in...) })
		}
	}
}

func benchmark(b *testing.B, spec ops.Spec, inputs ...array) {
	team := cpu.NewTeam(0)
	x := bind(b, spec, tensor.Float32, team.Workers(), inputs...)
	bytes, operands := 0, []ops.Operand{}
	for _, o := range append(x.in, x.out...) {
		bytes += o.Operand.Bytes()
		operands = append(operands, o.Operand)
	}
	b.ReportAllocs()
	for b.Loop() {
		if err := team.Run(&x.kernel, x.mem); err != nil {
			b.Fatal(err)
		}
	}
	perSecond := float64(b.N) / b.Elapsed().Seconds() / 1e9
	b.ReportMetric(ops.FLOPs(spec, operands[:len(x.in)])*perSecond, "GFLOP/s")
	b.ReportMetric(float64(bytes)*perSecond, "GB/s")
}
