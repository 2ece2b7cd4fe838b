package cuda_test

import (
	"fmt"
	"math"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"
	G "gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/cuda/internal/driver"
	"github.com/gorgonia-nsa/nsa/graph"
	"github.com/gorgonia-nsa/nsa/internal/cpu"
	"github.com/gorgonia-nsa/nsa/internal/opcases"
	"github.com/gorgonia-nsa/nsa/internal/testutil"
	"github.com/gorgonia-nsa/nsa/ops"
	"github.com/gorgonia-nsa/nsa/ops/spec"
	"github.com/gorgonia-nsa/nsa/ops/spec/attention"
)

// branches is a graph of the three branches with their gradients, at sizes that kernels on tensor cores take.
func branches(t testing.TB) (*G.ExprGraph, G.Nodes) {
	t.Helper()
	g := G.NewGraph()
	p := ops.Params{BlockLen: 32, Stride: 16, SelectBlock: 64, TopN: 4, Window: 70}
	size := opcases.Dims{B: 1, S: 140, Hq: 4, Hkv: 2, D: 64, Dv: 64}
	node := func(a opcases.Array) *G.Node { return a.Node(g, tensor.Float32) }
	a, b, c := size.Tokens(1)
	ca, cb := size.Compressed(4, p.BlockLen, p.Stride)
	q, k, v, kc, vc := node(a), node(b), node(c), node(ca), node(cb)
	compressed := G.Must(ops.CompressedAttention(q, kc, vc, p))
	idx := G.Must(ops.SelectBlocks(q, kc, G.Must(ops.LSE(compressed)), p))
	sum := G.Must(ops.Add(compressed, G.Must(ops.SelectedAttention(q, k, v, idx, p.SelectBlock)),
		G.Must(ops.SlidingWindow(q, k, v, p.Window))))
	grads := testutil.Must(graph.Grad(G.Must(G.Sum(sum)), q, k, v, kc, vc))(t)
	return g, append(G.Nodes{sum}, grads...)
}

// TestPolicyChoosesKernels: each branch and its gradient run by the kernels that the policy names, and the plan says
// why.
func TestPolicyChoosesKernels(t *testing.T) {
	general := graph.BranchPolicy{General: true}
	for _, c := range []struct {
		policy graph.Policy
		off    map[string]graph.Reason // by branch
	}{
		{},
		{graph.Policy{Window: general}, map[string]graph.Reason{"window": graph.ReasonPolicy}},
		{graph.Policy{Compressed: general}, map[string]graph.Reason{"compressed": graph.ReasonPolicy}},
		{graph.Policy{Selected: general}, map[string]graph.Reason{"selected": graph.ReasonPolicy,
			"select": graph.ReasonPolicy}},
		{graph.Policy{Window: graph.BranchPolicy{MinKeys: 140}, Compressed: graph.BranchPolicy{MinKeys: 7}}, nil},
		{graph.Policy{Window: graph.BranchPolicy{MinKeys: 141}, Compressed: graph.BranchPolicy{MinKeys: 8}},
			map[string]graph.Reason{"window": graph.ReasonLength, "compressed": graph.ReasonLength}},
		{graph.Policy{Selected: graph.BranchPolicy{MinKeys: math.MaxInt}},
			map[string]graph.Reason{"selected": graph.ReasonLength, "select": graph.ReasonLength}},
	} {
		b, _ := open(t)
		g, results := branches(t)
		m := machine(t, g, b, graph.WithPrecision(graph.BF16), graph.WithKeep(results...), graph.WithPolicy(c.policy))
		seen := map[string]bool{}
		for _, s := range m.Plan().Steps {
			name, _ := c.policy.Attention(s.Spec)
			if name == "" {
				continue
			}
			seen[name] = true
			what := fmt.Sprintf("%+v: %s", c.policy, s.Op)
			reason, off := c.off[name]
			require.Equal(t, off, s.Implementation == "cuda", what)
			for _, r := range s.Refused {
				require.True(t, off, "%s: %v", what, r)
				require.Equal(t, reason, r.Why.Reason, what)
			}
		}
		require.Len(t, seen, 4)
	}
}

// TestAlignmentOfTensorCores: kernels that copy 16 bytes at a time refuse operands that are not aligned to 16 bytes,
// and launch nothing.
func TestAlignmentOfTensorCores(t *testing.T) {
	b, f := open(t)
	x := newFixture(t, b)
	o := spec.Operand{Dtype: ops.BFloat16, Shape: tensor.Shape{1, 8, 2, 16}}
	var room cpu.Buf
	x.alloc(&room, 5*1024)
	at := func(i, offset int, o spec.Operand) spec.Arg {
		a := newArg(o)
		address := uintptr(driver.Address(&room)) + uintptr(1024*i+offset)
		a.Set(*(*unsafe.Pointer)(unsafe.Pointer(&address)), o.Bytes())
		return a
	}
	for offset, want := range map[int]string{0: "", 16: "", 8: "unsupported alignment: operand 1 lies at 0x",
		2: "want a multiple of 16 bytes"} {
		in := []spec.Arg{at(0, 0, o), at(1, offset, o), at(2, 0, o)}
		out := []spec.Arg{at(3, 0, o), at(4, 0, spec.Operand{Dtype: tensor.Float32, Shape: tensor.Shape{1, 2, 8}})}
		k, _ := x.bind(attention.SlidingWindow{Window: 4}, in, out)
		require.NoError(t, x.stream.Synchronize())
		before := f.Launches("")
		err := k.Launch(x.stream, nil)
		if want == "" {
			require.NoError(t, err)
			continue
		}
		require.ErrorContains(t, err, want)
		require.ErrorAs(t, err, new(*graph.Unsupported))
		require.NoError(t, x.stream.Synchronize())
		require.Equal(t, before, f.Launches(""))
	}
}
