package attention

import "fmt"

// ring is the shape of a ring buffer: its tiles of n rows, and its stages, some of which are loaded ahead.
type ring struct{ n, stages int64 }

// keyRing is the shape of a kernel that owns rows: its rows, the n keys of a tile, and the stages of keys and of values.
type keyRing struct{ rows, n, keys, values int64 }

// teamRing is the shape of a kernel that chooses blocks: its teams, the stages of keys, and its thread blocks on a multiprocessor.
type teamRing struct{ teams, stages, blocks int64 }

// pairRing is the shape of a kernel that computes the results of pairs: its loading and its computing warp groups, its stages of
// rows and of keys, and its arrays of rows: 1 for q, 2 for q and do.
type pairRing struct{ loaders, groups, rows, keys, arrays int64 }

// walkRing is the shape of a kernel that walks: its computing warps of 16 rows, its stages of keys and values, and the columns of
// its rows in shared memory.
type walkRing struct{ warps, stages, columns int64 }

// widths holds a width c of q and k, a width cv of v, and the shapes of the kernels on warp groups that are compiled for these
// widths. The choice of blocks has no values: it takes the first widths whose c fits.
type widths struct {
	c, cv               int64
	split               bool // one group makes dk and another one dv, of the same keys
	forward, dq         keyRing
	dkv, listed         ring // tiles of the rows of a span, and of listed rows
	pairForward, pairDQ pairRing
	walkForward, walkDQ walkRing
	choice              teamRing
}

// allWidths returns the widths in order of preference.
func allWidths() []widths {
	return []widths{{
		c: 64, cv: 64,
		forward: keyRing{192, 112, 5, 5}, dq: keyRing{192, 48, 5, 4}, dkv: ring{128, 4}, listed: ring{112, 3},
		pairForward: pairRing{1, 4, 12, 4, 1}, pairDQ: pairRing{2, 3, 6, 3, 2},
		walkForward: walkRing{12, 12, 0}, walkDQ: walkRing{8, 12, 0}, choice: teamRing{2, 3, 2},
	}, {
		c: 128, cv: 128,
		forward: keyRing{192, 80, 3, 3}, dq: keyRing{128, 48, 5, 4}, dkv: ring{64, 4}, listed: ring{48, 3},
		pairForward: pairRing{1, 4, 8, 2, 1}, pairDQ: pairRing{1, 3, 3, 3, 2},
		walkForward: walkRing{8, 7, 0}, walkDQ: walkRing{8, 6, 128}, choice: teamRing{4, 3, 1},
	}, {
		c: 192, cv: 128,
		forward: keyRing{128, 96, 2, 2}, dq: keyRing{128, 48, 3, 2}, dkv: ring{32, 6}, listed: ring{32, 3},
		pairForward: pairRing{1, 4, 4, 3, 1}, pairDQ: pairRing{1, 3, 3, 2, 2},
		walkForward: walkRing{8, 4, 192}, walkDQ: walkRing{8, 3, 320}, choice: teamRing{2, 3, 1},
	}, {
		c: 192, cv: 192, split: true,
		forward: keyRing{128, 80, 2, 2}, dq: keyRing{128, 32, 3, 3}, dkv: ring{64, 3}, listed: ring{64, 3},
		pairForward: pairRing{1, 4, 4, 2, 1}, pairDQ: pairRing{1, 2, 2, 2, 2},
		walkForward: walkRing{8, 3, 192}, walkDQ: walkRing{8, 2, 384},
	}, {
		c: 256, cv: 128, split: true,
		forward: keyRing{128, 48, 2, 2}, dq: keyRing{64, 48, 3, 3}, dkv: ring{64, 3}, listed: ring{64, 3},
		pairForward: pairRing{1, 4, 4, 2, 1}, pairDQ: pairRing{1, 2, 2, 2, 2},
		walkForward: walkRing{8, 3, 256}, walkDQ: walkRing{4, 3, 384}, choice: teamRing{2, 2, 1},
	}, {
		c: 256, cv: 192, split: true,
		forward: keyRing{128, 48, 2, 2}, dq: keyRing{64, 48, 3, 2}, dkv: ring{48, 3}, listed: ring{48, 3},
		pairForward: pairRing{1, 3, 3, 2, 1}, pairDQ: pairRing{1, 2, 2, 2, 2},
		walkForward: walkRing{8, 2, 256}, walkDQ: walkRing{4, 3, 448},
	}}
}

// name returns the widths as the names of kernels have them.
func (x widths) name() string {
	if x.c == x.cv {
		return fmt.Sprint(x.c)
	}
	return fmt.Sprintf("%dx%d", x.c, x.cv)
}

// forwardBytes is the shared memory of the forward kernel: the rows twice, keys and values of all stages, and numbers of each row.
// The kernels have assertions that hold them to this and to the sums below.
func (x widths) forwardBytes() int64 {
	r := x.forward
	return 2*(2*r.rows*x.c+r.n*(r.keys*x.c+r.values*x.cv)) + 2*24*r.rows + 376
}

// dqBytes is the shared memory of the kernel for dq: the rows, keys and values of all stages, and numbers of each row of three
// tiles. Rows that do not stay in registers count twice.
func (x widths) dqBytes() int64 {
	r, columns := x.dq, x.c+x.cv
	if x.c > 128 {
		columns += x.c
	}
	if x.c > 192 {
		columns += x.cv
	}
	return 2*(r.rows*columns+r.n*(r.keys*x.c+r.values*x.cv)) + 3*24*r.rows + 384
}

// dkvBytes is the shared memory of a kernel that owns keys: keys and values once, rows and their gradients of all stages, and
// numbers of each row.
func (x widths) dkvBytes(keys int64, r ring) int64 {
	return 2*(x.c+x.cv)*(keys+r.stages*r.n) + r.stages*(24*r.n+32) + 80
}

func (x widths) spanDKVBytes() int64   { return x.dkvBytes(x.spanKeys(), x.dkv) }
func (x widths) listedDKVBytes() int64 { return x.dkvBytes(warpGroupListKeys, x.listed) }

// itemTiles is the most tiles of rows of a work item.
func (x widths) itemTiles() int64 {
	if x.c > 192 {
		return 2
	}
	return 8
}

// pairTileBytes is the shared memory of a kernel that computes the results of pairs: rows and keys, numbers of each row, and the
// barriers.
func (x widths) pairTileBytes(r pairRing) int64 {
	row, tile := x.c, int64(40)
	if r.arrays == 2 {
		row, tile = x.c+x.cv, 544
	}
	return 2*64*(r.rows*row+r.keys*(x.c+x.cv)) + r.rows*(tile+16) + r.keys*(4*64*x.itemTiles()+24) + 8
}

// walkBytes is the shared memory of a kernel that walks: stages, rows and barriers.
func (x widths) walkBytes(r walkRing) int64 {
	return r.stages*2*64*(x.c+x.cv) + r.warps*2*16*r.columns + 8*r.stages*(r.warps+5)
}

// spanKeys is the number of keys that a thread block of the kernel for dk and dv owns. For listed rows it is warpGroupListKeys.
func (x widths) spanKeys() int64 {
	if x.split {
		return 64
	}
	return 2 * 64
}

// dkvThreads is the number of threads of a thread block of the kernels for dk and dv.
func (x widths) dkvThreads(keys int64) int64 {
	if x.split {
		return 128 + 2*128
	}
	return warpGroupThreads(keys)
}
