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

func unary(b *kernels.Builder, op Unary) error {
	x, y := b.In[0], b.Out[0]
	if x.N() != y.N() {
		return refuseShapes(b)
	}
	if op.Function == "sign" && x.Shape.IsScalar() {
		op.Function = "sign bit" // Gorgonia has two functions of this name
	}
	p := &unaryParams{x: x.Ref, y: y.Ref, n: y.N(), function: int32(slices.Index(unaryNames, op.Function))}
	b.LaunchElements("nsa_stock_unary_f32", kernels.F32, p.n, p)
	return nil
}

func binary(b *kernels.Builder, op Binary) error {
	x, y, z := b.In[0], b.In[1], b.Out[0]
	scalarX, scalarY := x.N() == 1, y.N() == 1
	if !scalarX && x.N() != z.N() || !scalarY && y.N() != z.N() {
		return refuseShapes(b)
	}
	function := int32(slices.Index(binaryNames, op.Function))
	p := &binaryParams{x.Ref, y.Ref, z.Ref, z.N(), function, kernels.Flag(scalarX) | kernels.Flag(scalarY)<<1}
	b.LaunchElements("nsa_stock_binary_f32", kernels.F32, p.n, p)
	return nil
}
