package graph_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
	G "gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/graph"
	"github.com/gorgonia-nsa/nsa/internal/testutil"
	"github.com/gorgonia-nsa/nsa/ops"
)

// square is the value of a node of a mixed graph, 4 by 4.
type square [16]float64

// each returns the square of f(row, column).
func each(f func(i, j int) float64) (m square) {
	for k := range m {
		m[k] = f(k/4, k%4)
	}
	return m
}

// mixed is a random graph of ops of gorgonia, of which many return aliases of their inputs, and of this module, with its
// evaluation in Go.
type mixed struct {
	graph  *G.ExprGraph
	in     G.Nodes
	values []square // of the inputs
	nodes  G.Nodes
	eval   []func() square
}

func newMixed(t *testing.T, r *rand.Rand) *mixed {
	t.Helper()
	x := &mixed{graph: G.NewGraph(), values: make([]square, 3)}
	add := func(n *G.Node, err error, f func() square) {
		require.NoError(t, err)
		x.nodes, x.eval = append(x.nodes, n), append(x.eval, f)
	}
	for i := range x.values {
		x.in = append(x.in, G.NewMatrix(x.graph, tensor.Float64, G.WithShape(4, 4), G.WithName(string(rune('a'+i)))))
		add(x.in[i], nil, func() square { return x.values[i] })
	}
	slice := func(n *G.Node, s ...tensor.Slice) *G.Node { return G.Must(G.Slice(n, s...)) }
	for range 30 {
		pick := func() int { return len(x.nodes) - 1 - min(len(x.nodes)-1, int(r.ExpFloat64()*4)) }
		i, j := pick(), pick()
		a, b, p, q := x.nodes[i], x.nodes[j], x.eval[i], x.eval[j]
		switch r.IntN(9) {
		case 0, 1:
			n, err := ops.Apply(scaledSum{0.5}, a, b)
			add(n, err, func() square {
				p, q := p(), q()
				return each(func(i, j int) float64 { return 0.5*p[4*i+j] + q[4*i+j] })
			})
		case 2:
			n, err := G.Transpose(a, 1, 0)
			add(n, err, func() square { p := p(); return each(func(i, j int) float64 { return p[4*j+i] }) })
		case 3:
			n, err := G.Reshape(G.Must(G.Reshape(a, tensor.Shape{2, 8})), tensor.Shape{4, 4})
			add(n, err, p)
		case 4:
			n, err := G.Concat(0, slice(a, G.S(0, 2)), slice(b, G.S(2, 4)))
			add(n, err, func() (m square) {
				p, q := p(), q()
				copy(m[:8], p[:8])
				copy(m[8:], q[8:])
				return m
			})
		case 5:
			n, err := G.BroadcastAdd(a, slice(b, G.S(1)), nil, []byte{0})
			add(n, err, func() square {
				p, q := p(), q()
				return each(func(i, j int) float64 { return p[4*i+j] + q[4+j] })
			})
		case 6:
			n, err := G.BroadcastHadamardProd(a, slice(b, nil, G.S(2)), nil, []byte{1})
			add(n, err, func() square {
				p, q := p(), q()
				return each(func(i, j int) float64 { return p[4*i+j] * q[4*i+2] })
			})
		case 7:
			n, err := ops.Apply(scaledSum{1}, G.Must(G.HadamardProd(G.Must(G.Tanh(a)), G.NewConstant(2.0))))
			add(n, err, func() square { p := p(); return each(func(i, j int) float64 { return 2 * math.Tanh(p[4*i+j]) }) })
		case 8:
			n, err := ops.Add(a)
			add(n, err, p)
		}
	}
	return x
}

// let binds new values to the inputs: row-major ones, transposed ones and views of columns.
func (x *mixed) let(t *testing.T, run int, seed uint64) {
	t.Helper()
	for i, n := range x.in {
		elements := testutil.Normal(seed+uint64(i), 36)
		v := tensor.New(tensor.WithShape(4, 4), tensor.WithBacking(elements[:16]))
		at := func(i, j int) float64 { return elements[4*i+j] }
		switch (run + i) % 3 {
		case 1:
			require.NoError(t, v.T())
			at = func(i, j int) float64 { return elements[4*j+i] }
		case 2:
			s, err := tensor.New(tensor.WithShape(4, 9), tensor.WithBacking(elements)).Slice(nil, tensor.S(3, 7))
			require.NoError(t, err)
			v = s.(*tensor.Dense)
			at = func(i, j int) float64 { return elements[9*i+3+j] }
		}
		x.values[i] = each(at)
		require.NoError(t, G.Let(n, v))
	}
}

// TestMixedGraphs holds random graphs, in which results alias inputs whose memory is used again, to their evaluation in Go.
func TestMixedGraphs(t *testing.T) {
	for seed := range uint64(40) {
		r := rand.New(rand.NewPCG(seed, 3))
		x := newMixed(t, r)
		for name, opts := range map[string][]graph.Option{
			"cpu": nil, "cpu, captured": {graph.WithCapture()},
			"device": {graph.WithBackend(newFake())}, "device, captured": {graph.WithBackend(newFake()), graph.WithCapture()},
		} {
			keep := x.nodes[r.IntN(len(x.nodes))]
			m := newMachine(t, x.graph, append(opts, graph.WithKeep(keep))...)
			if m.Plan().Device.Host {
				m.PoisonFreed()
			}
			for run := range 4 {
				x.let(t, run, 100*seed+10*uint64(run))
				require.NoError(t, m.RunAll())
				for i, n := range x.nodes {
					if n == keep || x.graph.To(n.ID()).Len() <= 0 {
						want := x.eval[i]()
						testutil.Within(t, fmt.Sprintf("%s, seed %d, run %d, node %d", name, seed, run, i), numbers(t, n.Value()), want[:], 1e-12)
					}
				}
			}
		}
	}
}

// TestTransposedView: package tensor transposes a view into memory that is larger than its elements.
func TestTransposedView(t *testing.T) {
	g := G.NewGraph()
	x := G.NewMatrix(g, tensor.Float64, G.WithShape(2, 2), G.WithName("x"))
	y, err := ops.Apply(scaledSum{1}, G.Must(G.Transpose(x, 1, 0)))
	require.NoError(t, err)
	view, err := tensor.New(tensor.WithShape(2, 4), tensor.WithBacking([]float64{0, 1, 2, 3, 4, 5, 6, 7})).Slice(nil, tensor.S(1, 3))
	require.NoError(t, err)
	require.NoError(t, G.Let(x, view))
	require.NoError(t, newMachine(t, g).RunAll())
	require.Equal(t, []float64{1, 5, 2, 6}, numbers(t, y.Value()))
}

// TestResultsTakeTurns feeds two results back as inputs, one of which would alias the copy of an earlier one.
func TestResultsTakeTurns(t *testing.T) {
	g := G.NewGraph()
	a := G.NewMatrix(g, tensor.Float64, G.WithShape(1, 2), G.WithName("a"))
	b := G.NewMatrix(g, tensor.Float64, G.WithShape(2, 1), G.WithName("b"))
	nextA := G.Must(G.Reshape(b, tensor.Shape{1, 2}))
	twice, err := ops.Apply(scaledSum{2}, a)
	require.NoError(t, err)
	nextB, err := ops.Apply(scaledSum{1}, G.Must(G.Reshape(twice, tensor.Shape{2, 1})))
	require.NoError(t, err)
	for _, opts := range [][]graph.Option{nil, {graph.WithBackend(newFake())}} {
		m := newMachine(t, g, opts...)
		x, y := []float64{1, 2}, []float64{10, 20}
		require.NoError(t, G.Let(a, tensor.New(tensor.WithShape(1, 2), tensor.WithBacking([]float64{1, 2}))))
		require.NoError(t, G.Let(b, tensor.New(tensor.WithShape(2, 1), tensor.WithBacking([]float64{10, 20}))))
		for range 6 {
			require.NoError(t, m.RunAll())
			x, y = y, []float64{2 * x[0], 2 * x[1]}
			require.Equal(t, x, numbers(t, nextA.Value()))
			require.Equal(t, y, numbers(t, nextB.Value()))
			require.NoError(t, G.Let(a, nextA.Value()))
			require.NoError(t, G.Let(b, nextB.Value()))
		}
	}
}
