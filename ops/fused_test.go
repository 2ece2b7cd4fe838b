package ops_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	G "gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/internal/ref"
	"github.com/gorgonia-nsa/nsa/internal/testutil"
	"github.com/gorgonia-nsa/nsa/ops"
)

// fusedCase is a Spec that stands for several.
type fusedCase struct {
	name     string
	spec     ops.Spec
	inputs   []array
	separate func(run runSpec) []array // what the several compute
	want     *ref.Tensor               // the oracle's result, where the bits are not those of separate; else nil
}

// runSpec runs a Spec and returns its outputs.
type runSpec func(spec ops.Spec, inputs ...array) []array

// TestFusedMatchSeparate: a fused Spec gives the bits of those that it stands for, or the oracle's numbers where it adds in
// another order, with any number of workers.
func TestFusedMatchSeparate(t *testing.T) {
	for _, c := range append(linearsCases(), fusedRowCases()...) {
		for _, dt := range dtypes {
			t.Run(fmt.Sprint(c.name, "/", dt), func(t *testing.T) {
				flops := 0.0
				separate := c.separate(func(spec ops.Spec, inputs ...array) []array {
					flops += ops.FLOPs(spec, operandsOf(dt, inputs))
					return outputsOf(t, 2, spec, dt, inputs...)
				})
				require.Equal(t, flops, ops.FLOPs(c.spec, operandsOf(dt, c.inputs)), "flops")
				first := outputsOf(t, 1, c.spec, dt, c.inputs...)
				for workers := 2; workers <= 7; workers++ {
					require.Equal(t, first, outputsOf(t, workers, c.spec, dt, c.inputs...), "%d workers", workers)
				}
				require.Len(t, first, len(separate))
				for i, a := range separate {
					require.Equal(t, a.Shape, first[i].Shape)
					if c.want != nil {
						testutil.Within(t, c.name, first[i].Floats, c.want.Data, tolerance(dt))
					} else {
						require.Equal(t, a.Floats, first[i].Floats, "output %d", i)
					}
				}
			})
		}
	}
}

func operandsOf(dt tensor.Dtype, inputs []array) (list []ops.Operand) {
	for _, a := range inputs {
		list = append(list, ops.Operand{Dtype: dt, Shape: a.Shape})
	}
	return list
}

func linearsCases() (list []fusedCase) {
	type layer struct {
		out, heads int
		bias       bool
	}
	var twelve []layer
	for i := range ops.MaxLinears {
		twelve = append(twelve, layer{out: i + 1, bias: i%2 == 0})
	}
	for _, c := range []struct {
		lead, axes []int // of x
		layers     []layer
	}{
		{[]int{1}, []int{1}, []layer{{out: 1}}},
		{[]int{7}, []int{13}, []layer{{out: 3, bias: true}, {out: 1}, {out: 17, bias: true}}},
		{[]int{2, 3}, []int{4, 6}, []layer{{10, 5, false}, {24, 0, true}, {65, 13, true}}},
		{[]int{1, 65}, []int{17}, twelve},
		{[]int{2, 150}, []int{33}, []layer{{130, 2, false}, {3, 0, true}, {64, 1, false}}},
		{[]int{1, 3}, []int{600}, []layer{{600, 0, false}, {65, 5, false}}},
	} {
		x := normal("x", 1, append(append([]int{}, c.lead...), c.axes...)...)
		in := tensor.Shape(c.axes).TotalSize()
		rows := len(x.Floats) / in
		linears := ops.LinearsOp{}
		inputGrad, weightGrad := ops.LinearsInputGradOp{}, ops.LinearsWeightGradOp{In: in}
		copy(inputGrad.Axes[:], c.axes)
		var ws, biases, dys []array
		dx := ref.New(rows, in)
		for i, l := range c.layers {
			linears.Heads[i], inputGrad.Heads[i], weightGrad.Out[i], linears.Bias[i] = l.heads, l.heads, l.out, l.bias
			tail := []int{l.out}
			if l.heads > 0 {
				tail = []int{l.heads, l.out / l.heads}
			}
			seed := uint64(10 + 3*i)
			ws = append(ws, normal("w", seed, l.out, in))
			dys = append(dys, normal("dy", seed+1, append(append([]int{}, c.lead...), tail...)...))
			if l.bias {
				biases = append(biases, normal("bias", seed+2, l.out))
			}
			d, _, _ := ref.LinearGrad(x.Tensor().Reshape(rows, in), ws[i].Tensor(), dys[i].Tensor().Reshape(rows, l.out))
			dx = ref.Add(dx, d)
		}
		of := func(first array, more ...[]array) []array {
			all := []array{first}
			for _, m := range more {
				all = append(all, m...)
			}
			return all
		}
		inputsOf := func(i int) []array { // of layer i alone
			one, bias := []array{x, ws[i]}, 0
			for _, l := range c.layers[:i] {
				if l.bias {
					bias++
				}
			}
			if c.layers[i].bias {
				one = append(one, biases[bias])
			}
			return one
		}
		name := fmt.Sprint(x.Shape, c.layers)
		list = append(list,
			fusedCase{name: "linears " + name, spec: linears, inputs: of(x, ws, biases), separate: func(run runSpec) (ys []array) {
				for i, l := range c.layers {
					y := run(ops.LinearOp{Heads: l.heads}, inputsOf(i)...)[0]
					ys = append(ys, y)
				}
				return ys
			}},
			fusedCase{name: "input gradient " + name, spec: inputGrad, inputs: of(dys[0], dys[1:], ws), want: dx, separate: func(run runSpec) []array {
				var dxs []array
				for i, l := range c.layers {
					dxs = append(dxs, run(ops.LinearInputGradOp{Heads: l.heads, Axes: inputGrad.Axes}, dys[i], ws[i])...)
				}
				return run(ops.AddOp{}, dxs...)
			}},
			fusedCase{name: "weight gradient " + name, spec: weightGrad, inputs: of(x, dys), separate: func(run runSpec) (dws []array) {
				for i, l := range c.layers {
					dws = append(dws, run(ops.LinearWeightGradOp{Out: l.out, In: in}, x, dys[i])...)
				}
				return dws
			}},
		)
		for i, l := range c.layers[:min(3, len(c.layers))] {
			one := inputsOf(i)
			list = append(list, fusedCase{name: fmt.Sprint("linear with silu ", x.Shape, l), spec: ops.LinearSiLUOp{Heads: l.heads}, inputs: one,
				separate: func(run runSpec) []array {
					h := run(ops.LinearOp{Heads: l.heads}, one...)[0]
					return []array{run(ops.SiLUOp{}, h)[0], h}
				}})
		}
	}
	return list
}

func fusedRowCases() (list []fusedCase) {
	for _, shape := range [][]int{{1, 1}, {2, 3, 7}, {65, 2}, {3, 2, 2, 5}, {200, 301}, {2, 17000}} {
		x, y, residual := normal("x", 1, shape...), normal("y", 2, shape...), normal("residual", 3, shape...)
		weight := normal("weight", 4, shape[len(shape)-1])
		list = append(list,
			fusedCase{name: fmt.Sprint("add with rms norm", " ", shape), spec: ops.AddRMSNormOp{Eps: 0.3}, inputs: []array{x, y, weight},
				separate: func(run runSpec) []array {
					sum := run(ops.AddOp{}, x, y)[0]
					return []array{sum, run(ops.RMSNormOp{Eps: 0.3}, sum, weight)[0]}
				}},
			fusedCase{name: fmt.Sprint("gradient of rms norm with add", " ", shape), spec: ops.RMSNormGradAddOp{Eps: 0.3}, inputs: []array{x, weight, y, residual},
				separate: func(run runSpec) []array {
					d := run(ops.RMSNormGradOp{Eps: 0.3}, x, weight, y)
					return []array{run(ops.AddOp{}, residual, d[0])[0], d[1]}
				}},
		)
	}
	return list
}

// TestFusedErrors: shapes and parameters that do not belong together are refused.
func TestFusedErrors(t *testing.T) {
	g := G.NewGraph()
	var names int
	of := func(dt tensor.Dtype, shape ...int) *G.Node {
		names++
		return G.NewTensor(g, dt, len(shape), G.WithShape(shape...), G.WithName(fmt.Sprint("n", names)))
	}
	f := func(shape ...int) *G.Node { return of(tensor.Float64, shape...) }
	x, w, v := f(2, 3, 5), f(4, 5), f(6, 5)
	type counts = [ops.MaxLinears]int
	type flags = [ops.MaxLinears]bool
	axes := ops.Axes{5}
	many := []*G.Node{x}
	for range ops.MaxLinears + 1 {
		many = append(many, w)
	}
	for _, c := range []struct {
		spec ops.Spec
		in   []*G.Node
		err  string
	}{
		{ops.LinearsOp{}, []*G.Node{x}, "linears: 0 layers, want 1 to 12"},
		{ops.LinearsOp{}, many, "linears: 13 layers, want 1 to 12"},
		{ops.LinearsOp{Bias: flags{true, true}}, []*G.Node{x, w}, "linears: -1 layers, want 1 to 12"},
		{ops.LinearsOp{Bias: flags{2: true}}, []*G.Node{x, w, v, f(6)}, "linears: 4 inputs are those of 2 layers"},
		{ops.LinearsOp{Heads: counts{2: 1}}, []*G.Node{x, w, v}, "linears: 3 inputs are those of 2 layers"},
		{ops.LinearsOp{}, []*G.Node{x, w, f(4, 6)}, "linears: layer 1: x (2, 3, 5) has no trailing axes of product 6"},
		{ops.LinearsOp{}, []*G.Node{x, w, f(4, 15)}, "linears: w 1 has shape (4, 15), want the 5 inputs of w 0"},
		{ops.LinearsOp{Heads: counts{0, 4}}, []*G.Node{x, w, v}, "linears: layer 1: heads 4 do not divide the 6 outputs"},
		{ops.LinearsOp{Bias: flags{1: true}}, []*G.Node{x, w, v, f(4)}, "linears: layer 1: bias has shape (4), want (6)"},
		{ops.LinearsOp{}, []*G.Node{x, w, of(tensor.Float32, 6, 5)}, "linears: layer 1: w is float32"},
		{ops.LinearsInputGradOp{Axes: axes}, []*G.Node{f(2, 4)}, "input gradient of linears: 1 inputs, want two for each layer"},
		{ops.LinearsInputGradOp{Axes: axes}, nil, "input gradient of linears: 0 layers, want 1 to 12"},
		{ops.LinearsInputGradOp{Axes: axes, Heads: counts{1: 2}}, []*G.Node{f(2, 4), w}, "input gradient of linears: heads [0 2 0"},
		{ops.LinearsInputGradOp{Axes: axes}, []*G.Node{f(2, 4), f(2, 7), w, v}, "layer 1: end of dy has shape (7), want (6)"},
		{ops.LinearsInputGradOp{Axes: axes}, []*G.Node{f(2, 4), f(3, 6), w, v}, "layer 1: dx would be float64 (3, 5), that of layer 0 is float64 (2, 5)"},
		{ops.LinearsInputGradOp{Axes: axes}, []*G.Node{f(2, 4), of(tensor.Float32, 2, 4), w, of(tensor.Float32, 4, 5)}, "layer 1: dx would be float32"},
		{ops.LinearsInputGradOp{Axes: ops.Axes{6}}, []*G.Node{f(2, 4), w}, "layer 0: axes (6) of x do not have the product 5"},
		{ops.LinearsWeightGradOp{In: 5}, []*G.Node{x}, "weight gradient of linears: 0 layers, want 1 to 12"},
		{ops.LinearsWeightGradOp{In: 5, Out: counts{4, 6}}, []*G.Node{x, f(2, 3, 4)}, "weight gradient of linears: outputs [4 6"},
		{ops.LinearsWeightGradOp{In: 5, Out: counts{4, 6}}, []*G.Node{x, f(2, 3, 4), f(2, 3, 5)}, "layer 1: x (2, 3, 5) and dy (2, 3, 5) are not rows"},
		{ops.LinearSiLUOp{Heads: 3}, []*G.Node{x, w}, "linear with silu: heads 3 do not divide"},
		{ops.LinearSiLUOp{}, []*G.Node{x, f(4, 7)}, "linear with silu: x (2, 3, 5) has no trailing axes"},
		{ops.AddRMSNormOp{Eps: 1}, []*G.Node{x, f(2, 3, 4), f(5)}, "add with rms norm: y has shape (2, 3, 4), want (2, 3, 5)"},
		{ops.AddRMSNormOp{Eps: 1}, []*G.Node{x, f(2, 3, 5), f(4)}, "add with rms norm: weight has shape (4), want (5)"},
		{ops.AddRMSNormOp{}, []*G.Node{x, f(2, 3, 5), f(5)}, "add with rms norm: eps is 0"},
		{ops.AddRMSNormOp{Eps: 1}, []*G.Node{x, f(5)}, "add with rms norm: 2 inputs, want 3"},
		{ops.RMSNormGradAddOp{Eps: 1}, []*G.Node{x, f(5), f(2, 3, 5), f(2, 5)}, "with add: residual has shape (2, 5), want (2, 3, 5)"},
		{ops.RMSNormGradAddOp{Eps: 1}, []*G.Node{x, f(5), f(2, 5), f(2, 3, 5)}, "with add: dy has shape (2, 5), want (2, 3, 5)"},
		{ops.RMSNormGradAddOp{}, []*G.Node{x, f(5), f(2, 3, 5), f(2, 3, 5)}, "with add: eps is 0"},
	} {
		_, err := ops.Apply(c.spec, c.in...)
		require.ErrorContains(t, err, c.err)
	}
}

// TestFusedSpecsCompare: Specs of one op with other parameters are other Specs, in Go and in a graph.
func TestFusedSpecsCompare(t *testing.T) {
	g := G.NewGraph()
	x, w, v := normal("x", 1, 2, 5).Node(g, tensor.Float64), normal("w", 2, 4, 5).Node(g, tensor.Float64), normal("v", 3, 4).Node(g, tensor.Float64)
	a, b := ops.LinearsOp{Heads: [ops.MaxLinears]int{2}, Bias: [ops.MaxLinears]bool{true}}, ops.LinearsOp{Bias: [ops.MaxLinears]bool{true}}
	require.NotEqual(t, ops.Spec(a), ops.Spec(b))
	require.Len(t, map[ops.Spec]bool{a: true, b: true, ops.LinearsOp{}: true}, 3)
	require.Same(t, G.Must(ops.Apply(a, x, w, v)), G.Must(ops.Apply(a, x, w, v)))
	require.NotSame(t, G.Must(ops.Apply(a, x, w, v)), G.Must(ops.Apply(b, x, w, v)))
}
