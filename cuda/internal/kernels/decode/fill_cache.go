package decode

import (
	"github.com/gorgonia-nsa/nsa/cuda/internal/kernels"
	"github.com/gorgonia-nsa/nsa/ops/spec/decode"
)

func fillCacheEntries() []kernels.Entry {
	return kernels.Entries(kernels.EntryFor[decode.FillCache]{
		Types:    in().Out(kernels.Int32("stored")),
		Guard:    func(c *kernels.Call, op decode.FillCache) error { return checkCache(c, op.Cache) },
		Launches: fillCache,
	})
}

// cacheFillParams is CacheFillParams of fill_cache.cu.
type cacheFillParams struct {
	k, v, cache, pageTable, stored kernels.Ref
	keys, values, n                int64
	places, ring, l, d             int32
	groups, dim, valueDim, width   int32
}

// fillCache adds kc, vc, k and v of the branches, cache, page table -> stored, a launch for each region of the cache.
func fillCache(b *kernels.Builder, op decode.FillCache) {
	c, layout := op.Cache, op.Cache.Layout()
	table, next, stored := b.In[len(b.In)-1], 0, b.Out[0].Ref
	add := func(r decode.Region, ring bool, l, d int) {
		k, v := b.In[next], b.In[next+1]
		p := &cacheFillParams{
			k: k.Ref, v: v.Ref, cache: b.In[len(b.In)-2].Ref, pageTable: table.Ref, stored: stored,
			keys: int64(r.Keys), values: int64(r.Values), n: k.Dim(1), places: int32(r.Entries), ring: kernels.Flag(ring), l: int32(l), d: int32(d),
			groups: int32(c.KVHeads), dim: int32(c.KeyDim), valueDim: int32(c.ValueDim), width: int32(table.Dim(1)),
		}
		grid := kernels.Dim{X: int(min(kernels.CeilDiv(p.n*int64(c.KVHeads), 8), 1<<12)), Y: int(table.Dim(0)), Z: 1}
		b.AddLaunch(b.Type.Name("cache_fill"), grid, kernels.Threads(), 0, p)
		next, stored = next+2, 0
	}
	if c.Stores(decode.Compressed) {
		add(layout.Compressed, false, c.BlockLen, c.Stride)
		add(layout.Tail, true, 1, 1)
	}
	if c.StoresTokens() {
		add(layout.Tokens, false, 1, 1)
	}
	if c.Has(decode.Window) {
		add(layout.Window, true, 1, 1)
	}
}
