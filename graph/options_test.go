package graph_test

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"testing"

	"github.com/stretchr/testify/require"
	G "gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/graph"
	"github.com/gorgonia-nsa/nsa/internal/cpu"
	"github.com/gorgonia-nsa/nsa/internal/testutil"
	"github.com/gorgonia-nsa/nsa/ops"
)

// backends are machines' options for the CPU and for another device.
func backends() map[string][]graph.Option {
	return map[string][]graph.Option{
		"cpu": nil, "device": {graph.WithBackend(newFake())}, "device, captured": {graph.WithBackend(newFake()), graph.WithCapture()},
	}
}

// TestNaNWatch: an op of Gorgonia's and one of this module's make a NaN or an Inf from an input.
func TestNaNWatch(t *testing.T) {
	for name, opts := range backends() {
		g := G.NewGraph()
		x := G.NewVector(g, tensor.Float64, G.WithShape(2), G.WithName("x"))
		root := G.Must(G.Sqrt(x))
		scaled := G.Must(ops.Apply(scaledSum{1e308}, root, root))
		G.Must(G.Neg(scaled))
		m := newMachine(t, g, append(opts, graph.WithNaNWatch(), graph.WithInfWatch())...)
		for range 2 {
			for _, c := range []struct {
				x    float64
				want string
			}{{1, ""}, {-1, "op sqrt (node 1, shape (2)): found by the watch: element 1 of the result is NaN"},
				{10000, "node 2, shape (2): ops: scaled sum: found by the watch: element 1 of the result is +Inf"}, {0.25, ""}} {
				let(t, x, 0, c.x)
				if err := m.RunAll(); c.want == "" {
					require.NoError(t, err, name)
				} else {
					require.ErrorContains(t, err, c.want, name)
				}
			}
		}
	}
}

func TestLogger(t *testing.T) {
	n := newNetwork(t).grad(t)
	var text bytes.Buffer
	for level, lines := range map[slog.Level]int{slog.LevelWarn: 0, slog.LevelInfo: 1, slog.LevelDebug: 1 + 2*len(newMachine(t, n.graph).Plan().Steps)} {
		text.Reset()
		handler := slog.NewTextHandler(&text, &slog.HandlerOptions{Level: level})
		require.NoError(t, run(t, n.graph, graph.WithLogger(slog.New(handler))).RunAll(), "a second time")
		require.Equal(t, lines, bytes.Count(text.Bytes(), []byte("\n")), text.String())
		if level == slog.LevelDebug {
			require.Contains(t, text.String(), "msg=plan")
			require.Contains(t, text.String(), `msg=step run=2 node=9 op="sliding window" implementation=cpu`)
		}
	}
}

// TestGradSums holds sums over three runs with other inputs to the gradients of the runs, and to a TapeMachine's.
func TestGradSums(t *testing.T) {
	for name, opts := range backends() {
		n := newNetwork(t).grad(t)
		single := newMachine(t, n.graph)
		m := newMachine(t, n.graph, append(opts, graph.WithGradSums())...)
		for round := range 2 {
			var want [][]float64 // the sums, behind a cost that is not looked at
			for seed := range uint64(3) {
				n.let(t, 1+seed)
				results := n.results(t, single)
				for i := range want {
					cpu.Add(results[i], results[i], want[i])
				}
				want = results
				require.NoError(t, m.RunAll(), name)
			}
			for i, in := range n.in {
				require.InDeltaSlice(t, want[1+i], gradient(t, in), 1e-12, "%s, %s, round %d", name, in.Name(), round)
			}
			if round == 0 && name == "cpu" {
				require.NoError(t, G.NewVanillaSolver().Step(G.NodesToValueGrads(n.in)))
			} else {
				require.NoError(t, m.ZeroGrads())
			}
		}
	}
	g := G.NewGraph()
	in := scalars(g, 2, 3)
	require.ErrorContains(t, testutil.Err(graph.NewMachine(g, graph.WithGradSums())), "no input has one")
	testutil.Must(graph.Grad(G.Must(G.HadamardProd(in[0], in[1])), in[0]))(t)
	require.ErrorContains(t, testutil.Err(graph.NewMachine(g, graph.WithGradSums(in[1]))),
		`the derivatives of input "b" (node 1, shape ()) are to add up, and it has none in the graph`)
	m := newMachine(t, g, graph.WithGradSums(in[0])) // of stock ops alone
	for i := range 3 {
		require.NoError(t, m.RunAll())
		require.Equal(t, []float64{3 * float64(i+1)}, gradient(t, in[0]))
	}
}

func TestPolicyFromEnv(t *testing.T) {
	for _, c := range []struct {
		strict, unfused string
		want            graph.Policy
		fails           string
	}{
		{}, {strict: "0"}, {strict: "1", want: graph.Policy{Strict: true}}, {strict: "true", want: graph.Policy{Strict: true}},
		{strict: "rather", fails: `NSA_STRICT is "rather"`},
		{unfused: "linears,linear-add", want: graph.Policy{Unfused: []string{"linears", "linear-add"}}},
		{unfused: "linears,norms", fails: `graph: NSA_UNFUSED: policy: no fusion "norms" to be switched off, want "all" or some of ["copies" "linears" `},
	} {
		t.Setenv("NSA_STRICT", c.strict)
		t.Setenv("NSA_UNFUSED", c.unfused)
		if p, err := graph.PolicyFromEnv(); c.fails != "" {
			require.ErrorContains(t, err, c.fails)
		} else {
			require.NoError(t, err)
			require.Equal(t, c.want, p)
		}
	}
}

// TestPolicyOfMachine: without WithPolicy the environment's holds.
func TestPolicyOfMachine(t *testing.T) {
	g := G.NewGraph()
	G.Must(G.Neg(G.NewScalar(g, tensor.Float64, G.WithName("x"))))
	device := graph.WithBackend(newFake())
	t.Setenv("NSA_STRICT", "1")
	require.ErrorContains(t, testutil.Err(graph.NewMachine(g, device)), "strict: fake has no kernel for it")
	newMachine(t, g, device, graph.WithPolicy(graph.Policy{}))
	t.Setenv("NSA_STRICT", "rather")
	require.ErrorContains(t, testutil.Err(graph.NewMachine(g, device)), `graph: NSA_STRICT is "rather"`)
}

func TestUnsupported(t *testing.T) {
	err := fmt.Errorf("window: %w", graph.Refuse(graph.ReasonAlignment, "%d bytes, want 16", 8))
	var u *graph.Unsupported
	require.True(t, errors.As(err, &u))
	require.Equal(t, graph.ReasonAlignment, u.Reason)
	require.EqualError(t, err, "window: unsupported alignment: 8 bytes, want 16")
	require.Equal(t, "missing", graph.ReasonMissing.String())
	require.Equal(t, "reason 0", graph.Reason(0).String())
}
