package ops

import (
	"gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/internal/cpu"
)

// CausalAttention returns dense attention of each query over all tokens up to its own: what NSA is measured against.
// q [B,S,Hq,D], k [B,S,Hkv,D], v [B,S,Hkv,Dv] -> o [B,S,Hq,Dv]; LSE(o) is [B,Hq,S]. q, k and v have gradients. It is an
// error if Hkv does not divide Hq.
func CausalAttention(q, k, v *gorgonia.Node) (*gorgonia.Node, error) {
	return Apply(CausalAttentionOp{}, q, k, v)
}

// CausalAttentionOp is the Spec of CausalAttention: q, k, v -> o, lse.
type CausalAttentionOp struct{}

func (CausalAttentionOp) attention() {}

// Name implements Spec.
func (CausalAttentionOp) Name() string { return "causal attention" }

func (CausalAttentionOp) flops(in []Operand) float64 {
	return attentionFLOPs(in[0], in[2], 2, 2, windowPairs(in[0].Shape[1], in[0].Shape[1]))
}

// Infer implements Spec.
func (CausalAttentionOp) Infer(in []Operand) ([]Operand, error) { return inferTokens(in) }

// Bind implements Spec.
func (CausalAttentionOp) Bind(k *cpu.Kernel, in, out []Arg) error {
	if mask := (span{1, 1, in[0].Shape[1]}); in[0].Dtype == tensor.Float32 {
		bindSpan[float32](k, mask, in, out)
	} else {
		bindSpan[float64](k, mask, in, out)
	}
	return nil
}

// DiffWRT implements Differentiable.
func (CausalAttentionOp) DiffWRT(int) []bool { return []bool{true, true, true} }

// Grad implements Differentiable.
func (op CausalAttentionOp) Grad(in gorgonia.Nodes, o, do *gorgonia.Node) (gorgonia.Nodes, error) {
	return attentionGrad(CausalAttentionGradOp(op), in, o, do)
}

// CausalAttentionGradOp is the Spec of the gradient of CausalAttention: q, k, v, o, lse, do -> dq, dk, dv.
type CausalAttentionGradOp struct{}

// Name implements Spec.
func (CausalAttentionGradOp) Name() string { return "gradient of causal attention" }

func (CausalAttentionGradOp) flops(in []Operand) float64 {
	return attentionFLOPs(in[0], in[2], 6, 4, windowPairs(in[0].Shape[1], in[0].Shape[1]))
}

// Infer implements Spec.
func (op CausalAttentionGradOp) Infer(in []Operand) ([]Operand, error) {
	return inferAttentionGrad(CausalAttentionOp(op), in)
}

// Bind implements Spec.
func (CausalAttentionGradOp) Bind(k *cpu.Kernel, in, out []Arg) error {
	if mask := (span{1, 1, in[0].Shape[1]}); in[0].Dtype == tensor.Float32 {
		bindSpanGrad[float32](k, mask, in, out)
	} else {
		bindSpanGrad[float64](k, mask, in, out)
	}
	return nil
}
