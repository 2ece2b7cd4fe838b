package optim

import (
	"fmt"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	G "gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/graph"
	"github.com/gorgonia-nsa/nsa/graph/safetensors"
	"github.com/gorgonia-nsa/nsa/internal/ref"
	"github.com/gorgonia-nsa/nsa/internal/testutil"
	"github.com/gorgonia-nsa/nsa/ops"
)

// matrices is a rule for all matrices except position embeddings.
func matrices(name string, shape tensor.Shape) bool {
	return shape.Dims() == 2 && DefaultDecayRule(name, shape)
}

// TestMuonMatchesOracle: one weight takes steps of Muon, the others of AdamW.
func TestMuonMatchesOracle(t *testing.T) {
	for _, c := range []struct {
		dt  tensor.Dtype
		tol float64
	}{{tensor.Float64, 1e-12}, {tensor.Float32, 1e-5}} {
		t.Run(fmt.Sprint(c.dt), func(t *testing.T) {
			weights := someWeights(c.dt, 1, 1)
			params, grads := map[string]*ref.Tensor{}, map[string]*ref.Tensor{}
			for _, w := range weights {
				w := w.(*weight)
				params[w.name] = ref.From(testutil.Floats(t, w.value.Data()), w.value.Shape()...)
				grads[w.name] = ref.From(testutil.Floats(t, w.grad.Data()), w.value.Shape()...)
			}
			schedule := WarmupCosine{LR: 1e-2, Warmup: 2, Total: 5, Floor: 0.1}
			s := newAdamW(t, WithSchedule(schedule), WithMuon(matrices))
			h, p := ref.DefaultAdamW(), ops.MuonPolynomials()
			h.Muon, h.Momentum, h.Polynomials = func(name string) bool { return name == "a.weight" }, momentum, p[:]
			var state ref.AdamWState
			for i := range 5 {
				require.NoError(t, s.Step(weights))
				ref.AdamWStep(params, grads, &state, schedule.At(i), h)
			}
			for _, w := range weights {
				w := w.(*weight)
				testutil.Within(t, w.name, testutil.Floats(t, w.value.Data()), params[w.name].Data, c.tol)
			}
		})
	}
}

// TestMuonState: a solver goes on from a saved state to the same bits. A state of AdamW does not fit a solver with Muon, nor
// the other way round.
func TestMuonState(t *testing.T) {
	weights := someWeights(tensor.Float32, 1, 1)
	s := newAdamW(t, WithMuon(matrices))
	for range 3 {
		require.NoError(t, s.Step(weights))
	}
	path := filepath.Join(t.TempDir(), "solver.safetensors")
	require.NoError(t, testutil.Must(s.State())(t).Write(path))
	st := testutil.Must(safetensors.Read(path))(t)
	require.Contains(t, st.Tensors, "first.a.weight")
	require.NotContains(t, st.Tensors, "second.a.weight")
	require.Contains(t, st.Tensors, "second.a.bias")

	value := weights[0].Value().(*tensor.Dense)
	middle := value.Clone().(*tensor.Dense)
	others := testutil.Must(newAdamWAfter(t, weights[1:]).State())(t)
	require.NoError(t, s.Step(weights))
	want := testutil.Floats(t, value.Data())

	copy(value.Float32s(), middle.Float32s())
	next := newAdamW(t, WithMuon(matrices))
	require.NoError(t, next.SetState(st))
	require.NoError(t, next.Step(weights))
	require.Equal(t, want, testutil.Floats(t, value.Data()))

	require.ErrorContains(t, newAdamWAfter(t, weights).SetState(st), "7 tensors")
	require.ErrorContains(t, s.SetState(others), "6 tensors")
}

// newAdamWAfter returns a solver without Muon that has taken one step of weights.
func newAdamWAfter(t *testing.T, weights []G.ValueGrad) *AdamW {
	t.Helper()
	s := newAdamW(t, WithLR(0))
	require.NoError(t, s.Step(weights))
	return s
}

func TestMuonRefuses(t *testing.T) {
	s := newAdamW(t, WithMuon(func(name string, _ tensor.Shape) bool { return name == "a.bias" }))
	require.ErrorContains(t, s.Step(someWeights(tensor.Float32, 1, 1)), "a.bias has shape (150)")
}

// TestMuonOnGorgoniasMachines trains a matrix on a TapeMachine and on a Machine, there also by RunAndStep.
func TestMuonOnGorgoniasMachines(t *testing.T) {
	train := func(newVM func(g *G.ExprGraph) G.VM, atOnce bool) []float64 {
		g := G.NewGraph()
		x := G.NewMatrix(g, tensor.Float32, G.WithShape(5, 8), G.WithName("x"), G.WithValue(dense(tensor.Float32, testutil.Normal(1, 40), 5, 8)))
		cost := G.Must(G.Sum(G.Must(G.Square(G.Must(G.Square(x))))))
		testutil.Must(graph.Grad(cost, x))(t)
		vm := newVM(g)
		defer vm.Close()
		opts := []AdamWOption{WithLR(0.1), WithMuon(matrices)}
		m, _ := vm.(*graph.Machine)
		if atOnce {
			opts = append(opts, WithMachine(m))
		}
		s := testutil.Must(NewAdamW(opts...))(t)
		defer s.Close()
		for range 4 {
			if atOnce {
				require.NoError(t, m.RunAndStep(s, G.NodesToValueGrads(G.Nodes{x})))
				continue
			}
			require.NoError(t, vm.RunAll())
			require.NoError(t, s.Step(G.NodesToValueGrads(G.Nodes{x})))
			vm.Reset()
		}
		return testutil.Floats(t, x.Value().Data())
	}
	machine := func(g *G.ExprGraph) G.VM { return testutil.Must(graph.NewMachine(g))(t) }
	want := train(machine, false)
	require.Equal(t, want, train(machine, true))
	require.Equal(t, want, train(func(g *G.ExprGraph) G.VM { return G.NewTapeMachine(g) }, false))
}

func TestMuonDoesNotAllocate(t *testing.T) {
	weights := someWeights(tensor.Float32, 1, 1)
	s := newAdamW(t, WithMuon(matrices))
	require.NoError(t, s.Step(weights))
	require.Zero(t, testing.AllocsPerRun(10, func() {
		if err := s.Step(weights); err != nil {
			t.Error(err)
		}
	}))
}
