package graph_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	G "gorgonia.org/gorgonia"

	"github.com/gorgonia-nsa/nsa/graph"
	"github.com/gorgonia-nsa/nsa/internal/testutil"
)

// vms are the machines that must agree on what n.Grad is.
var vms = map[string]func(t *testing.T, g *G.ExprGraph, keep G.Nodes) G.VM{
	"machine": func(t *testing.T, g *G.ExprGraph, keep G.Nodes) G.VM {
		return newMachine(t, g, graph.WithKeep(keep...))
	},
	"tape":        func(t *testing.T, g *G.ExprGraph, keep G.Nodes) G.VM { return G.NewTapeMachine(g) },
	"tape, bound": func(t *testing.T, g *G.ExprGraph, keep G.Nodes) G.VM { return G.NewTapeMachine(g, G.BindDualValues()) },
	"tape after a machine, bound": func(t *testing.T, g *G.ExprGraph, keep G.Nodes) G.VM {
		newMachine(t, g) // it may have added copies of gradients
		return G.NewTapeMachine(g, G.BindDualValues())
	},
}

// TestGradTwice: of several costs the first one that is differentiated by an input gives n.Grad, on any machine, by
// Grad and by gorgonia.Grad. What each call of Grad returns is the gradient of its own cost.
func TestGradTwice(t *testing.T) {
	type call struct {
		cost func(x, y, h *G.Node) *G.Node // h is tanh(x ⊙ y)
		by   string
	}
	square := func(x, _, _ *G.Node) *G.Node { return G.Must(G.Sum(G.Must(G.Square(x)))) }
	linear := func(x, _, _ *G.Node) *G.Node { return G.Must(G.Sum(x)) }
	both := func(x, y, _ *G.Node) *G.Node { return G.Must(G.Sum(G.Must(G.Cube(G.Must(G.Add(x, y)))))) }
	inner := func(_, _, h *G.Node) *G.Node { return G.Must(G.Sum(G.Must(G.Square(h)))) }
	paths := func(x, _, h *G.Node) *G.Node {
		return G.Must(G.Sum(G.Must(G.Add(G.Must(G.Cube(h)), G.Must(G.HadamardProd(x, h))))))
	}
	for name, calls := range map[string][]call{
		"same cost":                   {{inner, "xy"}, {inner, "xy"}},
		"an input twice":              {{square, "xx"}},
		"common input":                {{square, "x"}, {linear, "x"}, {both, "x"}},
		"partial overlap":             {{square, "x"}, {both, "xy"}},
		"inner node in common":        {{inner, "x"}, {paths, "xy"}},
		"inner node in common, later": {{paths, "y"}, {inner, "xy"}, {square, "x"}},
		"shared gradient":             {{both, "xy"}, {square, "x"}},
	} {
		build := func() (g *G.ExprGraph, in map[rune]*G.Node, costs G.Nodes) {
			g = G.NewGraph()
			x, y := vector(g, "x", 1, -0.5, 0.25), vector(g, "y", 0.5, 2, 1)
			h := G.Must(G.Tanh(G.Must(G.HadamardProd(x, y))))
			made := map[string]*G.Node{}
			for _, c := range calls {
				key := fmt.Sprintf("%p", c.cost)
				if made[key] == nil {
					made[key] = c.cost(x, y, h)
				}
				costs = append(costs, made[key])
			}
			return g, map[rune]*G.Node{'x': x, 'y': y}, costs
		}
		alone := func(i int, by rune) []float64 { // the gradient where no other is taken
			g, in, costs := build()
			d := testutil.Must(graph.Grad(costs[i], in[by]))(t)
			run(t, g)
			return numbers(t, d[0].Value())
		}
		for vm, start := range vms {
			for gname, grad := range gradients {
				what := fmt.Sprintf("%s on %s by %s", name, vm, gname)
				g, in, costs := build()
				first := map[rune]int{} // by input: the call that decides
				var nodes G.Nodes
				var want [][]float64 // the values of nodes
				for i, c := range calls {
					var wrt G.Nodes
					for _, by := range c.by {
						wrt, want = append(wrt, in[by]), append(want, alone(i, by))
						// gorgonia.Grad may lose, or refuse, what comes through nodes that an earlier call has passed.
						if _, ok := first[by]; !ok && (gname == "Grad" || i == 0) {
							first[by] = i
						}
					}
					list, err := grad(costs[i], wrt...)
					require.True(t, err == nil || gname != "Grad" && i > 0, "%s: %v", what, err)
					nodes = append(nodes, list...)
				}
				m := start(t, g, nodes)
				require.NoError(t, m.RunAll(), what)
				for by, i := range first {
					require.InDeltaSlice(t, alone(i, by), gradient(t, in[by]), 1e-12, "%s: %c", what, by)
				}
				if gname == "Grad" && vm == "machine" {
					for i, d := range nodes {
						require.InDeltaSlice(t, want[i], numbers(t, d.Value()), 1e-12, "%s: result %d", what, i)
					}
				}
				require.NoError(t, m.Close())
			}
		}
	}
}
