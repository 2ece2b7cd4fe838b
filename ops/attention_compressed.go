package ops

import (
	"cmp"

	"gorgonia.org/gorgonia"

	"github.com/gorgonia-nsa/nsa/internal/cpu"
)

// CompressedAttention returns attention of each query t over the compressed keys and values of the blocks that end at or
// before t, the first NumVisible(t, blockLen, stride): the first branch of NSA (arXiv 2502.11089, section 3.3.1).
// q [B,S,Hq,D], kc [B,Nc,Hkv,D], vc [B,Nc,Hkv,Dv] -> o [B,S,Hq,Dv]; LSE(o) is [B,Hq,S]. Nc is
// NumCompressed(S, blockLen, stride), but at least 1: if S < blockLen, there is one row that no query sees. The first blockLen-1
// queries see no key: o = 0, lse = -Inf. q, kc and vc have gradients. It is an error if the stride does not divide the
// block length, if kc or vc has another number of rows than Nc, or if Hkv does not divide Hq.
func CompressedAttention(q, kc, vc *gorgonia.Node, blockLen, stride int, opts ...Option) (*gorgonia.Node, error) {
	return applyWithDocuments(CompressedAttentionOp{blockLen, stride}, opts, q, kc, vc)
}

// CompressedAttentionOp is the Spec of CompressedAttention: q, kc, vc and optionally a table of documents -> o, lse.
type CompressedAttentionOp struct {
	BlockLen int // l: tokens in a compression block
	Stride   int // d: tokens between the starts of two blocks; divides l
}

func (CompressedAttentionOp) Name() string    { return "compressed attention" }
func (CompressedAttentionOp) inputCount() int { return 3 }
func (op CompressedAttentionOp) blocks() compressionBlocks {
	return compressionBlocks{op.BlockLen, op.Stride}
}
func (op CompressedAttentionOp) mask(s int) span            { return span{op.BlockLen, op.Stride, s} }
func (op CompressedAttentionOp) pairs(in []Operand) float64 { return spanPairs(op.mask, in) }

func (op CompressedAttentionOp) flops(in []Operand) float64 { return attentionFLOPs(op, in, 2, 2) }

func (op CompressedAttentionOp) Infer(in []Operand) ([]Operand, error) {
	out, err := inferAttention(in, "kc", "vc", func(s int) int { return compressedRows(s, op.BlockLen, op.Stride) })
	return out, cmp.Or(checkBlocks(op.BlockLen, op.Stride), err)
}

func (op CompressedAttentionOp) Bind(k *cpu.Kernel, in, out []Arg) {
	in, a := splitDims(in, 3, op.blocks())
	byType(in[0].Dtype, bindSpan[float32], bindSpan[float64])(k, a, op.mask(a.rowTokens), in, out)
}

func (op CompressedAttentionOp) bindGrad(k *cpu.Kernel, takesDelta bool, in, out []Arg) {
	in, a := splitDims(in, 3, op.blocks())
	byType(in[0].Dtype, bindSpanGrad[float32], bindSpanGrad[float64])(k, a, op.mask(a.rowTokens), takesDelta, in, out)
}

func (op CompressedAttentionOp) Grad(_ []bool, in gorgonia.Nodes, o, do *gorgonia.Node) (gorgonia.Nodes, error) {
	return attentionGrad(op, in, o, do)
}

// CompressedAttentionGradOp is the Spec of the gradient of CompressedAttention.
type CompressedAttentionGradOp = AttentionGradOp[CompressedAttentionOp]
