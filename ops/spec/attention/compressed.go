package attention

import (
	"cmp"

	"gorgonia.org/gorgonia"

	"github.com/gorgonia-nsa/nsa/internal/cpu"
	"github.com/gorgonia-nsa/nsa/ops/spec"
)

// Compressed is the Spec of CompressedAttention: q, kc, vc and optionally a table of documents or a start of the queries -> o, lse.
type Compressed struct {
	BlockLen int // l: tokens in a compression block
	Stride   int // d: tokens between the starts of two blocks; divides l
}

func (Compressed) Name() string       { return "compressed attention" }
func (Compressed) InputNames() string { return "q kc vc documents" }

func (op Compressed) MaxTokens(in []spec.Operand) int { return maxTokens(op.Blocks(), in) }

func (Compressed) inputCount() int { return 3 }

func (op Compressed) Blocks() spec.CompressionBlocks {
	return spec.CompressionBlocks{BlockLen: op.BlockLen, Stride: op.Stride}
}

func (op Compressed) mask(s int) span { return span{op.BlockLen, op.Stride, s} }

func (op Compressed) pairs(in []spec.Operand) float64 { return spanPairs(op.mask, in) }

func (op Compressed) FLOPs(in []spec.Operand) float64 { return attentionFLOPs(op, in, 2, 2) }

func (op Compressed) Infer(in []spec.Operand) ([]spec.Operand, error) {
	out, err := infer(in, "kc", "vc", func(s int) int { return spec.CompressedRows(s, op.BlockLen, op.Stride) })
	return out, cmp.Or(spec.CheckBlocks(op.BlockLen, op.Stride), err)
}

// Bind adds the kernel of all masks that are a span of keys: span_forward.go, and span_grad.go for the gradient.
func (op Compressed) Bind(k *cpu.Kernel, in, out []spec.Arg) {
	in, a := bindChecked(k, in, op.Blocks())
	spec.BindRounded(k, out, func(out []spec.Arg) {
		spec.ByType(in[0].Dtype, bindSpan[float32], bindSpan[float64])(k, a, op.mask(a.MaxTokens()), in, out)
	})
}

func (Compressed) TakesBF16(in, out []spec.Arg) bool { return takesBF16(in, out) }

func (op Compressed) bindGrad(k *cpu.Kernel, takesDelta bool, in, out []spec.Arg) {
	in, a := bindChecked(k, in, op.Blocks())
	spec.ByType(in[0].Dtype, bindSpanGrad[float32], bindSpanGrad[float64])(k, a, op.mask(a.MaxTokens()), takesDelta, in, out)
}

func (op Compressed) Grad(_ []bool, in gorgonia.Nodes, o, do *gorgonia.Node) (gorgonia.Nodes, error) {
	return grad(op, in, o, do)
}

// CompressedGrad is the Spec of the gradient of CompressedAttention.
type CompressedGrad = Grad[Compressed]
