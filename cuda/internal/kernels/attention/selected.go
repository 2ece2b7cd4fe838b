package attention

import (
	"cmp"
	"fmt"
	"math"

	"github.com/gorgonia-nsa/nsa/cuda/internal/kernels"
	"github.com/gorgonia-nsa/nsa/graph"
	"github.com/gorgonia-nsa/nsa/ops/spec/attention"
)

// selectedEntries returns the entries of q, k, v, idx -> o, lse, and of q, k, v, idx, o or delta, lse, do -> dq, dk, dv.
func selectedEntries() []kernels.Entry {
	idx := kernels.Int32("idx")
	general, half := forwardTypes(kernels.Float, idx), forwardTypes(kernels.Half, idx)
	grad, halfGrad := gradTypes(kernels.Float, idx), gradTypes(kernels.Half, idx)
	ofGrad := func(c *kernels.Call, op attention.SelectedGrad) selectedProblem { return selectedOf(c, op.Forward) }
	return kernels.Entries(
		entryFor(wgmma, half, selectedOf, selectedProblem.guardForwardWGMMA, selectedProblem.forwardWGMMA),
		entryFor(mma, half, selectedOf, selectedProblem.guardForwardMMA, selectedProblem.forwardMMA),
		entryFor("", general, selectedOf, selectedProblem.guardForward, selectedProblem.forward),
		entryFor(wgmma, halfGrad, ofGrad, selectedProblem.guardBackwardWGMMA, selectedProblem.backwardWGMMA),
		entryFor(mma, halfGrad, ofGrad, selectedProblem.guardBackwardMMA, selectedProblem.backwardMMA),
		entryFor("", grad, ofGrad, selectedProblem.guardBackward, selectedProblem.backward),
	)
}

// selectedProblem is attention over selected blocks. idx int32 [B,S,Hkv,topN] lists the blocks of each query, ascending and padded
// with -1. A query sees the tokens of its blocks, up to its own token. A list ends at its first entry that breaks the order.
type selectedProblem struct {
	problem
	topN int64 // entries of a list
	// block is l' cut to the T keys that there are: kernels count with it. specBlock is l' itself: what kernels require of l', such as a
	// multiple of 16, is asked of it, since a cut block need not have it.
	block, specBlock int64
}

func selectedOf(c *kernels.Call, op attention.Selected) selectedProblem {
	p, size := problemOf(c, c.In[1], c.In[2], op.Blocks()), int64(op.SelectBlock)
	return selectedProblem{problem: p, topN: c.In[3].Dim(3), block: min(size, p.T), specBlock: size}
}

// check refuses sizes that 32 bits cannot count.
func (a selectedProblem) check() error {
	if err := a.problem.check(); err != nil {
		return err
	}
	if a.topN > math.MaxInt32/2/a.tokens {
		return graph.Refuse(graph.ReasonSize, "%d tokens times top n %d, want less than 2^30", a.tokens, a.topN)
	}
	return nil
}

// checkBlock refuses blocks of other than a multiple of 16 tokens.
func (a selectedProblem) checkBlock() error {
	if a.specBlock%16 != 0 {
		return graph.Refuse(graph.ReasonShape, "selection blocks of %d tokens, want a multiple of 16", a.specBlock)
	}
	return nil
}

// pieceKeys is the number of adjacent keys that a tile takes from one selection block. Kernels on tensor cores that own rows gather a
// tile from pieces of several selection blocks.
func (a selectedProblem) pieceKeys() int64 {
	for _, n := range []int64{mmaKeys, 32} {
		if a.specBlock%n == 0 {
			return n
		}
	}
	return 16
}

// ownedKeys is the number of keys of one selection block that a thread block of an mma kernel owns.
func (a selectedProblem) ownedKeys() int64 {
	for _, n := range []int64{16, 32} {
		if a.specBlock <= n {
			return n
		}
	}
	return mmaKeys
}

// namePrefix returns the first part of the name of the mma kernels for pieces of so many keys.
func namePrefix(keys int64) string {
	if keys == mmaKeys {
		return "selected"
	}
	return fmt.Sprint("selected", keys)
}

// unionBytes is the shared memory, in an mma kernel that owns rows, for the union of the blocks that the queries of a tile selected.
func (a selectedProblem) unionBytes(rows int64) int64 {
	queries := min(kernels.CeilDiv(a.wholeQueries(rows), a.headsPerGroup())+1, rows)
	blocks, words := a.selectionBlocks(), kernels.CeilDiv(queries, 32)
	if a.packed() { // see BlockUnion
		blocks, words = blocks+queries, words+1
	}
	pieces := min(blocks, queries*a.topN) * kernels.CeilDiv(a.block, a.pieceKeys())
	return 16 * (kernels.CeilDiv(blocks*words, 4) + kernels.CeilDiv(2*(pieces+mmaKeys/a.pieceKeys()), 4))
}

// selectionBlocks is the number of selection blocks of a group.
func (a selectedProblem) selectionBlocks() int64 { return kernels.CeilDiv(a.T, a.block) }

func (a selectedProblem) blocks() blocks { return blocks{int32(a.block), int32(a.topN)} }

// rowTilesOf returns the tiles for rows of several queries, which iterate over the union of their blocks. It leaves out the largest
// tile if a query selects less than a quarter of the blocks.
func (a selectedProblem) rowTilesOf(tiles []tile) []tile {
	if a.selectionBlocks() > 4*a.topN {
		return tiles[1:]
	}
	return tiles
}

// keyTiles returns the tiles that own keys of one selection block, at most twice as high as the block.
func (a selectedProblem) keyTiles() []tile {
	tiles := gradientTiles
	for len(tiles) > 1 && tiles[1].m >= a.block {
		tiles = tiles[1:]
	}
	return tiles
}

func (a selectedProblem) rowGrid(x tile) int64 { return a.rowTiles(a.wholeQueries(x.m)) }

func (a selectedProblem) forwardParams() *params {
	p := a.problem.forwardParams()
	p.blocks = a.blocks()
	return p
}

func (a selectedProblem) forwardKernel() tiledKernel {
	shared := func(x tile) int64 { return a.forwardBytes(x) + slotBytes(x) }
	// attention_forward.cu
	return tiledKernel{"selected_forward", a.rowTilesOf(selectedForwardTiles), shared, a.rowGrid, a.wholeQueries}
}

func (a selectedProblem) guardForward() error { return a.forwardKernel().guard(a.Call) }

// forward adds q, k, v, idx -> o, lse for all types and sizes.
func (a selectedProblem) forward(b *kernels.Builder) { a.forwardKernel().add(b, a.forwardParams()) }

func (a selectedProblem) gradKernels() (dq, dkv tiledKernel) {
	shared := func(x tile) int64 { return a.dqBytes(x) + slotBytes(x) }
	keys := func(x tile) int64 { return a.workItems() * kernels.CeilDiv(a.block, x.m) }
	// attention_dq.cu, attention_dkv.cu
	return tiledKernel{"selected_dq", a.rowTilesOf(gradientTiles), shared, a.rowGrid, a.wholeQueries},
		tiledKernel{"selected_dkv", a.keyTiles(), a.dkvBytes, keys, nil}
}

func (a selectedProblem) guardBackward() error {
	dq, dkv := a.gradKernels()
	return cmp.Or(dq.guard(a.Call), dkv.guard(a.Call))
}

// backward adds q, k, v, idx, o or delta, lse, do -> dq, dk, dv for all types and sizes.
func (a selectedProblem) backward(b *kernels.Builder) {
	dq, dkv := a.gradKernels()
	p := a.gradParams(b)
	a.addDelta(b, p)
	dq.add(b, p)
	p.joinBlocks(1)
	a.addInverseIndex(b, &listParams{params: *p})
	dkv.add(b, p)
	a.addReduce(b, p)
}

// guardMMA is problem.guardMMA with memory for the union of blocks.
func (a selectedProblem) guardMMA(shared func(width int64) int64) error {
	if err := a.checkBlock(); err != nil {
		return err
	}
	return a.problem.guardMMA(func(width int64) int64 { return shared(width) + a.unionBytes(mmaRows) })
}

func (a selectedProblem) guardForwardMMA() error { return a.guardMMA(mmaForwardBytes) }

// forwardMMA is forward for half precision and dims up to 128.
func (a selectedProblem) forwardMMA(b *kernels.Builder) {
	p, rows := a.forwardParams(), a.wholeQueries(mmaRows)
	p.ownRows(rows)
	kernel := a.mmaKernel(namePrefix(a.pieceKeys()) + "_forward") // attention_mma_forward.cu
	addFourWarps(b, kernel, a.rowTiles(rows), mmaForwardBytes(a.mmaWidth())+a.unionBytes(mmaRows), p)
}

func (a selectedProblem) guardBackwardMMA() error {
	return a.guardMMA(func(width int64) int64 { return mmaBackwardBytes(width, a.ownedKeys()) })
}

// backwardMMA is backward for half precision and dims up to 128.
func (a selectedProblem) backwardMMA(b *kernels.Builder) {
	p, keys := a.gradParams(b), a.ownedKeys()
	a.addDelta(b, p)
	// A row is multiplied by the blocks of all rows of its warp, so tall kernels are for queries that select at least half of the
	// blocks.
	a.addDQ(b, namePrefix(a.pieceKeys()), p, a.selectionBlocks() <= 2*a.topN, a.unionBytes, a.wholeQueries)
	p.joinBlocks(1)
	a.addInverseIndex(b, &listParams{params: *p})
	grid := a.workItems() * kernels.CeilDiv(a.block, keys)
	// attention_mma_dkv.cu
	addFourWarps(b, a.mmaKernel(namePrefix(keys)+"_dkv"), grid, mmaDKVBytes(a.mmaWidth(), keys), p)
	a.addReduce(b, p)
}

// guardWGMMA is problem.guardWGMMA. It also refuses problems for which there is no method, neither by bits nor by
// lists.
func (a selectedProblem) guardWGMMA(shared func(widths) int64) error {
	if err := a.checkBlock(); err != nil {
		return err
	}
	if err := a.checkLists(); err != nil && !a.byBits() {
		return err
	}
	return a.problem.guardWGMMA(shared)
}

func (a selectedProblem) guardForwardWGMMA() error {
	return a.guardWGMMA(func(w widths) int64 {
		return max(w.forwardBytes(), w.forcedBytes(), w.pairForwardBytes(), w.walkBytes(w.walkForward))
	})
}

// forwardWGMMA is forward for half precision on devices of compute capability 9.0.
func (a selectedProblem) forwardWGMMA(b *kernels.Builder) {
	w, p := a.widths(), a.forwardParams()
	switch {
	case a.byBits(): // attention_wgmma_forward.cu
		p.span = a.everyKey()
		a.addWGMMA(b, "selected_forward", w, w.forward, w.forwardBytes(), p)
	case a.byWalk():
		a.addWalk(b, "forward", w, w.walkForward, p)
	default:
		a.addPairs(b, w, p)
	}
}

func (a selectedProblem) guardBackwardWGMMA() error {
	return a.guardWGMMA(func(w widths) int64 {
		return max(w.dqBytes(), w.pairsDKV().bytes, w.walkBytes(w.walkDQ), w.listedDKV().bytes)
	})
}

// backwardWGMMA is backward for half precision on devices of compute capability 9.0.
func (a selectedProblem) backwardWGMMA(b *kernels.Builder) {
	w, joined := a.widths(), a.joined()
	p := joined.gradParams(b)
	if !a.byBits() && !a.byWalk() {
		a.addPairGradients(b, w, p)
		return
	}
	a.addDelta(b, p)
	dq := *p // reads the blocks as they were selected, not joined
	dq.blocks = a.blocks()
	if a.byBits() {
		dq.span = a.everyKey()
		a.addWGMMA(b, "selected_dq", w, w.dq, w.dqBytes(), &dq) // attention_wgmma_dq.cu
	} else {
		a.addWalk(b, "dq", w, w.walkDQ, &dq)
	}
	join := joined.block / a.block
	p.joinBlocks(join)
	joined.addInverseIndex(b, &listParams{params: *p})
	kernel := "selected_dkv" // attention_wgmma_dkv.cu
	if join > 1 {
		kernel = "joined_dkv"
	}
	grid := joined.workItems() * kernels.CeilDiv(joined.block, listedKeys)
	a.addDKVWGMMA(b, kernel, w, w.listedDKV(), grid, 1, &keyGradientParams{params: *p})
	joined.addReduce(b, p)
}

// joined returns a with selection blocks of 16 or 32 keys joined to blocks of 64, the keys that a thread block owns. A query that
// selected several of the joined blocks is then read once. An entry of a list has 28 bits for its query.
func (a selectedProblem) joined() selectedProblem {
	if (a.specBlock == 16 || a.specBlock == 32) && a.block == a.specBlock && a.tokens < 1<<28 {
		a.block, a.specBlock = listedKeys, listedKeys
	}
	return a
}

// byBits reports whether rows iterate over all keys, with a bit for each tile that says whether a row sees it. That pays if there are
// few blocks and a list holds at least half of them. Otherwise rows use lists: by walk or by pairs.
func (a selectedProblem) byBits() bool {
	return !a.packed() && a.pieceKeys() == mmaKeys && kernels.CeilDiv(a.T, mmaKeys) <= 32 && a.selectionBlocks() <= 2*a.topN
}

// everyKey is the span of all keys up to a query's own.
func (a selectedProblem) everyKey() span { return span{1, 1, int32(a.tokens)} }
