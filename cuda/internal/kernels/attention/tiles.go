package attention

import (
	"fmt"

	"github.com/gorgonia-nsa/nsa/cuda/internal/kernels"
	"github.com/gorgonia-nsa/nsa/graph"
)

// tile is a tile of m rows, which a thread block owns, and of n columns, over which it iterates.
type tile struct{ m, n int64 }

// The tiles that the general kernels are compiled for, the largest first.
var (
	spanForwardTiles     = []tile{{64, 64}, {32, 32}, {16, 16}}
	selectedForwardTiles = []tile{{64, 64}, {32, 64}, {16, 16}}
	gradientTiles        = []tile{{64, 32}, {32, 32}, {16, 16}}
	selectTiles          = []tile{{64, 64}, {32, 32}, {16, 16}}
)

// minResident is the number of thread blocks for which a multiprocessor should have room, so that one loads while another computes.
const minResident = 2

// launchSize gives, for a tile, the shared memory of a thread block in bytes and the number of thread blocks.
type launchSize struct{ shared, grid func(tile) int64 }

// chooseTile returns the largest tile with which minResident blocks fit a multiprocessor and all multiprocessors have work, or else
// the smallest tile.
func (a problem) chooseTile(tiles []tile, size launchSize) (tile, error) {
	g := a.GPU
	for _, x := range tiles {
		if n := size.shared(x); n <= int64(g.SharedPerBlock) && minResident*(n+kernels.ReservedShared) <= int64(g.SharedPerSM) && size.grid(x) >= int64(g.SMs) {
			return x, nil
		}
	}
	x := tiles[len(tiles)-1]
	return x, a.CheckShared("the smallest tiles", size.shared(x))
}

// launchTiled adds a launch of a kernel that is compiled for several tiles. ownedRows, if not nil, returns how many of a tile's rows a
// thread block owns.
func (a problem) launchTiled(op string, tiles []tile, size launchSize, p *params, ownedRows func(rows int64) int64) error {
	x, err := a.chooseTile(tiles, size)
	if err != nil {
		return err
	}
	if ownedRows != nil {
		p.ownRows(ownedRows(x.m))
	}
	a.launchFourWarps(a.Type.Name(fmt.Sprintf("%s_%d", op, x.m)), size.grid(x), size.shared(x), p)
	return nil
}

// floats is the number of floats of shared memory that rows of c columns take.
func floats(rows, c int64) int64 { return rows * 4 * (kernels.CeilDiv(c, 4) | 1) }

func (a problem) forwardBytes(x tile) int64 {
	return 4 * (floats(x.m, a.D) + floats(x.m, a.Dv) + floats(x.n, max(a.D, a.Dv)) + floats(x.m, x.n))
}

func (a problem) dqBytes(x tile) int64 {
	return 4 * (floats(2*x.m+x.n, a.D) + floats(x.m+x.n, a.Dv) + floats(x.m, x.n))
}

func (a problem) dkvBytes(x tile) int64 {
	return 4 * (floats(2*x.m+x.n, a.D) + floats(2*x.m+x.n, a.Dv) + floats(x.m, x.n) + 4*x.n)
}

// slotBytes is the shared memory of the slots of a tile of selected blocks.
func slotBytes(x tile) int64 { return 4 * (3*x.n + 4) }

// The tiles of the mma kernels.
const (
	mmaRows    = 64 // rows that a thread block owns; twice as many in tall kernels
	tallBlocks = 3  // thread blocks of a tall kernel that a multiprocessor should get
	mmaKeys    = 64 // keys that a thread block owns, or reads at a time
)

// mmaWidth returns the width, 64 or 128, of the mma kernels for the dims of a. It refuses other dims, and a width that needs more
// shared memory than a block may have. shared returns the shared memory of a thread block.
func (a problem) mmaWidth(shared func(width int64) int64) (width int64, err error) {
	if a.D%8 != 0 || a.Dv%8 != 0 || max(a.D, a.Dv) > 128 {
		return 0, graph.Refuse(graph.ReasonHeadDim, "dims %d and %d, want multiples of 8 up to 128", a.D, a.Dv)
	}
	if width = 64; max(a.D, a.Dv) > 64 {
		width = 128
	}
	if err := a.CheckShared("mma", shared(width)); err != nil {
		return 0, err
	}
	a.Aligned(16)
	return width, nil
}

// mmaKernel returns the kernel of an op that is compiled for the widths 64 and 128.
func (a problem) mmaKernel(op string, width int64) string {
	return a.Type.Name(fmt.Sprintf("%s_mma%d", op, width))
}

// launchDQ adds the launch of the mma kernel for dq. Of the rows of its tile a thread block owns ownedRows(rows). It has
// unionBytes(rows) more shared memory than kernels whose mask is a span. If tall is set and enough thread blocks remain to fill the GPU,
// launchDQ launches the tall kernel, which reads the keys once for twice as many rows.
func (a problem) launchDQ(branch string, width int64, p *params, tall bool, unionBytes, ownedRows func(rows int64) int64) {
	op, rows := branch+"_dq", int64(mmaRows)
	shared := func(rows int64) int64 { return mmaDQBytes(width, rows) + unionBytes(rows) }
	if n := 2 * rows; tall && width == 64 && a.rowTiles(n) >= tallBlocks*int64(a.GPU.SMs) && shared(n) <= int64(a.GPU.SharedPerBlock) {
		op, rows = op+"_tall", n
	}
	owned := ownedRows(rows)
	p.ownRows(owned)
	a.launchFourWarps(a.mmaKernel(op, width), a.rowTiles(owned), shared(rows), p)
}

// mmaForwardBytes is the shared memory of a forward kernel: the rows once, the range of keys that each row sees, two stages of keys and
// values, and 16 bytes for their source.
func mmaForwardBytes(width int64) int64 {
	return 2*width*(mmaRows+4*mmaKeys) + 8*mmaRows + 16
}

// mmaDQBytes is the shared memory of a kernel for dq: as in the forward, and do, lse and delta of the rows.
func mmaDQBytes(width, rows int64) int64 { return 2*width*(2*rows+4*mmaKeys) + 16*rows + 16 }

// mmaDKVBytes is the shared memory of a kernel that owns `keys` keys: keys and values once, two stages of rows and their gradients,
// and 24 bytes for each row of three tiles.
func mmaDKVBytes(width, keys int64) int64 {
	rows := int64(64)
	if width == 128 && keys == mmaKeys {
		rows = 32
	}
	return 2*width*(2*keys+4*rows) + 3*24*rows
}

func mmaBackwardBytes(width, keys int64) int64 {
	return max(mmaDQBytes(width, mmaRows), mmaDKVBytes(width, keys))
}
