package cuda

import (
	"github.com/gorgonia-nsa/nsa/cuda/internal/kernels"
	"github.com/gorgonia-nsa/nsa/ops"
)

// compileProduct returns c = op(a) op(b) + bias, where bias may be nil, for the sizes and transpositions of m.
func compileProduct(m kernels.Matmul, a, b ops.Arg, bias *ops.Arg, c ops.Arg) (compiled, error) {
	operands, add := []ops.Arg{a, b}, address{}
	if bias != nil {
		operands, add = append(operands, *bias), cellOf(*bias)
	}
	var err error
	if m.Type, err = oneType(operands...); err != nil {
		return compiled{}, err
	}
	if m.Out, err = outType(m.Type, c); err != nil {
		return compiled{}, err
	}
	var list composite
	list.multiply(m, cellOf(a), cellOf(b), add, cellOf(c))
	return list.compiled, nil
}

// compileLinear: x [rows,in], w [out,in], and a bias or none -> y [rows,out].
func compileLinear(in, out []ops.Arg) (compiled, error) {
	w := in[1].Shape
	m := kernels.Matmul{M: int64(in[0].Elements() / w[1]), N: int64(w[0]), K: int64(w[1]), TransB: true}
	if len(in) == 3 {
		return compileProduct(m, in[0], in[1], &in[2], out[0])
	}
	return compileProduct(m, in[0], in[1], nil, out[0])
}

// compileLinearInputGrad: dy [rows,out], w [out,in] -> dx [rows,in].
func compileLinearInputGrad(in, out []ops.Arg) (compiled, error) {
	w := in[1].Shape
	m := kernels.Matmul{M: int64(in[0].Elements() / w[0]), N: int64(w[1]), K: int64(w[0])}
	return compileProduct(m, in[0], in[1], nil, out[0])
}

// compileLinearWeightGrad: x [rows,in], dy [rows,out] -> dw [out,in].
func compileLinearWeightGrad(op ops.LinearWeightGradOp, in, out []ops.Arg) (compiled, error) {
	m := kernels.Matmul{M: int64(op.Out), N: int64(op.In), K: int64(in[0].Elements() / op.In), TransA: true}
	return compileProduct(m, in[1], in[0], nil, out[0])
}

// compileLinearBiasGrad: dy [rows,out] -> db [out].
func compileLinearBiasGrad(op ops.LinearBiasGradOp, in, out []ops.Arg) (compiled, error) {
	dy, db := in[0], out[0]
	t, err := oneType(dy)
	if err != nil {
		return compiled{}, err
	}
	result, err := typeOf(db.Operand)
	if err != nil {
		return compiled{}, err
	}
	k := kernels.ColumnSum{Type: t, Out: result, Rows: int64(dy.Elements() / op.Out), Cols: int64(op.Out)}
	return compiled{work: k.WorkBytes(), launch: func(to []kernels.Launch, work kernels.Ptr) ([]kernels.Launch, error) {
		return k.Forward(to, ptr(dy), ptr(db), work)
	}}, nil
}
