package decode

import (
	"github.com/gorgonia-nsa/nsa/cuda/internal/kernels"
	"github.com/gorgonia-nsa/nsa/ops"
)

// fillPair and fillParams are the structs of cache_fill.cu.
type (
	fillPair struct {
		k, v               kernels.Ref
		keys, values       int64
		places, ring, l, d int32
	}
	fillParams struct {
		pairs                                  [4]fillPair
		cache, rows, stored                    kernels.Ref
		seq                                    int64
		count, groups, dim, valueDim, width, _ int32
	}
)

// fill adds kc, vc, k and v of the branches, cache, rows -> stored.
func fill(b *kernels.Builder, op ops.FillCacheOp) error {
	c, layout := op.Cache, op.Cache.Layout()
	b.Fail(checkCache(b, c))
	rows, k := b.In[len(b.In)-1], b.In[len(b.In)-4]
	p := &fillParams{
		cache: b.In[len(b.In)-2].Ref, rows: rows.Ref, stored: b.Out[0].Ref, seq: k.Dim(1),
		groups: int32(c.KVHeads), dim: int32(c.KeyDim), valueDim: int32(c.ValueDim), width: int32(rows.Dim(1)),
	}
	add := func(r ops.CacheRegion, ring bool, l, d int) {
		next := 2 * p.count
		p.pairs[p.count] = fillPair{b.In[next].Ref, b.In[next+1].Ref, int64(r.Keys), int64(r.Values), int32(r.Places), kernels.Flag(ring), int32(l), int32(d)}
		p.count++
	}
	if c.Stores(ops.Compressed) {
		add(layout.Compressed, false, c.BlockLen, c.Stride)
		add(layout.Tail, true, 1, 1)
	}
	if c.Dense() || c.Has(ops.Selected) {
		add(layout.Tokens, false, 1, 1)
	}
	if c.Has(ops.Window) {
		add(layout.Window, true, 1, 1)
	}
	grid := kernels.Dim{X: int(min(kernels.Pieces(p.seq*int64(c.KVHeads), 8), 1<<12)), Y: int(p.count), Z: int(rows.Dim(0))}
	b.Launch(b.Type.Name("cache_fill"), grid, kernels.Threads(), 0, p)
	return nil
}
