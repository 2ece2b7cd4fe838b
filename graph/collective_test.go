package graph_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	G "gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/graph"
	"github.com/gorgonia-nsa/nsa/graph/fakedevice"
	"github.com/gorgonia-nsa/nsa/internal/testutil"
	"github.com/gorgonia-nsa/nsa/ops"
)

// collectives are the collective ops with what they compute: x[r] is the input of rank r, dy[r] the gradient of its
// output.
var collectives = []struct {
	name   string
	apply  func(x *G.Node, ranks int) (*G.Node, error)
	y, dx  func(rank int, in [][]float64) []float64 // of x and of dy
	gather int                                      // by how much the first axis grows: ranks to the power of it
}{
	{"all-reduce", ops.AllReduce, sumOf, sumOf, 0},
	{"mean", ops.AllReduceMean, meanOf, meanOf, 0},
	{"reduce", func(x *G.Node, ranks int) (*G.Node, error) { return ops.Reduce(x, ranks-1, ranks) },
		func(rank int, x [][]float64) []float64 {
			if rank == len(x)-1 {
				return sumOf(rank, x)
			}
			return make([]float64, len(x[0]))
		}, lastOf, 0},
	{"broadcast", func(x *G.Node, ranks int) (*G.Node, error) { return ops.Broadcast(x, ranks-1, ranks) },
		lastOf, func(rank int, dy [][]float64) []float64 {
			if rank == len(dy)-1 {
				return sumOf(rank, dy)
			}
			return make([]float64, len(dy[0]))
		}, 0},
	{"all-gather", ops.AllGather, allOf, partOf, 1},
	{"reduce-scatter", ops.ReduceScatter, partOf, allOf, -1},
}

func sumOf(_ int, x [][]float64) []float64 {
	y := make([]float64, len(x[0]))
	for _, theirs := range x {
		for i, v := range theirs {
			y[i] += v
		}
	}
	return y
}

func meanOf(rank int, x [][]float64) []float64 {
	y := sumOf(rank, x)
	for i := range y {
		y[i] /= float64(len(x))
	}
	return y
}

func lastOf(_ int, x [][]float64) []float64 { return x[len(x)-1] }

func allOf(_ int, x [][]float64) (y []float64) {
	for _, theirs := range x {
		y = append(y, theirs...)
	}
	return y
}

func partOf(rank int, x [][]float64) []float64 {
	n := len(x[0]) / len(x)
	return sumOf(rank, x)[rank*n : (rank+1)*n]
}

// TestCollectives: results and gradients of each op, with several ranks, on the CPU and on a device.
func TestCollectives(t *testing.T) {
	for _, c := range collectives {
		for _, size := range []int{1, 2, 3, 8} {
			for _, device := range []bool{false, true} {
				t.Run(fmt.Sprintf("%s/%d/%v", c.name, size, device), func(t *testing.T) {
					rows := map[int]int{-1: 2 * size, 0: 3, 1: 2}[c.gather]
					results := map[int]int{-1: 2, 0: 3, 1: 2 * size}[c.gather]
					x, dy, y, dx := make([][]float64, size), make([][]float64, size), make([][]float64, size),
						make([][]float64, size)
					for r := range size {
						x[r], dy[r] = testutil.Normal(uint64(1+r), rows*5), testutil.Normal(uint64(100+r), results*5)
					}
					require.NoError(t, onRanks(size, func(g graph.Group) (err error) {
						y[g.Rank()], dx[g.Rank()], err = runCollective(g, c.apply, device, x[g.Rank()], dy[g.Rank()])
						return err
					}))
					for r := range size {
						testutil.Within(t, "y", y[r], c.y(r, x), 1e-14)
						testutil.Within(t, "dx", dx[r], c.dx(r, dy), 1e-14)
					}
				})
			}
		}
	}
}

// runCollective returns an op's result on a rank, and its gradient for the gradient dy of the result.
func runCollective(g graph.Group, apply func(x *G.Node, ranks int) (*G.Node, error), device bool, x, dy []float64) (y,
	dx []float64, err error) {
	building.Lock()
	net := G.NewGraph()
	input := func(name string, data []float64) *G.Node {
		v := tensor.New(tensor.WithShape(len(data)/5, 5), tensor.WithBacking(data))
		return G.NewMatrix(net, tensor.Float64, G.WithShape(v.Shape()...), G.WithName(name), G.WithValue(v))
	}
	in := input("x", x)
	out, err := apply(G.Must(G.Neg(in)), g.Size())
	if err != nil {
		return nil, nil, err
	}
	cost := G.Must(G.Sum(G.Must(G.HadamardProd(out, input("dy", dy)))))
	grads, err := graph.Grad(cost, in)
	if err != nil {
		return nil, nil, err
	}
	result, grad := G.Must(G.Neg(out)), G.Must(G.Neg(grads[0]))
	building.Unlock()
	b := graph.NewCPU(1)
	if device {
		b = fakedevice.New()
	}
	// The derivative of an input would be averaged: the graph has one that is not.
	m, err := graph.NewMachine(net, graph.WithBackend(b), graph.WithGroup(g), graph.WithKeep(result, grad))
	if err != nil {
		return nil, nil, err
	}
	if err := m.RunAll(); err != nil {
		return nil, nil, err
	}
	var list [2][]float64
	for i, n := range []*G.Node{result, grad} {
		v, err := graph.HostValue(n.Value())
		if err != nil {
			return nil, nil, err
		}
		list[i] = append(list[i], v.Data().([]float64)...)
	}
	return list[0], list[1], m.Close()
}
