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
	selectBlocksTiles    = []tile{{64, 64}, {32, 32}, {16, 16}}
)

// minResident is the number of thread blocks for which a multiprocessor should have room, so that one loads while another computes.
const minResident = 2

// tiledKernel is a general kernel, which is compiled for several tiles.
type tiledKernel struct {
	name   string
	tiles  []tile                 // the largest first
	shared func(tile) int64       // bytes of shared memory of a thread block
	grid   func(tile) int64       // thread blocks
	owned  func(rows int64) int64 // rows that a thread block owns of those of a tile; nil if it owns keys
}

// choose returns the largest tile with which minResident blocks fit a multiprocessor and all multiprocessors have work,
// or else the smallest tile.
func (k tiledKernel) choose(g kernels.GPU) tile {
	for _, x := range k.tiles {
		n := k.shared(x)
		fits := n <= int64(g.SharedPerBlock) && minResident*(n+kernels.ReservedShared) <= int64(g.SharedPerSM)
		if fits && k.grid(x) >= int64(g.SMs) {
			return x
		}
	}
	return k.tiles[len(k.tiles)-1]
}

func (k tiledKernel) guard(c *kernels.Call) error {
	return c.CheckShared("the smallest tiles", k.shared(k.choose(c.GPU)))
}

func (k tiledKernel) add(b *kernels.Builder, p *params) {
	if k.owned != nil {
		p.ownRows(k.owned(k.choose(b.GPU).m))
	}
	k.addWith(b, p)
}

// addWith adds the launch with an argument that is complete.
func (k tiledKernel) addWith(b *kernels.Builder, p any) {
	x := k.choose(b.GPU)
	addFourWarps(b, b.Type.Name(fmt.Sprintf("%s_%d", k.name, x.m)), k.grid(x), k.shared(x), p)
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

// mmaWidth returns the width of the mma kernels for the dims of a.
func (a problem) mmaWidth() int64 {
	if max(a.D, a.Dv) > 64 {
		return 128
	}
	return 64
}

// guardMMA refuses dims that the mma kernels do not take, and a width that needs more shared memory than a block may
// have. shared returns the shared memory of a thread block.
func (a problem) guardMMA(shared func(width int64) int64) error {
	if a.D%8 != 0 || a.Dv%8 != 0 || max(a.D, a.Dv) > 128 {
		return graph.Refuse(graph.ReasonHeadDim, "dims %d and %d, want multiples of 8 up to 128", a.D, a.Dv)
	}
	return a.CheckShared("mma", shared(a.mmaWidth()))
}

func (a problem) mmaKernel(op string) string {
	return a.Type.Name(fmt.Sprintf("%s_mma%d", op, a.mmaWidth()))
}

// addDQ adds the launch of the mma kernel for dq (attention_mma_dq.cu). Of the rows of its tile a thread block owns
// ownedRows(rows). It has unionBytes(rows) more shared memory than kernels whose mask is a span. If tall is set and
// enough thread blocks remain to fill the GPU, addDQ takes the tall kernel, which reads the keys once for twice as many
// rows.
func (a problem) addDQ(
	b *kernels.Builder, branch string, p *params, tall bool, unionBytes, ownedRows func(rows int64) int64,
) {
	op, rows, width := branch+"_dq", int64(mmaRows), a.mmaWidth()
	shared := func(rows int64) int64 { return mmaDQBytes(width, rows) + unionBytes(rows) }
	enough := a.rowTiles(2*rows) >= tallBlocks*int64(a.GPU.SMs)
	if tall && width == 64 && enough && shared(2*rows) <= int64(a.GPU.SharedPerBlock) {
		op, rows = op+"_tall", 2*rows
	}
	owned := ownedRows(rows)
	p.ownRows(owned)
	addFourWarps(b, a.mmaKernel(op), a.rowTiles(owned), shared(rows), p)
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
