package ops_test

import (
	"fmt"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/internal/opcases"
	"github.com/gorgonia-nsa/nsa/internal/ref"
	"github.com/gorgonia-nsa/nsa/internal/testutil"
	"github.com/gorgonia-nsa/nsa/ops"
	"github.com/gorgonia-nsa/nsa/ops/spec"
	"github.com/gorgonia-nsa/nsa/ops/spec/attention"
	"github.com/gorgonia-nsa/nsa/ops/spec/linear"
	"github.com/gorgonia-nsa/nsa/ops/spec/norm"
	"github.com/gorgonia-nsa/nsa/ops/spec/pointwise"
)

// fusion compares a fused Spec with the single Specs that it replaces.
type fusion struct {
	*testing.T
	dt    tensor.Dtype
	flops float64 // operations of the single Specs so far
}

// run runs a single Spec and counts its operations.
func (f *fusion) run(s spec.Spec, inputs ...array) []array {
	f.flops += spec.FLOPs(s, f.operands(inputs))
	return runSpecWith(f, 2, s, f.dt, inputs...)
}

func (f *fusion) operands(inputs []array) (list []spec.Operand) {
	for _, a := range inputs {
		list = append(list, a.Operand(f.dt))
	}
	return list
}

// require checks that spec has as many operations as run has counted, and gives the bits of want with any number of
// workers. If oracle is given, the first output is compared with it, within the tolerance, and not with want.
func (f *fusion) require(s spec.Spec, inputs, want []array, oracle *ref.Tensor) {
	f.Helper()
	require.Equal(f, f.flops, spec.FLOPs(s, f.operands(inputs)), "flops of %s", s.Name())
	got := runSpecWith(f, 1, s, f.dt, inputs...)
	for workers := 2; workers <= 7; workers++ {
		require.Equal(f, got, runSpecWith(f, workers, s, f.dt, inputs...), "%s with %d workers", s.Name(), workers)
	}
	if oracle != nil {
		testutil.Within(f, s.Name(), got[0].Floats, oracle.Data, tolerance(f.dt))
		want[0].Floats = got[0].Floats
	}
	require.Equal(f, want, got, s.Name())
}

// layer is one of several linear layers that share an input.
type layer struct {
	out, heads    int
	bias, rotated bool
	terms         int // terms of dy after the first one
}

// TestFusedLinears tests the fused Specs of linear layers and the ops around them. linear.FusedGrad sums up dx in
// another order than the single Specs.
func TestFusedLinears(t *testing.T) {
	var twelve []layer
	for i := range linear.MaxFused {
		twelve = append(twelve, layer{out: i + 1, bias: i%2 == 0})
	}
	for _, c := range []struct {
		lead, axes []int // of x
		layers     []layer
	}{
		{[]int{1}, []int{1}, []layer{{out: 1}}},
		{[]int{7}, []int{13}, []layer{{out: 3, bias: true}, {out: 1}, {out: 17, bias: true}}},
		{[]int{2, 3}, []int{4, 6}, []layer{{out: 10, heads: 5, bias: false, rotated: true, terms: 2},
			{out: 24, heads: 0, bias: true, rotated: false, terms: 0}, {out: 26, heads: 13, bias: true, rotated: true,
				terms: 0}, {out: 2, heads: 1, bias: false, rotated: false, terms: 1}}},
		{[]int{1, 65}, []int{17}, twelve},
		{[]int{2, 150}, []int{33}, []layer{{out: 130, heads: 2, bias: false, rotated: false, terms: 0},
			{out: 3, heads: 0, bias: true, rotated: false, terms: 2}, {out: 64, heads: 1, bias: false, rotated: true,
				terms: 1}}},
		{[]int{1, 3}, []int{600}, []layer{{out: 600, heads: 0, bias: false, rotated: false, terms: 0},
			{out: 65, heads: 5, bias: false, rotated: false, terms: 0}}},
	} {
		for _, dt := range dtypes {
			t.Run(fmt.Sprint(c.lead, c.axes, c.layers, "/", dt), func(t *testing.T) {
				testFusedLinears(&fusion{T: t, dt: dt}, c.lead, c.axes, c.layers)
			})
		}
	}
}

func testFusedLinears(f *fusion, lead, axes []int, layers []layer) {
	x := normal("x", 1, slices.Concat(lead, axes)...)
	in := tensor.Shape(axes).TotalSize()
	rows := len(x.Floats) / in
	rope := pointwise.RoPE{Base: 100, Start: 3}
	back := rope
	back.Inverse = true

	linears := linear.Fused{RoPE: rope}
	var layerInputs [][]array // x, w and bias of each layer
	var ws, biases, ys []array
	for i, l := range layers {
		linears.Heads[i], linears.Bias[i], linears.Rotated[i] = l.heads, l.bias, l.rotated
		w, bias := normal("w", uint64(10+3*i), l.out, in), normal("bias", uint64(12+3*i), l.out)
		one := []array{x, w}
		if ws = append(ws, w); l.bias {
			one, biases = append(one, bias), append(biases, bias)
		}
		y := f.run(linear.Linear{Heads: l.heads}, one...)[0]
		if l.rotated {
			y = f.run(rope, y)[0]
		}
		layerInputs, ys = append(layerInputs, one), append(ys, y)
	}
	f.require(linears, slices.Concat([]array{x}, ws, biases), renamed(ys...), nil)

	for i, l := range layers[:min(3, len(layers))] {
		op, one, residual := linear.Linear{Heads: l.heads}, layerInputs[i], normal("residual", 50, ys[i].Shape...)
		f.flops = 0
		h := f.run(op, one...)[0]
		y := f.run(pointwise.SiLU{}, h)[0]
		f.require(linear.LinearSiLU(op), one, renamed(y, h), nil)
		f.flops = 0
		h = f.run(op, one[:2]...)[0]
		f.require(linear.LinearAdd(op), []array{x, one[1], residual}, f.run(pointwise.Add{}, residual, h), nil)
		f.flops = 0
		back, dh := linear.InputGrad{Heads: l.heads}, normal("dh", 51, ys[i].Shape...)
		copy(back.Axes[:], axes)
		dx := f.run(back, dh, one[1])[0]
		f.require(linear.InputGradSiLU(back), []array{dh, one[1], x}, f.run(pointwise.SiLUGrad{}, x, dx), nil)
	}

	testSurroundedLinears(f, normal("x", 1, append(slices.Clone(lead), in)...), layers, ws, biases)

	grad, dx := linear.FusedGrad{In: in, RoPE: back}, ref.New(rows, in)
	var terms, dys, dws, dxs []array
	for i, l := range layers {
		var of []array
		sum := ref.New(ys[i].Shape...)
		for j := range 1 + l.terms {
			of = append(of, normal("dy", uint64(11+3*i+100*j), ys[i].Shape...))
			sum = ref.Add(sum, of[j].Tensor())
		}
		dy := f.run(pointwise.Add{}, of...)[0]
		if l.rotated {
			dy, sum = f.run(back, dy)[0], ref.RoPEGrad(sum, rope.Base, rope.Start)
		}
		d, _, _ := ref.LinearGrad(x.Tensor().Reshape(rows, in), ws[i].Tensor(), sum.Reshape(rows, l.out))
		dx, terms, dys = ref.Add(dx, d), append(terms, of...), append(dys, dy)
		grad.Terms[i], grad.Rotated[i] = 1+l.terms, l.rotated
	}
	f.flops = 0
	for i, l := range layers {
		dws = append(dws, f.run(linear.WeightGrad{Out: l.out, In: in}, x, dys[i])...)
	}
	weights := grad
	weights.WeightsOnly = true
	f.require(weights, slices.Concat([]array{x}, terms), renamed(dws...), nil)
	inputGrad := linear.InputGrad{}
	copy(inputGrad.Axes[:], axes)
	for i, l := range layers {
		inputGrad.Heads = l.heads
		dxs = append(dxs, f.run(inputGrad, dys[i], ws[i])...)
	}
	f.require(grad, slices.Concat([]array{x}, terms, ws), renamed(append(f.run(pointwise.Add{}, dxs...), dws...)...), dx)
}

// testSurroundedLinears tests linear layers of x [...,in] with an RMSNorm before them, and SiLUs and sigmoids after
// them.
func testSurroundedLinears(f *fusion, x array, layers []layer, ws, biases []array) {
	gain, op, ys := normal("gain", 60, x.Shape[len(x.Shape)-1]), linear.Fused{Norm: 0.1}, []array{}
	f.flops = 0
	normed, left := f.run(norm.RMSNorm{Eps: 0.1}, x, gain)[0], biases
	for i, l := range layers {
		one := []array{normed, ws[i]}
		if l.bias {
			one, left = append(one, left[0]), left[1:]
		}
		y := f.run(linear.Linear{Heads: l.heads}, one...)[0]
		switch op.Activation[i] = linear.Activation(i % 3); op.Activation[i] {
		case linear.ActivationSiLU:
			y = f.run(pointwise.SiLU{}, y)[0]
		case linear.ActivationSigmoid:
			y = f.run(pointwise.Sigmoid{}, y)[0]
		}
		op.Heads[i], op.Bias[i], ys = l.heads, l.bias, append(ys, y)
	}
	f.require(op, slices.Concat([]array{x}, ws, biases, []array{gain}), renamed(ys...), nil)
	f.flops = 0
}

// renamed gives the arrays the names of outputs 0, 1, ...
func renamed(list ...array) []array {
	for i := range list {
		list[i].Name = fmt.Sprint("output ", i)
	}
	return list
}

func TestFusedRMSNormGrad(t *testing.T) {
	for _, shape := range [][]int{{1, 1}, {2, 3, 7}, {65, 2}, {3, 2, 2, 5}, {200, 301}, {2, 17000}} {
		x, dy, residual := normal("x", 1, shape...), normal("dy", 2, shape...), normal("residual", 3, shape...)
		weight := normal("weight", 4, shape[len(shape)-1])
		for _, dt := range dtypes {
			f := &fusion{T: t, dt: dt}
			d := f.run(norm.RMSNormGrad{Eps: 0.3}, x, weight, dy)
			sum := f.run(pointwise.Add{}, residual, d[0])[0]
			f.require(norm.RMSNormGradAdd{Eps: 0.3}, []array{x, weight, dy, residual}, renamed(sum, d[1]), nil)
		}
	}
}

// TestFusedDeltas: the gradient of a gated sum of all branches outputs the deltas, and the gradients of attention take
// these instead of o.
func TestFusedDeltas(t *testing.T) {
	for _, c := range []opcases.AttentionCase{
		{Dims: opcases.Dims{B: 2, S: 37, Hq: 6, Hkv: 2, D: 5, Dv: 3}, Params: ops.Params{BlockLen: 4, Stride: 2,
			SelectBlock: 8, TopN: 3, Window: 9}},
		{Dims: opcases.Dims{B: 1, S: 130, Hq: 2, Hkv: 2, D: 8, Dv: 16}, Params: ops.Params{BlockLen: 32, Stride: 16,
			SelectBlock: 16, TopN: 4, Window: 65}},
	} {
		branches := opcases.Branches(c.Dims, c.Params)
		for _, dt := range dtypes {
			run := func(spec spec.Spec, inputs ...array) []array { return runSpecWith(t, 2, spec, dt, inputs...) }
			inputs := []array{normal("gates", 1, c.B, c.S, c.Hq, len(branches))}
			var forward [][]array
			for _, b := range branches {
				p := testutil.Must(b.Plan())(t)
				forward = append(forward, run(p.Calls[0].Spec, b.Inputs...))
				inputs = append(inputs, forward[len(forward)-1][0])
			}
			inputs = append(inputs, normal("dy", 2, c.B, c.S, c.Hq, c.Dv))
			n := len(inputs) - 1
			want, got := run(pointwise.GatedSumGrad{}, inputs...), run(pointwise.GatedSumGrad{Deltas: true}, inputs...)
			require.Equal(t, want, got[:n])
			for i, b := range branches {
				p := testutil.Must(b.Plan())(t)
				grad := p.Calls[len(p.Calls)-1].Spec
				fused, ok := attention.WithDelta(grad)
				require.True(t, ok, grad.Name())
				o, lse, do, delta := forward[i][0], forward[i][1], got[1+i], got[n+i]
				require.Equal(t, run(grad, slices.Concat(b.Inputs, []array{o, lse, do})...),
					run(fused, slices.Concat(b.Inputs, []array{delta, lse, do})...), grad.Name())
				_, ok = attention.WithDelta(fused)
				require.False(t, ok)
			}
		}
	}
	_, ok := attention.WithDelta(pointwise.Add{})
	require.False(t, ok)
}
