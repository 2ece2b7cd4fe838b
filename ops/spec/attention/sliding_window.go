package attention

import (
	"cmp"

	"gorgonia.org/gorgonia"

	"github.com/gorgonia-nsa/nsa/internal/cpu"
	"github.com/gorgonia-nsa/nsa/ops/spec"
)

// SlidingWindow is the Spec of SlidingWindow: q, k, v and optionally a table of documents or a start of the queries -> o, lse.
type SlidingWindow struct {
	Window int // w: tokens that a query sees, its own included
}

func (SlidingWindow) Name() string       { return "sliding window" }
func (SlidingWindow) InputNames() string { return "q k v documents" }

func (op SlidingWindow) MaxTokens(in []spec.Operand) int { return maxTokens(op.Blocks(), in) }

func (SlidingWindow) inputCount() int { return 3 }

func (SlidingWindow) Blocks() spec.CompressionBlocks { return spec.CompressionBlocks{} }

func (op SlidingWindow) mask(s int) span { return tokenSpan(min(op.Window, s)) }

func (op SlidingWindow) pairs(in []spec.Operand) float64 { return spanPairs(op.mask, in) }

func (op SlidingWindow) FLOPs(in []spec.Operand) float64 { return attentionFLOPs(op, in, 2, 2) }

func (op SlidingWindow) Infer(in []spec.Operand) ([]spec.Operand, error) {
	out, err := infer(in, "k", "v", func(s int) int { return s })
	return out, cmp.Or(spec.WantPositive("window w", op.Window), err)
}

// Bind adds the kernel of all masks that are a span of keys: span_forward.go, and span_grad.go for the gradient.
func (op SlidingWindow) Bind(k *cpu.Kernel, in, out []spec.Arg) {
	in, a := bindChecked(k, in, op.Blocks())
	spec.BindRounded(k, out, func(out []spec.Arg) {
		spec.ByType(in[0].Dtype, bindSpan[float32], bindSpan[float64])(k, a, op.mask(a.MaxTokens()), in, out)
	})
}

func (SlidingWindow) TakesBF16(in, out []spec.Arg) bool { return takesBF16(in, out) }

func (op SlidingWindow) bindGrad(k *cpu.Kernel, takesDelta bool, in, out []spec.Arg) {
	in, a := bindChecked(k, in, op.Blocks())
	spec.ByType(in[0].Dtype, bindSpanGrad[float32], bindSpanGrad[float64])(k, a, op.mask(a.MaxTokens()), takesDelta, in, out)
}

func (op SlidingWindow) Grad(_ []bool, in gorgonia.Nodes, o, do *gorgonia.Node) (gorgonia.Nodes, error) {
	return grad(op, in, o, do)
}

// SlidingWindowGrad is the Spec of the gradient of SlidingWindow.
type SlidingWindowGrad = Grad[SlidingWindow]
