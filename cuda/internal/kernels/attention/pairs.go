package attention

import (
	"unsafe"

	"github.com/gorgonia-nsa/nsa/cuda/internal/driver"
	"github.com/gorgonia-nsa/nsa/cuda/internal/kernels"
	"github.com/gorgonia-nsa/nsa/graph"
)

// pairParams is PairParams of attention_pairs.cuh.
type pairParams struct {
	k, v, q, dout [driver.MapBytes]byte
	params        `c:"p"`
	pairs         pairs
	_             [32]byte
}

type pairs struct {
	list, lengths, items, count, sums, stats kernels.Ref

	units, queries, room, parts, tile, chunk, first, end int32
}

const (
	pairQueries = 2048      // most queries of a unit
	pairBytes   = 256 << 20 // most bytes of results that are not yet added up
	itemTiles   = 8         // tiles of rows of an item
	joiners     = 256       // threads of a block that adds up results
)

// pairRing is the shape of a kernel that makes results of pairs: its computing warp groups, its stages of rows and of
// keys, and the arrays of rows: q, or also do.
type pairRing struct{ groups, rows, keys, arrays int64 }

// pairTileBytes is the shared memory of a kernel that makes results of pairs: rows and keys, what is known of the rows, and the barriers.
func (x widths) pairTileBytes(r pairRing) int64 {
	row, known := x.c, int64(8)
	if r.arrays == 2 {
		row, known = x.c+x.cv, 8*64
	}
	return 2*64*(r.rows*row+r.keys*(x.c+x.cv)) + r.rows*(16+8*64+known) + 16*(r.rows+r.keys) + 16
}

// byPairs refuses what the kernels by pairs do not take.
func (a selectedProblem) byPairs() error {
	rows := a.B * a.S * a.Hq
	switch h := a.headsPerGroup(); {
	case h > 64:
		return graph.Refuse(graph.ReasonShape, "warp groups: %d heads of a group, want at most 64", h)
	case rows >= 1<<31 || 2*rows*max(a.D, a.Dv) >= maxMapStride:
		return graph.Refuse(graph.ReasonShape, "warp groups: %d rows, want less than 2^31, and less than 2^40 bytes", rows)
	case 4*a.count() > int64(a.GPU.SharedPerBlock):
		return graph.Refuse(graph.ReasonShape, "warp groups: %d blocks, want at most %d", a.count(), a.GPU.SharedPerBlock/4)
	case a.pairBytes(max(a.D, a.Dv)) > pairBytes:
		return graph.Refuse(graph.ReasonShape, "warp groups: lists of %d blocks, whose results exceed %d bytes", a.topN, pairBytes)
	}
	return nil
}

// pairBytes is the memory for the results of a query and a group, with c columns.
func (a selectedProblem) pairBytes(c int64) int64 {
	return a.topN * a.parts() * a.headsPerGroup() * (2*kernels.Pieces(c, 32)*32 + 8)
}

// parts is the number of tiles of a block.
func (a selectedProblem) parts() int64 { return kernels.Pieces(a.block, matrixKeys) }

// launchPairs adds the launches of forward or dq by pairs: they are sorted, then their results are made and added up, those of a few
// units at a time.
func (a selectedProblem) launchPairs(op string, of widths, ring pairRing, argument *params) {
	c, stats := a.Dv, int64(8)
	if ring.arrays == 2 {
		c, stats = a.D, 0
	}
	c = kernels.Pieces(c, 32) * 32
	fit := pairBytes / a.pairBytes(c)
	queries := min(fit, a.S)
	queries /= kernels.Pieces(queries, pairQueries)             // so that most of fit is used
	queries = kernels.Pieces(a.S, kernels.Pieces(a.S, queries)) // and units are alike
	units := kernels.Pieces(a.S, queries)
	all, tile := units*a.groups(), 64/a.headsPerGroup()
	each := min(all, fit/queries) // units of a launch
	x := pairs{
		units: int32(units), queries: int32(queries), parts: int32(a.parts()), tile: int32(tile), chunk: int32(itemTiles * tile),
		room: int32((a.count() + kernels.Pieces(queries*a.topN, itemTiles*tile)) * a.parts()),
	}
	rows := each * queries * a.topN * a.parts() * a.headsPerGroup()
	x.list, x.lengths = a.Work(4*all*queries*a.topN), a.Work(4*all*queries)
	x.items, x.count = a.Work(16*all*int64(x.room)), a.Work(4*all)
	x.sums, x.stats = a.Work(2*rows*c), a.Work(stats*rows)
	p := &pairParams{params: *argument, pairs: x}
	a.Launch("nsa_pairs_sort_i32", kernels.Line(all), kernels.Line(1024), 4*a.count(), p)
	for first := int64(0); first < all; first += each {
		p.pairs.first, p.pairs.end = int32(first), int32(min(all, first+each))
		a.Launch(a.warpGroupKernel("pairs_"+op, of), kernels.Line(int64(a.GPU.SMs)), kernels.Line(128+128*ring.groups), of.pairTileBytes(ring), p)
		a.boxes(unsafe.Offsetof(p.k), a.In[1], [4]int64{a.D, a.Hkv, a.T, a.B}, matrixKeys)
		a.boxes(unsafe.Offsetof(p.v), a.In[2], [4]int64{a.Dv, a.Hkv, a.T, a.B}, matrixKeys)
		a.boxes(unsafe.Offsetof(p.q), a.In[0], [4]int64{a.D, 1, a.B * a.S * a.Hq, 1}, a.headsPerGroup())
		if ring.arrays == 2 {
			a.boxes(unsafe.Offsetof(p.dout), a.In[len(a.In)-1], [4]int64{a.Dv, 1, a.B * a.S * a.Hq, 1}, a.headsPerGroup())
		}
		blocks := kernels.Pieces(queries*a.headsPerGroup()*c/8, joiners)
		a.Launch(a.Type.Name("pairs_"+op+"_join"), kernels.Line((min(all, first+each)-first)*blocks), kernels.Line(joiners), 0, p)
	}
}
