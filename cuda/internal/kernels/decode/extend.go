package decode

import (
	"math"
	"slices"

	"github.com/gorgonia-nsa/nsa/cuda/internal/kernels"
	"github.com/gorgonia-nsa/nsa/cuda/internal/kernels/compress"
	"github.com/gorgonia-nsa/nsa/graph"
	"github.com/gorgonia-nsa/nsa/ops/spec"
	"github.com/gorgonia-nsa/nsa/ops/spec/decode"
)

func extendEntries() []kernels.Entry {
	return kernels.Entries(kernels.EntryFor[decode.Extend]{
		Types: kernels.In(kernels.Float("inputs").Repeated(), kernels.Any("cache"), kernels.Int32("pages", "start")).
			Out(kernels.Float("outputs").Repeated()),
		Products: extendProducts, Guard: guardExtend, Launches: extend,
	})
}

// guardExtend refuses outputs whose rows of a sequence have more elements than 31 bits count.
func guardExtend(c *kernels.Call, op decode.Extend) error {
	cache := op.Cache
	n := (float64(op.Tokens) + float64(cache.BlockLen)) * float64(cache.KVHeads) * float64(max(cache.KeyDim, cache.ValueDim))
	if n > math.MaxInt32 {
		return graph.Refuse(graph.ReasonSize, "%d tokens of a sequence have %.3g elements, want at most 2^31-1", op.Tokens, n)
	}
	return checkCache(c, cache)
}

// extendProducts returns the products of an MLP over the new blocks: those of their keys, then those of their values.
func extendProducts(c *kernels.Call, op decode.Extend) (list []kernels.Product) {
	for side, x := range blockTokens(c, op) {
		if op.MLP {
			list = append(list, compress.MLPProducts(c, x, phiOf(c, side)[1], op.Cache.BlockLen, op.Cache.Stride)...)
		}
	}
	return list
}

// phiOf returns the parameters of the MLP for keys (side 0) or values (side 1).
func phiOf(c *kernels.Call, side int) []kernels.Operand { return c.In[len(c.In)-9+3*side:][:3] }

// blockTokens returns arrays for the keys and the values of the tokens of the blocks that the new tokens complete,
// [R,S+l-1,Hkv,D] and [R,S+l-1,Hkv,Dv]. It returns none if the cache stores no blocks.
func blockTokens(c *kernels.Call, op decode.Extend) (list []kernels.Operand) {
	if op.Cache.Stores(decode.Compressed) {
		for _, run := range c.In[:2] {
			list = append(list, withTokens(run, run.Shape[1]+op.Cache.BlockLen-1))
		}
	}
	return list
}

// withTokens returns an array like x of n tokens, without memory.
func withTokens(x kernels.Operand, n int) kernels.Operand {
	shape := x.Shape.Clone()
	shape[1] = n
	return kernels.Operand{Operand: spec.Operand{Dtype: x.Dtype, Shape: shape}}
}

// extend adds k and v of the branches, phi, cache, page table, start -> kc, vc, k and v of the branches. It reads the cache before it
// stores the new tokens, which overwrite older ones in the rings.
func extend(b *kernels.Builder, op decode.Extend) {
	c, at := op.Cache, len(b.In)-3
	p := rowsOf(c, b.In[at], b.In[at+1], b.In[0].Dim(1))
	p.starts, p.maxStart = b.In[at+2].Ref, min(p.maxEnd, int32(op.Tokens)-p.maxNew)
	regions, pairs, out := regionsOf(c), b.In[:len(b.Out)], b.Out
	tail := c.Layout().Tail
	if c.Stores(decode.Compressed) {
		pairs = slices.Concat(p.addBlocks(b, op, regions[1]), pairs)
	}
	for i, r := range regions {
		if r.Region != tail {
			p.addGather(b, r, pairs[2*i:][:2], out[:2])
			out = out[2:]
		}
	}
	p.addFill(b, c, pairs)
}

// addBlocks adds the launches that compress the blocks that the new tokens complete, and returns their keys and values. Behind them are
// blocks that lack tokens.
func (p *cacheRowsParams) addBlocks(b *kernels.Builder, op decode.Extend, tail cacheRegion) (blocks []kernels.Operand) {
	c, x := op.Cache, blockTokens(&b.Call, op)
	work := func(o kernels.Operand) kernels.Operand {
		o.Ref = b.Work(int64(o.Bytes()))
		return o
	}
	for side := range x {
		x[side] = work(x[side])
		blocks = append(blocks, work(withTokens(x[side], spec.NumCompressed(x[side].Shape[1], c.BlockLen, c.Stride))))
	}
	gather := *p
	gather.blockL, gather.blockD = int32(c.BlockLen), int32(c.Stride)
	gather.addGather(b, tail, b.In[:2], x)
	for side, y := range blocks {
		if op.MLP {
			compress.AddMLP(b, x[side], phiOf(&b.Call, side), y.Ref, c.BlockLen, c.Stride)
		} else {
			compress.AddMean(b, x[side], y, c.BlockLen, c.Stride)
		}
	}
	return blocks
}
