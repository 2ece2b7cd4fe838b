package attention

import (
	"github.com/gorgonia-nsa/nsa/cuda/internal/kernels"
	"github.com/gorgonia-nsa/nsa/ops"
)

// spanRows returns the rows of an op whose mask is a span of keys, and of its gradient: q, k, v -> o, lse, and q, k, v, o or delta, lse,
// do -> dq, dk, dv.
func spanRows[S ops.AttentionSpec](maskOf func(S) mask) []kernels.Row {
	type G = ops.AttentionGradOp[S]
	op := func(build func(*kernels.Builder, mask) error) func(*kernels.Builder, S) error {
		return func(b *kernels.Builder, op S) error { return build(b, maskOf(op)) }
	}
	grad := func(build func(*kernels.Builder, mask) error) func(*kernels.Builder, G) error {
		return func(b *kernels.Builder, op G) error { return build(b, maskOf(op.Forward)) }
	}
	return kernels.Rows(
		kernels.Implementation[S]{Name: warpGroups, Storage: "hhhd>hf", Guard: checkPreference[S], Build: op(spanForwardOnWarpGroups)},
		kernels.Implementation[S]{Name: tensorCores, Storage: "hhhd>hf", Guard: checkPreference[S], Build: op(spanForwardOnTensorCores)},
		kernels.Implementation[S]{Name: general, Storage: "tttd>tf", Build: op(spanForward)},
		kernels.Implementation[G]{Name: warpGroups, Storage: "hhhdofh>hhh", Guard: checkPreference[G], Build: grad(spanBackwardOnWarpGroups)},
		kernels.Implementation[G]{Name: tensorCores, Storage: "hhhdofh>hhh", Guard: checkPreference[G], Build: grad(spanBackwardOnTensorCores)},
		kernels.Implementation[G]{Name: general, Storage: "tttdoft>ttt", Build: grad(spanBackward)},
	)
}

// mask says what a query sees in window, dense and compressed attention. Key i covers the tokens [i*stride, i*stride+length) and is
// visible from the last of them on; a query sees the newest `window` of the visible keys.
type mask struct{ length, stride, window int64 }

// unlimitedWindow hides nothing.
const unlimitedWindow = 1 << 62

func slidingWindow(op ops.SlidingWindowOp) mask { return mask{1, 1, int64(op.Window)} }

func compressed(op ops.CompressedAttentionOp) mask {
	return mask{int64(op.BlockLen), int64(op.Stride), unlimitedWindow}
}

// spanProblem is a problem with its mask. The numbers of the mask are reduced to fit int32, with the same effect.
type spanProblem struct {
	problem
	mask
}

func spanOf(b *kernels.Builder, m mask) (spanProblem, error) {
	a, err := problemOf(b, b.In[0], b.In[1], b.In[2])
	return spanProblem{a, mask{min(m.length, a.S+1), min(m.stride, a.S+1), min(m.window, max(a.S, a.T))}}, err
}

func (a spanProblem) span() span { return span{int32(a.length), int32(a.stride), int32(a.window)} }

// spanForward adds q, k, v -> o, lse for all types and sizes.
func spanForward(b *kernels.Builder, m mask) error {
	a, err := spanOf(b, m)
	if err != nil {
		return err
	}
	p := a.forwardParams()
	p.span = a.span()
	size := launchSize{a.forwardBytes, func(x tile) int64 { return a.rowTiles(x.m) }}
	return a.launchTiled("span_forward", spanForwardTiles, size, p, sameRows)
}

func sameRows(rows int64) int64 { return rows }

// spanBackward adds q, k, v, o, lse, do -> dq, dk, dv for all types and sizes.
func spanBackward(b *kernels.Builder, m mask) error {
	a, err := spanOf(b, m)
	if err != nil {
		return err
	}
	p := a.gradParams()
	p.span = a.span()
	a.launchDelta(p)
	rows := launchSize{a.dqBytes, func(x tile) int64 { return a.rowTiles(x.m) }}
	if err := a.launchTiled("span_dq", gradientTiles, rows, p, sameRows); err != nil {
		return err
	}
	keys := launchSize{a.dkvBytes, func(x tile) int64 { return a.groups() * kernels.CeilDiv(a.T, x.m) }}
	return a.launchTiled("span_dkv", gradientTiles, keys, p, nil)
}

// spanForwardOnTensorCores is spanForward for half precision and dims up to 128.
func spanForwardOnTensorCores(b *kernels.Builder, m mask) error {
	a, err := spanOf(b, m)
	if err != nil {
		return err
	}
	width, err := a.onTensorCores(mmaForwardBytes)
	if err != nil {
		return err
	}
	p := a.forwardParams()
	p.span, p.count = a.span(), mmaRows
	a.launch(a.mmaKernel("span_forward", width), a.rowTiles(mmaRows), mmaForwardBytes(width), p)
	return nil
}

// spanForwardOnWarpGroups is spanForward for half precision on devices of compute capability 9.0.
func spanForwardOnWarpGroups(b *kernels.Builder, m mask) error {
	a, err := spanOf(b, m)
	if err != nil {
		return err
	}
	w, err := a.onWarpGroups(widths.forwardBytes)
	if err != nil {
		return err
	}
	p := a.forwardParams()
	p.span = a.span()
	a.launchOnWarpGroups("span_forward", w, w.forward, w.forwardBytes(), p)
	return nil
}

// spanBackwardOnWarpGroups is spanBackward for half precision on devices of compute capability 9.0.
func spanBackwardOnWarpGroups(b *kernels.Builder, m mask) error {
	a, err := spanOf(b, m)
	if err != nil {
		return err
	}
	w, err := a.onWarpGroups(func(w widths) int64 { return max(w.dqBytes(), w.spanDKV().bytes) })
	if err != nil {
		return err
	}
	p := a.gradParams()
	p.span = a.span()
	a.launchDelta(p)
	a.launchOnWarpGroups("span_dq", w, w.dq, w.dqBytes(), p)
	blocks := int64(cutBlocks * a.GPU.SMs)
	shape := w.spanDKV()
	if uncut := a.groups() * kernels.CeilDiv(a.T, shape.keys); uncut >= int64(uncutBlocks*a.GPU.SMs) {
		blocks = uncut
	}
	queries := max(1, shape.rows/a.headsPerGroup()) // of a tile
	a.launchDKV(p, a.chunks(shape.keys, queries*a.headsPerGroup(), blocks, minChunkRowsOnWarpGroups), shape.keys, func(grid int64) {
		a.launchDKVOnWarpGroups("span_dkv", w, shape, grid, queries, &keyGradientParams{params: *p})
	})
	return nil
}

// spanBackwardOnTensorCores is spanBackward for half precision and dims up to 128.
func spanBackwardOnTensorCores(b *kernels.Builder, m mask) error {
	a, err := spanOf(b, m)
	if err != nil {
		return err
	}
	width, err := a.onTensorCores(func(width int64) int64 { return mmaBackwardBytes(width, mmaKeys) })
	if err != nil {
		return err
	}
	p := a.gradParams()
	p.span = a.span()
	a.launchDelta(p)
	a.launchDQ("span", width, p, true, func(int64) int64 { return 0 }, sameRows)
	blocks := int64(blocksPerSM * a.GPU.SMs)
	a.launchDKV(p, a.chunks(mmaKeys, mmaKeys, blocks, minChunkRows), mmaKeys, func(grid int64) {
		a.launch(a.mmaKernel("span_dkv", width), grid, mmaDKVBytes(width, mmaKeys), p)
	})
	return nil
}

// launchDKV adds the launch of a kernel whose thread blocks own `keys` keys. With several chunks it also adds the launch that adds
// up their sums.
func (a spanProblem) launchDKV(p *params, chunks index, keys int64, launch func(grid int64)) {
	p.index, p.count = chunks, int32(keys)
	parts := int64(p.index.items)
	if parts > 1 {
		p.partial = a.Work(4 * a.groups() * parts * a.T * (a.D + a.Dv))
	}
	launch(a.groups() * kernels.CeilDiv(a.T, keys) * parts)
	if parts > 1 {
		a.launch(a.Type.Name("span_reduce"), kernels.CeilDiv(a.groups()*a.T, warps), 0, p)
	}
}

// The rows of a kernel that owns keys are cut into chunks until the thread blocks fill the GPU, or a chunk would get too few rows.
// On warp groups a multiprocessor has one thread block at a time, and most thread blocks take equally long. If there are
// uncutBlocks or more for each multiprocessor, rows are not cut. Otherwise they are cut for about cutBlocks, about half of which
// see none of their keys.
const (
	blocksPerSM  = 6
	uncutBlocks  = 3
	cutBlocks    = 16
	maxChunks    = 32 // most chunks of the rows of one tile of keys
	minChunkRows = 256

	minChunkRowsOnWarpGroups = 768 // minChunkRows of warp groups
)

// chunks cuts the rows of each tile of keys so that there are about `blocks` thread blocks. The result is at most `items` chunks of
// `chunk` rows, a multiple of `tile` and about `minRows` or more.
func (a spanProblem) chunks(keys, tile, blocks, minRows int64) index {
	rows := min(a.S, a.window+keys) * a.headsPerGroup() // the most rows that see keys of one tile
	n := kernels.CeilDiv(blocks, a.groups()*kernels.CeilDiv(a.T, keys))
	n = max(1, min(n, maxChunks, rows/minRows))
	chunk := kernels.RoundUp(kernels.CeilDiv(rows, n), tile)
	return index{chunk: int32(chunk), items: int32(kernels.CeilDiv(rows, chunk))}
}
