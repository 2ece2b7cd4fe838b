package attention

import "fmt"

// rowRing is the shape of a ring buffer of tiles of rows: the rows of a tile, and its stages, some of which are loaded ahead.
type rowRing struct{ rows, stages int64 }

// queryKernel is the shape of a kernel that owns rows: its rows, the keys of a tile, and the stages of keys and of values.
type queryKernel struct{ rows, tileKeys, keyStages, valueStages int64 }

// forcedKernel is the shape of the kernel for forced blocks: a queryKernel, and for each warp a ring of pair results.
type forcedKernel struct {
	queryKernel
	resultStages int64
}

// selectBlocksKernel is the shape of a kernel that selects blocks: its teams, the stages of keys, and its thread blocks
// on a multiprocessor.
type selectBlocksKernel struct{ teams, stages, blocks int64 }

// pairKernel is the shape of the kernel that computes the results of pairs: its consumer warpgroups, and its stages of rows and of keys.
type pairKernel struct{ groups, rowStages, keyStages int64 }

// walkKernel is the shape of a walk kernel: its consumer warps of 16 rows, its stages of keys and values, and the columns of its rows in
// shared memory.
type walkKernel struct{ warps, stages, columns int64 }

// widths holds a width c of q and k, a width cv of v, and the shapes of the wgmma kernels that are compiled for these widths. Block
// selection has no values: it takes the first widths whose c fits.
type widths struct {
	c, cv                 int64
	split                 bool // one warpgroup computes dk and another one dv, of the same keys
	forward, dq           queryKernel
	dkv, listed, pairGrad rowRing // tiles of the rows of a span, of listed rows, and of those of pairs
	pairs                 pairKernel
	forced                forcedKernel
	walkForward, walkDQ   walkKernel
	selectBlocks          selectBlocksKernel
}

// allWidths returns the widths in order of preference.
func allWidths() []widths {
	return []widths{{
		c: 64, cv: 64,
		forward:      queryKernel{rows: 192, tileKeys: 112, keyStages: 5, valueStages: 5},
		dq:           queryKernel{rows: 192, tileKeys: 48, keyStages: 5, valueStages: 4},
		dkv:          rowRing{rows: 128, stages: 4},
		listed:       rowRing{rows: 112, stages: 3},
		pairs:        pairKernel{groups: 4, rowStages: 12, keyStages: 4},
		forced:       forcedKernel{queryKernel: queryKernel{rows: 192, tileKeys: 64, keyStages: 3, valueStages: 3}, resultStages: 4},
		pairGrad:     rowRing{rows: 96, stages: 3},
		walkForward:  walkKernel{warps: 12, stages: 12, columns: 0},
		walkDQ:       walkKernel{warps: 8, stages: 12, columns: 0},
		selectBlocks: selectBlocksKernel{teams: 2, stages: 3, blocks: 2},
	}, {
		c: 128, cv: 128,
		forward:      queryKernel{rows: 192, tileKeys: 80, keyStages: 3, valueStages: 3},
		dq:           queryKernel{rows: 128, tileKeys: 48, keyStages: 5, valueStages: 4},
		dkv:          rowRing{rows: 64, stages: 4},
		listed:       rowRing{rows: 48, stages: 3},
		pairs:        pairKernel{groups: 4, rowStages: 8, keyStages: 2},
		forced:       forcedKernel{queryKernel: queryKernel{rows: 128, tileKeys: 64, keyStages: 2, valueStages: 2}, resultStages: 2},
		pairGrad:     rowRing{rows: 48, stages: 3},
		walkForward:  walkKernel{warps: 8, stages: 7, columns: 0},
		walkDQ:       walkKernel{warps: 8, stages: 6, columns: 128},
		selectBlocks: selectBlocksKernel{teams: 4, stages: 3, blocks: 1},
	}, {
		c: 192, cv: 128,
		forward:      queryKernel{rows: 128, tileKeys: 96, keyStages: 2, valueStages: 2},
		dq:           queryKernel{rows: 128, tileKeys: 48, keyStages: 3, valueStages: 2},
		dkv:          rowRing{rows: 32, stages: 6},
		listed:       rowRing{rows: 32, stages: 3},
		pairs:        pairKernel{groups: 4, rowStages: 4, keyStages: 3},
		forced:       forcedKernel{queryKernel: queryKernel{rows: 128, tileKeys: 32, keyStages: 2, valueStages: 2}, resultStages: 2},
		pairGrad:     rowRing{rows: 64, stages: 3},
		walkForward:  walkKernel{warps: 8, stages: 4, columns: 192},
		walkDQ:       walkKernel{warps: 8, stages: 3, columns: 320},
		selectBlocks: selectBlocksKernel{teams: 2, stages: 3, blocks: 1},
	}, {
		c: 192, cv: 192, split: true,
		forward:     queryKernel{rows: 128, tileKeys: 80, keyStages: 2, valueStages: 2},
		dq:          queryKernel{rows: 128, tileKeys: 32, keyStages: 3, valueStages: 3},
		dkv:         rowRing{rows: 64, stages: 3},
		listed:      rowRing{rows: 64, stages: 3},
		pairs:       pairKernel{groups: 4, rowStages: 4, keyStages: 2},
		forced:      forcedKernel{queryKernel: queryKernel{rows: 128, tileKeys: 32, keyStages: 2, valueStages: 2}, resultStages: 1},
		pairGrad:    rowRing{rows: 64, stages: 3},
		walkForward: walkKernel{warps: 8, stages: 3, columns: 192},
		walkDQ:      walkKernel{warps: 8, stages: 2, columns: 384},
	}, {
		c: 256, cv: 128, split: true,
		forward:      queryKernel{rows: 128, tileKeys: 48, keyStages: 2, valueStages: 2},
		dq:           queryKernel{rows: 64, tileKeys: 48, keyStages: 3, valueStages: 3},
		dkv:          rowRing{rows: 64, stages: 3},
		listed:       rowRing{rows: 64, stages: 3},
		pairs:        pairKernel{groups: 4, rowStages: 4, keyStages: 2},
		forced:       forcedKernel{queryKernel: queryKernel{rows: 128, tileKeys: 32, keyStages: 2, valueStages: 2}, resultStages: 1},
		pairGrad:     rowRing{rows: 48, stages: 3},
		walkForward:  walkKernel{warps: 8, stages: 3, columns: 256},
		walkDQ:       walkKernel{warps: 4, stages: 3, columns: 384},
		selectBlocks: selectBlocksKernel{teams: 2, stages: 2, blocks: 1},
	}, {
		c: 256, cv: 192, split: true,
		forward:     queryKernel{rows: 128, tileKeys: 48, keyStages: 2, valueStages: 2},
		dq:          queryKernel{rows: 64, tileKeys: 48, keyStages: 3, valueStages: 2},
		dkv:         rowRing{rows: 48, stages: 3},
		listed:      rowRing{rows: 48, stages: 3},
		pairs:       pairKernel{groups: 3, rowStages: 3, keyStages: 2},
		forced:      forcedKernel{queryKernel: queryKernel{rows: 64, tileKeys: 32, keyStages: 2, valueStages: 2}, resultStages: 2},
		pairGrad:    rowRing{rows: 48, stages: 3},
		walkForward: walkKernel{warps: 8, stages: 2, columns: 256},
		walkDQ:      walkKernel{warps: 4, stages: 3, columns: 448},
	}}
}

// name returns the widths as the names of kernels have them.
func (w widths) name() string {
	if w.c == w.cv {
		return fmt.Sprint(w.c)
	}
	return fmt.Sprintf("%dx%d", w.c, w.cv)
}

// The functions below return bytes of shared memory; assertions in the kernels check these sums. The kernels that own rows come first:
// rows, keys and values of all stages, results of pairs of all stages, and numbers of each row.

func (w widths) forwardBytes() int64 { return w.forwardTiles(w.forward) + 2*24*w.forward.rows + 384 }

func (w widths) forcedBytes() int64 {
	r := w.forced
	return w.forwardTiles(r.queryKernel) + 2*48*r.rows + r.resultStages*(2*r.rows*w.cv+544*r.rows/64) + 408
}

// forwardTiles counts rows of q twice.
func (w widths) forwardTiles(r queryKernel) int64 {
	return 2 * (2*r.rows*w.c + r.tileKeys*(r.keyStages*w.c+r.valueStages*w.cv))
}

// dqBytes counts rows of q or do twice if they do not stay in registers.
func (w widths) dqBytes() int64 {
	r, columns := w.dq, w.c+w.cv
	if w.c > 128 {
		columns += w.c
	}
	if w.c > 192 {
		columns += w.cv
	}
	return 2*(r.rows*columns+r.tileKeys*(r.keyStages*w.c+r.valueStages*w.cv)) + 3*24*r.rows + 384
}

// dkvShape is the shape of a kernel for dk and dv: its tiles of rows, and the keys, threads and bytes of shared memory of a thread block.
type dkvShape struct {
	rowRing
	keys, threads, bytes int64
}

// shapeOfDKV returns the shape of a dk/dv kernel whose thread blocks own `keys` keys. With split, two warpgroups own the same keys: one
// computes dk, the other dv. Shared memory has keys and values once, rows and their gradients of all stages, and numbers of each row.
func (w widths) shapeOfDKV(r rowRing, keys int64, split bool) dkvShape {
	threads := wgmmaThreads(keys)
	if split {
		threads += 128
	}
	return dkvShape{r, keys, threads, 2*(w.c+w.cv)*(keys+r.stages*r.rows) + r.stages*(20*r.rows+32) + 112}
}

func (w widths) spanDKV() dkvShape {
	if w.split {
		return w.shapeOfDKV(w.dkv, 64, true)
	}
	return w.shapeOfDKV(w.dkv, 2*64, false)
}

func (w widths) listedDKV() dkvShape { return w.shapeOfDKV(w.listed, listedKeys, w.split) }

// pairsDKV returns the shape of the dk/dv kernel that also computes the results for dq. It needs more registers, so it is split at
// smaller widths, too; then dS has two tiles of its own.
func (w widths) pairsDKV() dkvShape {
	split := w.c > 128
	shape := w.shapeOfDKV(w.pairGrad, listedKeys, split)
	if split {
		shape.bytes += 2 * w.pairGrad.rows * 128
	}
	return shape
}

// itemTiles is the most tiles of rows of a work item.
func (w widths) itemTiles() int64 {
	if w.c > 192 {
		return 2
	}
	return 8
}

// pairForwardBytes is the shared memory of the kernel that computes the results of pairs: rows and keys, numbers of each tile of rows,
// lists, and the barriers.
func (w widths) pairForwardBytes() int64 {
	r := w.pairs
	return 2*64*(r.rowStages*w.c+r.keyStages*(w.c+w.cv)) + r.rowStages*(32+16) + r.keyStages*(4*64*w.itemTiles()+24+24) + (r.keyStages+1)/2*8 + 8
}

// walkBytes is the shared memory of a walk kernel: stages, rows and barriers.
func (w widths) walkBytes(r walkKernel) int64 {
	return r.stages*2*64*(w.c+w.cv) + r.warps*2*16*r.columns + 8*r.stages*(r.warps+5)
}
