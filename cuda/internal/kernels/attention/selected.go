package attention

import (
	"fmt"
	"math"

	"github.com/gorgonia-nsa/nsa/cuda/internal/kernels"
	"github.com/gorgonia-nsa/nsa/graph"
	"github.com/gorgonia-nsa/nsa/ops"
)

// selectedRows returns the rows of q, k, v, idx -> o, lse, and of q, k, v, idx, o or delta, lse, do -> dq, dk, dv.
func selectedRows() []kernels.Row {
	type (
		op   = ops.SelectedAttentionOp
		grad = ops.SelectedAttentionGradOp
	)
	return kernels.Rows(
		kernels.Implementation[op]{Name: warpGroups, Storage: "hhhid>hf", Guard: checkPreference[op], Build: selectedForwardOnWarpGroups},
		kernels.Implementation[op]{Name: tensorCores, Storage: "hhhid>hf", Guard: checkPreference[op], Build: selectedForwardOnTensorCores},
		kernels.Implementation[op]{Name: general, Storage: "tttid>tf", Build: selectedForward},
		kernels.Implementation[grad]{Name: warpGroups, Storage: "hhhidofh>hhh", Guard: checkPreference[grad], Build: selectedBackwardOnWarpGroups},
		kernels.Implementation[grad]{Name: tensorCores, Storage: "hhhidofh>hhh", Guard: checkPreference[grad], Build: selectedBackwardOnTensorCores},
		kernels.Implementation[grad]{Name: general, Storage: "tttidoft>ttt", Build: selectedBackward},
	)
}

// selectedProblem is attention over chosen blocks. idx int32 [B,S,Hkv,topN] lists the blocks of each query, ascending and padded
// with -1. A query sees the tokens of its blocks, up to its own token. A list ends at its first entry that breaks the order.
type selectedProblem struct {
	problem
	block, topN int64 // tokens of a block, at most the sequence; entries of a list
	uncutBlock  int64 // tokens of a block as the op has them, maybe more than the sequence
}

func selectedOf(b *kernels.Builder, size int) (selectedProblem, error) {
	p, err := problemOf(b, b.In[0], b.In[1], b.In[2])
	a := selectedProblem{p, min(int64(size), p.T), b.In[3].Dim(3), int64(size)}
	if err == nil && a.topN > math.MaxInt32/2/a.S {
		err = graph.Refuse(graph.ReasonSize, "queries %d times top n %d, want less than 2^30", a.S, a.topN)
	}
	return a, err
}

// onTensorCores is problem.onTensorCores with memory for the union of blocks. It also refuses blocks that are no multiple of 16
// tokens.
func (a selectedProblem) onTensorCores(shared func(width int64) int64) (width int64, err error) {
	if err := a.multipleOf("tensor cores", 16); err != nil {
		return 0, err
	}
	return a.problem.onTensorCores(func(width int64) int64 { return shared(width) + a.unionBytes(mmaRows) })
}

func (a selectedProblem) multipleOf(kernel string, keys int64) error {
	if a.uncutBlock%keys != 0 {
		return graph.Refuse(graph.ReasonShape, "%s: selection blocks of %d tokens, want a multiple of %d", kernel, a.uncutBlock, keys)
	}
	return nil
}

// pieceKeys is the number of adjoining keys that a tile takes from one selection block. The kernels on tensor cores that own rows
// gather a tile from pieces of several selection blocks.
func (a selectedProblem) pieceKeys() int64 {
	for _, n := range []int64{mmaKeys, 32} {
		if a.uncutBlock%n == 0 {
			return n
		}
	}
	return 16
}

// ownedKeys is the number of keys of one selection block that a thread block owns on tensor cores.
func (a selectedProblem) ownedKeys() int64 {
	for _, n := range []int64{16, 32} {
		if a.uncutBlock <= n {
			return n
		}
	}
	return mmaKeys
}

// namePrefix returns the first part of the name of the kernels on tensor cores for pieces of that many keys.
func namePrefix(keys int64) string {
	if keys == mmaKeys {
		return "selected"
	}
	return fmt.Sprint("selected", keys)
}

// unionBytes is the shared memory, in a kernel that owns rows, for the union of the blocks that the queries of a tile chose.
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

// blockNames is the number of names for blocks in the inverse index. A block's name is its number. With documents it is the block's first
// token, since documents begin at any token.
func (a selectedProblem) blockNames() int64 {
	if a.packed() {
		return a.T
	}
	return a.selectionBlocks()
}

func (a selectedProblem) blocks() blocks { return blocks{int32(a.block), int32(a.topN)} }

const (
	minChunk    = 256 // queries in a work item of the kernel that owns keys
	maxSegments = 256 // segments of a sequence in the inverse index: nsa_index_rank_i32 takes no more

	maxPackedSegments = 64 // with documents, whose blocks have more names

	fewNames = 2048 // most names of blocks that the kernels of the inverse index count in shared memory: kFew in attention_index.cu
)

// index returns the sizes of the inverse index (attention_index.cuh). The counts and the partial sums are linear in S: with chunks
// of topN*l' queries, the lists of several chunks have partial sums for at most 2*S/l' blocks. Chunks are smaller if their tiles of
// keys would not fill the GPU. Then there are partial sums for at most twice as many tiles as fill it.
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

// rowTilesOf returns the tiles for rows of several queries, which walk over the union of their blocks. It leaves out the largest
// tile if a query chooses less than a quarter of the blocks.
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
func selectedForward(b *kernels.Builder, op ops.SelectedAttentionOp) error {
	a, err := selectedOf(b, op.SelectBlock)
	if err != nil {
		return err
	}
	p := a.forwardParams()
	p.blocks, p.index = a.blocks(), a.index()
	size := launchSize{func(x tile) int64 { return a.forwardBytes(x) + slotBytes(x) }, a.rowGrid}
	return a.launchTiled("selected_forward", a.rowTilesOf(selectedForwardTiles), size, p, a.wholeQueries)
}

// selectedBackward adds q, k, v, idx, o, lse, do -> dq, dk, dv for all types and sizes.
func selectedBackward(b *kernels.Builder, op ops.SelectedAttentionGradOp) error {
	a, err := selectedOf(b, op.Forward.SelectBlock)
	if err != nil {
		return err
	}
	p := a.beginGrad()
	rows := launchSize{func(x tile) int64 { return a.dqBytes(x) + slotBytes(x) }, a.rowGrid}
	if err := a.launchTiled("selected_dq", a.rowTilesOf(gradientTiles), rows, p, a.wholeQueries); err != nil {
		return err
	}
	p.count = 1
	a.launchInvert(&listParams{params: *p})
	keys := launchSize{a.dkvBytes, func(x tile) int64 { return a.workItems(p) * kernels.CeilDiv(a.block, x.m) }}
	if err := a.launchTiled("selected_dkv", a.keyTiles(), keys, p, nil); err != nil {
		return err
	}
	a.launchReduce(p)
	return nil
}

// selectedForwardOnTensorCores is selectedForward for half precision and dims up to 128.
func selectedForwardOnTensorCores(b *kernels.Builder, op ops.SelectedAttentionOp) error {
	a, err := selectedOf(b, op.SelectBlock)
	if err != nil {
		return err
	}
	width, err := a.onTensorCores(mmaForwardBytes)
	if err != nil {
		return err
	}
	p := a.forwardParams()
	p.blocks, p.index, p.count = a.blocks(), a.index(), int32(a.wholeQueries(mmaRows))
	a.launch(a.mmaKernel(namePrefix(a.pieceKeys())+"_forward", width), a.rowTiles(int64(p.count)), mmaForwardBytes(width)+a.unionBytes(mmaRows), p)
	return nil
}

// selectedBackwardOnTensorCores is selectedBackward for half precision and dims up to 128.
func selectedBackwardOnTensorCores(b *kernels.Builder, op ops.SelectedAttentionGradOp) error {
	a, err := selectedOf(b, op.Forward.SelectBlock)
	if err != nil {
		return err
	}
	keys := a.ownedKeys()
	width, err := a.onTensorCores(func(width int64) int64 { return mmaBackwardBytes(width, keys) })
	if err != nil {
		return err
	}
	p := a.beginGrad()
	// A row is multiplied by the blocks of all rows of its warp, so tall kernels are for queries that choose at least half of the
	// blocks.
	a.launchDQ(namePrefix(a.pieceKeys()), width, p, a.selectionBlocks() <= 2*a.topN, a.unionBytes, a.wholeQueries)
	p.count = 1
	a.launchInvert(&listParams{params: *p})
	a.launch(a.mmaKernel(namePrefix(keys)+"_dkv", width), a.workItems(p)*kernels.CeilDiv(a.block, keys), mmaDKVBytes(width, keys), p)
	a.launchReduce(p)
	return nil
}

// selectedForwardOnWarpGroups is selectedForward for half precision on devices of compute capability 9.0.
func selectedForwardOnWarpGroups(b *kernels.Builder, op ops.SelectedAttentionOp) error {
	a, err := selectedOf(b, op.SelectBlock)
	if err != nil {
		return err
	}
	w, err := a.onWarpGroups(func(w widths) int64 {
		return max(w.forwardBytes(), w.forcedBytes(), w.pairForwardBytes(), w.walkBytes(w.walkForward))
	})
	if err != nil {
		return err
	}
	p := a.forwardParams()
	p.blocks, p.index = a.blocks(), a.index()
	switch {
	case a.byBits():
		p.span = a.everyKey()
		a.launchOnWarpGroups("selected_forward", w, w.forward, w.forwardBytes(), p)
	case a.byWalk():
		a.launchWalk("forward", w, w.walkForward, p)
	default:
		a.launchPairs(w, p)
	}
	return nil
}

// selectedBackwardOnWarpGroups is selectedBackward for half precision on devices of compute capability 9.0.
func selectedBackwardOnWarpGroups(b *kernels.Builder, op ops.SelectedAttentionGradOp) error {
	a, err := selectedOf(b, op.Forward.SelectBlock)
	if err != nil {
		return err
	}
	w, err := a.onWarpGroups(func(w widths) int64 {
		return max(w.dqBytes(), w.pairsDKV().bytes, w.walkBytes(w.walkDQ), w.listedDKV().bytes)
	})
	if err != nil {
		return err
	}
	listed := a.joined()
	p := listed.beginGrad()
	dq := *p // reads the blocks as the query chose them, not joined
	dq.blocks = a.blocks()
	switch {
	case a.byBits():
		dq.span = a.everyKey()
		a.launchOnWarpGroups("selected_dq", w, w.dq, w.dqBytes(), &dq)
	case a.byWalk():
		a.launchWalk("dq", w, w.walkDQ, &dq)
	default:
		a.launchPairGradients(w, p)
		return nil
	}
	p.count = int32(listed.block / a.block)
	listed.launchInvert(&listParams{params: *p})
	kernel := "selected_dkv"
	if p.count > 1 {
		kernel = "several_dkv"
	}
	grid := listed.workItems(p) * kernels.CeilDiv(listed.block, warpGroupListKeys)
	a.launchDKVOnWarpGroups(kernel, w, w.listedDKV(), grid, 1, &keyGradientParams{params: *p})
	listed.launchReduce(p)
	return nil
}

// joined returns a with its selection blocks of 16 or 32 keys joined to blocks of 64. That is the number of rows of the kernel that
// owns keys. A query that chose two of the joined blocks is then read once. An entry of a list has 28 bits for its query.
func (a selectedProblem) joined() selectedProblem {
	if (a.uncutBlock == 16 || a.uncutBlock == 32) && a.block == a.uncutBlock && a.S < 1<<28 {
		a.block, a.uncutBlock = warpGroupListKeys, warpGroupListKeys
	}
	return a
}

// onWarpGroups is problem.onWarpGroups. It also refuses blocks that are no multiple of 16 tokens, and problems that go neither by
// bits nor by lists.
func (a selectedProblem) onWarpGroups(shared func(widths) int64) (widths, error) {
	if err := a.multipleOf("warp groups", 16); err != nil {
		return widths{}, err
	}
	if err := a.checkLists(); err != nil && !a.byBits() {
		return widths{}, err
	}
	return a.problem.onWarpGroups(shared)
}

// byBits reports whether rows go through all keys, with a bit for each tile that says whether a row sees it. That pays if there are
// few blocks and a list holds at least half of them. Otherwise rows go by lists: by walks or by pairs.
func (a selectedProblem) byBits() bool {
	return !a.packed() && a.pieceKeys() == mmaKeys && kernels.CeilDiv(a.T, mmaKeys) <= 32 && a.selectionBlocks() <= 2*a.topN
}

// everyKey is the span of all keys up to a query's own.
func (a selectedProblem) everyKey() span { return span{1, 1, int32(a.S)} }

// beginGrad returns the argument of a gradient, with memory for the inverse index and the partial sums, and adds the launch that sets
// delta.
func (a selectedProblem) beginGrad() *params {
	p := a.gradParams()
	p.blocks, p.index = a.blocks(), a.index()
	groups, x := a.groups(), p.index
	p.counts = a.Work(4 * groups * int64(x.segments) * a.blockNames())
	p.starts = a.Work(4 * groups * 3 * (a.blockNames() + 1))
	p.queries = a.Work(4 * groups * a.S * a.topN)
	p.partial = a.Work(4 * groups * int64(x.partials) * a.block * (a.D + a.Dv))
	a.launchDelta(p)
	return p
}

// workItems is the number of work items of the kernel that owns keys.
func (a selectedProblem) workItems(p *params) int64 { return a.groups() * int64(p.index.items) }

// launchInvert adds the launches that build the inverse index. A block of the inverse stands for argument.count blocks of the choice.
func (a selectedProblem) launchInvert(argument *listParams) {
	p := &argument.params
	groups, names := a.groups(), a.blockNames()
	segments := groups * int64(p.index.segments)
	counts := func(n int64) int64 { // shared memory for n counts of each name: see counts_of in attention_index.cu
		if names > fewNames {
			return 0
		}
		return 4 * n * names
	}
	a.launch("nsa_index_count_i32", segments, counts(1), p)
	a.Launch("nsa_index_rank_i32", kernels.Line(groups*kernels.CeilDiv(names, 32)), kernels.Dim{X: 32, Y: 32, Z: 1}, 0, p)
	a.Launch("nsa_index_scan_i32", kernels.Line(groups), kernels.Line(256), 0, p)
	a.launch("nsa_index_fill_i32", kernels.CeilDiv(segments, warps), counts(warps), argument)
}

// launchReduce adds the launch that adds up the partial sums of dk and dv, if there are any.
func (a selectedProblem) launchReduce(p *params) {
	if p.index.partials > 0 {
		a.launch(a.Type.Name("selected_reduce"), kernels.CeilDiv(a.groups()*a.T, warps), 0, p)
	}
}
