package attention

import (
	"fmt"
	"math"
	"unsafe"

	"github.com/gorgonia-nsa/nsa/cuda/internal/driver"
	"github.com/gorgonia-nsa/nsa/cuda/internal/kernels"
	"github.com/gorgonia-nsa/nsa/cuda/internal/kernels/memory"
	"github.com/gorgonia-nsa/nsa/graph"
	"github.com/gorgonia-nsa/nsa/ops/spec"
	"github.com/gorgonia-nsa/nsa/ops/spec/attention"
)

// selectBlocksEntries returns the entries of q, kc, lse -> idx.
func selectBlocksEntries() []kernels.Entry {
	types := func(q kernels.Operands) kernels.Types {
		return kernels.In(q, kernels.Float32("lse"), kernels.Documents()).Out(kernels.Int32("idx"))
	}
	general, half := types(kernels.Float("q", "kc")), types(kernels.Half("q", "kc"))
	return kernels.Entries(
		entryFor(wgmma, half, selectBlocksOf, selectBlocksProblem.guardWGMMA, selectBlocksProblem.selectBlocksWGMMA),
		entryFor(mma, half, selectBlocksOf, selectBlocksProblem.guardMMA, selectBlocksProblem.selectBlocksMMA),
		entryFor("", general, selectBlocksOf, selectBlocksProblem.guard, selectBlocksProblem.selectBlocks),
	)
}

// selectParams is SelectParams of select.cuh.
type selectParams struct {
	q, kc, lse, idx, documents, starts kernels.Ref

	n    sizes
	span span

	lStrides     int32 // l/d
	blockStrides int32 // l'/d
	size         int32 // l'
	topN         int32
	tokens, tile int32
	// For mma and wgmma. capacity is the length of a query's list, and earliest the first query that selects by score.
	ring, pitch int32
	capacity    int32 `c:"room"`
	earliest    int32
	places      int32
	sequence    int32
}

// selectBlocksProblem is block selection: q [B,S,Hq,D], kc [B,Nc,Hkv,D] and the lse [B,Hq,S] float32 of the compressed
// attention over them -> idx int32 [B,S,Hkv,topN], ascending, padded with -1.
type selectBlocksProblem struct {
	problem
	op                attention.SelectBlocks
	l, d, block, topN int64
}

func selectBlocksOf(c *kernels.Call, op attention.SelectBlocks) selectBlocksProblem {
	a, p := problemOf(c, c.In[1], c.In[1], op.Blocks()), op.Params
	return selectBlocksProblem{a, op, int64(p.BlockLen), int64(p.Stride), int64(p.SelectBlock), int64(p.TopN)}
}

// check refuses sizes that 32 bits cannot count.
func (a selectBlocksProblem) check() error {
	if err := a.problem.check(); err != nil {
		return err
	}
	if a.topN > math.MaxInt32 {
		return graph.Refuse(graph.ReasonSize, "top n is %d, want at most 2^31-1", a.topN)
	}
	return nil
}

// params returns the part of the argument that does not depend on tiles.
func (a selectBlocksProblem) params() selectParams {
	p := selectParams{
		q: a.In[0].Ref, kc: a.In[1].Ref, lse: a.In[2].Ref, idx: a.Out[0].Ref, documents: a.Documents, starts: a.Starts,
		n:    a.sizes(),
		span: a.spanOf(a.op.Params.BlockLen, a.op.Params.Stride, math.MaxInt),
		// lStrides is unused without a complete compression block, blockStrides with one selection block.
		lStrides: 1, blockStrides: 1, size: int32(min(a.block, a.tokens)), topN: int32(a.topN),
		places: int32(a.blocksByScore()), sequence: int32(a.tokens),
	}
	p.n.dv, p.n.starts = 1, 0
	if a.l <= a.tokens {
		p.lStrides = int32(a.l / a.d)
	}
	if a.block <= a.tokens {
		p.blockStrides = int32(a.block / a.d)
	}
	return p
}

// withTile returns the argument for a tile. A thread block has as many queries as fill the rows of the tile, and holds the scores of the
// selection blocks whose compression blocks fit one tile of columns.
func (a selectBlocksProblem) withTile(p selectParams, x tile) *selectParams {
	p.tokens = int32(max(1, x.m/a.headsPerGroup()))
	p.tile = int32(min(x.n, max(1, (x.n-int64(p.lStrides)+1)/int64(p.blockStrides))))
	return &p
}

// grid is the number of thread blocks if each has so many queries of a group.
func (a selectBlocksProblem) grid(queries int64) int64 {
	return a.groups() * kernels.CeilDiv(a.S, queries)
}

// listFloats is the number of floats for the scores of a tile of n columns and for the lists of the best blocks.
func (a selectBlocksProblem) listFloats(p *selectParams, n int64) int64 {
	tokens := int64(p.tokens)
	return kernels.RoundUp(tokens*n, 4) + kernels.RoundUp(tokens*int64(p.tile), 4) + 2*kernels.RoundUp(tokens*a.blocksByScore(), 4)
}

// blocksByScore is the most blocks that a query selects by score, 0 if all queries get all their blocks.
func (a selectBlocksProblem) blocksByScore() int64 {
	if (a.tokens-1)/a.block < a.topN {
		return 0
	}
	return a.topN - spec.ForcedBlocks
}

func (a selectBlocksProblem) kernel() tiledKernel {
	p := a.params()
	shared := func(x tile) int64 {
		return 4 * (floats(x.m+x.n, a.D) + floats(x.m, x.n) + a.listFloats(a.withTile(p, x), x.n))
	}
	grid := func(x tile) int64 { return a.grid(int64(a.withTile(p, x).tokens)) }
	return tiledKernel{"select_blocks", selectBlocksTiles, shared, grid, nil} // select_blocks.cu
}

func (a selectBlocksProblem) guard() error { return a.kernel().guard(a.Call) }

// selectBlocks adds q, kc, lse -> idx for all types and sizes.
func (a selectBlocksProblem) selectBlocks(b *kernels.Builder) {
	k := a.kernel()
	k.addWith(b, a.withTile(a.params(), k.choose(a.GPU)))
}

// Sizes of the mma and wgmma kernels.
const (
	teamColumns    = 128 // columns of a team, and its threads
	threadHeads    = 32  // most heads of a thread's query
	maxListEntries = 64  // most entries of a list

	foldedBlocks  = 2 * mmaKeys // most selection blocks whose scores are written together
	maxScoreBytes = 160 << 10   // most bytes of scores for each multiprocessor if not all thread blocks are resident
)

// sumsPitch is sums_pitch of select_blocks_wgmma.cu: floats from the sums of one query to those of the next, if a thread
// has n queries.
func sumsPitch(n int64) int64 { return 4*mmaKeys + 8 + 4*((n+1)%2) }

// checkLists refuses longer lists than the mma and wgmma kernels keep.
func (a selectBlocksProblem) checkLists() error {
	if a.blocksByScore() >= maxListEntries {
		return graph.Refuse(graph.ReasonShape, "top n is %d, want at most %d", a.topN, maxListEntries-1+spec.ForcedBlocks)
	}
	return nil
}

// setLists sets the length of the lists of queries, and the first query that selects by score.
func (a selectBlocksProblem) setLists(p *selectParams) {
	if n := a.blocksByScore(); n > 0 { // a list has places for 16 more entries or more, but at most maxListEntries
		p.capacity = int32(min(maxListEntries, kernels.RoundUp(n+16, 32)))
	}
	p.earliest = int32(min(a.topN*a.block, a.tokens))
}

// teamSize is the size of a thread block: its queries, the pitch between the sums of two queries in floats, and bytes of shared memory.
type teamSize struct{ queries, pitch, shared int64 }

// fitTeams returns the size of a thread block for the most queries of a thread that columns, shared memory and the number of thread
// blocks allow. A thread has 16 pairs of columns; each of its queries takes pairsPerQuery of them, a pair for two heads. sizeOf returns the
// size for n queries of a thread. minGrid is the fewest thread blocks, unless a thread has one query. The numbers of queries are those
// that the kernels are compiled for: see with_queries of select_team.cuh.
func (a selectBlocksProblem) fitTeams(pairsPerQuery, minGrid int64, sizeOf func(n int64) teamSize) (size teamSize) {
	for _, n := range []int64{16, 8, 5, 4, 3, 2, 1} {
		size = sizeOf(n)
		if n <= 16/pairsPerQuery && size.shared <= int64(a.GPU.SharedPerBlock) && a.grid(size.queries) >= minGrid {
			break
		}
	}
	return size
}

// teamBytes is the shared memory of the columns of teams and of their tiles of keys, without the sums and lists of their queries.
func teamBytes(teams, width, keyTiles int64) int64 {
	return 2*width*(teams*teamColumns+keyTiles*mmaKeys) + 8*teams*teamColumns
}

// selectMapParams is SelectMapParams of select_blocks_wgmma.cu.
type selectMapParams struct {
	kc           [driver.TensorMapBytes]byte
	selectParams `c:"p"`
	scores, more kernels.Ref
	blocks       int32
	_            [4]byte // the size is a multiple of 64, the alignment of a tensor map
}

// wgmmaTeams returns the size of a thread block of the wgmma kernel.
func (a selectBlocksProblem) wgmmaTeams(w widths) teamSize {
	teams, stages := w.selectBlocks.teams, w.selectBlocks.stages
	return a.fitTeams(kernels.CeilDiv(a.headsPerGroup(), 2), int64(a.GPU.SMs), func(n int64) teamSize {
		queries, pitch := teams*4*n, sumsPitch(n)
		lists := teams * 4 * 8 * maxListEntries // one for each warp
		return teamSize{queries, pitch, teamBytes(teams, w.c, stages) + 4*queries*pitch + 16*stages + 16 + lists}
	})
}

// keys returns the problem without values, for its widths.
func (a selectBlocksProblem) keys() problem {
	a.Dv = 0
	return a.problem
}

func (a selectBlocksProblem) guardWGMMA() error {
	h, blockStrides := a.headsPerGroup(), a.block/a.d
	if a.l != 2*a.d || blockStrides > 8 || blockStrides&(blockStrides-1) != 0 || h > threadHeads || a.tokens < a.block {
		const want = "want l = 2 d, l' = 1, 2, 4 or 8 d, at most %d heads, at least l' tokens"
		return graph.Refuse(graph.ReasonShape, "l %d, d %d, l' %d, %d heads of a group, %d tokens; "+want,
			a.l, a.d, a.block, h, a.tokens, threadHeads)
	}
	if err := a.checkLists(); err != nil {
		return err
	}
	return a.keys().guardWGMMA(func(w widths) int64 { return a.wgmmaTeams(w).shared })
}

// selectBlocksWGMMA is selectBlocks for half precision on devices of compute capability 9.0, for
// l = 2 d, l' of 1, 2, 4 or 8 d, groups of at most 32 heads and at most 66 blocks.
func (a selectBlocksProblem) selectBlocksWGMMA(b *kernels.Builder) {
	p, w, blockStrides := a.params(), a.keys().widths(), a.block/a.d
	a.setLists(&p)
	size := a.wgmmaTeams(w)
	p.blockStrides, p.tokens = int32(blockStrides), int32(size.queries)
	m := &selectMapParams{selectParams: p, blocks: int32(kernels.RoundUp(kernels.CeilDiv(a.tokens, a.block)+foldedBlocks, 4))}
	scores := 4 * size.queries * int64(m.blocks) // bytes of a thread block
	grid, sms := a.grid(size.queries), int64(a.GPU.SMs)
	if resident := sms * w.selectBlocks.blocks; grid > resident && grid*scores > sms*maxScoreBytes {
		// resident thread blocks iterate over tiles
		grid, m.more = resident, b.Work(4)
		memory.AddFill(b, m.more, 1, 32, 0)
	}
	m.scores = b.Work(grid * scores)
	kernel := a.Type.Name(fmt.Sprintf("select_blocks_wgmma%d_%d", w.c, blockStrides)) // select_blocks_wgmma.cu
	b.AddLaunch(kernel, kernels.Line(grid), kernels.Line(w.selectBlocks.teams*teamColumns), size.shared, m)
	addTensorMap(b, unsafe.Offsetof(m.kc), a.In[1], 1, mmaKeys)
}

// mmaParams returns the argument of the mma kernel, and the size of its thread blocks. usual is set for l = 2 d and l'
// = 4 d and at most 32 heads, for which there are kernels of their own.
func (a selectBlocksProblem) mmaParams() (p selectParams, size teamSize, usual bool) {
	h := a.headsPerGroup()
	p = a.params()
	a.setLists(&p)
	usual = p.lStrides == 2 && p.blockStrides == 4 && h <= threadHeads
	ring := p.setRing(usual)
	threads := kernels.CeilDiv(h, threadHeads) // of a query
	size = a.fitTeams(kernels.CeilDiv(h, 2*threads), 1, func(n int64) teamSize {
		queries, pitch := 4/threads*n, ring+4
		if usual { // so that the quadruples of eight queries are in different banks of shared memory
			pitch = sumsPitch(n)
		}
		lists := kernels.RoundUp(2*queries*int64(p.capacity), 4) + kernels.RoundUp(2*queries, 4)
		return teamSize{queries, pitch, teamBytes(1, a.mmaWidth(), 2) + 4*lists + 4*queries*threads*pitch}
	})
	p.tokens, p.pitch = int32(size.queries), int32(size.pitch)
	return p, size, usual
}

func (a selectBlocksProblem) guardMMA() error {
	if h := a.headsPerGroup(); h > 2*threadHeads {
		return graph.Refuse(graph.ReasonShape, "%d heads of a group, want at most %d", h, 2*threadHeads)
	}
	if err := a.checkLists(); err != nil {
		return err
	}
	_, size, _ := a.mmaParams()
	return a.problem.guardMMA(func(int64) int64 { return size.shared })
}

// selectBlocksMMA is selectBlocks for half precision, dims up to 128, groups of at most 64 heads and at most 66 blocks.
func (a selectBlocksProblem) selectBlocksMMA(b *kernels.Builder) {
	p, size, usual := a.mmaParams()
	kernel := "select_blocks_any" // select_blocks_mma.cu
	if usual {
		kernel = "select_blocks"
	}
	b.AddLaunch(a.mmaKernel(kernel), kernels.Line(a.grid(size.queries)), kernels.Line(teamColumns), size.shared, &p)
}

// setRing sets the number of selection blocks that a warp of an mma kernel folds at once, and the length of the ring of their keys,
// which it also returns. A warp folds up to 32 selection blocks, which cover two tiles of keys. Meanwhile a third and a fourth tile are
// written. The usual kernels are those for l = 2 d and l' = 4 d.
func (p *selectParams) setRing(usual bool) int64 {
	blockStrides := int64(p.blockStrides)
	tile := min(32, max(1, 2*mmaKeys/blockStrides))
	ring := int64(4 * mmaKeys)
	if !usual {
		span := tile*blockStrides + int64(p.lStrides) - 1 + 2*mmaKeys
		if tile*blockStrides%mmaKeys != 0 {
			span += mmaKeys - 1
		}
		ring = mmaKeys * kernels.CeilDiv(span, mmaKeys)
	}
	p.tile, p.ring = int32(tile), int32(min(ring, math.MaxInt32))
	return ring
}
