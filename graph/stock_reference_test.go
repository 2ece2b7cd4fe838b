package graph_test

import (
	"fmt"
	"math"
	"reflect"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	G "gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/graph"
	"github.com/gorgonia-nsa/nsa/internal/ref"
	"github.com/gorgonia-nsa/nsa/internal/testutil"
)

// reference computes the output of a graph of stock ops from its inputs, by loops over float64.
type reference = func(in []*ref.Tensor) *ref.Tensor

// referenced is a graph of stock ops and its reference.
type referenced struct {
	stock
	want reference
}

// at returns the element of x at an index, one number for each axis.
func at(x *ref.Tensor, index ...int) float64 { return x.Row(index...)[0] }

// made returns a tensor whose elements are f of their indices.
func made(shape []int, f func(index []int) float64) *ref.Tensor {
	y, index := ref.New(shape...), make([]int, len(shape))
	for i := range y.Data {
		y.Data[i] = f(index)
		for k := len(index) - 1; k >= 0; k-- {
			if index[k]++; index[k] < shape[k] {
				break
			}
			index[k] = 0
		}
	}
	return y
}

// rounded returns values as a tensor of type dt holds them.
func rounded(dt tensor.Dtype, v []float64) []float64 {
	if dt == tensor.Float32 {
		return testutil.Convert[float64](testutil.Convert[float32](v))
	}
	return v
}

// check holds values to the reference and gradients to its central differences. Operands are row-major, transposed or
// views.
func (r referenced) check(t *testing.T, dt tensor.Dtype, variant int) {
	t.Helper()
	exact, slopes := 1e-12, 1e-6
	if dt == tensor.Float32 {
		exact, slopes = 3e-6, 3e-4
	}
	what := fmt.Sprint(dt, " variant ", variant)
	b := r.graphOf(t, dt)
	withGrads := r.wrong != noGradient
	if withGrads {
		require.NoError(t, testutil.Err(graph.Grad(b.cost, b.in...)), what)
	}
	m := newMachine(t, b.graph, append(r.options(), graph.WithKeep(b.out))...)
	for run := range uint64(2) {
		values, in := r.inputs(run), []*ref.Tensor(nil)
		for i, v := range values {
			values[i] = rounded(dt, v)
			in = append(in, ref.From(values[i], r.in[i].shape...))
			value := r.in[i].value(dt, values[i])
			if dt == tensor.Float64 {
				value = arranged(r.in[i].shape, values[i], variant)
			}
			require.NoError(t, G.Let(b.in[i], value))
		}
		require.NoError(t, m.RunAll(), what)
		want := r.want(in)
		require.Equal(t, []int(b.out.Shape()), append([]int{}, want.Shape...), what)
		testutil.Within(t, what+" value", numbers(t, b.out.Value()), want.Data, exact)
		if !withGrads {
			continue
		}
		weights := []float64{1}
		if !b.out.IsScalar() {
			weights = rounded(dt, testutil.Normal(99, len(want.Data)))
		}
		for i, v := range values {
			cost := func(j int, step float64) (cost float64) {
				moved := slices.Clone(in)
				moved[i] = in[i].Clone()
				moved[i].Data[j] += step
				for k, y := range r.want(moved).Data {
					cost += y * weights[k]
				}
				return cost
			}
			got, scale, want := gradient(t, b.in[i]), 1e-2, map[int]float64{}
			for j := 0; j < len(v); j += 1 + len(v)/testutil.Tries(t, 8, 16) {
				want[j] = (cost(j, 1e-5) - cost(j, -1e-5)) / 2e-5
				scale = max(scale, math.Abs(want[j]))
			}
			for j := range want {
				if !(math.Abs(got[j]-want[j]) <= slopes*scale) {
					t.Errorf("%s, run %d: gradient of %s is %v at %d, want %v", what, run, r.in[i].name, got[j], j, want[j])
					break
				}
			}
		}
	}
}

// TestStockMatchesReference holds every stock op that a Machine runs to loops over float64, in float32 and float64.
// TestYOLO does so for one more.
func TestStockMatchesReference(t *testing.T) {
	kinds, all := map[string]bool{"yoloOp": true}, map[string]bool{}
	for i, r := range referencedOps() {
		t.Run(r.name, func(t *testing.T) {
			for variant := range testutil.Tries(t, 1, 3) { // in the usual form the rows take them in turns
				r.check(t, tensor.Float64, (i+variant)%3)
			}
			r.check(t, tensor.Float32, 0)
		})
		opKinds(t, r.stock, kinds)
	}
	for _, c := range gorgonias() {
		opKinds(t, c, all)
	}
	for kind := range all {
		require.True(t, kinds[kind], "no reference for %s", kind)
	}
}

// opKinds adds the types of Gorgonia's ops in the graph of c and in its gradients.
func opKinds(t *testing.T, c stock, kinds map[string]bool) {
	b := c.graph(t)
	if c.wrong == "" || c.corrected {
		testutil.Must(graph.Grad(b.cost, b.in...))(t)
	}
	for _, n := range b.graph.AllNodes() {
		if n.Op() != nil {
			kinds[reflect.Indirect(reflect.ValueOf(n.Op())).Type().Name()] = true
		}
	}
}

// TestYOLO holds the boxes of YOLOv3 to their formula: centres by sigmoids in the cells of a grid, sizes by
// exponentials times anchors.
func TestYOLO(t *testing.T) {
	const batch, grid, classes, size, per = 1, 3, 2, 96, 7
	anchors := []float32{10, 13, 16, 30, 33, 23}
	x := testutil.Convert[float32](testutil.Normal(1, batch*3*per*grid*grid))
	value := tensor.New(tensor.WithShape(batch, 3*per, grid, grid), tensor.WithBacking(slices.Clone(x)))
	y := G.Must(G.YOLOv3(G.NodeFromAny(G.NewGraph(), value, G.WithName("x")), anchors, []int{0, 1, 2}, size, classes, 0.5))
	m := newMachine(t, y.Graph(), graph.WithKeep(y))
	want := made([]int{batch, grid * grid * 3, per}, func(n []int) float64 {
		cell, anchor, k := n[1]/3, n[1]%3, n[2]
		v := float64(x[((n[0]*3*per+anchor*per+k)*grid+cell/grid)*grid+cell%grid])
		sigmoid := 1 / (1 + math.Exp(-v))
		switch k {
		case 0:
			return (sigmoid + float64(cell%grid)) * size / grid
		case 1:
			return (sigmoid + float64(cell/grid)) * size / grid
		case 2, 3:
			return math.Exp(v) * float64(anchors[2*anchor+k-2])
		}
		return sigmoid
	})
	for range 2 {
		require.NoError(t, m.RunAll())
		testutil.Within(t, "boxes", numbers(t, y.Value()), want.Data, 1e-6)
		require.Equal(t, x, value.Data(), "the input")
	}
}
