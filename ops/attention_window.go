package ops

import (
	"cmp"

	"gorgonia.org/gorgonia"

	"github.com/gorgonia-nsa/nsa/internal/cpu"
)

// SlidingWindow returns attention of each query t over its window, the tokens [t-window+1, t]: the third branch of NSA
// (arXiv 2502.11089, section 3.3.3). q [B,S,Hq,D], k [B,S,Hkv,D], v [B,S,Hkv,Dv] -> o [B,S,Hq,Dv]; LSE(o) is [B,Hq,S].
// q, k and v have gradients. It is an error if the window is less than 1 or Hkv does not divide Hq.
func SlidingWindow(q, k, v *gorgonia.Node, window int, opts ...Option) (*gorgonia.Node, error) {
	return applyWithDocuments(SlidingWindowOp{window}, opts, q, k, v)
}

// CausalAttention returns dense attention of each query over all tokens up to its own: a SlidingWindow of S. It is the baseline
// that NSA is compared with.
func CausalAttention(q, k, v *gorgonia.Node, opts ...Option) (*gorgonia.Node, error) {
	window := 1 // a q without S gets an error of SlidingWindow
	if q != nil && q.Shape().Dims() == 4 {
		window = max(window, q.Shape()[1])
	}
	return SlidingWindow(q, k, v, window, opts...)
}

// SlidingWindowOp is the Spec of SlidingWindow: q, k, v and optionally a table of documents -> o, lse.
type SlidingWindowOp struct {
	Window int // w: tokens that a query sees, its own included
}

func (SlidingWindowOp) Name() string                  { return "sliding window" }
func (SlidingWindowOp) inputCount() int               { return 3 }
func (SlidingWindowOp) blocks() compressionBlocks     { return compressionBlocks{} }
func (op SlidingWindowOp) mask(s int) span            { return tokenSpan(min(op.Window, s)) }
func (op SlidingWindowOp) pairs(in []Operand) float64 { return spanPairs(op.mask, in) }

func (op SlidingWindowOp) flops(in []Operand) float64 { return attentionFLOPs(op, in, 2, 2) }

func (op SlidingWindowOp) Infer(in []Operand) ([]Operand, error) {
	out, err := inferAttention(in, "k", "v", func(s int) int { return s })
	return out, cmp.Or(wantPositive("window w", op.Window), err)
}

func (op SlidingWindowOp) Bind(k *cpu.Kernel, in, out []Arg) {
	in, a := splitDims(in, 3, op.blocks())
	byType(in[0].Dtype, bindSpan[float32], bindSpan[float64])(k, a, op.mask(a.rowTokens), in, out)
}

func (op SlidingWindowOp) bindGrad(k *cpu.Kernel, takesDelta bool, in, out []Arg) {
	in, a := splitDims(in, 3, op.blocks())
	byType(in[0].Dtype, bindSpanGrad[float32], bindSpanGrad[float64])(k, a, op.mask(a.rowTokens), takesDelta, in, out)
}

func (op SlidingWindowOp) Grad(_ []bool, in gorgonia.Nodes, o, do *gorgonia.Node) (gorgonia.Nodes, error) {
	return attentionGrad(op, in, o, do)
}

// SlidingWindowGradOp is the Spec of the gradient of SlidingWindow.
type SlidingWindowGradOp = AttentionGradOp[SlidingWindowOp]
