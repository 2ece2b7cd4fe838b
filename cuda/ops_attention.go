package cuda

import (
	"github.com/gorgonia-nsa/nsa/cuda/internal/kernels"
	"github.com/gorgonia-nsa/nsa/ops"
)

type span = kernels.SpanAttention

func compressedOf(op ops.CompressedAttentionOp) func(kernels.Attention) span {
	return func(a kernels.Attention) span { return a.Compressed(int64(op.BlockLen), int64(op.Stride)) }
}

// attentionOf returns the sizes of q [B,S,Hq,D], k [B,T,Hkv,D] and v [B,T,Hkv,Dv]. The operands of floats are all of one
// type, and statistics, such as lse, of float32.
func attentionOf(gpu kernels.GPU, floats []ops.Arg, stats ops.Arg) (kernels.Attention, error) {
	t, err := oneType(floats...)
	if err != nil {
		return kernels.Attention{}, err
	}
	if err := allFloat32("lse", stats); err != nil {
		return kernels.Attention{}, err
	}
	q, k, v := floats[0].Shape, floats[1].Shape, floats[2].Shape
	return kernels.Attention{
		Type: t, GPU: gpu, B: int64(q[0]), S: int64(q[1]), T: int64(k[1]),
		Hq: int64(q[2]), Hkv: int64(k[2]), D: int64(q[3]), Dv: int64(v[3]),
	}, nil
}

// compileAttention: q, k, v -> o, lse.
func compileAttention(gpu kernels.GPU, in, out []ops.Arg, mask func(kernels.Attention) span) (compiled, error) {
	q, k, v, o, lse := in[0], in[1], in[2], out[0], out[1]
	sizes, err := attentionOf(gpu, []ops.Arg{q, k, v, o}, lse)
	if err != nil {
		return compiled{}, err
	}
	a := mask(sizes)
	return compiled{launch: func(to []kernels.Launch, _ kernels.Ptr) ([]kernels.Launch, error) {
		return a.Forward(to, ptr(q), ptr(k), ptr(v), ptr(o), ptr(lse))
	}}, nil
}

// compileAttentionGrad: q, k, v, o, lse, do -> dq, dk, dv.
func compileAttentionGrad(gpu kernels.GPU, in, out []ops.Arg, mask func(kernels.Attention) span) (compiled, error) {
	q, k, v, o, lse, do := in[0], in[1], in[2], in[3], in[4], in[5]
	dq, dk, dv := out[0], out[1], out[2]
	sizes, err := attentionOf(gpu, []ops.Arg{q, k, v, o, do, dq, dk, dv}, lse)
	if err != nil {
		return compiled{}, err
	}
	a := mask(sizes)
	return compiled{work: a.WorkBytes(), launch: func(to []kernels.Launch, work kernels.Ptr) ([]kernels.Launch, error) {
		return a.Backward(to, ptr(q), ptr(k), ptr(v), ptr(o), ptr(lse), ptr(do), ptr(dq), ptr(dk), ptr(dv), work)
	}}, nil
}

// compileSelected: q, k, v, idx -> o, lse.
func compileSelected(op ops.SelectedAttentionOp, gpu kernels.GPU, in, out []ops.Arg) (compiled, error) {
	q, k, v, idx, o, lse := in[0], in[1], in[2], in[3], out[0], out[1]
	sizes, err := attentionOf(gpu, []ops.Arg{q, k, v, o}, lse)
	if err != nil {
		return compiled{}, err
	}
	a := kernels.SelectedAttention{Attention: sizes, SelectBlock: int64(op.SelectBlock), TopN: int64(idx.Shape[3])}
	return compiled{launch: func(to []kernels.Launch, _ kernels.Ptr) ([]kernels.Launch, error) {
		return a.Forward(to, ptr(q), ptr(k), ptr(v), ptr(idx), ptr(o), ptr(lse))
	}}, nil
}

// compileSelectedGrad: q, k, v, idx, o, lse, do -> dq, dk, dv.
func compileSelectedGrad(op ops.SelectedAttentionOp, gpu kernels.GPU, in, out []ops.Arg) (compiled, error) {
	q, k, v, idx, o, lse, do := in[0], in[1], in[2], in[3], in[4], in[5], in[6]
	dq, dk, dv := out[0], out[1], out[2]
	sizes, err := attentionOf(gpu, []ops.Arg{q, k, v, o, do, dq, dk, dv}, lse)
	if err != nil {
		return compiled{}, err
	}
	a := kernels.SelectedAttention{Attention: sizes, SelectBlock: int64(op.SelectBlock), TopN: int64(idx.Shape[3])}
	return compiled{work: a.WorkBytes(), launch: func(to []kernels.Launch, work kernels.Ptr) ([]kernels.Launch, error) {
		return a.Backward(to, ptr(q), ptr(k), ptr(v), ptr(idx), ptr(o), ptr(lse), ptr(do), ptr(dq), ptr(dk), ptr(dv), work)
	}}, nil
}

// compileSelect: q, kc, lse -> idx.
func compileSelect(p ops.Params, gpu kernels.GPU, in, out []ops.Arg) (compiled, error) {
	q, kc, lse, idx := in[0], in[1], in[2], out[0]
	a, err := attentionOf(gpu, []ops.Arg{q, kc, kc}, lse)
	if err != nil {
		return compiled{}, err
	}
	s := kernels.SelectBlocks{
		Type: a.Type, GPU: gpu, B: a.B, S: a.S, Hq: a.Hq, Hkv: a.Hkv, D: a.D,
		BlockLen: int64(p.BlockLen), Stride: int64(p.Stride), SelectBlock: int64(p.SelectBlock), TopN: int64(p.TopN),
	}
	return compiled{launch: func(to []kernels.Launch, _ kernels.Ptr) ([]kernels.Launch, error) {
		return s.Forward(to, ptr(q), ptr(kc), ptr(lse), ptr(idx))
	}}, nil
}
