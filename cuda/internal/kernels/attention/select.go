package attention

import (
	"fmt"
	"math"
	"unsafe"

	"github.com/gorgonia-nsa/nsa/cuda/internal/driver"
	"github.com/gorgonia-nsa/nsa/cuda/internal/kernels"
	"github.com/gorgonia-nsa/nsa/cuda/internal/kernels/rows"
	"github.com/gorgonia-nsa/nsa/graph"
	"github.com/gorgonia-nsa/nsa/ops"
)

// selectRows returns the rows of q, kc, lse -> idx.
func selectRows() []kernels.Row {
	type op = ops.SelectBlocksOp
	return kernels.Rows(
		kernels.Implementation[op]{Name: warpGroups, Storage: "hhfd>i", Guard: wanted[op], Build: selectBlocksOnWarpGroups},
		kernels.Implementation[op]{Name: tensorCores, Storage: "hhfd>i", Guard: wanted[op], Build: selectBlocksOnTensorCores},
		kernels.Implementation[op]{Name: general, Storage: "ttfd>i", Build: selectBlocks},
	)
}

// selectParams is SelectParams of select.cuh.
type selectParams struct {
	q, kc, lse, idx, documents kernels.Ref

	n                                sizes
	span                             span
	l, per, size, most, tokens, tile int32
	ring, pitch, room, earliest      int32 // on tensor cores
}

// choice is a choice of blocks: q [B,S,Hq,D], kc [B,Nc,Hkv,D] and the lse [B,Hq,S] float32 of the compressed attention over them
// -> idx int32 [B,S,Hkv,topN], ascending, padded with -1.
type choice struct {
	problem
	l, d, block, topN int64
}

// choiceOf returns the choice and the part of its argument that does not depend on tiles.
func choiceOf(b *kernels.Builder, op ops.SelectBlocksOp) (choice, selectParams, error) {
	q, kc, lse, idx := b.In[0], b.In[1], b.In[2], b.Out[0]
	x, err := problemOf(b, q, kc, kc)
	a := choice{x, int64(op.Params.BlockLen), int64(op.Params.Stride), int64(op.Params.SelectBlock), int64(op.Params.TopN)}
	if err == nil && a.topN > math.MaxInt32 {
		err = graph.Refuse(graph.ReasonShape, "top n is %d, want at most 2^31-1", a.topN)
	}
	if err != nil {
		return a, selectParams{}, err
	}
	p := selectParams{
		q: q.Ref, kc: kc.Ref, lse: lse.Ref, idx: idx.Ref, documents: b.Documents,
		n:    a.sizes(),
		span: span{int32(min(a.l, a.S+1)), int32(min(a.d, a.S+1)), int32(a.S)},
		l:    1, per: 1, // l is unused without a complete compression block, per with one selection block
		size: int32(min(a.block, a.S)),
		most: int32(a.topN),
	}
	p.n.dv = 1
	if a.l <= a.S {
		p.l = int32(a.l / a.d)
	}
	if a.block <= a.S {
		p.per = int32(a.block / a.d)
	}
	return a, p, nil
}

// cut returns the argument for a tile. A thread block has as many queries as fill the rows of the tile. It holds the scores of the
// selection blocks whose compression blocks fit one tile of columns.
func (a choice) cut(p selectParams, x tile) *selectParams {
	p.tokens = int32(max(1, x.m/a.headsPerGroup()))
	p.tile = int32(min(x.n, max(1, (x.n-int64(p.l)+1)/int64(p.per))))
	return &p
}

// grid is the number of thread blocks if each has that many queries of a group.
func (a choice) grid(queries int64) int64 { return a.groups() * kernels.Pieces(a.S, queries) }

// listFloats is the number of floats for the scores of a tile of n columns and for the lists of the best blocks.
func (a choice) listFloats(p *selectParams, n int64) int64 {
	tokens := int64(p.tokens)
	return quads(tokens*n) + quads(tokens*int64(p.tile)) + 2*quads(tokens*a.places())
}

// places is the number of blocks that a query may choose by score, 0 if all queries get all their blocks.
func (a choice) places() int64 {
	if (a.S-1)/a.block < a.topN {
		return 0
	}
	return a.topN - ops.ForcedBlocks
}

// quads rounds n up to a multiple of 4.
func quads(n int64) int64 { return kernels.Pieces(n, 4) * 4 }

// selectBlocks adds q, kc, lse -> idx for all types and sizes.
func selectBlocks(b *kernels.Builder, op ops.SelectBlocksOp) error {
	a, p, err := choiceOf(b, op)
	if err != nil {
		return err
	}
	size := launchSize{
		func(x tile) int64 {
			return 4 * (floats(x.m+x.n, a.D) + floats(x.m, x.n) + a.listFloats(a.cut(p, x), x.n))
		},
		func(x tile) int64 { return a.grid(int64(a.cut(p, x).tokens)) },
	}
	x, err := a.choose(selectTiles, size)
	if err != nil {
		return err
	}
	a.launch(a.Type.Name(fmt.Sprintf("select_blocks_%d", x.m)), size.grid(x), size.shared(x), a.cut(p, x))
	return nil
}

// Sizes of the kernels on tensor cores.
const (
	teamColumns = 128 // columns of a team, and its threads
	threadHeads = 32  // most heads of a thread's query
	mostRoom    = 64  // most entries of a list

	foldedBlocks = 2 * mmaKeys // most selection blocks whose scores are written together
	mostScores   = 160 << 10   // most bytes of scores for each multiprocessor if not all thread blocks are resident
)

// queriesOfThread are the numbers of queries of a thread that the kernels on tensor cores are compiled for: see with_queries of
// select_team.cuh. A thread has 16 pairs of columns, one for each two heads of a query.
var queriesOfThread = [...]int64{16, 8, 5, 4, 3, 2, 1}

// setRoom sets the length of the lists of queries on tensor cores, and the first query that chooses by score.
func (a choice) setRoom(p *selectParams) error {
	switch places := a.places(); { // room is 16 more than places, or more, but at most mostRoom
	case places >= mostRoom:
		return graph.Refuse(graph.ReasonShape, "tensor cores: %d blocks of a query, want at most %d", a.topN, mostRoom-1+ops.ForcedBlocks)
	case places > 0:
		p.room = int32(min(mostRoom, 32*kernels.Pieces(places+16, 32)))
	}
	p.earliest = int32(min(a.topN*a.block, a.S))
	return nil
}

// teamBytes is the shared memory of the columns of teams and of their tiles of keys, without the sums and lists of their queries.
func teamBytes(teams, width, keyTiles int64) int64 {
	return 2*width*(teams*teamColumns+keyTiles*mmaKeys) + 8*teams*teamColumns
}

// selectMapParams is SelectMapParams of select_wgmma.cu.
type selectMapParams struct {
	kc           [driver.MapBytes]byte
	selectParams `c:"p"`
	scores, more kernels.Ref
	blocks       int32
	_            [36]byte
}

// selectBlocksOnWarpGroups is selectBlocks for half precision on devices of compute capability 9.0, for
// l = 2 d, l' of 1, 2, 4 or 8 d, groups of at most 32 heads and at most 66 blocks.
func selectBlocksOnWarpGroups(b *kernels.Builder, op ops.SelectBlocksOp) error {
	a, p, err := choiceOf(b, op)
	if err != nil {
		return err
	}
	h, per := a.headsPerGroup(), a.block/a.d
	if a.l != 2*a.d || per > 8 || per&(per-1) != 0 || h > threadHeads || a.S < a.block {
		return graph.Refuse(graph.ReasonShape, "warp groups: l %d, d %d, l' %d and groups of %d heads, want l of 2 d, l' of 1, 2, 4 or 8 d, at most %d heads, and at least l' tokens",
			a.l, a.d, a.block, h, threadHeads)
	}
	if err := a.setRoom(&p); err != nil {
		return err
	}
	p.per = int32(per)
	most := 16 / kernels.Pieces(h, 2) // queries of a thread
	// fit returns how many queries a thread block has, and the shared memory for them. It has as many as fill its columns, if they
	// fit and leave enough thread blocks for the GPU.
	fit := func(x widths) (queries, shared int64) {
		r := x.choice
		for _, n := range queriesOfThread {
			queries = r.teams * 4 * n
			pitch := 4*mmaKeys + 8 + 4*((n+1)%2)
			lists := r.teams * 4 * 8 * mostRoom // one for each warp
			shared = teamBytes(r.teams, x.c, r.stages) + 4*queries*pitch + 16*r.stages + 16 + lists
			if n <= most && shared <= int64(a.GPU.SharedPerBlock) && a.grid(queries) >= int64(a.GPU.SMs) {
				break
			}
		}
		return queries, shared
	}
	keys := a.problem
	keys.Dv = 0 // there are no values
	x, err := keys.onWarpGroups(func(x widths) int64 {
		_, shared := fit(x)
		return shared
	})
	if err != nil {
		return err
	}
	queries, shared := fit(x)
	p.tokens = int32(queries)
	m := &selectMapParams{selectParams: p, blocks: int32(quads(kernels.Pieces(a.S, a.block) + foldedBlocks))}
	scores := 4 * queries * int64(m.blocks) // bytes of a thread block
	grid, sms := a.grid(queries), int64(a.GPU.SMs)
	if resident := sms * x.choice.blocks; grid > resident && grid*scores > sms*mostScores { // resident thread blocks go through several tiles
		grid, m.more = resident, a.Work(4)
		rows.Fill(b, m.more, 1, 32, 0)
	}
	m.scores = a.Work(grid * scores)
	a.Launch(a.Type.Name(fmt.Sprintf("select_blocks_wgmma%d_%d", x.c, per)), kernels.Line(grid), kernels.Line(x.choice.teams*teamColumns), shared, m)
	a.boxes(unsafe.Offsetof(m.kc), b.In[1], 1, mmaKeys)
	return nil
}

// selectBlocksOnTensorCores is selectBlocks for half precision, dims up to 128, groups of at most 64 heads and at most 66 blocks.
func selectBlocksOnTensorCores(b *kernels.Builder, op ops.SelectBlocksOp) error {
	a, p, err := choiceOf(b, op)
	if err != nil {
		return err
	}
	h := a.headsPerGroup()
	if h > 2*threadHeads {
		return graph.Refuse(graph.ReasonShape, "tensor cores: groups of %d heads, want at most %d", h, 2*threadHeads)
	}
	if err := a.setRoom(&p); err != nil {
		return err
	}
	// A warp folds the scores of up to 32 selection blocks, which cover two tiles of keys. Meanwhile a third and a fourth tile are
	// written. The usual kernels are for l = 2 d and l' = 4 d. The pitch puts the quadruples of eight queries in different banks of
	// shared memory.
	per := int64(p.per)
	usual := p.l == 2 && per == 4 && h <= threadHeads
	p.tile = int32(min(32, max(1, 2*mmaKeys/per)))
	span := int64(p.tile)*per + int64(p.l) - 1 + 2*mmaKeys
	if int64(p.tile)*per%mmaKeys != 0 {
		span += mmaKeys - 1
	}
	ring := mmaKeys * kernels.Pieces(span, mmaKeys)
	pitch := func(queries int64) int64 { return ring + 4 }
	if usual {
		ring = 4 * mmaKeys
		pitch = func(queries int64) int64 { return ring + 8 + 4*((queries+1)%2) }
	}
	p.ring = int32(min(ring, math.MaxInt32))

	threads := kernels.Pieces(h, threadHeads) // of a query
	most := 16 / kernels.Pieces(h, 2*threads) // queries of a thread
	// fit returns how many queries a thread block has, as many as fill its columns if they fit, and the pitch and shared memory for them.
	fit := func(width int64) (queries, row, shared int64) {
		for _, n := range queriesOfThread {
			queries, row = 4/threads*n, pitch(n)
			shared = teamBytes(1, width, 2) + 4*(quads(2*queries*int64(p.room))+quads(2*queries)) + 4*queries*threads*row
			if n <= most && shared <= int64(a.GPU.SharedPerBlock) {
				break
			}
		}
		return queries, row, shared
	}
	width, err := a.onTensorCores(func(width int64) int64 {
		_, _, shared := fit(width)
		return shared
	})
	if err != nil {
		return err
	}
	queries, row, shared := fit(width)
	p.tokens, p.pitch = int32(queries), int32(row)
	kernel := "select_blocks_any"
	if usual {
		kernel = "select_blocks"
	}
	a.Launch(a.mmaKernel(kernel, width), kernels.Line(a.grid(queries)), kernels.Line(teamColumns), shared, &p)
	return nil
}
