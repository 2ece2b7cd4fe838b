package kernels

import "math"

// block is the size of a selection block, cut to the sequence.
func (a SelectedAttention) block() int64 { return min(a.SelectBlock, a.T) }

// blocks is the number of selection blocks of a group.
func (a SelectedAttention) blocks() int64 { return pieces(a.T, a.block()) }

const (
	minChunk    = 256 // queries of an item of work of the kernel that owns keys
	maxSegments = 256 // of a sequence, for the inverse index
)

// index returns how the choice is inverted (attention_index.cuh). The counts and the partial sums are linear in S: with
// chunks of at least TopN*l' queries the lists that have several hold at most 2*S/l' blocks' worth of sums.
func (a SelectedAttention) index() indexSizes {
	places := a.S * a.TopN
	reach := min(a.TopN*a.block(), a.S)
	chunk := max(minChunk, reach)
	x := indexSizes{
		segments: int32(min(maxSegments, reach)),
		chunk:    int32(chunk),
		items:    int32(a.blocks() + places/chunk),
	}
	if a.S > chunk {
		x.partials = int32(2 * places / chunk)
	}
	return x
}

// selectedWork is where the parts of the memory for Backward lie.
type selectedWork struct{ delta, counts, starts, queries, partial, end int64 }

func (a SelectedAttention) work() (w selectedWork) {
	x, groups := a.index(), a.groups()
	w.counts = a.deltaBytes()
	w.starts = w.counts + align(4*groups*int64(x.segments)*a.blocks())
	w.queries = w.starts + align(4*groups*3*(a.blocks()+1))
	w.partial = w.queries + align(4*groups*a.S*a.TopN)
	w.end = w.partial + align(4*groups*int64(x.partials)*a.block()*(a.D+a.Dv))
	return w
}

func (a SelectedAttention) params() (attentionParams, error) {
	if err := a.check(selectedOp, size{"selection block l'", a.SelectBlock}, size{"top n", a.TopN}); err != nil {
		return attentionParams{}, err
	}
	if a.T != a.S {
		return attentionParams{}, unsupported(selectedOp, "keys %d, want the %d of the queries", a.T, a.S)
	}
	if a.TopN > math.MaxInt32/2/a.S {
		return attentionParams{}, unsupported(selectedOp, "queries %d times top n %d, want less than 2^30", a.S, a.TopN)
	}
	return attentionParams{n: a.sizes(), blocks: blocksMask{int32(a.block()), int32(a.TopN)}, index: a.index()}, nil
}

// sharedTiles are the tiles for rows of several queries, which walk over the union of their blocks: large ones where most
// blocks are chosen by all.
func (a SelectedAttention) sharedTiles(tiles []shape) []shape {
	if a.blocks() > 4*a.TopN {
		return tiles[1:]
	}
	return tiles
}

func (a SelectedAttention) rowGrid(x shape) int64 { return a.rowTiles(a.wholeQueries(x.m)) }

// Forward appends the launches of q, k, v, idx -> o, lse.
func (a SelectedAttention) Forward(to []Launch, q, k, v, idx, o, lse Ptr) ([]Launch, error) {
	p, err := a.params()
	if err != nil {
		return to, err
	}
	p.q, p.k, p.v, p.idx, p.o, p.lse = q, k, v, idx, o, lse
	m := a.matrix(a.SelectBlock, q, k, v, o)
	if err := m.fit(selectedOp, a.GPU, m.forwardBytes()+a.unionBytes(m)); err != nil {
		return to, err
	}
	if m.width > 0 {
		p.count = int32(a.wholeQueries(matrixRows))
		kernel := attentionNames.matrixSelectedForward.of(m, a.Type)
		return a.plain(to, selectedOp, kernel, a.rowTiles(int64(p.count)), attentionThreads, m.forwardBytes()+a.unionBytes(m), &p)
	}
	shared := func(x shape) int64 { return a.forwardBytes(x) + walkBytes(x) }
	x, err := a.GPU.choose(selectedOp, a.sharedTiles(selectedForwardTiles), shared, a.rowGrid)
	if err != nil {
		return to, err
	}
	p.count = int32(a.wholeQueries(x.m))
	return a.tiled(to, selectedOp, &attentionNames.selectedForward, x, a.rowGrid(x), shared(x), &p)
}

// WorkBytes returns the size of the memory that Backward needs, linear in S.
func (a SelectedAttention) WorkBytes() int64 {
	if _, err := a.params(); err != nil {
		return 0
	}
	return a.work().end
}

// Backward appends the launches of q, k, v, idx, o, lse, do -> dq, dk, dv.
func (a SelectedAttention) Backward(to []Launch, q, k, v, idx, o, lse, do, dq, dk, dv, work Ptr) ([]Launch, error) {
	p, err := a.params()
	if err != nil {
		return to, err
	}
	at := a.work()
	p.q, p.k, p.v, p.idx, p.o, p.lse, p.dout, p.dq, p.dk, p.dv = q, k, v, idx, o, lse, do, dq, dk, dv
	p.delta, p.counts, p.starts = work.plus(at.delta), work.plus(at.counts), work.plus(at.starts)
	p.queries, p.partial = work.plus(at.queries), work.plus(at.partial)
	if to, err = a.delta(to, selectedOp, &p); err != nil {
		return to, err
	}
	m := a.matrix(a.SelectBlock, q, k, v, do, dq, dk, dv)
	if err := m.fit(selectedOp, a.GPU, m.backwardBytes()+a.unionBytes(m)); err != nil {
		return to, err
	}
	if to, err = a.queryGradient(to, m, &p); err != nil {
		return to, err
	}
	if to, err = a.invert(to, &p); err != nil {
		return to, err
	}
	if to, err = a.keyGradient(to, m, &p); err != nil || p.index.partials == 0 {
		return to, err
	}
	return a.plain(to, selectedOp, attentionNames.selectedReduce[a.Type], pieces(a.groups()*a.T, attentionWarps), attentionThreads, 0, &p)
}

// queryGradient appends the launch that sets dq, on matrix units where m has a width.
func (a SelectedAttention) queryGradient(to []Launch, m matrixTiles, p *attentionParams) ([]Launch, error) {
	if m.width > 0 {
		p.count = int32(a.wholeQueries(matrixRows))
		kernel := attentionNames.matrixSelectedDQ.of(m, a.Type)
		return a.plain(to, selectedOp, kernel, a.rowTiles(int64(p.count)), attentionThreads, m.dqBytes()+a.unionBytes(m), p)
	}
	shared := func(x shape) int64 { return a.dqBytes(x) + walkBytes(x) }
	x, err := a.GPU.choose(selectedOp, a.sharedTiles(gradientTiles), shared, a.rowGrid)
	if err != nil {
		return to, err
	}
	p.count = int32(a.wholeQueries(x.m))
	return a.tiled(to, selectedOp, &attentionNames.selectedDQ, x, a.rowGrid(x), shared(x), p)
}

// keyGradient appends the launch that sets dk, dv and the partial sums of both.
func (a SelectedAttention) keyGradient(to []Launch, m matrixTiles, p *attentionParams) ([]Launch, error) {
	items := a.groups() * int64(p.index.items)
	if m.width > 0 {
		kernel := attentionNames.matrixSelectedDKV.of(m, a.Type)
		return a.plain(to, selectedOp, kernel, items*pieces(a.block(), matrixKeys), attentionThreads, m.dkvBytes(), p)
	}
	grid := func(x shape) int64 { return items * pieces(a.block(), x.m) }
	x, err := a.GPU.choose(selectedOp, a.blockTiles(), a.dkvBytes, grid)
	if err != nil {
		return to, err
	}
	return a.tiled(to, selectedOp, &attentionNames.selectedDKV, x, grid(x), a.dkvBytes(x), p)
}

// blockTiles are the tiles with keys of one selection block, none more than twice as high as it.
func (a SelectedAttention) blockTiles() []shape {
	tiles := gradientTiles
	for len(tiles) > 1 && tiles[1].m >= a.block() {
		tiles = tiles[1:]
	}
	return tiles
}

// scanThreads is the block of the kernel that sums up the lengths of the lists.
var scanThreads = Dim{256, 1, 1}

// invert appends the launches that build the inverse index.
func (a SelectedAttention) invert(to []Launch, p *attentionParams) ([]Launch, error) {
	groups := a.groups()
	segments := groups * int64(p.index.segments)
	for _, x := range []struct {
		kernel string
		grid   int64
		block  Dim
	}{
		{attentionNames.indexCount, segments, attentionThreads},
		{attentionNames.indexRank, pieces(groups*a.blocks(), 128), attentionThreads},
		{attentionNames.indexScan, groups, scanThreads},
		{attentionNames.indexFill, pieces(segments, attentionWarps), attentionThreads},
	} {
		var err error
		if to, err = a.plain(to, selectedOp, x.kernel, x.grid, x.block, 0, p); err != nil {
			return to, err
		}
	}
	return to, nil
}
