package graph_test

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
	G "gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/graph"
	"github.com/gorgonia-nsa/nsa/graph/dist"
	"github.com/gorgonia-nsa/nsa/graph/dist/disttest"
	"github.com/gorgonia-nsa/nsa/graph/fakedevice"
	"github.com/gorgonia-nsa/nsa/graph/optim"
	"github.com/gorgonia-nsa/nsa/internal/cpu"
	"github.com/gorgonia-nsa/nsa/internal/testutil"
	"github.com/gorgonia-nsa/nsa/ops"
	"github.com/gorgonia-nsa/nsa/ops/spec"
	"github.com/gorgonia-nsa/nsa/ops/spec/collective"
)

// TestRanks: the collective ops, and training, with several ranks on the CPU and on devices, where steps of the second
// stream run as late as they may.
func TestRanks(t *testing.T) {
	for name, open := range map[string]disttest.Open{
		"cpu":    func(int) (graph.Backend, error) { return graph.NewCPU(1), nil },
		"device": func(int) (graph.Backend, error) { return fakedevice.New(), nil },
	} {
		for _, ranks := range []int{1, 2, 4, 8} {
			t.Run(name, func(t *testing.T) {
				disttest.Collectives(t, ranks, tensor.Float64, open)
				disttest.Training(t, ranks, tensor.Float64, open)
			})
		}
	}
}

// TestRanksDiffer: ranks with other inputs, other weights or another plan end with an error on all ranks that says so,
// and so does a rank whose run fails.
func TestRanksDiffer(t *testing.T) {
	for name, c := range map[string]struct {
		change func(n *disttest.Regression)
		opts   []graph.Option
		want   string
	}{
		"batch": {func(n *disttest.Regression) { *n, _ = disttest.NewRegression(tensor.Float64, 5) }, nil,
			"rank 1 has input x \"float64 (5, 3)\", rank 0 has \"float64 (4, 3)\""},
		"weights": {func(n *disttest.Regression) { n.Weights[1].Value().Data().([]float64)[3]++ }, nil,
			"rank 1 has other weights than rank 0 after step 1"},
		"plan": {func(*disttest.Regression) {}, []graph.Option{graph.WithShardedStates()}, "rank 1 has plan"},
		"run": {func(n *disttest.Regression) { n.X.Value().Data().([]float64)[0] = math.NaN() },
			[]graph.Option{graph.WithNaNWatch()}, "NaN"},
	} {
		t.Run(name, func(t *testing.T) {
			errs := make([]error, 2)
			err := disttest.OnRanks(2, func(g graph.Group) (err error) {
				n, err := disttest.NewRegression(tensor.Float64, 4)
				if err != nil {
					return err
				}
				var opts []graph.Option
				if g.Rank() == 1 {
					c.change(&n)
					opts = c.opts
				}
				solver, err := optim.NewAdamW()
				if err != nil {
					return err
				}
				m, err := graph.NewMachine(n.X.Graph(), append(opts, graph.WithGroup(g), graph.WithOptimizer(solver,
					n.Weights...))...)
				if err == nil {
					err = errors.Join(m.Step(), m.Close())
				}
				errs[g.Rank()] = err
				return err
			})
			require.Error(t, err)
			for _, err := range errs {
				require.ErrorContains(t, err, c.want)
			}
		})
	}
}

// TestOneRankIsNone: a group of one rank changes no plan, and the refusals of groups name the option.
func TestOneRankIsNone(t *testing.T) {
	n := testutil.Must(disttest.NewRegression(tensor.Float64, 4))(t)
	plan := func(opts ...graph.Option) (string, error) {
		solver := testutil.Must(optim.NewAdamW())(t)
		p, err := graph.NewPlan(n.X.Graph(), append(opts, graph.WithOptimizer(solver, n.Weights...))...)
		return p.String(), err
	}
	without, one := testutil.Must(plan())(t), testutil.Closing(dist.Goroutines(1, dist.Options{})[0], nil)(t)
	require.Equal(t, without, testutil.Must(plan(graph.WithGroup(one)))(t))
	require.Equal(t, without, testutil.Must(plan(graph.WithGroup(one), graph.WithShardedStates()))(t))
	ranks := dist.Goroutines(2, dist.Options{})
	two := ranks[0]
	defer ranks[1].Close()
	defer two.Close()
	defer two.Fail(errors.New("the end"))
	_, err := plan(graph.WithGroup(nil))
	require.ErrorContains(t, err, "the group is nil")
	_, err = plan(graph.WithGroup(two), graph.WithPolicy(graph.Policy{CompressGrads: true}))
	require.Equal(t, cpu.HasBF16(), err == nil, "%v", err)
	_, err = plan(graph.WithGroup(two), graph.WithPolicy(graph.Policy{CompressGrads: true}),
		graph.WithBackend(fakedevice.New()))
	require.ErrorContains(t, err, "fake computes in float32")
	_, err = graph.NewPlan(n.X.Graph(), graph.WithGroup(two), graph.WithGradSums())
	require.ErrorContains(t, err, "WithGradSums needs WithOptimizer")
	solver := testutil.Must(optim.NewAdamW())(t)
	_, err = graph.NewPlan(n.X.Graph(), graph.WithGroup(two), graph.WithOptimizer(solver, nil, n.Weights[0]))
	require.ErrorContains(t, err, "is not an input of the graph")
	y := G.Must(ops.AllReduce(n.X, 2))
	_, err = graph.NewPlan(y.Graph())
	require.ErrorContains(t, err, "is for 2 ranks, the machine is one of 1: see WithGroup")
	tape := G.NewTapeMachine(y.Graph())
	require.ErrorContains(t, tape.RunAll(), "want a graph.Machine with WithGroup")
	require.NoError(t, tape.Close())
}

// TestCompressedGradients: gradients in bfloat16 on the wire come near those in float32.
func TestCompressedGradients(t *testing.T) {
	var lists [2][]float64
	for i := range lists {
		require.NoError(t, disttest.OnRanks(2, func(g graph.Group) error {
			disttest.Building.Lock()
			net := G.NewGraph()
			input := func(name string, seed uint64, rows, cols int) *G.Node {
				v := tensor.New(tensor.WithShape(rows, cols), tensor.WithBacking(testutil.Convert[float32](testutil.Normal(seed,
					rows*cols))))
				return G.NewMatrix(net, tensor.Float32, G.WithShape(rows, cols), G.WithName(name), G.WithValue(v))
			}
			w := input("w", 1, 8, 8)
			cost := G.Must(G.Sum(G.Must(G.Square(G.Must(ops.Linear(input("x", uint64(2+g.Rank()), 4, 8), w))))))
			_, err := graph.Grad(cost, w)
			disttest.Building.Unlock()
			if err != nil {
				return err
			}
			m, err := graph.NewMachine(net, graph.WithGroup(g), graph.WithBackend(fakedevice.NewHalf()),
				graph.WithPolicy(graph.Policy{CompressGrads: i == 1}))
			if err != nil {
				return err
			}
			if err := m.RunAll(); err != nil {
				return err
			}
			grad, err := w.Grad()
			if err != nil {
				return err
			}
			if g.Rank() == 0 {
				lists[i] = testutil.Convert[float64](grad.Data().([]float32))
			}
			return m.Close()
		}))
	}
	require.NotEqual(t, lists[0], lists[1])
	testutil.Within(t, "gradient", lists[1], lists[0], 0.01)
}

// TestCollectivesThatCannotRun: the plan is an error on all ranks, which says why, for an op of the graph and for one
// of the machine. No other device or op is tried.
func TestCollectivesThatCannotRun(t *testing.T) {
	for _, own := range []bool{false, true} {
		for name, want := range map[string]string{"": "fake has no kernel for all-reduce: the backend offers none",
			"picky": "fake has no kernel for all-reduce: picky: unsupported missing: always"} {
			var errs [2]error
			require.Error(t, disttest.OnRanks(2, func(g graph.Group) error {
				disttest.Building.Lock()
				net := G.NewGraph()
				x := G.NewVector(net, tensor.Float32, G.WithShape(4), G.WithName("x"))
				y := G.Must(ops.SiLU(x))
				if own {
					y = G.Must(ops.AllReduce(y, 2))
				}
				_, err := graph.Grad(G.Must(G.Sum(y)), x)
				disttest.Building.Unlock()
				if err != nil {
					return err
				}
				f := fakedevice.NewHalf()
				f.Reason = graph.ReasonMissing
				f.Offered = func(s graph.Call, list []graph.Implementation) []graph.Implementation {
					if _, ok := s.Spec.(collective.Collective); !ok {
						return list
					}
					if name == "" {
						return nil
					}
					return []graph.Implementation{f.Implementation(name)}
				}
				_, errs[g.Rank()] = graph.NewMachine(net, graph.WithBackend(f), graph.WithGroup(g),
					graph.WithPrecision(graph.BF16))
				return errs[g.Rank()]
			}))
			for _, err := range errs {
				require.ErrorContains(t, err, want)
			}
		}
	}
}

// TestCollectivesInMemory makes random chains of collectives and other ops, in float32 and in bfloat16: a collective
// sends activations as they are, and its output overlaps no input.
func TestCollectivesInMemory(t *testing.T) {
	const ranks = 2
	for seed := range uint64(30) {
		half := seed%2 == 1
		require.NoError(t, disttest.OnRanks(ranks, func(g graph.Group) error {
			net, err := chainOfRanks(rand.New(rand.NewPCG(seed, 3)), ranks)
			if err != nil {
				return err
			}
			f := fakedevice.NewHalf()
			f.Stored = func(s graph.Call, in, out []tensor.Dtype) {
				if _, ok := s.Spec.(collective.Collective); ok {
					in[0], out[0] = tensor.Float32, tensor.Float32
				}
			}
			opts := []graph.Option{graph.WithBackend(f), graph.WithGroup(g)}
			if half {
				opts = append(opts, graph.WithPrecision(graph.BF16))
			}
			m, err := graph.NewMachine(net, opts...)
			if err != nil {
				return err
			}
			sent := map[tensor.Dtype]int{}
			for _, s := range m.Plan().Steps {
				if _, ok := s.Spec.(collective.Collective); ok && len(s.Inputs) == 1 && s.Inputs[0].Shape.Dims() == 2 {
					sent[s.Inputs[0].Dtype]++
				}
			}
			if half != (sent[spec.BFloat16] > 0) {
				return fmt.Errorf("seed %d: half precision %v, sent %v: %v", seed, half, sent, m.Plan())
			}
			return errors.Join(m.Overlap(), m.RunAll(), m.Close())
		}), "seed %d", seed)
	}
}

// chainOfRanks returns a graph of an input, collectives with other ops between them, a sum, and its gradient.
func chainOfRanks(r *rand.Rand, ranks int) (*G.ExprGraph, error) {
	disttest.Building.Lock()
	defer disttest.Building.Unlock()
	g := G.NewGraph()
	in := G.NewMatrix(g, tensor.Float32, G.WithShape(8, 64), G.WithName("x"),
		G.WithValue(tensor.New(tensor.Of(tensor.Float32), tensor.WithShape(8, 64))))
	x := in
	for range 2 + r.IntN(8) {
		x = G.Must(ops.SiLU(x))
		switch rows := x.Shape()[0]; {
		case rows < 32 && r.IntN(2) == 0:
			x = G.Must(ops.AllGather(x, ranks))
		case x.Shape()[1] < 256 && rows%2 == 0 && r.IntN(3) == 0:
			x = G.Must(ops.GatherSequence(x, ranks))
		case rows > 4:
			x = G.Must(ops.ReduceScatter(x, ranks))
		default:
			x = G.Must(ops.AllReduce(x, ranks))
		}
	}
	_, err := graph.Grad(G.Must(G.Sum(G.Must(ops.SiLU(x)))), in)
	return g, err
}
