package ops_test

import (
	"fmt"
	"slices"
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
	// wantFirst is the oracle's first output, where its bits are not those of separate; else nil.
	wantFirst *ref.Tensor
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
					if i == 0 && c.wantFirst != nil {
						testutil.Within(t, c.name, first[i].Floats, c.wantFirst.Data, tolerance(dt))
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
		out, heads   int
		bias, turned bool
		terms        int // of dy, beside the first
	}
	var twelve []layer
	for i := range ops.MaxLinears {
		twelve = append(twelve, layer{out: i + 1, bias: i%2 == 0})
	}
	rope := ops.RoPEOp{Base: 100, Start: 3}
	back := rope
	back.Inverse = true
	for _, c := range []struct {
		lead, axes []int // of x
		layers     []layer
	}{
		{[]int{1}, []int{1}, []layer{{out: 1}}},
		{[]int{7}, []int{13}, []layer{{out: 3, bias: true}, {out: 1}, {out: 17, bias: true}}},
		{[]int{2, 3}, []int{4, 6}, []layer{{10, 5, false, true, 2}, {24, 0, true, false, 0}, {26, 13, true, true, 0}, {2, 1, false, false, 1}}},
		{[]int{1, 65}, []int{17}, twelve},
		{[]int{2, 150}, []int{33}, []layer{{130, 2, false, false, 0}, {3, 0, true, false, 2}, {64, 1, false, true, 1}}},
		{[]int{1, 3}, []int{600}, []layer{{600, 0, false, false, 0}, {65, 5, false, false, 0}}},
	} {
		x := normal("x", 1, append(append([]int{}, c.lead...), c.axes...)...)
		in := tensor.Shape(c.axes).TotalSize()
		rows := len(x.Floats) / in
		linears, grad := ops.LinearsOp{RoPE: rope}, ops.LinearsGradOp{In: in, RoPE: back}
		var axes ops.Axes
		copy(axes[:], c.axes)
		var ws, biases []array
		var dys [][]array // the terms of each
		dx := ref.New(rows, in)
		for i, l := range c.layers {
			linears.Heads[i], linears.Bias[i], linears.Turned[i], grad.Turned[i] = l.heads, l.bias, l.turned, l.turned
			tail := []int{l.out}
			if l.heads > 0 {
				tail = []int{l.heads, l.out / l.heads}
			}
			seed := uint64(10 + 3*i)
			ws = append(ws, normal("w", seed, l.out, in))
			shape := append(append([]int{}, c.lead...), tail...)
			terms, dy := []array{}, ref.New(shape...)
			for j := range 1 + l.terms {
				terms = append(terms, normal("dy", seed+1+100*uint64(j), shape...))
				dy = ref.Add(dy, terms[j].Tensor())
			}
			dys = append(dys, terms)
			if l.terms > 0 {
				grad.Terms[i] = 1 + l.terms
			}
			if l.bias {
				biases = append(biases, normal("bias", seed+2, l.out))
			}
			if l.turned {
				dy = ref.RoPEGrad(dy, rope.Base, rope.Start)
			}
			d, _, _ := ref.LinearGrad(x.Tensor().Reshape(rows, in), ws[i].Tensor(), dy.Reshape(rows, l.out))
			dx = ref.Add(dx, d)
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
		// gradients returns those of the layers one by one: dx of each, if it is wanted, and dw of each.
		gradients := func(run runSpec, wantX bool) (dxs, dws []array) {
			for i, l := range c.layers {
				dy := dys[i][0]
				if l.terms > 0 {
					dy = run(ops.AddOp{}, dys[i]...)[0]
				}
				if l.turned {
					dy = run(back, dy)[0]
				}
				dws = append(dws, run(ops.LinearWeightGradOp{Out: l.out, In: in}, x, dy)...)
				if wantX {
					dxs = append(dxs, run(ops.LinearInputGradOp{Heads: l.heads, Axes: axes}, dy, ws[i])...)
				}
			}
			return dxs, dws
		}
		name := fmt.Sprint(x.Shape, c.layers)
		weights := grad
		weights.WeightsOnly = true
		list = append(list,
			fusedCase{name: "linears " + name, spec: linears, inputs: slices.Concat([]array{x}, ws, biases), separate: func(run runSpec) (ys []array) {
				for i, l := range c.layers {
					y := run(ops.LinearOp{Heads: l.heads}, inputsOf(i)...)[0]
					if l.turned {
						y = run(rope, y)[0]
					}
					ys = append(ys, y)
				}
				return ys
			}},
			fusedCase{name: "gradient " + name, spec: grad, inputs: slices.Concat([]array{x}, slices.Concat(dys...), ws), wantFirst: dx, separate: func(run runSpec) []array {
				dxs, dws := gradients(run, true)
				return append(run(ops.AddOp{}, dxs...), dws...)
			}},
			fusedCase{name: "gradient of weights " + name, spec: weights, inputs: slices.Concat([]array{x}, slices.Concat(dys...)), separate: func(run runSpec) []array {
				_, dws := gradients(run, false)
				return dws
			}},
		)
		for i, l := range c.layers[:min(3, len(c.layers))] {
			one, residual := inputsOf(i), normal("residual", 50, dys[i][0].Shape...)
			list = append(list, fusedCase{name: fmt.Sprint("linear with silu ", x.Shape, l), spec: ops.LinearSiLUOp{Heads: l.heads}, inputs: one,
				separate: func(run runSpec) []array {
					h := run(ops.LinearOp{Heads: l.heads}, one...)[0]
					return []array{run(ops.SiLUOp{}, h)[0], h}
				}}, fusedCase{name: fmt.Sprint("linear with add ", x.Shape, l), spec: ops.LinearAddOp{Heads: l.heads}, inputs: []array{one[0], one[1], residual},
				separate: func(run runSpec) []array {
					return run(ops.AddOp{}, residual, run(ops.LinearOp{Heads: l.heads}, one[:2]...)[0])
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
	rope := ops.RoPEOp{Base: 10}
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
		{ops.LinearsOp{Turned: flags{2: true}}, []*G.Node{x, w, v}, "linears: 3 inputs are those of 2 layers"},
		{ops.LinearsOp{Turned: flags{true}, RoPE: rope}, []*G.Node{x, w, v}, "linears: layer 0: rope: x has rank 3"},
		{ops.LinearsOp{Turned: flags{true}, Heads: counts{1}}, []*G.Node{x, w, v}, "linears: layer 0: rope: base is 0"},
		{ops.LinearsOp{Turned: flags{true, true}, RoPE: rope, Heads: counts{1, 1}}, []*G.Node{x, w, v}, "layer 1: heads of 6 are turned, those of another layer have 4"},
		{ops.LinearsGradOp{In: 5}, []*G.Node{x, f(2, 3, 4)}, "gradient of linears: 2 inputs, want those of 1 to 12 layers"},
		{ops.LinearsGradOp{In: 5}, []*G.Node{x}, "gradient of linears: 1 inputs, want those of 1 to 12 layers"},
		{ops.LinearsGradOp{In: 5, Turned: flags{1: true}}, []*G.Node{x, f(2, 3, 4), w}, "and are turned [false true false"},
		{ops.LinearsGradOp{In: 5, Terms: counts{4}}, []*G.Node{x, f(2, 3, 4), f(2, 3, 4), f(2, 3, 4), f(2, 3, 4), w}, "dy 0 has 4 terms, want 1 to 3"},
		{ops.LinearsGradOp{In: 5, Terms: counts{2}}, []*G.Node{x, f(2, 3, 4), f(3, 2, 4), w}, "a term of dy 0 has shape (3, 2, 4), want (2, 3, 4)"},
		{ops.LinearsGradOp{In: 7}, []*G.Node{x, f(2, 3, 4), w}, "x (2, 3, 5) is not rows of 7 inputs"},
		{ops.LinearsGradOp{In: 5}, []*G.Node{x, f(2, 3, 4), f(2, 3, 6), w, w}, "w 1 has shape (4, 5), want (6, 5)"},
		{ops.LinearsGradOp{In: 5}, []*G.Node{x, f(2, 3, 4), of(tensor.Float32, 4, 5)}, "w 0 is float32"},
		{ops.LinearsGradOp{In: 5, WeightsOnly: true}, []*G.Node{x, f(2, 3, 4), f(7)}, "layer 1: x (2, 3, 5) and dy (7) are not rows"},
		{ops.LinearsGradOp{In: 5, Turned: flags{true}, RoPE: rope}, []*G.Node{x, f(2, 3, 4), w}, "layer 0: rope: x has rank 3"},
		{ops.LinearAddOp{}, []*G.Node{x, w}, "linear with add: 2 inputs, want 3"},
		{ops.LinearAddOp{}, []*G.Node{x, w, f(2, 3, 6)}, "linear with add: residual has shape (2, 3, 6), want (2, 3, 4)"},
		{ops.LinearAddOp{}, []*G.Node{x, w, of(tensor.Float32, 2, 3, 4)}, "linear with add: residual is float32"},
		{ops.LinearSiLUOp{Heads: 3}, []*G.Node{x, w}, "linear with silu: heads 3 do not divide"},
		{ops.LinearSiLUOp{}, []*G.Node{x, f(4, 7)}, "linear with silu: x (2, 3, 5) has no trailing axes"},
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
