package ops

import (
	"gorgonia.org/gorgonia"

	"github.com/gorgonia-nsa/nsa/ops/spec"
	"github.com/gorgonia-nsa/nsa/ops/spec/attention"
	"github.com/gorgonia-nsa/nsa/ops/spec/compress"
	"github.com/gorgonia-nsa/nsa/ops/spec/pointwise"
)

// CompressedAttention returns attention of each query t over the compressed keys and values of the blocks that end at
// or before t, the first NumCompressed(t+1, l, d): the first branch of NSA (arXiv 2502.11089, section 3.3.1). q
// [B,S,Hq,D], kc [B,Nc,Hkv,D], vc [B,Nc,Hkv,Dv] -> o [B,S,Hq,Dv]; LSE(o) is [B,Hq,S]. Of p only l and d count. Nc is
// NumCompressed(S, l, d), but at least 1: if S < l, there is one row that no query sees. The first l-1 queries see no
// key: o = 0, lse = -Inf. q, kc and vc have gradients. It is an error if d does not divide l, if kc or vc has another
// number of rows than Nc, or if Hkv does not divide Hq.
func CompressedAttention(q, kc, vc *gorgonia.Node, p Params, opts ...Option) (*gorgonia.Node, error) {
	return spec.ApplyWithDocuments(attention.Compressed{BlockLen: p.BlockLen, Stride: p.Stride}, opts, q, kc, vc)
}

// SelectBlocks returns the selection blocks that each query of each group attends to: q [B,S,Hq,D], kc [B,Nc,Hkv,D] and
// the lse [B,Hq,S] of the compressed attention over kc -> int32 [B,S,Hkv,n], ascending, padded with -1. Blocks count
// from the first block of the query's document, as in SelectedAttention.
//
// Three of the n blocks are forced: block 0, the query's own block and the block before it. The other n-3 are the
// blocks with the best scores among the remaining earlier blocks. Of equal scores the lower index wins. The score of a
// block is a weighted sum of the probabilities that the compressed attention gives to the compression blocks, also
// summed over the heads of the group. The weight of a compression block is the number of tokens that it shares with the
// block, divided by d (arXiv 2502.11089, equations 8 to 12). The probabilities are recomputed from lse, a tile of
// queries at a time. No gradient flows through the selection.
//
// It is an error if p is not valid, if kc has another number of rows than the compressed keys of S tokens, or if Hkv
// does not divide Hq.
func SelectBlocks(q, kc, lse *gorgonia.Node, p Params, opts ...Option) (*gorgonia.Node, error) {
	return spec.ApplyWithDocuments(attention.SelectBlocks{Params: p}, opts, q, kc, lse)
}

// SelectedAttention returns attention of each query over the tokens of the blocks that idx names, up to the query's own
// token: the second branch of NSA (arXiv 2502.11089, section 3.3.2). Block j holds the tokens [j*selectBlock,
// (j+1)*selectBlock). q [B,S,Hq,D], k [B,S,Hkv,D], v [B,S,Hkv,Dv], idx int32 [B,S,Hkv,n] as SelectBlocks returns it ->
// o [B,S,Hq,Dv]; LSE(o) is [B,Hq,S]. q, k and v have gradients. It is an error if selectBlock is less than 1 or Hkv
// does not divide Hq. It is an error of the run if the blocks of a query do not ascend, or if a block does not exist or
// comes after a -1.
func SelectedAttention(q, k, v, idx *gorgonia.Node, selectBlock int, opts ...Option) (*gorgonia.Node, error) {
	return spec.ApplyWithDocuments(attention.Selected{SelectBlock: selectBlock}, opts, q, k, v, idx)
}

// SlidingWindow returns attention of each query t over its window, the tokens [t-window+1, t]: the third branch of NSA
// (arXiv 2502.11089, section 3.3.3). q [B,S,Hq,D], k [B,S,Hkv,D], v [B,S,Hkv,Dv] -> o [B,S,Hq,Dv]; LSE(o) is [B,Hq,S].
// q, k and v have gradients. It is an error if the window is less than 1 or Hkv does not divide Hq.
func SlidingWindow(q, k, v *gorgonia.Node, window int, opts ...Option) (*gorgonia.Node, error) {
	return spec.ApplyWithDocuments(attention.SlidingWindow{Window: window}, opts, q, k, v)
}

// CausalAttention returns dense attention of each query over all tokens up to its own: a SlidingWindow of S. It is the
// baseline that NSA is compared with.
func CausalAttention(q, k, v *gorgonia.Node, opts ...Option) (*gorgonia.Node, error) {
	window := 1 // a k without T gets an error of SlidingWindow
	if k != nil && k.Shape().Dims() == 4 {
		window = max(window, k.Shape()[1])
	}
	return SlidingWindow(q, k, v, window, opts...)
}

// CompressMean returns the mean of each compression block of keys or values: x [B,S,Hkv,D] -> [B,Nc,Hkv,D], where block
// i covers the tokens [i*d, i*d+l) and Nc = NumCompressed(S, l, d). Of p only l and d count. This is the simplest phi
// of NSA (arXiv 2502.11089, equation 7). If S < l, there is no block and the output is one row of zeros. It is an error
// if d does not divide l. x has a gradient.
func CompressMean(x *gorgonia.Node, p Params, opts ...Option) (*gorgonia.Node, error) {
	return spec.ApplyWithDocuments(compress.Mean{BlockLen: p.BlockLen, Stride: p.Stride}, opts, x)
}

// CompressMLP returns W2·silu(W1·vec(block+pe)) for each compression block and head of keys or values: x [B,S,Hkv,D] ->
// [B,Nc,Hkv,D], with the blocks of CompressMean. This is the learned phi of NSA with its intra-block position embedding
// (arXiv 2502.11089, equation 7). The heads share pe [l,D], w1 [hidden,l*D] and w2 [D,hidden]. vec is row-major, with
// the position in the block as the outer axis. If S < l, the output is one row of zeros and no gradient passes. x, pe,
// w1 and w2 have gradients.
func CompressMLP(x, pe, w1, w2 *gorgonia.Node, p Params, opts ...Option) (*gorgonia.Node, error) {
	return spec.ApplyWithDocuments(compress.MLP{BlockLen: p.BlockLen, Stride: p.Stride}, opts, x, pe, w1, w2)
}

// GatedSum returns the sum of gate*branch over the branches (arXiv 2502.11089, equation 5): gates [B,S,Hq,n], already
// activated, and n branches [B,S,Hq,Dv] in the order of the gates -> [B,S,Hq,Dv]. The gates and the branches have
// gradients.
func GatedSum(gates *gorgonia.Node, branches ...*gorgonia.Node) (*gorgonia.Node, error) {
	return spec.Apply(pointwise.GatedSum{}, append(gorgonia.Nodes{gates}, branches...)...)
}
