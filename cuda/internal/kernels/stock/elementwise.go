package stock

import (
	"fmt"
	"slices"

	"github.com/gorgonia-nsa/nsa/cuda/internal/kernels"
)

// UnaryFunction is an elementwise function of one operand, as Gorgonia's op of that name computes it: stock_elementwise.cu.
type UnaryFunction int32

// The functions, in the order of stock_unary. Sign is that of a tensor, where 0 has the sign 0; SignBit is that of a scalar,
// where 0 has the sign 1 and -0 the sign -1.
const (
	Abs UnaryFunction = iota
	Sign
	Ceil
	Floor
	Sin
	Cos
	Exp
	Log
	Log2
	Neg
	Square
	Sqrt
	Inverse
	InverseSqrt
	Cube
	Tanh
	Sigmoid
	Log1p
	Expm1
	Softplus
	SignBit
	unaryFunctions // their number
)

// BinaryFunction is an elementwise function of two operands: stock_elementwise.cu. Comparisons give 1 or 0.
type BinaryFunction int32

// The functions, in the order of stock_binary.
const (
	Add BinaryFunction = iota
	Sub
	Mul
	Div
	Pow
	Less
	Greater
	LessOrEqual
	GreaterOrEqual
	Equal
	NotEqual
	Smaller
	Larger
	binaryFunctions // their number
)

// elementwiseRows are the elementwise ops.
func elementwiseRows() []kernels.Row {
	return kernels.Rows(
		kernels.Op[Unary]{Name: name, Storage: "f>f", Build: unary},
		kernels.Op[Binary]{Name: name, Storage: "ff>f", Build: binary},
	)
}

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
		function, scalars int32 // scalars: 1 where a is one element, 2 where b is
	}
)

func unary(b *kernels.Builder, op Unary) error {
	x, y := b.In[0], b.Out[0]
	if x.N() != y.N() {
		return misfit(b)
	}
	f := op.Function
	if f == Sign && x.Shape.IsScalar() {
		f = SignBit // Gorgonia has two functions of this name
	}
	p := &unaryParams{x: x.Ref, y: y.Ref, n: y.N(), function: int32(f)}
	b.Launch("nsa_stock_unary_f32", kernels.Elements(kernels.F32, p.n), kernels.Threads(), 0, p)
	return nil
}

func binary(b *kernels.Builder, op Binary) error {
	x, y, z := b.In[0], b.In[1], b.Out[0]
	scalarX, scalarY := x.N() == 1, y.N() == 1
	if !scalarX && x.N() != z.N() || !scalarY && y.N() != z.N() {
		return misfit(b)
	}
	p := &binaryParams{x.Ref, y.Ref, z.Ref, z.N(), int32(op.Function), kernels.Flag(scalarX) | kernels.Flag(scalarY)<<1}
	b.Launch("nsa_stock_binary_f32", kernels.Elements(kernels.F32, p.n), kernels.Threads(), 0, p)
	return nil
}

var unaryNames = [unaryFunctions]string{
	"abs", "sign", "ceil", "floor", "sin", "cos", "exp", "ln", "log2", "neg", "square", "sqrt", "inv", "invSqrt", "cube", "tanh",
	"sigmoid", "log1p", "expm1", "softplus", "sign bit",
}

// String returns the name that Gorgonia gives the function.
func (f UnaryFunction) String() string {
	if f < 0 || f >= unaryFunctions {
		return fmt.Sprintf("UnaryFunction(%d)", int32(f))
	}
	return unaryNames[f]
}

var binaryNames = [binaryFunctions]string{"+", "-", "⊙", "÷", "^", "<", ">", "<=", ">=", "==", "!=", "MinBetween", "MaxBetween"}

// String returns the name that Gorgonia gives the function.
func (f BinaryFunction) String() string {
	if f < 0 || f >= binaryFunctions {
		return fmt.Sprintf("BinaryFunction(%d)", int32(f))
	}
	return binaryNames[f]
}

// findUnary returns the function of that name.
func findUnary(name string) (UnaryFunction, bool) {
	i := slices.Index(unaryNames[:], name)
	return UnaryFunction(i), i >= 0
}

// findBinary returns the function of that name.
func findBinary(name string) (BinaryFunction, bool) {
	i := slices.Index(binaryNames[:], name)
	return BinaryFunction(i), i >= 0
}
