package cuda

import (
	"github.com/gorgonia-nsa/nsa/cuda/internal/kernels"
	"github.com/gorgonia-nsa/nsa/ops"
)

// elementwise returns the kernels over all elements of operands of one type.
func elementwise(args ...ops.Arg) (kernels.Elementwise, error) {
	t, err := oneType(args...)
	return kernels.Elementwise{Type: t, N: int64(args[0].Elements())}, err
}

type (
	unary  = func(kernels.Elementwise, []kernels.Launch, kernels.Ptr, kernels.Ptr) ([]kernels.Launch, error)
	binary = func(kernels.Elementwise, []kernels.Launch, kernels.Ptr, kernels.Ptr, kernels.Ptr) ([]kernels.Launch, error)
)

// compileUnary: x -> y.
func compileUnary(f unary, in, out []ops.Arg) (compiled, error) {
	x, y := in[0], out[0]
	k, err := elementwise(x, y)
	if err != nil {
		return compiled{}, err
	}
	return compiled{launch: func(to []kernels.Launch, _ kernels.Ptr) ([]kernels.Launch, error) {
		return f(k, to, ptr(x), ptr(y))
	}}, nil
}

// compileBinary: a, b -> y.
func compileBinary(f binary, in, out []ops.Arg) (compiled, error) {
	a, b, y := in[0], in[1], out[0]
	k, err := elementwise(a, b, y)
	if err != nil {
		return compiled{}, err
	}
	return compiled{launch: func(to []kernels.Launch, _ kernels.Ptr) ([]kernels.Launch, error) {
		return f(k, to, ptr(a), ptr(b), ptr(y))
	}}, nil
}

// compileAdd: x0, x1, ... -> y.
func compileAdd(in, out []ops.Arg) (compiled, error) {
	y := out[0]
	k, err := elementwise(append([]ops.Arg{y}, in...)...)
	if err != nil {
		return compiled{}, err
	}
	xs := make([]kernels.Ptr, len(in))
	return compiled{launch: func(to []kernels.Launch, _ kernels.Ptr) ([]kernels.Launch, error) {
		return k.Add(to, ptr(y), ptrs(xs, in)...)
	}}, nil
}

// compileCopy: x -> y, the same elements.
func compileCopy(in, out []ops.Arg) (compiled, error) {
	x, y := in[0], out[0]
	if _, err := oneType(x, y); err != nil {
		return compiled{}, err
	}
	bytes := int64(x.Operand.Bytes())
	return compiled{launch: func(to []kernels.Launch, _ kernels.Ptr) ([]kernels.Launch, error) {
		return kernels.Copy(to, ptr(x), ptr(y), bytes)
	}}, nil
}

// compileCast: x -> y in another type.
func compileCast(in, out []ops.Arg) (compiled, error) {
	x, y := in[0], out[0]
	from, err := typeOf(x.Operand)
	if err != nil {
		return compiled{}, err
	}
	result, err := typeOf(y.Operand)
	if err != nil {
		return compiled{}, err
	}
	k := kernels.Cast{From: from, To: result, N: int64(x.Elements())}
	return compiled{launch: func(to []kernels.Launch, _ kernels.Ptr) ([]kernels.Launch, error) {
		return k.Forward(to, ptr(x), ptr(y))
	}}, nil
}
