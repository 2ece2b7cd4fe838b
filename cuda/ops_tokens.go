package cuda

import (
	"github.com/gorgonia-nsa/nsa/cuda/internal/kernels"
	"github.com/gorgonia-nsa/nsa/ops"
)

// compileEmbedding: weight [V,dim], ids -> y.
func compileEmbedding(in, out []ops.Arg) (compiled, error) {
	w, ids, y := in[0], in[1], out[0]
	t, err := oneType(w, y)
	if err != nil {
		return compiled{}, err
	}
	k := kernels.Embedding{Type: t, Out: t, N: int64(ids.Elements()), Vocab: int64(w.Shape[0]), Dim: int64(w.Shape[1])}
	return compiled{launch: func(to []kernels.Launch, _ kernels.Ptr) ([]kernels.Launch, error) {
		return k.Forward(to, ptr(w), ptr(ids), ptr(y))
	}}, nil
}

// compileEmbeddingGrad: ids, dy -> dweight [V,dim].
func compileEmbeddingGrad(in, out []ops.Arg) (compiled, error) {
	ids, dy, dw := in[0], in[1], out[0]
	t, err := oneType(dy)
	if err != nil {
		return compiled{}, err
	}
	k := kernels.Embedding{Type: t, N: int64(ids.Elements()), Vocab: int64(dw.Shape[0]), Dim: int64(dw.Shape[1])}
	if k.Out, err = typeOf(dw.Operand); err != nil {
		return compiled{}, err
	}
	return compiled{work: k.WorkBytes(), launch: func(to []kernels.Launch, work kernels.Ptr) ([]kernels.Launch, error) {
		return k.Backward(to, ptr(ids), ptr(dy), ptr(dw), work)
	}}, nil
}

// compileCrossEntropy: logits [rows,V], targets -> loss, lse.
func compileCrossEntropy(in, out []ops.Arg) (compiled, error) {
	logits, targets, loss, lse := in[0], in[1], out[0], out[1]
	t, err := oneType(logits)
	if err != nil {
		return compiled{}, err
	}
	if err := allFloat32("loss or lse", loss, lse); err != nil {
		return compiled{}, err
	}
	k := kernels.CrossEntropy{Type: t}
	k.Rows, k.Vocab = rowsOf(logits.Operand)
	return compiled{work: k.WorkBytes(), launch: func(to []kernels.Launch, work kernels.Ptr) ([]kernels.Launch, error) {
		return k.Forward(to, ptr(logits), ptr(targets), ptr(loss), ptr(lse), work)
	}}, nil
}

// compileCrossEntropyGrad: logits, targets, lse, dloss -> dlogits.
func compileCrossEntropyGrad(in, out []ops.Arg) (compiled, error) {
	logits, targets, lse, dloss, dlogits := in[0], in[1], in[2], in[3], out[0]
	t, err := oneType(logits, dlogits)
	if err != nil {
		return compiled{}, err
	}
	if err := allFloat32("lse or gradient of the loss", lse, dloss); err != nil {
		return compiled{}, err
	}
	k := kernels.CrossEntropy{Type: t}
	k.Rows, k.Vocab = rowsOf(logits.Operand)
	return compiled{work: k.WorkBytes(), launch: func(to []kernels.Launch, work kernels.Ptr) ([]kernels.Launch, error) {
		return k.Backward(to, ptr(logits), ptr(targets), ptr(lse), ptr(dloss), ptr(dlogits), work)
	}}, nil
}
