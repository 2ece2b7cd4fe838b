package attention

import (
	"fmt"
	"unsafe"

	"github.com/gorgonia-nsa/nsa/cuda/internal/driver"
	"github.com/gorgonia-nsa/nsa/cuda/internal/kernels"
)

// walkParams is WalkParams of attention_pairs.cuh.
type walkParams struct {
	k, v   [driver.TensorMapBytes]byte
	params `c:"p"`
	walks  walks
}

type walks struct {
	blocks, count kernels.Ref

	tiles, queries int32
	capacity       int32 `c:"room"` // pieces of a tile
	keys           int32
}

const (
	listWarps        = 4    // warps of a thread block that lists the selection blocks of tiles
	listBlocksAtOnce = 2048 // selection blocks that such a warp checks at once
	maxTileQueries   = 32   // most queries of a tile: each has a bit in a word
	minWalkHeads     = 8    // fewest heads of a group for a walk
)

// walkQueries is the number of queries of a tile: a warp has whole queries, or several warps share one query.
func (a selectedProblem) walkQueries(r walkKernel) int64 {
	h := a.headsPerGroup()
	if h <= 16 {
		return min(maxTileQueries, r.warps*(16/h))
	}
	return min(maxTileQueries, r.warps/kernels.CeilDiv(h, 16))
}

// byWalk reports whether the kernels use a walk: a tile of queries iterates over the selection blocks that any of them selected.
// Documents always do, and so do small selection blocks, since lists have many of them. Otherwise pairs are better for few heads in a
// group: pairs are cheap then, and in a walk more rows of a warp would multiply blocks that they did not select. A walk is better for
// few selection blocks, since neighbouring queries then have many in common. The limits were measured with random lists. If
// neighbours select alike, a walk is faster at any length.
func (a selectedProblem) byWalk() bool {
	h := a.headsPerGroup()
	return a.packed() || a.pieceKeys() < mmaKeys || h > maxPairHeads || h >= minWalkHeads && 8*a.selectionBlocks() <= h*h*a.topN
}

// addWalk adds the launches of forward or dq by a walk. The first kernel lists the selection blocks of each tile of
// queries, the second one computes the products. Its thread blocks stay on a multiprocessor and iterate over tiles.
func (a selectedProblem) addWalk(b *kernels.Builder, op string, w widths, r walkKernel, argument *params) {
	queries := a.walkQueries(r)
	tilesPerGroup := kernels.CeilDiv(a.S, queries)
	tiles := a.groups() * tilesPerGroup
	blocks, keys, name := a.selectionBlocks(), a.pieceKeys(), "walk"
	if a.packed() { // selection blocks of different documents have numbers of their own
		blocks += queries
	}
	if keys < mmaKeys {
		name = fmt.Sprint(name, keys)
	}
	capacity := min(blocks, queries*a.topN) * kernels.CeilDiv(a.block, keys) // pieces of a tile
	p := &walkParams{params: *argument, walks: walks{
		blocks: b.Work(8 * tiles * capacity), count: b.Work(4 * tiles),
		tiles: int32(tilesPerGroup), queries: int32(queries), capacity: int32(capacity), keys: int32(keys),
	}}
	grid, shared := kernels.Line(kernels.CeilDiv(tiles, listWarps)), listWarps*4*min(listBlocksAtOnce, blocks)
	// attention_pairs.cu
	b.AddLaunch("nsa_walk_blocks_i32", grid, kernels.Line(32*listWarps), shared, p)
	grid = kernels.Line(min(tiles, int64(a.GPU.SMs)))
	// attention_walk_forward.cu or attention_walk_dq.cu
	b.AddLaunch(a.Type.Name(name+"_"+op+"_mma"+w.name()), grid, kernels.Line(128+32*r.warps), w.walkBytes(r), p)
	addKeyTensorMaps(b, unsafe.Offsetof(p.k), unsafe.Offsetof(p.v), keys)
}
