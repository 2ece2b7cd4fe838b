package kernels_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gorgonia-nsa/nsa/internal/cpu"
	"github.com/gorgonia-nsa/nsa/internal/opcases"
	"github.com/gorgonia-nsa/nsa/internal/testutil"
	"github.com/gorgonia-nsa/nsa/ops/spec"
)

// TestBF16OnCPU holds the CPU's kernels of bf16 to the cases and the bounds of the GPU's. Any number of workers gives
// the same bits. Without AVX512_BF16 it tests their twins in Go, with fewer cases of attention.
func TestBF16OnCPU(t *testing.T) {
	every := 16
	if !cpu.HasBF16() {
		every = 64
	}
	var list []typedCase
	for i, c := range append(opcases.All(opcases.Small), opcases.DocumentCases()...) {
		attends := c.Mask != nil || c.Selection != nil
		if (attends && i%every != 0 || c.Cost == opcases.Huge) && !testutil.Full(t) {
			continue
		}
		for _, as := range []arrangement{aligned, mixed} {
			if x, ok := withType(t, c, bf16, as); ok && (as == aligned || !attends) {
				list = append(list, x)
			}
		}
	}
	for x := range ahead(list, func(x typedCase) typedCase { x.expect(t); return x }) {
		t.Run(x.String(), func(t *testing.T) {
			got := x.computeOnCPU(t, 1)
			require.Equal(t, got, x.computeOnCPU(t, 3), "three workers")
			if x.Selection != nil {
				idx := decodeInts(got[x.plan.Out[0]])
				others := testutil.Must(x.CheckSelection(x.plan.Inputs[0].Tensor(), x.plan.Inputs[1].Tensor(), idx, 1e-5))(t)
				require.LessOrEqual(t, others, len(idx)/x.Selection.TopN/100+1, "lists that differ from the oracle's")
			}
			for _, r := range x.results {
				testutil.Within(t, r.name, x.floats(got, r.array), r.want.Data, r.tol)
			}
		})
	}
}

// computeOnCPU runs the calls by the CPU's kernels over poison, and returns the contents of all arrays.
func (x typedCase) computeOnCPU(t testing.TB, workers int) [][]byte {
	t.Helper()
	contents, args := make([][]byte, len(x.operands)), make([]spec.Arg, len(x.operands))
	for i, o := range x.operands {
		contents[i] = cpu.AlignedBytes(o.Bytes())
		if copy(contents[i], poison(o.Bytes())); i < len(x.plan.Inputs) {
			copy(contents[i], x.content(i))
		}
		args[i] = spec.Arg{Operand: o, Buf: cpu.NewBuf(contents[i])}
	}
	for _, call := range x.plan.Calls {
		var k cpu.Kernel
		spec.BindBF16(&k, call.Spec, pick(args, call.In), pick(args, call.Out))
		work := cpu.AlignedBytes(k.WorkBytes(workers))
		copy(work, poison(len(work)))
		require.NoError(t, cpu.NewTeam(workers).Run(&k, cpu.NewBuf(work)), call.Spec.Name())
	}
	for i, a := range x.operands {
		if i < len(x.plan.Inputs) {
			require.Equal(t, x.content(i), contents[i], "%v has been written to", a)
		}
	}
	return contents
}
