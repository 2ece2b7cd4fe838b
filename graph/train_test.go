package graph_test

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
	G "gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/graph"
	"github.com/gorgonia-nsa/nsa/graph/optim"
	"github.com/gorgonia-nsa/nsa/ops"
)

// stockCost is a graph of Gorgonia's ops alone, with its weights and an input that changes from step to step.
func stockCost(t *testing.T) (weights G.Nodes, cost *G.Node, x []float32) {
	g := G.NewGraph()
	vector := func(name string, v ...float32) *G.Node {
		return G.NewVector(g, tensor.Float32, G.WithShape(len(v)), G.WithName(name), G.WithValue(tensor.New(tensor.WithBacking(v))))
	}
	x = []float32{1, 1}
	w := vector("w", 1, -2)
	cost = G.Must(G.Sum(G.Must(G.Square(G.Must(G.HadamardProd(w, vector("x", x...)))))))
	_, err := graph.Grad(cost, w)
	require.NoError(t, err)
	return G.Nodes{w}, cost, x
}

// TestRunAndStepIsRunAllAndStep: also where ops on the host compute the gradients, on the CPU and on a device.
func TestRunAndStepIsRunAllAndStep(t *testing.T) {
	var want []float64
	for _, onDevice := range []bool{false, true} {
		for _, together := range []bool{false, true} {
			weights, cost, x := stockCost(t)
			var b graph.Backend = graph.NewCPU(1)
			if onDevice {
				b = newFake()
			}
			host := weights[0].Value()
			r, err := graph.MoveInputs(b, weights...)
			require.NoError(t, err)
			m, err := graph.NewMachine(cost.Graph(), graph.WithBackend(b), graph.WithCapture())
			require.NoError(t, err)
			s, err := optim.NewAdamW(optim.WithLR(0.1), optim.WithClip(0), optim.WithMachine(m))
			require.NoError(t, err)
			loss, err := m.Watch(cost)
			require.NoError(t, err)
			grads := G.NodesToValueGrads(weights)
			var got []float64
			for i := range 4 {
				x[0] = float32(i*i+1) * float32(1-2*(i%2))
				if together {
					require.NoError(t, m.RunAndStep(s, grads))
				} else {
					require.NoError(t, m.RunAll())
					require.NoError(t, s.Step(grads))
				}
				require.NoError(t, loss.Fetch())
				v, err := loss.Next()
				require.NoError(t, err)
				got = append(got, v)
			}
			require.NoError(t, loss.Fetch())
			require.NoError(t, loss.Fetch())
			require.Equal(t, 2, loss.Waiting())
			require.ErrorContains(t, loss.Fetch(), "2 copies are not read yet")
			require.NoError(t, r.Download())
			got = append(got, numbers(t, host)...)
			if want == nil {
				want = got
			}
			require.Equal(t, want, got, "on a device %v, together %v", onDevice, together)
			require.NoError(t, s.Close())
			require.NoError(t, m.Close())
			require.NoError(t, r.Close())
		}
	}
}

// TestRunAndStepAfterDuals: gradients that a TapeMachine has left in inputs are not taken for those of the run.
func TestRunAndStepAfterDuals(t *testing.T) {
	var norms [2][]float64
	for i := range norms {
		n := newTiny(t)
		tape := G.NewTapeMachine(n.graph, G.BindDualValues(n.weights...))
		require.NoError(t, tape.RunAll())
		require.NoError(t, tape.Close())
		m := newMachine(t, n.graph)
		s, err := optim.NewAdamW(optim.WithLR(0.1), optim.WithMachine(m))
		require.NoError(t, err)
		for range 4 {
			if i == 0 {
				require.NoError(t, m.RunAndStep(s, G.NodesToValueGrads(n.weights)))
			} else {
				require.NoError(t, m.RunAll())
				require.NoError(t, s.Step(G.NodesToValueGrads(n.weights)))
			}
			norm, err := s.Norm()
			require.NoError(t, err)
			norms[i] = append(norms[i], norm)
		}
		require.NoError(t, s.Close())
	}
	require.Equal(t, norms[1], norms[0])
}

func TestRunAndStepRefuses(t *testing.T) {
	n := newTiny(t)
	m := newMachine(t, n.graph)
	require.ErrorContains(t, m.RunAndStep(nil, nil), "not of this machine")
	foreign, err := optim.NewAdamW()
	require.NoError(t, err)
	require.ErrorContains(t, m.RunAndStep(foreign, nil), "not of this machine")
	s, err := optim.NewAdamW(optim.WithMachine(m))
	require.NoError(t, err)
	require.ErrorContains(t, m.RunAndStep(s, []G.ValueGrad{nil}), "weight 0 is nil")
	require.ErrorContains(t, s.Step([]G.ValueGrad{(*G.Node)(nil)}), "weight 0 is nil")
	_, err = m.Watch(n.weights[0])
	require.ErrorContains(t, err, "it is not computed")
	count := G.NewVector(G.NewGraph(), tensor.Int32, G.WithShape(2), G.WithName("count"))
	twice := G.Must(G.Add(count, count))
	_, err = newMachine(t, count.Graph()).Watch(twice)
	require.ErrorContains(t, err, "graph: machine: watch of op + false (node 1, shape (2)): type int32, want float32 or float64")
	_, err = new(graph.Machine).Watch(n.loss)
	require.ErrorContains(t, err, "graph: machine: closed")
	require.Equal(t, map[string]int64{"upload": 0, "download": 0}, new(graph.Machine).Counts())
	_, err = s.WatchNorm()
	require.ErrorContains(t, err, "no step has been taken")
	var none *fake
	_, err = graph.NewMachine(n.graph, graph.WithBackend(none))
	require.ErrorContains(t, err, "nil *graph_test.fake")
	require.NoError(t, s.Close())
}

// randomNet is a small network of ops of this module and of Gorgonia's, drawn by a seed.
type randomNet struct {
	graph   *G.ExprGraph
	weights G.Nodes
	ids     []int32
	inner   G.Nodes
	loss    *G.Node
	grads   G.Nodes
	reads   []*G.Value
}

func newRandomNet(t *testing.T, seed uint64) *randomNet {
	const width = 8
	r := rand.New(rand.NewPCG(seed, 1))
	n := &randomNet{graph: G.NewGraph()}
	input := func(name string, shape ...int) *G.Node {
		v := tensor.New(tensor.Of(tensor.Float32), tensor.WithShape(shape...))
		for i := range v.Float32s() {
			v.Float32s()[i] = float32(r.NormFloat64()) / 2
		}
		return G.NewTensor(n.graph, tensor.Float32, len(shape), G.WithShape(shape...), G.WithName(name), G.WithValue(v))
	}
	tokens := func(name string, v ...int32) *G.Node {
		value := tensor.New(tensor.WithShape(1, len(v)), tensor.WithBacking(v))
		return G.NewTensor(n.graph, tensor.Int32, 2, G.WithShape(1, len(v)), G.WithName(name), G.WithValue(value))
	}
	n.ids = []int32{1, 2, 3, 0, 5}
	table, gain := input("table", 6, width), input("gain", width)
	n.weights = G.Nodes{table, gain}
	var w G.Nodes
	for i := range 3 {
		w = append(w, input(fmt.Sprint("w", i), width, width))
	}
	n.weights = append(n.weights, w...)
	pool := G.Nodes{G.Must(ops.Embedding(table, tokens("ids", n.ids...)))}
	if seed%3 == 0 {
		pool = append(pool, input("x", 1, 5, width))
	}
	pick := func() *G.Node { return pool[len(pool)-1-r.IntN(min(len(pool), 4))] }
	for range 4 + r.IntN(14) {
		var y *G.Node
		a, b := pick(), pick()
		switch k := r.IntN(8); {
		case k < 2:
			y = G.Must(ops.Linear(a, w[r.IntN(3)]))
		case k == 2:
			y = G.Must(ops.SiLU(a))
		case k == 3:
			y = G.Must(ops.RMSNorm(a, gain, 1e-5))
		case k == 4:
			y = G.Must(ops.Softmax(a))
		case k == 5:
			y = G.Must(G.Tanh(a))
		case a == b:
			continue
		case k == 6:
			y = G.Must(ops.Add(a, b))
		default:
			y = G.Must(G.HadamardProd(a, b))
		}
		pool = append(pool, y)
		if r.IntN(5) == 0 {
			n.reads = append(n.reads, new(G.Value))
			G.Read(y, n.reads[len(n.reads)-1])
		}
	}
	n.inner = pool[1:]
	y := G.Must(ops.Linear(G.Must(ops.RMSNorm(G.Must(ops.Linear(pool[len(pool)-1], w[2])), gain, 1e-5)), w[0]))
	y = G.Must(ops.Add(G.Must(ops.Linear(y, w[1])), G.Must(ops.Linear(pool[0], w[0]))))
	n.loss = G.Must(ops.CrossEntropy(y, tokens("targets", 0, 5, 2, -1, 3)))
	var err error
	n.grads, err = graph.Grad(n.loss, n.weights...)
	require.NoError(t, err)
	return n
}

// train takes four steps and returns the bits of all that there is to see.
func (n *randomNet) train(t *testing.T, p graph.Precision, together bool, opts ...graph.Option) (all []float64) {
	b := halfFake{newFake()}
	r, err := graph.MoveInputs(b, n.weights...)
	require.NoError(t, err)
	m, err := graph.NewMachine(n.graph, append(opts, graph.WithBackend(b), graph.WithPrecision(p), graph.WithKeep(n.loss))...)
	require.NoError(t, err)
	s, err := optim.NewAdamW(optim.WithMachine(m), optim.WithLR(0.01))
	require.NoError(t, err)
	look := func(v G.Value) { all = append(all, numbers(t, v)...) }
	for i := range 4 {
		for j := range n.ids {
			n.ids[j] = (n.ids[j] + int32(i+j)) % 6
		}
		if together {
			require.NoError(t, m.RunAndStep(s, G.NodesToValueGrads(n.weights)))
		} else {
			require.NoError(t, m.RunAll())
			require.NoError(t, s.Step(G.NodesToValueGrads(n.weights)))
		}
		look(n.loss.Value())
		for _, d := range n.grads {
			look(d.Value())
		}
		for _, v := range n.reads {
			look(*v)
		}
	}
	for _, w := range n.weights {
		look(w.Value())
	}
	require.NoError(t, s.Close())
	require.NoError(t, m.Close())
	require.NoError(t, r.Close())
	return all
}

// TestRandomNetsTrainAlike: the same bits, whatever is kept, recorded or done at once, in float32 and in half precision.
func TestRandomNetsTrainAlike(t *testing.T) {
	for seed := range uint64(60) {
		for _, p := range []graph.Precision{graph.F32, graph.BF16} {
			n := newRandomNet(t, seed)
			want := n.train(t, p, false, graph.WithKeep(n.inner...))
			for _, together := range []bool{false, true} {
				require.Equal(t, want, newRandomNet(t, seed).train(t, p, together), "seed %d, %v, together %v", seed, p, together)
				got := newRandomNet(t, seed).train(t, p, together, graph.WithCapture())
				require.Equal(t, want, got, "seed %d, %v, together %v, recorded", seed, p, together)
			}
		}
	}
}
