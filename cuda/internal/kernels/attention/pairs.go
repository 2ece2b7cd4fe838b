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
}

type pairs struct {
	list, lengths, counts, shifts, items, count, begun, results, stats kernels.Ref

	units, queries, cuts, room, parts, tile, chunk, first, end int32
}

// listParams is ListParams of attention_pairs.cuh.
type listParams struct {
	params        `c:"p"`
	pairGradients `c:"pairs"`
}

// pairGradients is PairGradients.
type pairGradients struct {
	results, lengths, most, reach kernels.Ref

	first, entryBits, parts, reaches int32
}

const (
	maxUnitQueries = 2048    // most queries of a unit
	maxCuts        = 16      // most thread blocks that sort a unit; each of their counts covers 8 entries or more on average
	sortThreads    = 512     // threads of a thread block that sorts
	maxResultBytes = 4 << 30 // most bytes of results before they are summed
	sumThreads     = 256     // threads of a thread block that sums results
	maxPairHeads   = 48      // most heads of a group for pairs: a tile of their gradient has whole queries
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
func (a selectedProblem) resultsPerQuery() int64 { return a.topN * a.parts() * a.headsPerGroup() }

func resultBytes(c int64) int64 { return 2 * kernels.RoundUp(c, 32) }

const statBytes = 8

// parts is the number of key tiles of a selection block.
func (a selectedProblem) parts() int64 { return kernels.CeilDiv(a.block, mmaKeys) }

// pairPlan divides the queries of all groups into units. A launch takes as many units as have results of at most maxResultBytes.
type pairPlan struct {
	queries        int64 // of a unit
	units          int64 // of all groups
	unitsPerLaunch int64
	cuts           int64 // thread blocks that sort a unit
	tile           int64 // queries of a tile of rows
}

func (a selectedProblem) planPairs() pairPlan {
	fit := maxResultBytes / (a.resultsPerQuery() * (resultBytes(a.Dv) + statBytes)) // queries whose results take maxResultBytes
	queries := min(fit, a.S)
	queries /= kernels.CeilDiv(queries, maxUnitQueries)           // so that most of fit is used
	queries = kernels.CeilDiv(a.S, kernels.CeilDiv(a.S, queries)) // so that units have nearly the same size
	units := kernels.CeilDiv(a.S, queries) * a.groups()
	return pairPlan{
		queries: queries, units: units, unitsPerLaunch: min(units, fit/queries),
		cuts: max(1, min(maxCuts, queries*a.topN/(8*a.selectionBlocks()))), tile: 64 / a.headsPerGroup(),
	}
}

// launchPairs adds the launches of the forward by pairs. The pairs are sorted by selection block. Then, a few units at a time, one kernel
// computes the results of the pairs, and another computes attention to the forced blocks and adds these results.
func (a selectedProblem) launchPairs(w widths, argument *params) {
	plan := a.planPairs()
	chunk := w.itemTiles() * plan.tile // queries of an item
	room := (a.selectionBlocks() + kernels.CeilDiv(plan.queries*a.topN, chunk)) * a.parts()
	results := plan.unitsPerLaunch * plan.queries * a.resultsPerQuery()
	p := &pairParams{params: *argument, pairs: pairs{
		list: a.Work(4 * plan.units * plan.queries * a.topN), lengths: a.Work(4 * plan.units * plan.queries),
		counts: a.Work(4 * plan.units * plan.cuts * a.selectionBlocks()),
		shifts: a.Work(4 * a.groups() * kernels.CeilDiv(a.T, mmaKeys)),
		items:  a.Work(16 * plan.units * room), count: a.Work(4 * plan.units), begun: a.Work(4 * plan.units),
		results: a.Work(results * resultBytes(a.Dv)), stats: a.Work(results * statBytes),
		units: int32(plan.units / a.groups()), queries: int32(plan.queries), cuts: int32(plan.cuts), room: int32(room),
		parts: int32(a.parts()), tile: int32(plan.tile), chunk: int32(chunk),
	}}
	a.Launch("nsa_pairs_count_i32", kernels.Line(plan.units*plan.cuts), kernels.Line(sortThreads), 4*a.selectionBlocks(), p)
	sms := int64(a.GPU.SMs)
	a.Launch(a.Type.Name("pairs_sort"), kernels.Line(plan.units*plan.cuts+sms), kernels.Line(sortThreads), a.sortBytes(), p)
	for first := int64(0); first < plan.units; first += plan.unitsPerLaunch {
		end := min(plan.units, first+plan.unitsPerLaunch)
		p.pairs.first, p.pairs.end = int32(first), int32(end)
		a.Launch(a.wgmmaKernel("pairs_forward", w), kernels.Line(sms), kernels.Line(128*(1+w.pairs.groups)), w.pairForwardBytes(), p)
		a.keyTensorMaps(unsafe.Offsetof(p.k), unsafe.Offsetof(p.v), mmaKeys)
		a.tensorMap(unsafe.Offsetof(p.q), a.In[0], a.headsPerGroup(), 1)
		tiles := (end - first) * kernels.CeilDiv(plan.queries*a.headsPerGroup(), w.forced.rows)
		threads := wgmmaThreads(w.forced.rows)
		a.Launch(a.wgmmaKernel("forced_forward", w), kernels.Line(min(tiles, sms)), kernels.Line(threads), w.forcedBytes(), p)
		a.keyTensorMaps(unsafe.Offsetof(p.k), unsafe.Offsetof(p.v), w.forced.tileKeys)
	}
}

// launchPairGradients adds the launches of dq, dk and dv by pairs. A few groups at a time, one kernel computes dk, dv and the results for
// dq, and another sums the results.
func (a selectedProblem) launchPairGradients(w widths, argument *params) {
	groupBytes := a.S * a.resultsPerQuery() * resultBytes(a.D) // of the results of a group
	groupsPerLaunch := max(1, min(a.groups(), maxResultBytes/groupBytes))
	gradients := pairGradients{
		results: a.Work(groupsPerLaunch * groupBytes), lengths: a.Work(4 * a.groups() * a.S),
		entryBits: int32(bits.Len64(uint64(a.topN - 1))), parts: int32(a.parts()),
	}
	if a.Type == kernels.BF16 { // fp16 gradients have no wider range than their results
		gradients.most = a.Work(16 * a.groups())
	}
	if argument.o != 0 && gradients.most != 0 {
		reaches := a.deltaBlocks() * warps
		gradients.reach, gradients.reaches = a.Work(4*reaches), int32(reaches)
		a.launchFourWarps("nsa_pairs_delta_bf16", a.deltaBlocks(), 0, &listParams{*argument, gradients})
	} else {
		a.launchDelta(argument)
	}
	argument.joinBlocks(1)
	a.launchInvert(&listParams{*argument, gradients})
	for first := int64(0); first < a.groups(); first += groupsPerLaunch {
		gradients.first = int32(first)
		groups := min(groupsPerLaunch, a.groups()-first)
		grid := groups * int64(argument.index.items) * a.parts()
		p := &keyGradientParams{params: *argument, pairGradients: gradients}
		a.launchDKVWGMMA("pairs_dkv", w, w.pairsDKV(), grid, 1, p)
		rows := sumThreads / (resultBytes(a.D) / 16) // of a thread block, whose threads have 16 bytes each
		grid = groups * kernels.CeilDiv(a.S*a.headsPerGroup(), rows)
		a.Launch(a.Type.Name("pairs_dq"), kernels.Line(grid), kernels.Line(sumThreads), 0, &listParams{*argument, gradients})
	}
	a.launchReduce(argument)
}
