package opcases

import (
	"fmt"
	"slices"

	"github.com/gorgonia-nsa/nsa/internal/ref"
	"github.com/gorgonia-nsa/nsa/ops"
)

// surroundedLinears returns cases of linear layers that share an input, as one op with the ops around them in a step of decoding:
// RMSNorm before the layers, SiLU and sigmoids after them. A GPU has kernels for these only in half precision.
func surroundedLinears() (list []Case) {
	const eps = 1e-3
	type layer struct {
		out        int
		bias       bool
		activation ops.Activation
	}
	for _, c := range []struct {
		rows, in int
		norm     bool
		layers   []layer
	}{
		{1, 1, true, []layer{{1, false, ops.ActivationNone}}},
		{2, 13, true, []layer{{9, true, ops.ActivationSiLU}, {3, false, ops.ActivationNone}, {17, true, ops.ActivationSigmoid}}},
		{16, 40, true, []layer{{8, false, ops.ActivationNone}, {31, false, ops.ActivationSiLU}}},
		{9, 264, true, []layer{{24, false, ops.ActivationSiLU}}},
		{1, 768, true, []layer{{5, true, ops.ActivationSiLU}, {16, false, ops.ActivationNone}}},
		{3, 2056, true, []layer{{12, false, ops.ActivationNone}}}, // many chunks
		{16, 64, false, []layer{{36, true, ops.ActivationSigmoid}}},
		{17, 72, false, []layer{{36, true, ops.ActivationSigmoid}, {7, false, ops.ActivationSiLU}}}, // several blocks of rows
		{64, 33, false, []layer{{20, true, ops.ActivationSiLU}, {4, false, ops.ActivationNone}}},
		{50, 1600, false, []layer{{18, false, ops.ActivationSiLU}}},
	} {
		op := ops.LinearsOp{}
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
		list = append(list, Case{Name: named("surrounded linears", c), Inputs: inputs, Build: apply(op), Cost: costOf(c.rows * c.in),
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
					case ops.ActivationSiLU:
						y = ref.SiLU(y)
					case ops.ActivationSigmoid:
						y = ref.Sigmoid(y)
					}
					ys = append(ys, y)
				}
				return ys
			}})
	}
	return list
}
