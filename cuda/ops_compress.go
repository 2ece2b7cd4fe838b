package cuda

import (
	"github.com/gorgonia-nsa/nsa/cuda/internal/kernels"
	"github.com/gorgonia-nsa/nsa/ops"
)

// blocksOf returns the blocks of x [B,S,Hkv,D].
func blocksOf(t kernels.Type, x ops.Arg, l, stride int) kernels.Compress {
	s := x.Shape
	return kernels.Compress{
		Type: t, Batch: int64(s[0]), Seq: int64(s[1]), Heads: int64(s[2]), Dim: int64(s[3]), Len: int64(l), Stride: int64(stride),
	}
}

// zeros returns the launches that set operands to zero: where a sequence is too short for a block.
func zeros(list ...ops.Arg) compiled {
	return compiled{launch: func(to []kernels.Launch, _ kernels.Ptr) ([]kernels.Launch, error) {
		var err error
		for _, a := range list {
			size := int(a.Dtype.Size())
			if to, err = kernels.Fill(to, ptr(a), int64(a.Elements()), 0, 8*size); err != nil {
				return to, err
			}
		}
		return to, nil
	}}
}

// compileMean: x -> y.
func compileMean(op ops.CompressMeanOp, in, out []ops.Arg) (compiled, error) {
	x, y := in[0], out[0]
	t, err := oneType(x, y)
	if err != nil {
		return compiled{}, err
	}
	k := blocksOf(t, x, op.BlockLen, op.Stride)
	if k.Blocks() == 0 {
		return zeros(y), nil
	}
	return compiled{launch: func(to []kernels.Launch, _ kernels.Ptr) ([]kernels.Launch, error) {
		return k.Mean(to, ptr(x), ptr(y))
	}}, nil
}

// compileMeanGrad: dy -> dx.
func compileMeanGrad(op ops.CompressMeanOp, in, out []ops.Arg) (compiled, error) {
	dy, dx := in[0], out[0]
	t, err := oneType(dy, dx)
	if err != nil {
		return compiled{}, err
	}
	k := blocksOf(t, dx, op.BlockLen, op.Stride)
	if k.Blocks() == 0 {
		return zeros(dx), nil
	}
	return compiled{launch: func(to []kernels.Launch, _ kernels.Ptr) ([]kernels.Launch, error) {
		return k.MeanGrad(to, ptr(dy), ptr(dx))
	}}, nil
}

// compileMLP: x, pe, w1, w2 -> y, hidden. Rows [rows,l*D] of the blocks are gathered and multiplied twice.
func compileMLP(op ops.CompressMLPOp, in, out []ops.Arg) (compiled, error) {
	x, pe, w1, w2, y, hidden := in[0], in[1], in[2], in[3], out[0], out[1]
	t, err := oneType(x, pe, w1, w2, y, hidden)
	if err != nil {
		return compiled{}, err
	}
	k := blocksOf(t, x, op.BlockLen, op.Stride)
	if k.Blocks() == 0 {
		return zeros(y, hidden), nil
	}
	rows, width, cols, size := k.Rows(), int64(w1.Shape[0]), k.Len*k.Dim, int64(t.Bytes())
	var list composite
	gathered, act := list.take(rows*cols*size), list.take(rows*width*size)
	silu := kernels.Elementwise{Type: t, N: rows * width}
	list.launches(func(to []kernels.Launch, work kernels.Ptr) ([]kernels.Launch, error) {
		return k.Gather(to, ptr(x), ptr(pe), gathered.at(work))
	})
	list.multiply(kernels.Matmul{Type: t, Out: t, M: rows, N: width, K: cols, TransB: true},
		gathered, cellOf(w1), address{}, cellOf(hidden))
	list.launches(func(to []kernels.Launch, work kernels.Ptr) ([]kernels.Launch, error) {
		return silu.SiLU(to, ptr(hidden), act.at(work))
	})
	list.multiply(kernels.Matmul{Type: t, Out: t, M: rows, N: k.Dim, K: width, TransB: true},
		act, cellOf(w2), address{}, cellOf(y))
	return list.compiled, nil
}

// compileMLPGrad: x, pe, w1, w2, hidden, dy -> dx, dpe, dw1, dw2. It goes back through the second product, the SiLU and the
// first product. The gradients of weights may be float32 beside half precision.
func compileMLPGrad(op ops.CompressMLPOp, in, out []ops.Arg) (compiled, error) {
	x, pe, w1, w2, hidden, dy := in[0], in[1], in[2], in[3], in[4], in[5]
	dx, dpe, dw1, dw2 := out[0], out[1], out[2], out[3]
	t, err := oneType(x, pe, w1, w2, hidden, dy, dx)
	if err != nil {
		return compiled{}, err
	}
	var weights [3]kernels.Type
	for i, a := range []ops.Arg{dpe, dw1, dw2} {
		if weights[i], err = outType(t, a); err != nil {
			return compiled{}, err
		}
	}
	k := blocksOf(t, x, op.BlockLen, op.Stride)
	if k.Blocks() == 0 {
		return zeros(dx, dpe, dw1, dw2), nil
	}
	rows, width, cols, size := k.Rows(), int64(w1.Shape[0]), k.Len*k.Dim, int64(t.Bytes())
	silu := kernels.Elementwise{Type: t, N: rows * width}
	column := kernels.ColumnSum{Type: t, Out: t, Rows: rows, Cols: width}

	var list composite
	gathered := list.take(rows * cols * size) // later their gradient
	act, dact, dhidden := list.take(rows*width*size), list.take(rows*width*size), list.take(rows*width*size)
	sum, partial := list.take(width*size), list.take(column.WorkBytes())

	list.launches(func(to []kernels.Launch, work kernels.Ptr) ([]kernels.Launch, error) {
		return silu.SiLU(to, ptr(hidden), act.at(work))
	})
	list.multiply(kernels.Matmul{Type: t, Out: weights[2], M: k.Dim, N: width, K: rows, TransA: true},
		cellOf(dy), act, address{}, cellOf(dw2))
	list.multiply(kernels.Matmul{Type: t, Out: t, M: rows, N: width, K: k.Dim},
		cellOf(dy), cellOf(w2), address{}, dact)
	list.launches(func(to []kernels.Launch, work kernels.Ptr) ([]kernels.Launch, error) {
		to, err := silu.SiLUGrad(to, ptr(hidden), dact.at(work), dhidden.at(work))
		if err != nil {
			return to, err
		}
		// pe is added to every row, so its gradient is that of the sum of the rows.
		if to, err = column.Forward(to, dhidden.at(work), sum.at(work), partial.at(work)); err != nil {
			return to, err
		}
		return k.Gather(to, ptr(x), ptr(pe), gathered.at(work))
	})
	list.multiply(kernels.Matmul{Type: t, Out: weights[0], M: 1, N: cols, K: width},
		sum, cellOf(w1), address{}, cellOf(dpe))
	list.multiply(kernels.Matmul{Type: t, Out: weights[1], M: width, N: cols, K: rows, TransA: true},
		dhidden, gathered, address{}, cellOf(dw1))
	list.multiply(kernels.Matmul{Type: t, Out: t, M: rows, N: cols, K: width},
		dhidden, cellOf(w1), address{}, gathered)
	list.launches(func(to []kernels.Launch, work kernels.Ptr) ([]kernels.Launch, error) {
		return k.Scatter(to, gathered.at(work), ptr(dx))
	})
	return list.compiled, nil
}
