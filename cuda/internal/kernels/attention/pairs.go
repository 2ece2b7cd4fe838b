package attention

import (
	"math"
	"math/bits"
	"unsafe"

	"github.com/gorgonia-nsa/nsa/cuda/internal/driver"
	"github.com/gorgonia-nsa/nsa/cuda/internal/kernels"
	"github.com/gorgonia-nsa/nsa/graph"
)

// pairParams is PairParams of attention_pairs.cuh.
type pairParams struct {
	k, v, q [driver.TensorMapBytes]byte
	params  `c:"p"`
	pairs   pairs
	_       [48]byte // the size is a multiple of 64, the alignment of a tensor map
}

type pairs struct {
	list, lengths, counts, shifts, items, count, begun, results, stats kernels.Ref

	chunks      int32 `c:"units"` // of the queries of a group; the pairs of a chunk are sorted by themselves
	queries     int32 // of a chunk
	splits      int32 `c:"cuts"`  // thread blocks that sort a chunk
	capacity    int32 `c:"room"`  // work items of a chunk
	keyTiles    int32 `c:"parts"` // of a selection block
	tile        int32 // queries of a tile of rows
	itemQueries int32 `c:"chunk"` // most queries of a work item
	first, end  int32 // chunks of a launch
}

// listParams is ListParams of attention_pairs.cuh.
type listParams struct {
	params        `c:"p"`
	pairGradients `c:"pairs"`
}

// pairGradients is PairGradients.
type pairGradients struct {
	results, lengths, most, reach kernels.Ref

	first, entryBits int32
	keyTiles         int32 `c:"parts"` // of a selection block
	reaches          int32
}

const (
	maxChunkQueries = 2048    // most queries of a chunk
	maxSplits       = 16      // most thread blocks that sort a chunk; their counts cover 8 entries or more on average
	sortThreads     = 512     // threads of a thread block that sorts
	maxResultBytes  = 4 << 30 // most bytes of results before they are summed
	sumThreads      = 256     // threads of a thread block that sums results
	maxPairHeads    = 48      // most heads of a group for pairs: a tile of their gradient has whole queries
)

// checkLists refuses problems that neither the walk kernels nor the pair kernels take.
func (a selectedProblem) checkLists() error {
	rows, h := a.B*a.S*a.Hq, a.headsPerGroup()
	switch {
	case h > 64:
		return graph.Refuse(graph.ReasonShape, "%d heads of a group, want at most 64", h)
	case rows >= 1<<31:
		return graph.Refuse(graph.ReasonSize, "batch times queries times heads: %d, want less than 2^31", rows)
	case a.byWalk():
	case a.sortBytes() > int64(a.GPU.SharedPerBlock):
		return graph.Refuse(graph.ReasonShape, "%d selection blocks, want at most %d", a.selectionBlocks(), a.GPU.SharedPerBlock/4-64)
	case a.S*a.resultsPerQuery() > math.MaxInt32:
		return graph.Refuse(graph.ReasonSize, "%d results of pairs in a group, want less than 2^31", a.S*a.resultsPerQuery())
	case a.resultsPerQuery()*(resultBytes(max(a.D, a.Dv))+statBytes) > maxResultBytes:
		return graph.Refuse(graph.ReasonShape, "the results of a list of %d blocks exceed %d bytes", a.topN, maxResultBytes)
	}
	return nil
}

// sortBytes is the shared memory of the kernel that sorts pairs: a number for each selection block, and two for each of 32 warps.
func (a selectedProblem) sortBytes() int64 { return 4*a.selectionBlocks() + 2*4*32 }

// resultsPerQuery is the number of results of one query in one group. resultBytes is the memory of a result of c columns, and statBytes
// that of its statistics in the forward.
func (a selectedProblem) resultsPerQuery() int64 { return a.topN * a.keyTiles64() * a.headsPerGroup() }

func resultBytes(c int64) int64 { return 2 * kernels.RoundUp(c, 32) }

const statBytes = 8

// keyTiles64 is the number of tiles of 64 keys of a selection block.
func (a selectedProblem) keyTiles64() int64 { return kernels.CeilDiv(a.block, mmaKeys) }

// pairPlan divides the queries of all groups into chunks. A launch takes as many chunks as have results of at most
// maxResultBytes.
type pairPlan struct {
	queries         int64 // of a chunk
	chunks          int64 // of all groups
	chunksPerLaunch int64
	splits          int64 // thread blocks that sort a chunk
	tile            int64 // queries of a tile of rows
}

func (a selectedProblem) planPairs() pairPlan {
	fit := maxResultBytes / (a.resultsPerQuery() * (resultBytes(a.Dv) + statBytes)) // queries whose results take maxResultBytes
	queries := min(fit, a.S)
	queries /= kernels.CeilDiv(queries, maxChunkQueries)          // so that most of fit is used
	queries = kernels.CeilDiv(a.S, kernels.CeilDiv(a.S, queries)) // so that chunks have nearly the same size
	chunks := kernels.CeilDiv(a.S, queries) * a.groups()
	return pairPlan{
		queries: queries, chunks: chunks, chunksPerLaunch: min(chunks, fit/queries),
		splits: max(1, min(maxSplits, queries*a.topN/(8*a.selectionBlocks()))), tile: 64 / a.headsPerGroup(),
	}
}

// addPairs adds the launches of the forward by pairs. The pairs are sorted by selection block. Then, a few chunks at a
// time, one kernel computes the results of the pairs, and another computes attention to the forced blocks and adds
// these results.
func (a selectedProblem) addPairs(b *kernels.Builder, w widths, argument *params) {
	plan := a.planPairs()
	itemQueries := w.itemTiles() * plan.tile
	capacity := (a.selectionBlocks() + kernels.CeilDiv(plan.queries*a.topN, itemQueries)) * a.keyTiles64()
	results := plan.chunksPerLaunch * plan.queries * a.resultsPerQuery()
	p := &pairParams{params: *argument, pairs: pairs{
		list: b.Work(4 * plan.chunks * plan.queries * a.topN), lengths: b.Work(4 * plan.chunks * plan.queries),
		counts: b.Work(4 * plan.chunks * plan.splits * a.selectionBlocks()),
		shifts: b.Work(4 * a.groups() * kernels.CeilDiv(a.T, mmaKeys)),
		items:  b.Work(16 * plan.chunks * capacity), count: b.Work(4 * plan.chunks), begun: b.Work(4 * plan.chunks),
		results: b.Work(results * resultBytes(a.Dv)), stats: b.Work(results * statBytes),
		chunks: int32(plan.chunks / a.groups()), queries: int32(plan.queries), splits: int32(plan.splits),
		capacity: int32(capacity), keyTiles: int32(a.keyTiles64()),
		tile: int32(plan.tile), itemQueries: int32(itemQueries),
	}}
	sms, sorting := int64(a.GPU.SMs), plan.chunks*plan.splits
	// attention_pairs.cu
	b.AddLaunch("nsa_pairs_count_i32", kernels.Line(sorting), kernels.Line(sortThreads), 4*a.selectionBlocks(), p)
	b.AddLaunch(a.Type.Name("pairs_sort"), kernels.Line(sorting+sms), kernels.Line(sortThreads), a.sortBytes(), p)
	for first := int64(0); first < plan.chunks; first += plan.chunksPerLaunch {
		end := min(plan.chunks, first+plan.chunksPerLaunch)
		p.pairs.first, p.pairs.end = int32(first), int32(end)
		threads := kernels.Line(128 * (1 + w.pairs.groups))
		// attention_wgmma_pairs_forward.cu
		b.AddLaunch(a.wgmmaKernel("pairs_forward", w), kernels.Line(sms), threads, w.pairForwardBytes(), p)
		addKeyTensorMaps(b, unsafe.Offsetof(p.k), unsafe.Offsetof(p.v), mmaKeys)
		addTensorMap(b, unsafe.Offsetof(p.q), a.In[0], a.headsPerGroup(), 1)
		tiles := (end - first) * kernels.CeilDiv(plan.queries*a.headsPerGroup(), w.forced.rows)
		threads = kernels.Line(wgmmaThreads(w.forced.rows))
		// attention_wgmma_forward.cu
		b.AddLaunch(a.wgmmaKernel("forced_forward", w), kernels.Line(min(tiles, sms)), threads, w.forcedBytes(), p)
		addKeyTensorMaps(b, unsafe.Offsetof(p.k), unsafe.Offsetof(p.v), w.forced.tileKeys)
	}
}

// addPairGradients adds the launches of dq, dk and dv by pairs. A few groups at a time, one kernel computes dk, dv and
// the results for dq, and another sums the results.
func (a selectedProblem) addPairGradients(b *kernels.Builder, w widths, argument *params) {
	groupBytes := a.S * a.resultsPerQuery() * resultBytes(a.D) // of the results of a group
	groupsPerLaunch := max(1, min(a.groups(), maxResultBytes/groupBytes))
	gradients := pairGradients{
		results: b.Work(groupsPerLaunch * groupBytes), lengths: b.Work(4 * a.groups() * a.S),
		entryBits: int32(bits.Len64(uint64(a.topN - 1))), keyTiles: int32(a.keyTiles64()),
	}
	if a.Type == kernels.BF16 { // fp16 gradients have no wider range than their results
		gradients.most = b.Work(16 * a.groups())
	}
	if argument.o != 0 && gradients.most != 0 {
		reaches := a.deltaBlocks() * warps
		gradients.reach, gradients.reaches = b.Work(4*reaches), int32(reaches)
		// attention_dq.cu
		addFourWarps(b, "nsa_pairs_delta_bf16", a.deltaBlocks(), 0, &listParams{*argument, gradients})
	} else {
		a.addDelta(b, argument)
	}
	argument.joinBlocks(1)
	a.addInverseIndex(b, &listParams{*argument, gradients})
	for first := int64(0); first < a.groups(); first += groupsPerLaunch {
		gradients.first = int32(first)
		groups := min(groupsPerLaunch, a.groups()-first)
		grid := groups * int64(argument.index.items) * a.keyTiles64()
		p := &keyGradientParams{params: *argument, pairGradients: gradients}
		// attention_wgmma_dkv.cu
		a.addDKVWGMMA(b, "pairs_dkv", w, w.pairsDKV(), grid, 1, p)
		rows := sumThreads / (resultBytes(a.D) / 16) // of a thread block, whose threads have 16 bytes each
		grid = groups * kernels.CeilDiv(a.S*a.headsPerGroup(), rows)
		sum := &listParams{*argument, gradients}
		// attention_pairs.cu
		b.AddLaunch(a.Type.Name("pairs_dq"), kernels.Line(grid), kernels.Line(sumThreads), 0, sum)
	}
	a.addReduce(b, argument)
}
