package opcases

import (
	"fmt"
	"slices"

	G "gorgonia.org/gorgonia"

	"github.com/gorgonia-nsa/nsa/internal/ref"
	"github.com/gorgonia-nsa/nsa/ops"
	"github.com/gorgonia-nsa/nsa/ops/spec/linear"
	"github.com/gorgonia-nsa/nsa/ops/spec/pointwise"
)

func linears() (list []Case) {
	for _, c := range []struct {
		x       []int
		out, in int
		heads   int
		want    []int
		bias    bool
	}{
		{x: []int{1, 1}, out: 1, in: 1, want: []int{1, 1}},
		{x: []int{7, 13}, out: 3, in: 13, want: []int{7, 3}, bias: true},
		{x: []int{2, 3, 5}, out: 4, in: 5, want: []int{2, 3, 4}},
		{x: []int{2, 3, 5}, out: 6, in: 5, heads: 2, want: []int{2, 3, 2, 3}, bias: true},
		{x: []int{2, 3, 5}, out: 6, in: 5, heads: 1, want: []int{2, 3, 1, 6}},
		{x: []int{2, 3, 4, 6}, out: 10, in: 24, heads: 5, want: []int{2, 3, 5, 2}, bias: true},
		{x: []int{2, 3, 4, 6}, out: 5, in: 6, want: []int{2, 3, 4, 5}}, // each head by itself
		{x: []int{2, 3, 1, 6}, out: 5, in: 6, want: []int{2, 3, 5}},    // a single head
		{x: []int{2, 1, 6}, out: 5, in: 6, want: []int{2, 1, 5}},       // a single token
		{x: []int{1, 1, 1}, out: 2, in: 1, want: []int{1, 1, 2}},
		{x: []int{3, 2, 5}, out: 2, in: 10, want: []int{3, 2}},                     // no axis to spare
		{x: []int{2, 3, 2, 2, 2, 2}, out: 3, in: 16, want: []int{2, 3, 3}},         // four axes
		{x: []int{1, 97, 65}, out: 67, in: 65, want: []int{1, 97, 67}},             // around a tile
		{x: []int{2, 129, 7}, out: 36, in: 7, want: []int{2, 129, 36}, bias: true}, // several blocks of rows
		{x: []int{2, 300, 5, 31}, out: 130, in: 155, heads: 10, want: []int{2, 300, 10, 13}, bias: true},
		{x: []int{3, 1100, 8}, out: 16, in: 8, want: []int{3, 1100, 16}, bias: true},
	} {
		rows := total(c.x) / c.in
		sizes := fmt.Sprintf(" %v [%d,%d] heads %d bias %v", c.x, c.out, c.in, c.heads, c.bias)
		x := Case{Name: "linear" + sizes, Cost: costOf(total(c.x)),
			Inputs: []Array{Normal("x", 1, c.x...), Normal("w", 2, c.out, c.in)},
			Build: func(in []*G.Node) (*G.Node, error) {
				var opts []ops.LinearOption
				if c.bias {
					opts = append(opts, ops.WithBias(in[2]))
				}
				if c.heads > 0 {
					opts = append(opts, ops.WithHeads(c.heads))
				}
				return ops.Linear(in[0], in[1], opts...)
			},
			Outputs: func(in tensors) tensors {
				var bias *ref.Tensor
				if c.bias {
					bias = in[2]
				}
				return results(ref.Linear(in[0].Reshape(rows, c.in), in[1], bias).Reshape(c.want...))
			},
			Gradients: func(in tensors, dy *ref.Tensor) tensors {
				return results(ref.LinearGrad(in[0].Reshape(rows, c.in), in[1], dy.Reshape(rows, c.out)))[:len(in)]
			}}
		if c.bias {
			x.Inputs = append(x.Inputs, Normal("bias", 3, c.out))
		}
		withSiLU, withAdd := x, x
		withSiLU.Name, withSiLU.Gradients = "linear with silu"+sizes, nil
		withSiLU.Build = apply(linear.LinearSiLU{Heads: c.heads})
		withSiLU.Outputs = func(in tensors) tensors { h := x.Outputs(in)[0]; return results(ref.SiLU(h), h) }
		list = append(list, x, withSiLU)
		if !c.bias {
			withAdd.Name, withAdd.Gradients = "linear with add"+sizes, nil
			withAdd.Inputs = append(slices.Clone(x.Inputs), Normal("residual", 4, c.want...))
			withAdd.Build = apply(linear.LinearAdd{Heads: c.heads})
			withAdd.Outputs = func(in tensors) tensors { return results(ref.Add(x.Outputs(in)[0], in[2])) }
			list = append(list, withAdd)
			list = append(list, inputGradSiLU("gradient of silu and linear"+sizes, c.x, c.want, c.out, c.in, c.heads))
		}
	}
	return list
}

// inputGradSiLU returns the case of a linear layer with an input of shape x and a result of shape y.
func inputGradSiLU(name string, x, y []int, out, in, heads int) Case {
	op := linear.InputGradSiLU{Heads: heads}
	copy(op.Axes[:], x[len(y)-1-min(1, heads):])
	return Case{Name: name, Cost: costOf(total(x)),
		Inputs: []Array{Normal("dy", 1, y...), Normal("w", 2, out, in), Normal("h", 3, x...)}, Build: apply(op),
		Outputs: func(of tensors) tensors {
			rows := total(x) / in
			dx, _, _ := ref.LinearGrad(ref.New(rows, in), of[1], of[0].Reshape(rows, out))
			return results(ref.SiLUGrad(of[2], dx.Reshape(x...)))
		}}
}

// linearGroups returns cases of linear layers that share an input [B,S,in], as one op, and of their gradients.
func linearGroups() (list []Case) {
	type layer struct {
		heads, dim    int
		bias, rotated bool
		terms         int // number of terms of dy
	}
	rope := pointwise.RoPE{Base: 100, Start: 5}
	back := rope
	back.Inverse = true
	for _, c := range []struct {
		B, S, in int
		layers   []layer
	}{
		{1, 1, 1, []layer{{1, 1, true, false, 3}, {1, 2, false, true, 2}}},
		{2, 17, 13, []layer{{3, 6, true, true, 1}, {1, 7, true, false, 1}, {2, 6, false, true, 3}, {5, 1, false, false, 2}}},
		{1, 37, 40, []layer{{4, 16, false, true, 1}, {2, 16, false, true, 1}, {2, 8, false, false, 3},
			{1, 24, true, false, 2}}},
		{2, 150, 64, []layer{{12, 64, false, true, 3}, {2, 64, false, true, 2}, {2, 64, false, false, 1},
			{1, 64, true, false, 1}}},
		{3, 33, 24, []layer{{1, 8, false, false, 3}, {1, 2400, true, false, 2}}},
		// on a GPU the rotations do not fit the shared memory
		{1, 21, 8, []layer{{1, 600, false, true, 1}, {2, 600, false, true, 1}}},
	} {
		forward, backward, rows := linear.Fused{RoPE: rope}, linear.FusedGrad{In: c.in, RoPE: back}, c.B*c.S
		x, ws, biases, dys := Normal("x", 1, c.B, c.S, c.in), []Array{}, []Array{}, []Array{}
		for i, l := range c.layers {
			ws = append(ws, Normal(fmt.Sprint("w", i), uint64(10+i), l.heads*l.dim, c.in))
			if l.bias {
				biases = append(biases, Normal(fmt.Sprint("bias", i), uint64(30+i), l.heads*l.dim))
			}
			for j := range l.terms {
				dys = append(dys, Normal(fmt.Sprint("dy", i, " ", j), uint64(50+10*i+j), c.B, c.S, l.heads, l.dim))
			}
			forward.Heads[i], forward.Bias[i], forward.Rotated[i] = l.heads, l.bias, l.rotated
			backward.Terms[i], backward.Rotated[i] = l.terms, l.rotated
		}
		outputs := func(in tensors) (ys tensors) {
			biases := in[1+len(ws):]
			for i, l := range c.layers {
				var bias *ref.Tensor
				if l.bias {
					bias, biases = biases[0], biases[1:]
				}
				y := ref.Linear(in[0], in[1+i], bias).Reshape(c.B, c.S, l.heads, l.dim)
				if l.rotated {
					y = ref.RoPE(y, rope.Base, rope.Start)
				}
				ys = append(ys, y)
			}
			return ys
		}
		gradients := func(in tensors) tensors { // dx, and dw of each layer
			x, dys, ws, grads := in[0].Reshape(rows, c.in), in[1:1+len(dys)], in[1+len(dys):], results(ref.New(rows, c.in))
			for i, l := range c.layers {
				dy := ref.Add(ref.New(c.B, c.S, l.heads, l.dim), dys[:l.terms]...)
				if dys = dys[l.terms:]; l.rotated {
					dy = ref.RoPEGrad(dy, rope.Base, rope.Start)
				}
				dx, dw, _ := ref.LinearGrad(x, ws[i], dy.Reshape(rows, l.heads*l.dim))
				grads[0] = ref.Add(grads[0], dx)
				grads = append(grads, dw)
			}
			grads[0] = grads[0].Reshape(c.B, c.S, c.in)
			return grads
		}
		weights := backward
		weights.WeightsOnly = true
		cost := costOf(rows * max(c.in, c.layers[0].heads*c.layers[0].dim))
		list = append(list,
			Case{Name: named("linears", c), Inputs: slices.Concat([]Array{x}, ws, biases), Build: apply(forward),
				Outputs: outputs, Cost: cost},
			Case{Name: named("linears gradient", c), Inputs: slices.Concat([]Array{x}, dys, ws),
				Build: apply(backward), Outputs: gradients, Cost: cost},
			Case{Name: named("linears gradient of weights", c), Inputs: slices.Concat([]Array{x}, dys),
				Build: apply(weights), Cost: cost,
				Outputs: func(in tensors) tensors { return gradients(slices.Concat(in, Tensors(ws)))[1:] }})
	}
	return list
}

// linearsWithNeighbours returns cases of linear layers that share an input, as one op with the ops around them in a
// step of decoding: RMSNorm before the layers, SiLU and sigmoids after them. A GPU has kernels for these only in half
// precision.
func linearsWithNeighbours() (list []Case) {
	const eps = 1e-3
	type layer struct {
		out        int
		bias       bool
		activation linear.Activation
	}
	for _, c := range []struct {
		rows, in int
		norm     bool
		layers   []layer
	}{
		{1, 1, true, []layer{{1, false, linear.ActivationNone}}},
		{2, 13, true, []layer{{9, true, linear.ActivationSiLU}, {3, false, linear.ActivationNone},
			{17, true, linear.ActivationSigmoid}}},
		{16, 40, true, []layer{{8, false, linear.ActivationNone}, {31, false, linear.ActivationSiLU}}},
		{9, 264, true, []layer{{24, false, linear.ActivationSiLU}}},
		{1, 768, true, []layer{{5, true, linear.ActivationSiLU}, {16, false, linear.ActivationNone}}},
		{3, 2056, true, []layer{{12, false, linear.ActivationNone}}}, // many chunks
		{16, 64, false, []layer{{36, true, linear.ActivationSigmoid}}},
		// several blocks of rows
		{17, 72, false, []layer{{36, true, linear.ActivationSigmoid}, {7, false, linear.ActivationSiLU}}},
		{64, 33, false, []layer{{20, true, linear.ActivationSiLU}, {4, false, linear.ActivationNone}}},
		{50, 1600, false, []layer{{18, false, linear.ActivationSiLU}}},
	} {
		op := linear.Fused{}
		x, ws, biases := Normal("x", 1, 1, c.rows, c.in), []Array{}, []Array{}
		for i, l := range c.layers {
			ws = append(ws, Normal(fmt.Sprint("w", i), uint64(10+i), l.out, c.in))
			if l.bias {
				biases = append(biases, Normal(fmt.Sprint("bias", i), uint64(30+i), l.out))
			}
			op.Bias[i], op.Activation[i] = l.bias, l.activation
		}
		inputs := slices.Concat([]Array{x}, ws, biases)
		if c.norm {
			op.Norm, inputs = eps, append(inputs, Normal("weight", 50, c.in))
		}
		list = append(list, Case{Name: named("linears with neighbours", c), Inputs: inputs, Build: apply(op),
			Cost: costOf(c.rows * c.in),
			Outputs: func(in tensors) (ys tensors) {
				x, biases := in[0], in[1+len(ws):]
				if c.norm {
					x = ref.RMSNorm(x, in[len(in)-1], eps)
				}
				for i, l := range c.layers {
					var bias *ref.Tensor
					if l.bias {
						bias, biases = biases[0], biases[1:]
					}
					y := ref.Linear(x, in[1+i], bias).Reshape(1, c.rows, l.out)
					switch l.activation {
					case linear.ActivationSiLU:
						y = ref.SiLU(y)
					case linear.ActivationSigmoid:
						y = ref.Sigmoid(y)
					}
					ys = append(ys, y)
				}
				return ys
			}})
	}
	return list
}
