package graph_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	G "gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/graph"
	"github.com/gorgonia-nsa/nsa/internal/testutil"
)

// TestByIndices compares selections of random shapes, axes and indices, and their gradients, with loops over the elements. The
// selection reads an input of the graph, which may be transposed or a view, or the result of an op.
func TestByIndices(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for trial := range 400 {
		shape := make(tensor.Shape, 1+r.IntN(4))
		for i := range shape {
			shape[i] = 1 + r.IntN(4)
		}
		axis, indices := r.IntN(len(shape)), make([]int, 1+r.IntN(5))
		for i := range indices {
			indices[i] = r.IntN(shape[axis])
		}
		given := slices.Clone(indices)
		if trial%4 == 0 { // an index outside the axis selects element 0
			given[0], indices[0] = []int{-1, shape[axis]}[trial/4%2], 0
		}
		blocks, run := tensor.ProdInts(shape[:axis]), tensor.ProdInts(shape[axis+1:])
		what := fmt.Sprintf("trial %d: indices %v of axis %d of %v", trial, indices, axis, shape)

		dt := []tensor.Dtype{tensor.Float32, tensor.Float64}[trial%2]
		integers := func(n int) []float64 { // so that sums are exact
			v := make([]float64, n)
			for i := range v {
				v[i] = float64(1 + r.IntN(99))
			}
			return v
		}
		x, w := integers(blocks*shape[axis]*run), integers(blocks*len(indices)*run)
		want, dx := make([]float64, len(w)), make([]float64, len(x))
		for i := range want {
			block, at, element := i/(len(indices)*run), i/run%len(indices), i%run
			from := (block*shape[axis]+indices[at])*run + element
			want[i] = x[from]
			dx[from] += w[i]
		}

		for name, grad := range gradients {
			g := G.NewGraph()
			X := G.NewTensor(g, dt, len(shape), G.WithShape(shape...), G.WithName("x"))
			in := X
			if r.IntN(2) == 0 {
				in = G.Must(G.Neg(G.Must(G.Neg(X))))
			}
			y := G.Must(G.ByIndices(in, fixed(X, "indices", given, len(indices)), axis))
			out := slices.Clone(shape)
			out[axis] = len(indices)
			weights := G.NewTensor(g, dt, len(out), G.WithShape(out...), G.WithName("w"), G.WithValue(operand{shape: out}.value(dt, w)))
			cost := G.Must(G.Sum(G.Must(G.HadamardProd(y, weights))))
			testutil.Must(grad(cost, X))(t)
			value := operand{shape: shape}.value(dt, x)
			if dt == tensor.Float64 {
				value = arranged(shape, x, trial)
			}
			require.NoError(t, G.Let(X, value))
			m := newMachine(t, g, append(randomMachines(uint64(trial)), graph.WithKeep(y))...)
			for range 2 {
				require.NoError(t, m.RunAll(), what)
				require.Equal(t, want, numbers(t, y.Value()), what)
				require.Equal(t, dx, gradient(t, X), "%s of %s", name, what)
			}
		}
	}
}
