package attention

import (
	"fmt"
	"math"

	"github.com/gorgonia-nsa/nsa/cuda/internal/kernels"
	"github.com/gorgonia-nsa/nsa/graph"
	"github.com/gorgonia-nsa/nsa/ops/spec/attention"
)

// selectedEntries returns the entries of q, k, v, idx -> o, lse, and of q, k, v, idx, o or delta, lse, do -> dq, dk, dv.
func selectedEntries() []kernels.Entry {
	type (
		op   = attention.Selected
		grad = attention.SelectedGrad
	)
	// Storage of forward: q k v idx documents > o lse; of backward: q k v idx documents o-or-delta lse do > dq dk dv.
	return kernels.Entries(
		kernels.EntryFor[op]{Name: wgmma, Storage: "hhhid>hf", Build: ifPreferred(selectedForwardWGMMA)},
		kernels.EntryFor[op]{Name: mma, Storage: "hhhid>hf", Build: ifPreferred(selectedForwardMMA)},
		kernels.EntryFor[op]{Storage: "tttid>tf", Build: selectedForward},
		kernels.EntryFor[grad]{Name: wgmma, Storage: "hhhidofh>hhh", Build: ifPreferred(selectedBackwardWGMMA)},
		kernels.EntryFor[grad]{Name: mma, Storage: "hhhidofh>hhh", Build: ifPreferred(selectedBackwardMMA)},
		kernels.EntryFor[grad]{Storage: "tttidoft>ttt", Build: selectedBackward},
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

func selectedOf(b *kernels.Builder, size int) (selectedProblem, error) {
	p, err := problemOf(b, b.In[0], b.In[1], b.In[2])
	a := selectedProblem{problem: p, topN: b.In[3].Dim(3), block: min(int64(size), p.T), specBlock: int64(size)}
	if err == nil && a.topN > math.MaxInt32/2/a.S {
		err = graph.Refuse(graph.ReasonSize, "%d queries times top n %d, want less than 2^30", a.S, a.topN)
	}
	return a, err
}

// mmaWidth is problem.mmaWidth with memory for the union of blocks. It also refuses blocks of other than a multiple of 16 tokens.
func (a selectedProblem) mmaWidth(shared func(width int64) int64) (width int64, err error) {
	if err := a.checkBlock(); err != nil {
		return 0, err
	}
	return a.problem.mmaWidth(func(width int64) int64 { return shared(width) + a.unionBytes(mmaRows) })
}

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

// blockNames is the number of names of blocks in the inverse index. The name of a block is its number, or with documents, which begin at
// any token, its first token.
func (a selectedProblem) blockNames() int64 {
	if a.packed() {
		return a.T
	}
	return a.selectionBlocks()
}

func (a selectedProblem) blocks() blocks { return blocks{int32(a.block), int32(a.topN)} }

const (
	minChunk    = 256 // fewest queries in a work item of the kernel that owns keys
	maxSegments = 256 // segments of a sequence in the inverse index: nsa_index_rank_i32 takes no more

	maxPackedSegments = 64 // with documents, whose blocks have more names

	fewNames = 2048 // most names of blocks that the inverse index counts in shared memory: kFew in attention_index.cu
)

// index returns the sizes of the inverse index (attention_params.cuh). Counts and partial sums are linear in S: with chunks of topN*l'
// queries, lists of several chunks have partial sums for at most 2*S/l' blocks. Chunks are smaller if their tiles of keys would not
// fill the GPU; then there are partial sums for at most twice as many tiles as fill it.
func (a selectedProblem) index() index {
	entries := a.S * a.topN
	reach := min(a.topN*a.block, a.S)
	chunk := max(minChunk, min(reach, entries*a.groups()*kernels.CeilDiv(a.block, mmaKeys)/(blocksPerSM*int64(a.GPU.SMs))))
	segments := int64(maxSegments)
	if a.packed() {
		segments = maxPackedSegments
	}
	x := index{segments: int32(min(segments, reach)), chunk: int32(chunk), items: int32(a.blockNames() + entries/chunk)}
	if a.S > chunk {
		x.partials = int32(2 * entries / chunk)
	}
	return x
}

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

// selectedForward adds q, k, v, idx -> o, lse for all types and sizes.
func selectedForward(b *kernels.Builder, op attention.Selected) error {
	a, err := selectedOf(b, op.SelectBlock)
	if err != nil {
		return err
	}
	p := a.forwardParams()
	p.blocks = a.blocks()
	size := launchSize{func(x tile) int64 { return a.forwardBytes(x) + slotBytes(x) }, a.rowGrid}
	return a.launchTiled("selected_forward", a.rowTilesOf(selectedForwardTiles), size, p, a.wholeQueries)
}

// selectedBackward adds q, k, v, idx, o, lse, do -> dq, dk, dv for all types and sizes.
func selectedBackward(b *kernels.Builder, op attention.SelectedGrad) error {
	a, err := selectedOf(b, op.Forward.SelectBlock)
	if err != nil {
		return err
	}
	p := a.beginGrad()
	a.launchDelta(p)
	rows := launchSize{func(x tile) int64 { return a.dqBytes(x) + slotBytes(x) }, a.rowGrid}
	if err := a.launchTiled("selected_dq", a.rowTilesOf(gradientTiles), rows, p, a.wholeQueries); err != nil {
		return err
	}
	p.joinBlocks(1)
	a.launchInvert(&listParams{params: *p})
	keys := launchSize{a.dkvBytes, func(x tile) int64 { return a.workItems(p) * kernels.CeilDiv(a.block, x.m) }}
	if err := a.launchTiled("selected_dkv", a.keyTiles(), keys, p, nil); err != nil {
		return err
	}
	a.launchReduce(p)
	return nil
}

// selectedForwardMMA is selectedForward for half precision and dims up to 128.
func selectedForwardMMA(b *kernels.Builder, op attention.Selected) error {
	a, err := selectedOf(b, op.SelectBlock)
	if err != nil {
		return err
	}
	width, err := a.mmaWidth(mmaForwardBytes)
	if err != nil {
		return err
	}
	p := a.forwardParams()
	p.blocks = a.blocks()
	rows := a.wholeQueries(mmaRows)
	p.ownRows(rows)
	a.launchFourWarps(a.mmaKernel(namePrefix(a.pieceKeys())+"_forward", width), a.rowTiles(rows), mmaForwardBytes(width)+a.unionBytes(mmaRows), p)
	return nil
}

// selectedBackwardMMA is selectedBackward for half precision and dims up to 128.
func selectedBackwardMMA(b *kernels.Builder, op attention.SelectedGrad) error {
	a, err := selectedOf(b, op.Forward.SelectBlock)
	if err != nil {
		return err
	}
	keys := a.ownedKeys()
	width, err := a.mmaWidth(func(width int64) int64 { return mmaBackwardBytes(width, keys) })
	if err != nil {
		return err
	}
	p := a.beginGrad()
	a.launchDelta(p)
	// A row is multiplied by the blocks of all rows of its warp, so tall kernels are for queries that select at least half of the
	// blocks.
	a.launchDQ(namePrefix(a.pieceKeys()), width, p, a.selectionBlocks() <= 2*a.topN, a.unionBytes, a.wholeQueries)
	p.joinBlocks(1)
	a.launchInvert(&listParams{params: *p})
	a.launchFourWarps(a.mmaKernel(namePrefix(keys)+"_dkv", width), a.workItems(p)*kernels.CeilDiv(a.block, keys), mmaDKVBytes(width, keys), p)
	a.launchReduce(p)
	return nil
}

// selectedForwardWGMMA is selectedForward for half precision on devices of compute capability 9.0.
func selectedForwardWGMMA(b *kernels.Builder, op attention.Selected) error {
	a, err := selectedOf(b, op.SelectBlock)
	if err != nil {
		return err
	}
	w, err := a.wgmmaWidths(func(w widths) int64 {
		return max(w.forwardBytes(), w.forcedBytes(), w.pairForwardBytes(), w.walkBytes(w.walkForward))
	})
	if err != nil {
		return err
	}
	p := a.forwardParams()
	p.blocks = a.blocks()
	switch {
	case a.byBits():
		p.span = a.everyKey()
		a.launchWGMMA("selected_forward", w, w.forward, w.forwardBytes(), p)
	case a.byWalk():
		a.launchWalk("forward", w, w.walkForward, p)
	default:
		a.launchPairs(w, p)
	}
	return nil
}

// selectedBackwardWGMMA is selectedBackward for half precision on devices of compute capability 9.0.
func selectedBackwardWGMMA(b *kernels.Builder, op attention.SelectedGrad) error {
	a, err := selectedOf(b, op.Forward.SelectBlock)
	if err != nil {
		return err
	}
	w, err := a.wgmmaWidths(func(w widths) int64 {
		return max(w.dqBytes(), w.pairsDKV().bytes, w.walkBytes(w.walkDQ), w.listedDKV().bytes)
	})
	if err != nil {
		return err
	}
	joined := a.joined()
	p := joined.beginGrad()
	if !a.byBits() && !a.byWalk() {
		a.launchPairGradients(w, p)
		return nil
	}
	a.launchDelta(p)
	dq := *p // reads the blocks as they were selected, not joined
	dq.blocks = a.blocks()
	if a.byBits() {
		dq.span = a.everyKey()
		a.launchWGMMA("selected_dq", w, w.dq, w.dqBytes(), &dq)
	} else {
		a.launchWalk("dq", w, w.walkDQ, &dq)
	}
	join := joined.block / a.block
	p.joinBlocks(join)
	joined.launchInvert(&listParams{params: *p})
	kernel := "selected_dkv"
	if join > 1 {
		kernel = "joined_dkv"
	}
	grid := joined.workItems(p) * kernels.CeilDiv(joined.block, listedKeys)
	a.launchDKVWGMMA(kernel, w, w.listedDKV(), grid, 1, &keyGradientParams{params: *p})
	joined.launchReduce(p)
	return nil
}

// joined returns a with selection blocks of 16 or 32 keys joined to blocks of 64, the keys that a thread block owns. A query that
// selected several of the joined blocks is then read once. An entry of a list has 28 bits for its query.
func (a selectedProblem) joined() selectedProblem {
	if (a.specBlock == 16 || a.specBlock == 32) && a.block == a.specBlock && a.S < 1<<28 {
		a.block, a.specBlock = listedKeys, listedKeys
	}
	return a
}

// wgmmaWidths is problem.wgmmaWidths. It also refuses blocks of other than a multiple of 16 tokens, and problems for which there is no
// method, neither by bits nor by lists.
func (a selectedProblem) wgmmaWidths(shared func(widths) int64) (widths, error) {
	if err := a.checkBlock(); err != nil {
		return widths{}, err
	}
	if err := a.checkLists(); err != nil && !a.byBits() {
		return widths{}, err
	}
	return a.problem.wgmmaWidths(shared)
}

// byBits reports whether rows iterate over all keys, with a bit for each tile that says whether a row sees it. That pays if there are
// few blocks and a list holds at least half of them. Otherwise rows use lists: by walk or by pairs.
func (a selectedProblem) byBits() bool {
	return !a.packed() && a.pieceKeys() == mmaKeys && kernels.CeilDiv(a.T, mmaKeys) <= 32 && a.selectionBlocks() <= 2*a.topN
}

// everyKey is the span of all keys up to a query's own.
func (a selectedProblem) everyKey() span { return span{1, 1, int32(a.S)} }

// beginGrad returns the argument of a gradient, with memory for the inverse index and the partial sums.
func (a selectedProblem) beginGrad() *params {
	p := a.gradParams()
	p.blocks, p.index = a.blocks(), a.index()
	groups, x := a.groups(), p.index
	p.counts = a.Work(4 * groups * int64(x.segments) * a.blockNames())
	p.starts = a.Work(4 * groups * 3 * (a.blockNames() + 1))
	p.queries = a.Work(4 * groups * a.S * a.topN)
	p.partial = a.Work(4 * groups * int64(x.partials) * a.block * (a.D + a.Dv))
	return p
}

// workItems is the number of work items of the kernel that owns keys.
func (a selectedProblem) workItems(p *params) int64 { return a.groups() * int64(p.index.items) }

// launchInvert adds the launches that build the inverse index. A block of the index has as many selection blocks as joinBlocks says.
func (a selectedProblem) launchInvert(argument *listParams) {
	p := &argument.params
	groups, names := a.groups(), a.blockNames()
	segments := groups * int64(p.index.segments)
	counts := func(n int64) int64 { // bytes of shared memory for n counts of each name: see counts_of in attention_index.cu
		if names > fewNames {
			return 0
		}
		return 4 * n * names
	}
	a.launchFourWarps("nsa_index_count_i32", segments, counts(1), p)
	a.Launch("nsa_index_rank_i32", kernels.Line(groups*kernels.CeilDiv(names, 32)), kernels.Dim{X: 32, Y: 32, Z: 1}, 0, argument)
	scans := groups
	if argument.most != 0 {
		scans += 3 * int64(a.GPU.SMs)
	}
	a.Launch("nsa_index_scan_i32", kernels.Line(scans), kernels.Line(256), 0, argument)
	a.launchFourWarps("nsa_index_fill_i32", kernels.CeilDiv(segments, warps), counts(warps), argument)
}

// launchReduce adds the launch that sums the partial sums of dk and dv, if there are any.
func (a selectedProblem) launchReduce(p *params) {
	if p.index.partials > 0 {
		a.launchFourWarps(a.Type.Name("selected_reduce"), kernels.CeilDiv(a.groups()*a.T, warps), 0, p)
	}
}
