package attention

import (
	"fmt"
	"math"
	"unsafe"

	"github.com/gorgonia-nsa/nsa/cuda/internal/driver"
	"github.com/gorgonia-nsa/nsa/cuda/internal/kernels"
	"github.com/gorgonia-nsa/nsa/graph"
)

// The blocks of the kernels on warp groups: one group loads, each of the others owns 64 rows or keys.
const (
	warpGroupKeys     = 2 * 64
	warpGroupListKeys = 64      // of listed rows
	maxMapStride      = 1 << 40 // bytes from one element of an axis of a tensor map to the next one
)

// warpGroupThreads is the number of threads of a block that owns so many rows or keys.
func warpGroupThreads(owned int64) int64 { return 128 + 2*owned }

// ring is tiles of n rows, of which some are loaded ahead.
type ring struct{ n, stages int64 }

// keyRing is the shape of a kernel that owns rows: these, the keys of a tile, and the stages of keys and of values.
type keyRing struct{ rows, n, keys, values int64 }

// teamRing is the shape of a kernel that chooses blocks: its teams, and the stages of keys.
type teamRing struct{ teams, stages int64 }

// widths are a width c of q and k and a width cv of v, and the shapes of the kernels on warp groups that are compiled for them. A shape
// of zeros is that of a kernel that there is not.
type widths struct {
	c, cv               int64
	forward, dq         keyRing
	dkv, listed         ring // of the rows of a span, and of listed rows
	pairForward, pairDQ pairRing
	choice              teamRing
}

// allWidths are in order of preference. Gradients of wider heads have too many sums for the registers.
func allWidths() []widths {
	return []widths{
		{64, 64, keyRing{192, 112, 5, 5}, keyRing{192, 48, 5, 4}, ring{128, 4}, ring{112, 3}, pairRing{4, 12, 4, 1}, pairRing{3, 9, 3, 2}, teamRing{2, 3}},
		{128, 128, keyRing{192, 80, 3, 3}, keyRing{128, 48, 5, 4}, ring{64, 4}, ring{48, 3}, pairRing{4, 8, 2, 1}, pairRing{3, 3, 3, 2}, teamRing{4, 3}},
		{192, 128, keyRing{128, 96, 2, 2}, keyRing{128, 48, 3, 2}, ring{48, 4}, ring{32, 3}, pairRing{4, 4, 3, 1}, pairRing{3, 3, 2, 2}, teamRing{2, 3}},
		{c: 192, cv: 192, forward: keyRing{128, 80, 2, 2}, pairForward: pairRing{4, 4, 2, 1}},
		{c: 256, cv: 128, forward: keyRing{128, 48, 2, 2}, pairForward: pairRing{4, 4, 2, 1}, choice: teamRing{2, 2}},
		{c: 256, cv: 192, forward: keyRing{128, 48, 2, 2}, pairForward: pairRing{3, 3, 2, 1}},
	}
}

// name is how kernels are named after their widths.
func (x widths) name() string {
	if x.c == x.cv {
		return fmt.Sprint(x.c)
	}
	return fmt.Sprintf("%dx%d", x.c, x.cv)
}

// warpGroupKernel returns the kernel of an op that is compiled for some widths.
func (a problem) warpGroupKernel(op string, x widths) string {
	return a.Type.Name(op + "_wgmma" + x.name())
}

// forwardBytes is the shared memory of the forward: the rows twice, keys and values of all stages, and what is known of the rows. It is 0
// without such a kernel, as that of the others is.
func (x widths) forwardBytes() int64 {
	r := x.forward
	if r.rows == 0 {
		return 0
	}
	return 2*(2*r.rows*x.c+r.n*(r.keys*x.c+r.values*x.cv)) + 2*24*r.rows + 368
}

// dqBytes is that of the kernel for dq: the rows with their gradients, of more than 128 columns twice, and what is known of the rows of
// three tiles.
func (x widths) dqBytes() int64 {
	r, c := x.dq, x.c
	if r.rows == 0 {
		return 0
	}
	if x.c > 128 {
		c = 2 * x.c
	}
	return 2*(r.rows*(c+x.cv)+r.n*(r.keys*x.c+r.values*x.cv)) + 3*24*r.rows + 384
}

// dkvBytes is that of a kernel that owns keys: keys and values once, rows and their gradients of all stages, and what is known of the
// rows.
func (x widths) dkvBytes(keys int64, r ring) int64 {
	if r.n == 0 {
		return 0
	}
	return 2*(x.c+x.cv)*(keys+r.stages*r.n) + r.stages*(24*r.n+32) + 72
}

func (x widths) spanDKVBytes() int64   { return x.dkvBytes(warpGroupKeys, x.dkv) }
func (x widths) listedDKVBytes() int64 { return x.dkvBytes(warpGroupListKeys, x.listed) }

// most is the largest of the shared memory of kernels, 0 if there is not each of them.
func most(bytes ...int64) int64 {
	all := int64(0)
	for _, n := range bytes {
		if n == 0 {
			return 0
		}
		all = max(all, n)
	}
	return all
}

// onWarpGroups returns the widths of the kernels on warp groups, which only devices of compute capability 9.0 have, for the dims of a.
// shared is the shared memory that a block needs, 0 where there are no kernels.
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
	var compiled []string
	for _, x := range allWidths() {
		n := shared(x)
		if n == 0 {
			continue
		}
		compiled = append(compiled, fmt.Sprintf("%d and %d", x.c, x.cv))
		if a.D%8 != 0 || a.Dv%8 != 0 || a.D > x.c || a.Dv > x.cv {
			continue
		}
		if most := int64(a.GPU.SharedPerBlock); n > most {
			return x, graph.Refuse(graph.ReasonShared, "warp groups: %d bytes of shared memory a block, which has %d", n, most)
		}
		a.Aligned(16)
		return x, nil
	}
	return widths{}, graph.Refuse(graph.ReasonHeadDim, "warp groups: dims %d and %d, want multiples of 8 up to one of %v", a.D, a.Dv, compiled)
}

// spanParams is SpanParams of attention_wgmma_span.cuh.
type spanParams struct {
	k, v   [driver.MapBytes]byte
	params `c:"p"`
	_      [56]byte
}

// launchOnWarpGroups adds the launch of a kernel that owns rows and reads keys by tensor maps: one block a multiprocessor, or less.
func (a problem) launchOnWarpGroups(op string, x widths, r keyRing, shared int64, of *params) {
	p := &spanParams{params: *of}
	p.count = int32(r.rows)
	a.Launch(a.warpGroupKernel(op, x), kernels.Line(min(a.rowTiles(r.rows), int64(a.GPU.SMs))), kernels.Line(warpGroupThreads(r.rows)), shared, p)
	a.boxes(unsafe.Offsetof(p.k), a.In[1], [4]int64{a.D, a.Hkv, a.T, a.B}, r.n)
	a.boxes(unsafe.Offsetof(p.v), a.In[2], [4]int64{a.Dv, a.Hkv, a.T, a.B}, r.n)
}

// boxes puts the tensor map of an operand, an array of these dims, at an offset of the last launch's argument.
func (a problem) boxes(offset uintptr, x kernels.Operand, dims [4]int64, rows int64) {
	encode := a.GPU.Boxes
	a.Encode(offset, x.Ref, func(to []byte, at kernels.Ptr) error { return encode(to, at, dims, rows) })
}
