package decode

import (
	"math"

	"github.com/gorgonia-nsa/nsa/cuda/internal/kernels"
	"github.com/gorgonia-nsa/nsa/ops/spec/decode"
)

func fillCacheEntries() []kernels.Entry {
	return kernels.Entries(kernels.EntryFor[decode.FillCache]{
		Types: in().Out(kernels.Int32("stored")), Guard: guardFillCache, Launches: fillCache,
	})
}

func guardFillCache(c *kernels.Call, op decode.FillCache) error { return checkCache(c, op.Cache) }

// fillCache adds kc, vc, k and v of the branches, cache, page table -> stored.
func fillCache(b *kernels.Builder, op decode.FillCache) {
	at := len(b.In) - 2
	p := rowsOf(op.Cache, b.In[at], b.In[at+1], b.In[at-1].Dim(1))
	p.stored = b.Out[0].Ref
	p.addFill(b, op.Cache, b.In[:at])
}

// cacheRowsParams is CacheRowsParams of cache_rows.cu.
type cacheRowsParams struct {
	k, v, cache, pageTable, starts, stored, allK, allV kernels.Ref
	keys, values                                       int64
	n, rows, lists, places, ring, l, d                 int32
	blockL, blockD                                     int32
	maxStart, maxNew, maxEnd                           int32
	groups, dim, valueDim, width                       int32
}

// rowsOf returns the argument for sequences that begin with at most n new tokens, without a region and arrays.
func rowsOf(c decode.KVCache, cache, table kernels.Operand, n int64) *cacheRowsParams {
	return &cacheRowsParams{
		cache: cache.Ref, pageTable: table.Ref,
		maxNew: int32(n), maxEnd: int32(min((table.Dim(1)-2)*int64(c.PageLen), math.MaxInt32)),
		groups: int32(c.KVHeads), dim: int32(c.KeyDim), valueDim: int32(c.ValueDim), width: int32(table.Dim(1)),
	}
}

// cacheRegion is a region of a cache whose keys stand for l tokens, from every d-th one on.
type cacheRegion struct {
	decode.Region
	lists int // pages, or slots
	ring  bool
	l, d  int
}

// regionsOf returns the regions of a cache in the order of the inputs of FillCache: that of compressed blocks and the tail if there are
// any, then those of the branches of tokens.
func regionsOf(c decode.KVCache) (list []cacheRegion) {
	layout := c.Layout()
	if c.Stores(decode.Compressed) {
		list = append(list, cacheRegion{layout.Compressed, c.Pages, false, c.BlockLen, c.Stride},
			cacheRegion{layout.Tail, c.Slots, true, 1, 1})
	}
	if c.StoresTokens() {
		list = append(list, cacheRegion{layout.Tokens, c.Pages, false, 1, 1})
	}
	if c.Has(decode.Window) {
		list = append(list, cacheRegion{layout.Window, c.Slots, true, 1, 1})
	}
	return list
}

// add adds a launch of `blocks` thread blocks for a region and a pair of arrays.
func (p *cacheRowsParams) add(b *kernels.Builder, kernel string, r cacheRegion, pair []kernels.Operand, blocks int64) {
	p.k, p.v, p.n = pair[0].Ref, pair[1].Ref, int32(pair[0].Dim(1))
	p.keys, p.values, p.lists, p.places = int64(r.Keys), int64(r.Values), int32(r.lists), int32(r.Entries)
	p.ring, p.l, p.d = kernels.Flag(r.ring), int32(r.l), int32(r.d)
	grid := kernels.Dim{X: int(min(blocks, 1<<12)), Y: int(pair[0].Dim(0)), Z: 1}
	b.AddLaunch(b.Type.Name(kernel), grid, kernels.Threads(), 0, p)
}

// addFill adds a launch for each region of the cache, which stores a pair of arrays.
func (p *cacheRowsParams) addFill(b *kernels.Builder, c decode.KVCache, pairs []kernels.Operand) {
	for i, r := range regionsOf(c) {
		pair := pairs[2*i:][:2]
		p.add(b, "cache_fill", r, pair, kernels.CeilDiv(pair[0].Dim(1)*int64(p.groups), 8))
		p.stored = 0
	}
}

// addGather adds a launch that writes the rows of `all`: the keys and values of a region, then those of a pair of arrays.
func (p *cacheRowsParams) addGather(b *kernels.Builder, r cacheRegion, pair, all []kernels.Operand) {
	n := all[0].Dim(1)
	p.allK, p.allV, p.rows = all[0].Ref, all[1].Ref, int32(n)
	p.add(b, "cache_gather", r, pair, kernels.CeilDiv(n*int64(p.groups*max(p.dim, p.valueDim)), 256*b.Type.Lanes()))
}
