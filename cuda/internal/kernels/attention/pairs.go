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
	walks         walks
	_             [40]byte
}

type pairs struct {
	list, lengths, counts, items, count, sums, stats kernels.Ref

	units, queries, cuts, room, parts, tile, chunk, first, end int32
}

type walks struct {
	blocks, count, lone kernels.Ref

	tiles, queries, room, least int32
}

const (
	pairQueries = 2048    // most queries of a unit
	mostCuts    = 16      // most blocks of threads that sort a unit, with at least 8 entries for each count that they make
	sorters     = 512     // threads of such a block
	pairBytes   = 1 << 30 // most bytes of results that are not yet added up
	itemTiles   = 8       // tiles of rows of an item
	joiners     = 256     // threads of a block that adds up results
	sharers     = 4       // warps of a block that finds shared blocks
	shareWindow = 2048    // blocks of which such a warp knows who chose them
	tileQueries = 32      // most queries of a tile, which have a bit each
	walkHeads   = 8       // fewest heads of a group whose queries share blocks: see least
	loneHeads   = 16      // and of one whose queries also have lone pairs
	sharedRows  = 32
)

// pairRing is the shape of a kernel that makes results of pairs: its loading and computing warp groups, its stages of rows and of
// keys, and the arrays of rows: q, or also do.
type pairRing struct{ loaders, groups, rows, keys, arrays int64 }

// pairTileBytes is the shared memory of a kernel that makes results of pairs: rows and keys, what is known of the rows, and the barriers.
func (x widths) pairTileBytes(r pairRing) int64 {
	row, tile := x.c, int64(40)
	if r.arrays == 2 {
		row, tile = x.c+x.cv, 544
	}
	return 2*64*(r.rows*row+r.keys*(x.c+x.cv)) + r.rows*(tile+16) + r.keys*(4*64*itemTiles+24) + 8
}

// walkRing is the shape of a kernel that walks over shared blocks: its computing warps of 16 rows, its stages of keys and values, and the
// columns of rows that lie in shared memory.
type walkRing struct{ warps, stages, columns int64 }

// walkBytes is the shared memory of such a kernel for results of c columns: stages, rows, the barriers, and a row of zeros.
func (x widths) walkBytes(r walkRing, c int64) int64 {
	return r.stages*2*64*(x.c+x.cv) + r.warps*2*16*r.columns + (24*r.stages+31)/16*16 + 2*c
}

func (x widths) walkForwardBytes() int64 { return x.walkBytes(x.walkForward, x.cv) }
func (x widths) walkDQBytes() int64      { return x.walkBytes(x.walkDQ, x.c) }

// walkQueries is the number of queries of a tile: a warp has whole queries, or several warps have one.
func (a selectedProblem) walkQueries(r walkRing) int64 {
	h := a.headsPerGroup()
	if h <= 16 {
		return min(tileQueries, r.warps*(16/h))
	}
	return min(tileQueries, r.warps/kernels.Pieces(h, 16))
}

// least is the number of queries of a tile that must choose a block to share it: 1 if all blocks are shared, 0 if none is. The fewer heads
// a group has, the cheaper is a pair, and the more rows of a warp multiply what they did not choose. If there are few blocks, neighbours
// have many in common. Reading a shared block takes as long as the lone pairs of about sharedRows rows. The limits are measured.
func (a selectedProblem) least() int64 {
	h := a.headsPerGroup()
	switch {
	case h < walkHeads:
		return 0
	case 8*a.count() <= h*h*a.topN:
		return 1
	case h < loneHeads:
		return 0
	}
	return kernels.Pieces(sharedRows, h)
}

// byLists refuses what neither the kernels by shared blocks nor those by pairs take.
func (a selectedProblem) byLists() error {
	rows, h := a.B*a.S*a.Hq, a.headsPerGroup()
	switch {
	case h > 64:
		return graph.Refuse(graph.ReasonShape, "warp groups: %d heads of a group, want at most 64", h)
	case rows >= 1<<31 || 2*rows*max(a.D, a.Dv) >= maxMapStride:
		return graph.Refuse(graph.ReasonShape, "warp groups: %d rows, want less than 2^31, and less than 2^40 bytes", rows)
	case a.least() == 1:
	case a.sortBytes() > int64(a.GPU.SharedPerBlock):
		return graph.Refuse(graph.ReasonShape, "warp groups: %d blocks, want at most %d", a.count(), a.GPU.SharedPerBlock/4-64)
	case a.pairBytes(max(a.D, a.Dv))*tileQueries > pairBytes:
		return graph.Refuse(graph.ReasonShape, "warp groups: lists of %d blocks, whose results exceed %d bytes", a.topN, pairBytes/tileQueries)
	}
	return nil
}

// sortBytes is the shared memory of the kernel that sorts pairs: numbers of the blocks, and of 32 warps.
func (a selectedProblem) sortBytes() int64 { return 4*a.count() + 2*4*32 }

// pairBytes is the memory for the results of a query and a group, with c columns.
func (a selectedProblem) pairBytes(c int64) int64 {
	return a.topN * a.parts() * a.headsPerGroup() * (2*kernels.Pieces(c, 32)*32 + 8)
}

// parts is the number of tiles of a block.
func (a selectedProblem) parts() int64 { return kernels.Pieces(a.block, matrixKeys) }

// findShared adds the launch that divides the blocks of the tiles of a kernel into shared and lone ones, and says in p where they are.
func (a selectedProblem) findShared(r walkRing, least int64, p *pairParams) {
	queries := a.walkQueries(r)
	tiles := kernels.Pieces(a.S, queries)
	all := a.groups() * tiles
	x := walks{
		tiles: int32(tiles), queries: int32(queries), least: int32(least),
		room: int32(min(a.count(), queries*a.topN/least) * a.parts()),
	}
	x.blocks, x.count = a.Work(8*all*int64(x.room)), a.Work(4*all)
	if least > 1 {
		x.lone = a.Work(4 * a.groups() * a.S * a.topN)
	}
	p.walks = x
	words := min(shareWindow, a.count()) + 32
	a.Launch("nsa_pairs_share_i32", kernels.Line(kernels.Pieces(all, sharers)), kernels.Line(32*sharers), sharers*4*words, p)
}

// launchLists adds the launches of forward or dq. The blocks of each tile of queries are divided into shared and lone ones, if any are
// shared; of the lone ones pairs are sorted and their results made, those of a few units at a time; a walk over the shared blocks adds
// them up, or a join where there are none.
func (a selectedProblem) launchLists(op string, of widths, walk walkRing, ring pairRing, argument *params) {
	p, least, tile := &pairParams{params: *argument}, a.least(), int64(1)
	x, c, stats, walkBytes := &p.pairs, a.Dv, int64(8), of.walkForwardBytes()
	if ring.arrays == 2 {
		c, stats, walkBytes = a.D, 0, of.walkDQBytes()
	}
	if least > 0 {
		a.findShared(walk, least, p)
		tile = int64(p.walks.queries)
	}
	if least == 1 {
		*x = pairs{units: 1, queries: int32(a.S), parts: int32(a.parts()), end: int32(a.groups())}
		a.launchWalk(op, of, walk, walkBytes, p)
		return
	}
	if least > 1 {
		p.idx = p.walks.lone
	}
	c = kernels.Pieces(c, 32) * 32
	queries, units, each := a.units(pairBytes/a.pairBytes(c), tile)
	all, rowTile := units*a.groups(), 64/a.headsPerGroup()
	*x = pairs{
		units: int32(units), queries: int32(queries), parts: int32(a.parts()), tile: int32(rowTile), chunk: int32(itemTiles * rowTile),
		room: int32((a.count() + kernels.Pieces(queries*a.topN, itemTiles*rowTile)) * a.parts()),
	}
	rows := each * queries * a.topN * a.parts() * a.headsPerGroup()
	x.list, x.lengths = a.Work(4*all*queries*a.topN), a.Work(4*all*queries)
	x.items, x.count = a.Work(16*all*int64(x.room)), a.Work(4*all)
	x.sums, x.stats = a.Work(2*rows*c), a.Work(stats*rows+8) // a walk reads two at once
	cuts := max(1, min(mostCuts, queries*a.topN/(8*a.count())))
	x.cuts, x.counts = int32(cuts), a.Work(4*all*cuts*a.count())
	a.Launch("nsa_pairs_count_i32", kernels.Line(all*cuts), kernels.Line(sorters), 4*a.count(), p)
	a.Launch("nsa_pairs_sort_i32", kernels.Line(all*cuts), kernels.Line(sorters), a.sortBytes(), p)
	for first := int64(0); first < all; first += each {
		x.first, x.end = int32(first), int32(min(all, first+each))
		a.Launch(a.warpGroupKernel("pairs_"+op, of), kernels.Line(int64(a.GPU.SMs)), kernels.Line(128*(ring.loaders+ring.groups)), of.pairTileBytes(ring), p)
		a.pairBoxes(ring.arrays)
		if least > 1 {
			a.launchWalk(op, of, walk, walkBytes, p)
			continue
		}
		blocks := kernels.Pieces(queries*a.headsPerGroup()*c/8, joiners)
		a.Launch(a.Type.Name("pairs_"+op+"_join"), kernels.Line(int64(x.end-x.first)*blocks), kernels.Line(joiners), 0, p)
	}
}

// units cuts the queries of each group into units of whole tiles, alike in size. A launch has `each`
// of them, with at most `fit` queries in all.
func (a selectedProblem) units(fit, tile int64) (queries, units, each int64) {
	most := min(fit, kernels.Pieces(a.S, tile)*tile)
	most = max(tile, most/kernels.Pieces(most, pairQueries)/tile*tile)                    // so that most of fit is used
	queries = kernels.Pieces(kernels.Pieces(a.S, kernels.Pieces(a.S, most)), tile) * tile // and units are alike
	units = kernels.Pieces(a.S, queries)
	return queries, units, min(units*a.groups(), fit/queries)
}

// launchWalk adds the launch of the walk over the shared blocks of the tiles of the units of p, which writes o and lse, or dq. Blocks stay
// on a multiprocessor and go through several tiles.
func (a selectedProblem) launchWalk(op string, of widths, r walkRing, shared int64, p *pairParams) {
	tiles := kernels.Pieces(int64(p.pairs.queries), int64(p.walks.queries)) * int64(p.pairs.end-p.pairs.first)
	a.Launch(a.Type.Name("walk_"+op+"_mma"+of.name()), kernels.Line(min(tiles, int64(a.GPU.SMs))), kernels.Line(128+32*r.warps), shared, p)
	a.pairBoxes(1)
}

// pairBoxes gives the last launch the tensor maps of keys, values and rows.
func (a selectedProblem) pairBoxes(arrays int64) {
	rows := a.B * a.S * a.Hq
	a.boxes(unsafe.Offsetof(pairParams{}.k), a.In[1], [4]int64{a.D, a.Hkv, a.T, a.B}, matrixKeys)
	a.boxes(unsafe.Offsetof(pairParams{}.v), a.In[2], [4]int64{a.Dv, a.Hkv, a.T, a.B}, matrixKeys)
	a.boxes(unsafe.Offsetof(pairParams{}.q), a.In[0], [4]int64{a.D, 1, rows, 1}, a.headsPerGroup())
	if arrays == 2 {
		a.boxes(unsafe.Offsetof(pairParams{}.dout), a.In[len(a.In)-1], [4]int64{a.Dv, 1, rows, 1}, a.headsPerGroup())
	}
}
