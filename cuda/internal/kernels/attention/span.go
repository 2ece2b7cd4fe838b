package attention

import (
	"cmp"

	"github.com/gorgonia-nsa/nsa/cuda/internal/kernels"
	"github.com/gorgonia-nsa/nsa/ops/spec/attention"
)

// spanEntries returns the entries of an op whose mask is a span of keys, and of its gradient: q, k, v -> o, lse, and q, k, v, o or
// delta, lse, do -> dq, dk, dv.
func spanEntries[S attention.Forward](spanOf func(problem, S) span) []kernels.Entry {
	type G = attention.Grad[S]
	of := func(c *kernels.Call, op S) spanProblem {
		a := problemOf(c, c.In[1], c.In[2], op.Blocks())
		return spanProblem{a, spanOf(a, op)}
	}
	ofGrad := func(c *kernels.Call, op G) spanProblem { return of(c, op.Forward) }
	general, half := forwardTypes(kernels.Float, nil), forwardTypes(kernels.Half, nil)
	grad, halfGrad := gradTypes(kernels.Float, nil), gradTypes(kernels.Half, nil)
	return kernels.Entries(
		entryFor(wgmma, half, of, spanProblem.guardForwardWGMMA, spanProblem.forwardWGMMA),
		entryFor(mma, half, of, spanProblem.guardForwardMMA, spanProblem.forwardMMA),
		entryFor("", general, of, spanProblem.guardForward, spanProblem.forward),
		entryFor(wgmma, halfGrad, ofGrad, spanProblem.guardBackwardWGMMA, spanProblem.backwardWGMMA),
		entryFor(mma, halfGrad, ofGrad, spanProblem.guardBackwardMMA, spanProblem.backwardMMA),
		entryFor("", grad, ofGrad, spanProblem.guardBackward, spanProblem.backward),
	)
}

// spanOf returns the span of l, d and w. It reduces them to fit int32, with the same effect.
func (a problem) spanOf(l, d, w int) span {
	return span{int32(min(int64(l), a.tokens+1)), int32(min(int64(d), a.tokens+1)), int32(min(int64(w), max(a.tokens, a.T)))}
}

// spanProblem is attention under a span.
type spanProblem struct {
	problem
	span span
}

func (a spanProblem) forwardParams() *params {
	p := a.problem.forwardParams()
	p.span = a.span
	return p
}

func (a spanProblem) gradParams(b *kernels.Builder) *params {
	p := a.problem.gradParams(b)
	p.span = a.span
	return p
}

func (a spanProblem) forwardKernel() tiledKernel {
	grid := func(x tile) int64 { return a.rowTiles(x.m) }
	return tiledKernel{"span_forward", spanForwardTiles, a.forwardBytes, grid, sameRows} // attention_forward.cu
}

func (a spanProblem) guardForward() error { return a.forwardKernel().guard(a.Call) }

// forward adds q, k, v -> o, lse for all types and sizes.
func (a spanProblem) forward(b *kernels.Builder) { a.forwardKernel().add(b, a.forwardParams()) }

func (a spanProblem) gradKernels() (dq, dkv tiledKernel) {
	rows := func(x tile) int64 { return a.rowTiles(x.m) }
	keys := func(x tile) int64 { return a.groups() * kernels.CeilDiv(a.T, x.m) }
	// attention_dq.cu, attention_dkv.cu
	return tiledKernel{"span_dq", gradientTiles, a.dqBytes, rows, sameRows},
		tiledKernel{"span_dkv", gradientTiles, a.dkvBytes, keys, nil}
}

func (a spanProblem) guardBackward() error {
	dq, dkv := a.gradKernels()
	return cmp.Or(dq.guard(a.Call), dkv.guard(a.Call))
}

// backward adds q, k, v, o or delta, lse, do -> dq, dk, dv for all types and sizes.
func (a spanProblem) backward(b *kernels.Builder) {
	dq, dkv := a.gradKernels()
	p := a.gradParams(b)
	a.addDelta(b, p)
	dq.add(b, p)
	dkv.add(b, p)
}

func (a spanProblem) guardForwardMMA() error { return a.guardMMA(mmaForwardBytes) }

// forwardMMA is forward for half precision and dims up to 128.
func (a spanProblem) forwardMMA(b *kernels.Builder) {
	p, width := a.forwardParams(), a.mmaWidth()
	p.ownRows(mmaRows)
	// attention_mma_forward.cu
	addFourWarps(b, a.mmaKernel("span_forward"), a.rowTiles(mmaRows), mmaForwardBytes(width), p)
}

func (a spanProblem) guardBackwardMMA() error {
	return a.guardMMA(func(width int64) int64 { return mmaBackwardBytes(width, mmaKeys) })
}

// backwardMMA is backward for half precision and dims up to 128.
func (a spanProblem) backwardMMA(b *kernels.Builder) {
	p := a.gradParams(b)
	a.addDelta(b, p)
	a.addDQ(b, "span", p, true, func(int64) int64 { return 0 }, sameRows)
	blocks := int64(blocksPerSM * a.GPU.SMs)
	a.addDKV(b, p, a.chunks(mmaKeys, mmaKeys, blocks, mmaChunkRows), mmaKeys, func(grid int64) {
		// attention_mma_dkv.cu
		addFourWarps(b, a.mmaKernel("span_dkv"), grid, mmaDKVBytes(a.mmaWidth(), mmaKeys), p)
	})
}

func (a spanProblem) guardForwardWGMMA() error { return a.guardWGMMA(widths.forwardBytes) }

// forwardWGMMA is forward for half precision on devices of compute capability 9.0.
func (a spanProblem) forwardWGMMA(b *kernels.Builder) {
	w := a.widths()
	// attention_wgmma_forward.cu
	a.addWGMMA(b, "span_forward", w, w.forward, w.forwardBytes(), a.forwardParams())
}

func (a spanProblem) guardBackwardWGMMA() error {
	return a.guardWGMMA(func(w widths) int64 { return max(w.dqBytes(), w.spanDKV().bytes) })
}

// backwardWGMMA is backward for half precision on devices of compute capability 9.0.
func (a spanProblem) backwardWGMMA(b *kernels.Builder) {
	w, p := a.widths(), a.gradParams(b)
	a.addDelta(b, p)
	a.addWGMMA(b, "span_dq", w, w.dq, w.dqBytes(), p) // attention_wgmma_dq.cu
	blocks := int64(chunkedBlocksPerSM * a.GPU.SMs)
	shape := w.spanDKV()
	if full := a.groups() * kernels.CeilDiv(a.T, shape.keys); full >= int64(fullBlocksPerSM*a.GPU.SMs) {
		blocks = full
	}
	queries := max(1, shape.rows/a.headsPerGroup()) // of a tile
	chunks := a.chunks(shape.keys, queries*a.headsPerGroup(), blocks, wgmmaChunkRows)
	a.addDKV(b, p, chunks, shape.keys, func(grid int64) {
		// attention_wgmma_dkv.cu
		a.addDKVWGMMA(b, "span_dkv", w, shape, grid, queries, &keyGradientParams{params: *p})
	})
}

func sameRows(rows int64) int64 { return rows }

// addDKV adds, by `add`, the launch of a kernel whose thread blocks own `keys` keys. If there are several chunks, it
// also adds the launch that sums their results.
func (a spanProblem) addDKV(b *kernels.Builder, p *params, chunks index, keys int64, add func(grid int64)) {
	p.index = chunks
	p.ownKeys(keys)
	n := int64(p.index.items)
	if n > 1 {
		p.partial = b.Work(4 * a.groups() * n * a.T * (a.D + a.Dv))
	}
	add(a.groups() * kernels.CeilDiv(a.T, keys) * n)
	if n > 1 { // attention_mma_dkv.cu
		addFourWarps(b, a.Type.Name("span_reduce"), kernels.CeilDiv(a.groups()*a.T, warps), 0, p)
	}
}

// In a kernel that owns keys, rows are cut into chunks until the thread blocks fill the GPU, or a chunk would get too few rows. wgmma
// has one thread block at a time on a multiprocessor, and most thread blocks take equally long. If there are fullBlocksPerSM or more
// for each multiprocessor, its rows are not cut. Otherwise they are cut for about chunkedBlocksPerSM, about half of which see none of
// their keys.
const (
	blocksPerSM        = 6 // of mma, and of selected attention
	fullBlocksPerSM    = 3
	chunkedBlocksPerSM = 16

	maxChunks      = 32  // most chunks of the rows of one tile of keys
	mmaChunkRows   = 256 // fewest rows of a chunk
	wgmmaChunkRows = 768
)

// chunks cuts the rows of each tile of keys so that there are about `blocks` thread blocks. The result is at most `items` chunks of
// `chunk` rows, a multiple of `tile` and about `minRows` or more.
func (a spanProblem) chunks(keys, tile, blocks, minRows int64) index {
	rows := min(a.S, int64(a.span.w)+keys) * a.headsPerGroup() // the most rows that see keys of one tile
	n := kernels.CeilDiv(blocks, a.groups()*kernels.CeilDiv(a.T, keys))
	n = max(1, min(n, maxChunks, rows/minRows))
	chunk := kernels.RoundUp(kernels.CeilDiv(rows, n), tile)
	return index{chunk: int32(chunk), items: int32(kernels.CeilDiv(rows, chunk))}
}
