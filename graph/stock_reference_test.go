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

// of returns the row of an op whose inputs are named a, b and so on.
func of(name string, f build, want reference, in ...operand) referenced {
	return referenced{on(name, f, slices.Clone(in)...), want}
}

// valuesOnly marks a row without gradients.
func valuesOnly(r referenced) referenced {
	r.wrong = noGradient
	return r
}

// at returns the element of x at an index, one number for each axis.
func at(x *ref.Tensor, index ...int) float64 {
	offset := 0
	for i, v := range index {
		offset = offset*x.Shape[i] + v
	}
	return x.Data[offset]
}

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

// test holds values to the reference and gradients to its central differences, in float32 and float64. Operands are
// row-major, transposed or views, in the usual form one of these.
func (r referenced) test(t *testing.T, row int) {
	variants := testutil.Tries(t, 1, 3)
	for i := range variants {
		r.check(t, tensor.Float64, (row+i)%3)
	}
	r.check(t, tensor.Float32, 0)
}

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
		_, err := graph.Grad(b.cost, b.in...)
		require.NoError(t, err, what)
	}
	m := newMachine(t, b.graph, append(r.options(), graph.WithKeep(b.out))...)
	for run := range uint64(2) {
		values := r.inputs(run)
		for i, v := range values {
			if dt == tensor.Float32 {
				values[i] = testutil.Convert[float64](testutil.Convert[float32](v))
			}
			value := r.in[i].value(dt, values[i])
			if dt == tensor.Float64 {
				value = arranged(r.in[i].shape, values[i], variant)
			}
			require.NoError(t, G.Let(b.in[i], value))
		}
		require.NoError(t, m.RunAll(), what)
		at := make([]*ref.Tensor, len(values))
		for i, v := range values {
			at[i] = ref.From(v, r.in[i].shape...)
		}
		want := r.want(at)
		require.Equal(t, []int(b.out.Shape()), append([]int{}, want.Shape...), what)
		testutil.Within(t, what+" value", numbers(t, b.out.Value()), want.Data, exact)
		if !withGrads {
			continue
		}
		weights := []float64{1}
		if !b.out.IsScalar() {
			weights = testutil.Convert[float64](testutil.Normal(99, len(want.Data)))
			if dt == tensor.Float32 {
				weights = testutil.Convert[float64](testutil.Convert[float32](weights))
			}
		}
		for i := range values {
			cost := func(x []float64) (cost float64) {
				in := slices.Clone(at)
				in[i] = ref.From(x, r.in[i].shape...)
				for j, y := range r.want(in).Data {
					cost += y * weights[j]
				}
				return cost
			}
			got, scale := gradient(t, b.in[i]), 1e-2
			want := map[int]float64{}
			for j := 0; j < len(values[i]); j += 1 + len(values[i])/16 {
				up, down := slices.Clone(values[i]), slices.Clone(values[i])
				up[j], down[j] = up[j]+1e-5, down[j]-1e-5
				want[j] = (cost(up) - cost(down)) / 2e-5
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

// TestStockMatchesReference holds every stock op that a Machine runs to loops over float64. TestByIndices and TestYOLO
// do so for two more.
func TestStockMatchesReference(t *testing.T) {
	rows := slices.Concat(referencedOps(), nnOps())
	kinds := map[string]bool{"byIndicesOp": true, "byIndicesOpDiffOp": true, "yoloOp": true}
	for i, r := range rows {
		t.Run(r.name, func(t *testing.T) { r.test(t, i) })
		opKinds(t, r.stock, kinds)
	}
	all := map[string]bool{}
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
	const batch, grid, classes, size = 1, 3, 2, 96
	anchors := []float32{10, 13, 16, 30, 33, 23}
	per := 5 + classes
	x := testutil.Convert[float32](testutil.Normal(1, batch*3*per*grid*grid))
	g := G.NewGraph()
	value := tensor.New(tensor.WithShape(batch, 3*per, grid, grid), tensor.WithBacking(slices.Clone(x)))
	in := G.NodeFromAny(g, value, G.WithName("x"))
	y := G.Must(G.YOLOv3(in, anchors, []int{0, 1, 2}, size, classes, 0.5))
	m := newMachine(t, g, graph.WithKeep(y))
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
