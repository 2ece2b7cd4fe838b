package ops_test

import (
	"testing"

	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/internal/cpu"
	"github.com/gorgonia-nsa/nsa/internal/opcases"
	"github.com/gorgonia-nsa/nsa/ops"
)

// BenchmarkOps runs each Spec of the large cases on all processors. It reports the operations of ops.FLOPs and the bytes of
// the operands, each read or written once. Model sizes are measured by go run ./bench -suite ops.
func BenchmarkOps(b *testing.B) {
	for _, c := range ofSize(opcases.Large) {
		calls(b, c, nil, func(spec ops.Spec, in []array) []array {
			b.Run(c.Name+"/"+spec.Name(), func(b *testing.B) { benchmark(b, spec, in...) })
			return outputs(b, spec, tensor.Float32, in...)
		})
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
