package cuda

import (
	"github.com/gorgonia-nsa/nsa/cuda/internal/kernels"
	"github.com/gorgonia-nsa/nsa/ops"
)

// compileRoPE: x [B,S,H,D] -> y.
func compileRoPE(op ops.RoPEOp, in, out []ops.Arg) (compiled, error) {
	x, y := in[0], out[0]
	t, err := oneType(x, y)
	if err != nil {
		return compiled{}, err
	}
	s := x.Shape
	k := kernels.RoPE{
		Type: t, Tokens: int64(s[0]) * int64(s[1]), Seq: int64(s[1]), Heads: int64(s[2]), Dim: int64(s[3]),
		Base: op.Base, Start: int64(op.Start), Inverse: op.Inverse,
	}
	return compiled{launch: func(to []kernels.Launch, _ kernels.Ptr) ([]kernels.Launch, error) {
		return k.Forward(to, ptr(x), ptr(y))
	}}, nil
}

// compileRMSNorm: x [rows,dim], weight [dim] -> y.
func compileRMSNorm(op ops.RMSNormOp, in, out []ops.Arg) (compiled, error) {
	x, w, y := in[0], in[1], out[0]
	t, err := oneType(x, w, y)
	if err != nil {
		return compiled{}, err
	}
	k := kernels.RMSNorm{Type: t, Out: t, Eps: op.Eps}
	k.Rows, k.Dim = rowsOf(x.Operand)
	return compiled{launch: func(to []kernels.Launch, _ kernels.Ptr) ([]kernels.Launch, error) {
		return k.Forward(to, ptr(x), ptr(w), ptr(y))
	}}, nil
}

// compileRMSNormGrad: x, weight, dy -> dx, dweight.
func compileRMSNormGrad(op ops.RMSNormGradOp, in, out []ops.Arg) (compiled, error) {
	x, w, dy, dx, dw := in[0], in[1], in[2], out[0], out[1]
	t, err := oneType(x, w, dy, dx)
	if err != nil {
		return compiled{}, err
	}
	k := kernels.RMSNorm{Type: t, Eps: op.Eps}
	if k.Out, err = typeOf(dw.Operand); err != nil {
		return compiled{}, err
	}
	k.Rows, k.Dim = rowsOf(x.Operand)
	return compiled{work: k.WorkBytes(), launch: func(to []kernels.Launch, work kernels.Ptr) ([]kernels.Launch, error) {
		return k.Backward(to, ptr(x), ptr(w), ptr(dy), ptr(dx), ptr(dw), work)
	}}, nil
}

// compileSoftmax: x [rows,n] -> y.
func compileSoftmax(in, out []ops.Arg) (compiled, error) {
	x, y := in[0], out[0]
	t, err := oneType(x, y)
	if err != nil {
		return compiled{}, err
	}
	k := kernels.Softmax{Type: t}
	k.Rows, k.Cols = rowsOf(x.Operand)
	return compiled{launch: func(to []kernels.Launch, _ kernels.Ptr) ([]kernels.Launch, error) {
		return k.Forward(to, ptr(x), ptr(y))
	}}, nil
}

// compileSoftmaxGrad: y, dy [rows,n] -> dx.
func compileSoftmaxGrad(in, out []ops.Arg) (compiled, error) {
	y, dy, dx := in[0], in[1], out[0]
	t, err := oneType(y, dy, dx)
	if err != nil {
		return compiled{}, err
	}
	k := kernels.Softmax{Type: t}
	k.Rows, k.Cols = rowsOf(y.Operand)
	return compiled{launch: func(to []kernels.Launch, _ kernels.Ptr) ([]kernels.Launch, error) {
		return k.Backward(to, ptr(y), ptr(dy), ptr(dx))
	}}, nil
}

// compileGatedSum: gates [rows,n] and n branches [rows,dim] -> y.
func compileGatedSum(in, out []ops.Arg) (compiled, error) {
	gates, branches, y := in[0], in[1:], out[0]
	t, err := oneType(append([]ops.Arg{y}, in...)...)
	if err != nil {
		return compiled{}, err
	}
	k := kernels.GatedSum{Type: t}
	k.Rows, k.Dim = rowsOf(y.Operand)
	xs := make([]kernels.Ptr, len(branches))
	return compiled{launch: func(to []kernels.Launch, _ kernels.Ptr) ([]kernels.Launch, error) {
		return k.Forward(to, ptr(gates), ptr(y), ptrs(xs, branches)...)
	}}, nil
}

// compileGatedSumGrad: gates, branches, dy -> dgates, dbranches.
func compileGatedSumGrad(in, out []ops.Arg) (compiled, error) {
	n := len(in) - 1
	gates, branches, dy, dgates, dbranches := in[0], in[1:n], in[n], out[0], out[1:]
	t, err := oneType(append(append([]ops.Arg{}, in...), out...)...)
	if err != nil {
		return compiled{}, err
	}
	k := kernels.GatedSum{Type: t}
	k.Rows, k.Dim = rowsOf(dy.Operand)
	xs, dxs := make([]kernels.Ptr, len(branches)), make([]kernels.Ptr, len(dbranches))
	return compiled{launch: func(to []kernels.Launch, _ kernels.Ptr) ([]kernels.Launch, error) {
		return k.Backward(to, ptr(gates), ptr(dy), ptr(dgates), ptrs(xs, branches), ptrs(dxs, dbranches))
	}}, nil
}
