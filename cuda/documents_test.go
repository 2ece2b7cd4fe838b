package cuda_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	G "gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/graph"
	"github.com/gorgonia-nsa/nsa/internal/opcases"
	"github.com/gorgonia-nsa/nsa/internal/testutil"
	"github.com/gorgonia-nsa/nsa/ops"
)

// TestDocumentsRunOnTheHost: no kernel takes a table of documents. The plan says so, and the op gives on the host what it gives on a
// CPU, in every precision.
func TestDocumentsRunOnTheHost(t *testing.T) {
	for _, c := range opcases.Packed() {
		if c.Size != opcases.Small {
			continue
		}
		g := G.NewGraph()
		var in, floats G.Nodes
		for _, a := range c.Inputs {
			n := a.Node(g, tensor.Float32)
			if in = append(in, n); a.Ints == nil {
				floats = append(floats, n)
			}
		}
		y := testutil.Must(c.Build(in))(t)
		if c.Gradients != nil {
			testutil.Must(graph.Grad(G.Must(G.Sum(y)), floats...))(t)
		}
		result := func(m *graph.Machine) any {
			run(t, m, nil)
			return testutil.Must(graph.HostValue(y.Value()))(t).Data()
		}
		want := result(machine(t, g, graph.NewCPU(1), graph.WithKeep(y)))
		for _, p := range []graph.Precision{graph.F32, graph.BF16, graph.FP16} {
			b, _ := open(t)
			m := machine(t, g, b, graph.WithKeep(y), graph.WithPrecision(p), graph.WithCapture())
			for range 2 {
				require.Equal(t, want, result(m), "%s, %v", c.Name, p)
			}
			for _, s := range m.Plan().Steps {
				if s.Spec == nil || !ops.Packed(s.Inputs) {
					continue
				}
				require.Equal(t, "host", s.Implementation, s.Op)
				require.Equal(t, graph.ReasonSequences, s.Refused[0].Why.Reason, "%s: %v", s.Op, s.Refused)
			}
			require.Contains(t, m.Plan().String(), "unsupported packed sequences")
		}
	}
}
