package cuda_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/cuda"
	"github.com/gorgonia-nsa/nsa/graph"
	"github.com/gorgonia-nsa/nsa/internal/opcases"
	"github.com/gorgonia-nsa/nsa/internal/testutil"
	"github.com/gorgonia-nsa/nsa/ops"
	"github.com/gorgonia-nsa/nsa/ops/spec"
)

// TestStorageIsThatOfCPU: a machine of bf16 stores the same operands in bf16 on the CPU and on a GPU, whatever types
// they have before.
func TestStorageIsThatOfCPU(t *testing.T) {
	gpu, host, r := &cuda.Backend{}, graph.NewCPU(1), rand.New(rand.NewPCG(48, 2))
	compared := map[string]bool{}
	compare := func(s spec.Spec, in, out []spec.Operand) {
		call := graph.Call{Spec: s, In: slices.Clone(in), Out: slices.Clone(out)}
		for _, list := range [][]spec.Operand{call.In, call.Out} {
			for i := range list {
				if list[i].Dtype == tensor.Float32 && r.IntN(3) == 0 {
					list[i].Dtype = ops.BFloat16
				}
			}
		}
		wantIn, wantOut := gpu.Storage(call, ops.BFloat16)
		gotIn, gotOut := host.Storage(call, ops.BFloat16)
		what := fmt.Sprintf("%s %+v of %v -> %v", s.Name(), s, call.In, call.Out)
		require.Equal(t, wantIn, gotIn, what)
		require.Equal(t, wantOut, gotOut, what)
		compared[fmt.Sprintf("%T", s)] = true
	}
	for range 2000 {
		if c := opcases.Random(r, 3000); c.Wrong == nil && !c.Huge && c.In[0].Dtype != tensor.Float64 {
			compare(c.Spec, c.In, c.Out)
		}
	}
	for _, c := range append(opcases.All(opcases.Small), opcases.DocumentCases()...) {
		plan := testutil.Must(c.Plan())(t)
		operands := make([]spec.Operand, plan.Arrays)
		for i, a := range plan.Inputs {
			operands[i] = a.Operand(tensor.Float32)
		}
		for _, call := range plan.Calls {
			in := pick(operands, call.In)
			out := testutil.Must(call.Spec.Infer(in))(t)
			for i, o := range out {
				operands[call.Out[i]] = o
			}
			compare(call.Spec, in, out)
		}
	}
	require.Greater(t, len(compared), 30)
}

func pick[T any](list []T, places []int) (some []T) {
	for _, i := range places {
		some = append(some, list[i])
	}
	return some
}
