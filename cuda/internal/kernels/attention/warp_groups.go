package attention

import (
	"fmt"
	"math"
	"unsafe"

	"github.com/gorgonia-nsa/nsa/cuda/internal/driver"
	"github.com/gorgonia-nsa/nsa/cuda/internal/kernels"
	"github.com/gorgonia-nsa/nsa/graph"
)

// In a thread block of the kernels on warp groups, one group loads and each of the others owns 64 rows or keys.
const (
	warpGroupListKeys = 64      // keys that a thread block owns, with listed rows
	maxMapStride      = 1 << 40 // bytes from one element of an axis of a tensor map to the next one
)

// warpGroupThreads is the number of threads of a thread block that owns that many rows or keys.
func warpGroupThreads(owned int64) int64 { return 128 + 2*owned }

// ring is the shape of a ring buffer: its tiles of n rows, and its stages, some of which are loaded ahead.
type ring struct{ n, stages int64 }

// keyRing is the shape of a kernel that owns rows: its rows, the n keys of a tile, and the stages of keys and of values.
type keyRing struct{ rows, n, keys, values int64 }

// teamRing is the shape of a kernel that chooses blocks: its teams, the stages of keys, and its thread blocks on a multiprocessor.
type teamRing struct{ teams, stages, blocks int64 }

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
	return []widths{
		{64, 64, false, keyRing{192, 112, 5, 5}, keyRing{192, 48, 5, 4}, ring{128, 4}, ring{112, 3}, pairRing{1, 4, 12, 4, 1}, pairRing{2, 3, 6, 3, 2}, walkRing{12, 12, 0}, walkRing{8, 12, 0}, teamRing{2, 3, 2}},
		{128, 128, false, keyRing{192, 80, 3, 3}, keyRing{128, 48, 5, 4}, ring{64, 4}, ring{48, 3}, pairRing{1, 4, 8, 2, 1}, pairRing{1, 3, 3, 3, 2}, walkRing{8, 7, 0}, walkRing{8, 6, 128}, teamRing{4, 3, 1}},
		{192, 128, false, keyRing{128, 96, 2, 2}, keyRing{128, 48, 3, 2}, ring{32, 6}, ring{32, 3}, pairRing{1, 4, 4, 3, 1}, pairRing{1, 3, 3, 2, 2}, walkRing{8, 4, 192}, walkRing{8, 3, 320}, teamRing{2, 3, 1}},
		{192, 192, true, keyRing{128, 80, 2, 2}, keyRing{128, 32, 3, 3}, ring{64, 3}, ring{64, 3}, pairRing{1, 4, 4, 2, 1}, pairRing{1, 2, 2, 2, 2}, walkRing{8, 3, 192}, walkRing{8, 2, 384}, teamRing{}},
		{256, 128, true, keyRing{128, 48, 2, 2}, keyRing{64, 48, 3, 3}, ring{64, 3}, ring{64, 3}, pairRing{1, 4, 4, 2, 1}, pairRing{1, 2, 2, 2, 2}, walkRing{8, 3, 256}, walkRing{4, 3, 384}, teamRing{2, 2, 1}},
		{256, 192, true, keyRing{128, 48, 2, 2}, keyRing{64, 48, 3, 2}, ring{48, 3}, ring{48, 3}, pairRing{1, 3, 3, 2, 1}, pairRing{1, 2, 2, 2, 2}, walkRing{8, 2, 256}, walkRing{4, 3, 448}, teamRing{}},
	}
}

// name returns the widths as the names of kernels have them.
func (x widths) name() string {
	if x.c == x.cv {
		return fmt.Sprint(x.c)
	}
	return fmt.Sprintf("%dx%d", x.c, x.cv)
}

// warpGroupKernel returns the kernel of an op that is compiled for the widths x.
func (a problem) warpGroupKernel(op string, x widths) string {
	return a.Type.Name(op + "_wgmma" + x.name())
}

// forwardBytes is the shared memory of the forward kernel: the rows twice, keys and values of all stages, and numbers of each row.
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

// onWarpGroups returns the widths of the kernels on warp groups for the dims of a. Only devices of compute capability 9.0 have
// these kernels. shared returns the shared memory that a thread block needs.
func (a problem) onWarpGroups(shared func(widths) int64) (widths, error) {
	if a.GPU.Capability != 90 {
		return widths{}, graph.Refuse(graph.ReasonCapability, "compute capability %.1f, want 9.0", float64(a.GPU.Capability)/10)
	}
	if a.GPU.Boxes == nil {
		return widths{}, graph.Refuse(graph.ReasonDevice, "the driver makes no tensor maps")
	}
	if bytes := 2 * a.T * a.Hkv * max(a.D, a.Dv); bytes >= maxMapStride {
		return widths{}, graph.Refuse(graph.ReasonStride, "%d bytes of keys or values, want less than 2^40", bytes)
	}
	if a.S*a.Hq > math.MaxInt32 {
		return widths{}, graph.Refuse(graph.ReasonShape, "%d queries times %d heads, want less than 2^31", a.S, a.Hq)
	}
	for _, x := range allWidths() {
		if a.D%8 != 0 || a.Dv%8 != 0 || a.D > x.c || a.Dv > x.cv {
			continue
		}
		if n, most := shared(x), int64(a.GPU.SharedPerBlock); n > most {
			return x, graph.Refuse(graph.ReasonShared, "warp groups: %d bytes of shared memory a block, which has %d", n, most)
		}
		a.Aligned(16)
		return x, nil
	}
	return widths{}, graph.Refuse(graph.ReasonHeadDim, "warp groups: dims %d and %d, want multiples of 8 up to 256 and 192", a.D, a.Dv)
}

// spanParams is SpanParams of attention_wgmma_span.cuh.
type spanParams struct {
	k, v   [driver.MapBytes]byte
	params `c:"p"`
	_      [48]byte
}

// keyBoxes adds the tensor maps of the keys and values to the last launch, at offsets k and v of its argument. A box has `keys`
// keys.
func (a problem) keyBoxes(k, v uintptr, keys int64) {
	a.boxes(k, a.In[1], [4]int64{a.D, a.Hkv, a.T, a.B}, keys)
	a.boxes(v, a.In[2], [4]int64{a.Dv, a.Hkv, a.T, a.B}, keys)
}

// launchOnWarpGroups adds the launch of a kernel that owns rows and reads keys by tensor maps. There is at most one thread block
// for each multiprocessor.
func (a problem) launchOnWarpGroups(op string, x widths, r keyRing, shared int64, of *params) {
	p := &spanParams{params: *of}
	p.count = int32(r.rows)
	a.Launch(a.warpGroupKernel(op, x), kernels.Line(min(a.rowTiles(r.rows), int64(a.GPU.SMs))), kernels.Line(warpGroupThreads(r.rows)), shared, p)
	a.keyBoxes(unsafe.Offsetof(p.k), unsafe.Offsetof(p.v), r.n)
}

// boxes adds the tensor map of x, an array of these dims, at an offset of the last launch's argument. A box has `rows` rows.
func (a problem) boxes(offset uintptr, x kernels.Operand, dims [4]int64, rows int64) {
	encode := a.GPU.Boxes
	a.Encode(offset, x.Ref, func(to []byte, at kernels.Ptr) error { return encode(to, at, dims, rows) })
}
