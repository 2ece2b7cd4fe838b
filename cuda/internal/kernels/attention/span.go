package attention

import (
	"math"

	"github.com/gorgonia-nsa/nsa/cuda/internal/kernels"
	"github.com/gorgonia-nsa/nsa/ops/spec/attention"
)

// spanEntries returns the entries of an op whose mask is a span of keys, and of its gradient: q, k, v -> o, lse, and q, k, v, o or
// delta, lse, do -> dq, dk, dv.
func spanEntries[S attention.Forward](spanOf func(problem, S) span) []kernels.Entry {
	type G = attention.Grad[S]
	buildFor := func(b *kernels.Builder, op S, build func(spanProblem) error) error {
		a, err := problemOf(b, b.In[0], b.In[1], b.In[2])
		if err != nil {
			return err
		}
		return build(spanProblem{a, spanOf(a, op)})
	}
	forward := func(build func(spanProblem) error) func(*kernels.Builder, S) error {
		return func(b *kernels.Builder, op S) error { return buildFor(b, op, build) }
	}
	backward := func(build func(spanProblem) error) func(*kernels.Builder, G) error {
		return func(b *kernels.Builder, op G) error { return buildFor(b, op.Forward, build) }
	}
	// Storage of forward: q k v documents > o lse; of backward: q k v documents o-or-delta lse do > dq dk dv.
	return kernels.Entries(
		kernels.EntryFor[S]{Name: wgmma, Storage: "hhhd>hf", Build: ifPreferred(forward(spanForwardWGMMA))},
		kernels.EntryFor[S]{Name: mma, Storage: "hhhd>hf", Build: ifPreferred(forward(spanForwardMMA))},
		kernels.EntryFor[S]{Storage: "tttd>tf", Build: forward(spanForward)},
		kernels.EntryFor[G]{Name: wgmma, Storage: "hhhdofh>hhh", Build: ifPreferred(backward(spanBackwardWGMMA))},
		kernels.EntryFor[G]{Name: mma, Storage: "hhhdofh>hhh", Build: ifPreferred(backward(spanBackwardMMA))},
		kernels.EntryFor[G]{Storage: "tttdoft>ttt", Build: backward(spanBackward)},
	)
}

func windowSpan(a problem, op attention.SlidingWindow) span { return a.spanOf(1, 1, op.Window) }

func compressedSpan(a problem, op attention.Compressed) span {
	return a.spanOf(op.BlockLen, op.Stride, math.MaxInt)
}

// spanOf returns the span of l, d and w. It reduces them to fit int32, with the same effect.
func (a problem) spanOf(l, d, w int) span {
	return span{int32(min(int64(l), a.S+1)), int32(min(int64(d), a.S+1)), int32(min(int64(w), max(a.S, a.T)))}
}

// spanProblem is attention under a span.
type spanProblem struct {
	problem
	span span
}

// spanForward adds q, k, v -> o, lse for all types and sizes.
func spanForward(a spanProblem) error {
	p := a.forwardParams()
	p.span = a.span
	size := launchSize{a.forwardBytes, func(x tile) int64 { return a.rowTiles(x.m) }}
	return a.launchTiled("span_forward", spanForwardTiles, size, p, sameRows)
}

func sameRows(rows int64) int64 { return rows }

// spanBackward adds q, k, v, o, lse, do -> dq, dk, dv for all types and sizes.
func spanBackward(a spanProblem) error {
	p := a.gradParams()
	p.span = a.span
	a.launchDelta(p)
	rows := launchSize{a.dqBytes, func(x tile) int64 { return a.rowTiles(x.m) }}
	if err := a.launchTiled("span_dq", gradientTiles, rows, p, sameRows); err != nil {
		return err
	}
	keys := launchSize{a.dkvBytes, func(x tile) int64 { return a.groups() * kernels.CeilDiv(a.T, x.m) }}
	return a.launchTiled("span_dkv", gradientTiles, keys, p, nil)
}

// spanForwardMMA is spanForward for half precision and dims up to 128.
func spanForwardMMA(a spanProblem) error {
	width, err := a.mmaWidth(mmaForwardBytes)
	if err != nil {
		return err
	}
	p := a.forwardParams()
	p.span = a.span
	p.ownRows(mmaRows)
	a.launchFourWarps(a.mmaKernel("span_forward", width), a.rowTiles(mmaRows), mmaForwardBytes(width), p)
	return nil
}

// spanForwardWGMMA is spanForward for half precision on devices of compute capability 9.0.
func spanForwardWGMMA(a spanProblem) error {
	w, err := a.wgmmaWidths(widths.forwardBytes)
	if err != nil {
		return err
	}
	p := a.forwardParams()
	p.span = a.span
	a.launchWGMMA("span_forward", w, w.forward, w.forwardBytes(), p)
	return nil
}

// spanBackwardWGMMA is spanBackward for half precision on devices of compute capability 9.0.
func spanBackwardWGMMA(a spanProblem) error {
	w, err := a.wgmmaWidths(func(w widths) int64 { return max(w.dqBytes(), w.spanDKV().bytes) })
	if err != nil {
		return err
	}
	p := a.gradParams()
	p.span = a.span
	a.launchDelta(p)
	a.launchWGMMA("span_dq", w, w.dq, w.dqBytes(), p)
	blocks := int64(chunkedBlocksPerSM * a.GPU.SMs)
	shape := w.spanDKV()
	if full := a.groups() * kernels.CeilDiv(a.T, shape.keys); full >= int64(fullBlocksPerSM*a.GPU.SMs) {
		blocks = full
	}
	queries := max(1, shape.rows/a.headsPerGroup()) // of a tile
	a.launchDKV(p, a.chunks(shape.keys, queries*a.headsPerGroup(), blocks, wgmmaChunkRows), shape.keys, func(grid int64) {
		a.launchDKVWGMMA("span_dkv", w, shape, grid, queries, &keyGradientParams{params: *p})
	})
	return nil
}

// spanBackwardMMA is spanBackward for half precision and dims up to 128.
func spanBackwardMMA(a spanProblem) error {
	width, err := a.mmaWidth(func(width int64) int64 { return mmaBackwardBytes(width, mmaKeys) })
	if err != nil {
		return err
	}
	p := a.gradParams()
	p.span = a.span
	a.launchDelta(p)
	a.launchDQ("span", width, p, true, func(int64) int64 { return 0 }, sameRows)
	blocks := int64(blocksPerSM * a.GPU.SMs)
	a.launchDKV(p, a.chunks(mmaKeys, mmaKeys, blocks, mmaChunkRows), mmaKeys, func(grid int64) {
		a.launchFourWarps(a.mmaKernel("span_dkv", width), grid, mmaDKVBytes(width, mmaKeys), p)
	})
	return nil
}

// launchDKV adds, by `add`, the launch of a kernel whose thread blocks own `keys` keys. If there are several chunks, it also adds the launch that
// sums their results.
func (a spanProblem) launchDKV(p *params, chunks index, keys int64, add func(grid int64)) {
	p.index = chunks
	p.ownKeys(keys)
	parts := int64(p.index.items)
	if parts > 1 {
		p.partial = a.Work(4 * a.groups() * parts * a.T * (a.D + a.Dv))
	}
	add(a.groups() * kernels.CeilDiv(a.T, keys) * parts)
	if parts > 1 {
		a.launchFourWarps(a.Type.Name("span_reduce"), kernels.CeilDiv(a.groups()*a.T, warps), 0, p)
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
