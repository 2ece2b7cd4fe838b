package kernels

import (
	"fmt"
	"math"
)

// SelectBlocks chooses the selection blocks of each query and group: q [B,S,Hq,D], kc [B,Nc,Hkv,D] of Type and the
// lse [B,Hq,S] float32 of the compressed attention over them -> idx int32 [B,S,Hkv,TopN], ascending, padded with -1. Nc is
// the number of complete blocks of BlockLen tokens at a Stride in S, but at least 1.
type SelectBlocks struct {
	Type                                Type
	GPU                                 GPU
	B, S, Hq, Hkv, D                    int64
	BlockLen, Stride, SelectBlock, TopN int64 // l, d, l', n
}

// selectParams is SelectParams of select.cu.
type selectParams struct {
	q, kc, lse, idx Ptr

	n                                attentionSizes
	span                             spanMask
	l, per, size, most, tokens, tile int32
}

const selectOp = "select blocks"

// forcedBlocks are block 0 and the two newest, which every query gets.
const forcedBlocks = 3

var selectTiles = []shape{{64, 64}, {32, 32}, {16, 16}}

// compressed is the number of rows of kc.
func (a SelectBlocks) compressed() int64 {
	if a.S < a.BlockLen {
		return 1
	}
	return (a.S-a.BlockLen)/a.Stride + 1
}

func (a SelectBlocks) check() error {
	attention := Attention{a.Type, a.GPU, a.B, a.S, 1, a.Hq, a.Hkv, a.D, 1}
	if err := attention.check(selectOp, size{"block length l", a.BlockLen}, size{"stride d", a.Stride}, size{"selection block l'", a.SelectBlock}); err != nil {
		return err
	}
	switch {
	case a.BlockLen%a.Stride != 0 || a.SelectBlock%a.Stride != 0:
		return unsupported(selectOp, "stride d = %d does not divide l = %d and l' = %d", a.Stride, a.BlockLen, a.SelectBlock)
	case a.TopN < forcedBlocks || a.TopN > math.MaxInt32:
		return unsupported(selectOp, "top n is %d, want %d to 2^31-1", a.TopN, forcedBlocks)
	}
	return nil
}

// places is the number of blocks that a query may choose by score; none where all queries get all their blocks.
func (a SelectBlocks) places() int64 {
	if (a.S-1)/a.SelectBlock < a.TopN {
		return 0
	}
	return a.TopN - forcedBlocks
}

// tileFor is the number of selection blocks whose scores a block holds: those whose compression blocks are one tile of
// columns.
func (p *selectParams) tileFor(x shape) int64 {
	return min(x.n, max(1, (x.n-int64(p.l)+1)/int64(p.per)))
}

// queries is the number of queries of a tile: as many as fill its rows.
func (a SelectBlocks) queries(x shape) int64 { return max(1, x.m/(a.Hq/a.Hkv)) }

func (a SelectBlocks) sharedBytes(p *selectParams, x shape) int64 {
	tokens := a.queries(x)
	quads := func(n int64) int64 { return pieces(n, 4) * 4 }
	return 4 * (tileFloats(x.m+x.n, a.D) + tileFloats(x.m, x.n) + quads(tokens*x.n) + quads(tokens*p.tileFor(x)) + 2*quads(tokens*a.places()))
}

// matrixBytes is the shared memory of the kernel on matrix units.
func (a SelectBlocks) matrixBytes(p *selectParams, m matrixTiles) int64 {
	tokens := int64(p.tokens)
	quads := func(n int64) int64 { return pieces(n, 4) * 4 }
	floats := matrixRows*(matrixKeys+4) + quads(tokens*matrixKeys) + quads(tokens*int64(p.tile)) + 2*quads(tokens*a.places())
	return 2*m.width*(matrixRows+matrixKeys) + 4*floats
}

// Forward appends the launches of q, kc, lse -> idx.
func (a SelectBlocks) Forward(to []Launch, q, kc, lse, idx Ptr) ([]Launch, error) {
	if err := a.check(); err != nil {
		return to, err
	}
	sizes := Attention{a.Type, a.GPU, a.B, a.S, a.compressed(), a.Hq, a.Hkv, a.D, 1}
	p := selectParams{
		q: q, kc: kc, lse: lse, idx: idx,
		n:    sizes.sizes(),
		span: spanMask{int32(min(a.BlockLen, a.S+1)), int32(min(a.Stride, a.S+1)), int32(a.S)},
		l:    1, per: 1, // without a complete block, or with one selection block, they do not matter
		size: int32(min(a.SelectBlock, a.S)),
		most: int32(a.TopN),
	}
	if a.BlockLen <= a.S {
		p.l = int32(a.BlockLen / a.Stride)
	}
	if a.SelectBlock <= a.S {
		p.per = int32(a.SelectBlock / a.Stride)
	}
	wide := sizes
	wide.Dv = a.D
	m := wide.matrix(0, q, kc)
	if group := a.Hq / a.Hkv; m.width > 0 && group > matrixRows {
		m.width, m.refused = 0, fmt.Sprintf("of groups of %d heads, want at most %d", group, matrixRows)
	}
	tiles := shape{matrixRows, matrixKeys}
	p.tokens, p.tile = int32(a.queries(tiles)), int32(p.tileFor(tiles))
	bytes := a.matrixBytes(&p, m)
	if err := m.fit(selectOp, a.GPU, bytes); err != nil {
		return to, err
	}
	if m.width > 0 {
		return a.launch(to, attentionNames.matrixSelectBlocks.of(m, a.Type), sizes.groups()*pieces(a.S, a.queries(tiles)), bytes, &p)
	}
	shared := func(x shape) int64 { return a.sharedBytes(&p, x) }
	grid := func(x shape) int64 { return sizes.groups() * pieces(a.S, a.queries(x)) }
	x, err := a.GPU.choose(selectOp, selectTiles, shared, grid)
	if err != nil {
		return to, err
	}
	p.tokens, p.tile = int32(a.queries(x)), int32(p.tileFor(x))
	return a.launch(to, attentionNames.selectBlocks.of(x, a.Type), grid(x), shared(x), &p)
}

func (a SelectBlocks) launch(to []Launch, kernel string, grid, shared int64, p *selectParams) ([]Launch, error) {
	if grid > math.MaxInt32 {
		return to, unsupported(selectOp, "%d blocks, a grid has less than 2^31", grid)
	}
	return append(to, launch(kernel, Dim{int(grid), 1, 1}, attentionThreads, int(shared), p)), nil
}
