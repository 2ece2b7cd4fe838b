package stock

import (
	"slices"

	"github.com/gorgonia-nsa/nsa/cuda/internal/kernels"
)

// unaryNames are the names that Gorgonia gives its functions, in the order of stock_unary. The last is the sign of a scalar, where 0
// has the sign 1 and -0 the sign -1; the sign of a tensor's 0 is 0.
var unaryNames = []string{
	"abs", "sign", "ceil", "floor", "sin", "cos", "exp", "ln", "log2", "neg", "square", "sqrt", "inv", "invSqrt", "cube", "tanh",
	"sigmoid", "log1p", "expm1", "softplus", "sign bit",
}

// binaryNames are the names of the functions of two operands, in the order of stock_binary. Comparisons give 1 or 0.
var binaryNames = []string{"+", "-", "⊙", "÷", "^", "<", ">", "<=", ">=", "==", "!=", "MinBetween", "MaxBetween"}

// The arguments of stock_elementwise.cu.
type (
	unaryParams struct {
		x, y        kernels.Ref
		n           int64
		function, _ int32
	}
	binaryParams struct {
		a, b, y           kernels.Ref
		n                 int64
		function, scalars int32 // scalars: 1 if a is one element, plus 2 if b is
	}
)

func guardUnary(c *kernels.Call, _ Unary) error {
	if c.In[0].N() != c.Out[0].N() {
		return refuseShapes(c)
	}
	return nil
}

func unary(b *kernels.Builder, op Unary) {
	x, y := b.In[0], b.Out[0]
	if op.Function == "sign" && x.Shape.IsScalar() {
		op.Function = "sign bit" // Gorgonia has two functions of this name
	}
	p := &unaryParams{x: x.Ref, y: y.Ref, n: y.N(), function: int32(slices.Index(unaryNames, op.Function))}
	b.AddElements("nsa_stock_unary_f32", kernels.F32, p.n, p)
}

func guardBinary(c *kernels.Call, _ Binary) error {
	for _, x := range c.In {
		if n := x.N(); n != 1 && n != c.Out[0].N() {
			return refuseShapes(c)
		}
	}
	return nil
}

func binary(b *kernels.Builder, op Binary) {
	x, y, z := b.In[0], b.In[1], b.Out[0]
	scalars := kernels.Flag(x.N() == 1) | kernels.Flag(y.N() == 1)<<1
	p := &binaryParams{x.Ref, y.Ref, z.Ref, z.N(), int32(slices.Index(binaryNames, op.Function)), scalars}
	b.AddElements("nsa_stock_binary_f32", kernels.F32, p.n, p)
}
