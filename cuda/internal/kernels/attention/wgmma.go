package attention

import (
	"math"
	"unsafe"

	"github.com/gorgonia-nsa/nsa/cuda/internal/driver"
	"github.com/gorgonia-nsa/nsa/cuda/internal/kernels"
	"github.com/gorgonia-nsa/nsa/graph"
)

// In a thread block of the wgmma kernels one warpgroup loads, and each of the others owns 64 rows or keys.
const (
	listedKeys   = 64      // keys that a thread block owns if its rows are listed
	maxMapStride = 1 << 40 // bytes from one element of an axis of a tensor map to the next one
)

// wgmmaThreads is the number of threads of a thread block that owns so many rows or keys.
func wgmmaThreads(owned int64) int64 { return 128 + 2*owned }

func (a problem) wgmmaKernel(op string, w widths) string {
	return a.Type.Name(op + "_wgmma" + w.name())
}

// widths returns the widths of the wgmma kernels for the dims of a, the zero widths if no kernel takes them.
func (a problem) widths() widths {
	for _, w := range allWidths() {
		if a.D%8 == 0 && a.Dv%8 == 0 && a.D <= w.c && a.Dv <= w.cv {
			return w
		}
	}
	return widths{}
}

// guardWGMMA refuses devices without these kernels, larger dims, and widths that need more shared memory than a block
// may have. shared returns the shared memory of a thread block.
func (a problem) guardWGMMA(shared func(widths) int64) error {
	if err := a.GPU.CheckSM90(); err != nil {
		return err
	}
	bytes, w := 2*max(a.T*a.Hkv, a.S*a.Hq)*max(a.D, a.Dv), a.widths()
	switch {
	case a.GPU.EncodeTensorMap == nil:
		return graph.Refuse(graph.ReasonDevice, "the driver does not encode tensor maps")
	case bytes >= maxMapStride:
		return graph.Refuse(graph.ReasonStride, "%d bytes of queries, keys or values, want less than 2^40", bytes)
	case a.S*a.Hq > math.MaxInt32:
		return graph.Refuse(graph.ReasonSize, "%d queries times %d heads, want less than 2^31", a.S, a.Hq)
	case w.c == 0:
		return graph.Refuse(graph.ReasonHeadDim, "dims %d and %d, want multiples of 8 up to 256 and 192", a.D, a.Dv)
	}
	return a.CheckShared("wgmma", shared(w))
}

// wgmmaParams is WgmmaParams of attention_wgmma_tiles.cuh.
type wgmmaParams struct {
	k, v   [driver.TensorMapBytes]byte
	params `c:"p"`
	_      [32]byte // the size is a multiple of 64, the alignment of a tensor map
}

// addKeyTensorMaps adds the tensor maps of the keys and values to the last launch, at offsets k and v of its argument.
// A box has `keys` keys.
func addKeyTensorMaps(b *kernels.Builder, k, v uintptr, keys int64) {
	addTensorMap(b, k, b.In[1], 1, keys)
	addTensorMap(b, v, b.In[2], 1, keys)
}

// addWGMMA adds the launch of a kernel that owns rows and reads keys by tensor maps. There is at most one thread block
// for each multiprocessor; it iterates over tiles.
func (a problem) addWGMMA(b *kernels.Builder, op string, w widths, r queryKernel, shared int64, argument *params) {
	p := &wgmmaParams{params: *argument}
	p.ownRows(r.rows)
	grid := kernels.Line(min(a.rowTiles(r.rows), int64(a.GPU.SMs)))
	b.AddLaunch(a.wgmmaKernel(op, w), grid, kernels.Line(wgmmaThreads(r.rows)), shared, p)
	addKeyTensorMaps(b, unsafe.Offsetof(p.k), unsafe.Offsetof(p.v), r.tileKeys)
}

// addTensorMap adds the tensor map of x [batch, tokens, heads, dim] at an offset of the last launch's argument. A box
// has some heads of some tokens.
func addTensorMap(b *kernels.Builder, offset uintptr, x kernels.Operand, heads, tokens int64) {
	encode, dims := b.GPU.EncodeTensorMap, [4]int64{x.Dim(3), x.Dim(2), x.Dim(1), x.Dim(0)}
	b.Encode(offset, x.Ref, func(to []byte, at kernels.Ptr) error {
		return encode(to, at, dims, [2]int64{heads, tokens})
	})
}

// keyGradientParams is KeyGradientParams of attention_pairs.cuh.
type keyGradientParams struct {
	k, v, q, dout [driver.TensorMapBytes]byte
	params        `c:"p"`
	pairGradients `c:"pairs"`
	_             [48]byte // as in wgmmaParams
}

// addDKVWGMMA adds the launch of a kernel for dk and dv. A tensor-map box of q or do holds `queries` queries: 1 if they
// are listed.
func (a problem) addDKVWGMMA(
	b *kernels.Builder, op string, w widths, shape dkvShape, grid, queries int64, p *keyGradientParams,
) {
	b.AddLaunch(a.wgmmaKernel(op, w), kernels.Line(grid), kernels.Line(shape.threads), shape.bytes, p)
	addKeyTensorMaps(b, unsafe.Offsetof(p.k), unsafe.Offsetof(p.v), mmaKeys)
	heads := min(a.headsPerGroup(), shape.rows)
	addTensorMap(b, unsafe.Offsetof(p.q), a.In[0], heads, queries)
	addTensorMap(b, unsafe.Offsetof(p.dout), a.In[len(a.In)-1], heads, queries)
}
