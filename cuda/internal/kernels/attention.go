package kernels

import "math"

// GPU is what the choice of tiles depends on: properties of the device that will run the launches. The same GPU gives the
// same launches, and so the same bits.
type GPU struct {
	SharedPerBlock int // bytes of shared memory that a block may have
	SharedPerSM    int // bytes of shared memory of a multiprocessor
	SMs            int

	General bool // only the kernels for all types and sizes, without matrix units
	Matrix  bool // only those on matrix units: an *Unsupported says why there are none
}

// Attention holds the sizes that all attention ops share: q [B,S,Hq,D], k [B,T,Hkv,D], v [B,T,Hkv,Dv], o [B,S,Hq,Dv] of
// Type, and lse [B,Hq,S] float32.
//
// The kernels take any sizes whose tiles fit the shared memory of a block, which all dims up to 256 do; groups of any size.
// In half precision, dims that are multiples of 8 and at most 128, in arrays that are aligned to 16 bytes, get kernels on
// matrix units, as long as selection blocks are multiples of 64 tokens. Results are the same bits in each run.
type Attention struct {
	Type Type
	GPU  GPU
	B    int64 // batch
	S    int64 // queries
	T    int64 // keys: S tokens, or the rows of the compressed keys
	Hq   int64 // query heads
	Hkv  int64 // key and value heads, the groups; divides Hq
	D    int64 // dim of queries and keys
	Dv   int64 // dim of values
}

// SpanAttention is window, dense or compressed attention: key i stands for the tokens [i*Stride, i*Stride+BlockLen) and is
// seen from its last one on; of those keys a query sees the Window newest.
type SpanAttention struct {
	Attention
	BlockLen, Stride, Window int64
}

// SlidingWindow returns attention over the w newest tokens.
func (a Attention) SlidingWindow(w int64) SpanAttention { return SpanAttention{a, 1, 1, w} }

// Causal returns attention over all tokens up to the query's own.
func (a Attention) Causal() SpanAttention { return SpanAttention{a, 1, 1, a.S} }

// Compressed returns attention over compressed keys of blocks of l tokens at a stride of d.
func (a Attention) Compressed(l, d int64) SpanAttention { return SpanAttention{a, l, d, max(a.S, a.T)} }

// SelectedAttention is attention over the tokens, up to the query's own, of the blocks of SelectBlock tokens that
// idx int32 [B,S,Hkv,TopN] names, ascending and padded with -1. A list ends at its first entry that is not of that kind.
type SelectedAttention struct {
	Attention
	SelectBlock, TopN int64
}

type attentionSizes struct {
	batch, queries, keys, heads, groups, each, d, dv int32
	scale                                            float32
}

type spanMask struct{ l, d, w int32 }

type blocksMask struct{ size, most int32 }

type indexSizes struct{ segments, chunk, items, partials int32 }

// attentionParams is AttentionParams of attention_index.cuh.
type attentionParams struct {
	q, k, v, idx, o, lse, dout, delta, dq, dk, dv, counts, starts, queries, partial Ptr

	n      attentionSizes
	span   spanMask
	blocks blocksMask
	index  indexSizes
	count  int32
	_      int32
}

// attentionThreads is the block of all kernels with tiles; across and down are how its threads lie on one.
var attentionThreads = Dim{128, 1, 1}

const (
	attentionWarps = 4
	deltaRows      = 16 // of a warp of the kernel that sets delta
	tileAcross     = 8
	tileDown       = 16
)

// shape is a tile: m rows that a block owns, n columns that it walks over.
type shape struct{ m, n int64 }

// The tiles of which there are kernels, the largest first.
var (
	spanForwardTiles     = []shape{{64, 64}, {32, 32}, {16, 16}}
	selectedForwardTiles = []shape{{64, 64}, {32, 64}, {16, 16}}
	gradientTiles        = []shape{{64, 32}, {32, 32}, {16, 16}}
)

// byTile are the names of a kernel for the tiles of 64, 32 and 16 rows.
type byTile [3]byType

func tiled(op string) byTile {
	return byTile{typed(op + "_64"), typed(op + "_32"), typed(op + "_16")}
}

// of returns the kernel for a tile.
func (k *byTile) of(x shape, t Type) string {
	switch x.m {
	case 64:
		return k[0][t]
	case 32:
		return k[1][t]
	}
	return k[2][t]
}

// attentionNames are the symbols of the attention kernels.
var attentionNames = struct {
	spanForward, spanDQ, spanDKV, selectedForward, selectedDQ, selectedDKV, selectBlocks byTile

	matrixSpanForward, matrixSpanDQ, matrixSpanDKV             byWidth
	matrixSelectedForward, matrixSelectedDQ, matrixSelectedDKV byWidth
	matrixSelectBlocks                                         byWidth
	matrixSpanReduce                                           byType

	delta, selectedReduce                       byType
	indexCount, indexRank, indexScan, indexFill string
}{
	spanForward: tiled("span_forward"), spanDQ: tiled("span_dq"), spanDKV: tiled("span_dkv"),
	selectedForward: tiled("selected_forward"), selectedDQ: tiled("selected_dq"), selectedDKV: tiled("selected_dkv"),
	selectBlocks: tiled("select_blocks"),

	matrixSpanForward: matrix("span_forward"), matrixSpanDQ: matrix("span_dq"), matrixSpanDKV: matrix("span_dkv"),
	matrixSelectedForward: matrix("selected_forward"), matrixSelectedDQ: matrix("selected_dq"), matrixSelectedDKV: matrix("selected_dkv"),
	matrixSelectBlocks: matrix("select_blocks"), matrixSpanReduce: byType{BF16: "nsa_span_reduce_bf16", F16: "nsa_span_reduce_f16"},

	delta: typed("attention_delta"), selectedReduce: typed("selected_reduce"),
	indexCount: "nsa_index_count_i32", indexRank: "nsa_index_rank_i32", indexScan: "nsa_index_scan_i32", indexFill: "nsa_index_fill_i32",
}

// tileStride is the floats of a row of c columns in shared memory.
func tileStride(c int64) int64 { return 4 * (pieces(c, 4) | 1) }

func tileFloats(rows, c int64) int64 { return rows * tileStride(c) }

// minResident is the number of blocks that a multiprocessor should have room for, so that one loads while another computes;
// reservedShared is what it sets aside for each.
const (
	minResident    = 2
	reservedShared = 1024
)

// choose returns the largest tile of which minResident blocks fit a multiprocessor and that gives each of them work, or
// else the smallest. shared is a tile's bytes, grid its blocks.
func (g GPU) choose(op string, tiles []shape, shared func(shape) int64, grid func(shape) int64) (shape, error) {
	for _, x := range tiles {
		if n := shared(x); n <= int64(g.SharedPerBlock) && minResident*(n+reservedShared) <= int64(g.SharedPerSM) && grid(x) >= int64(g.SMs) {
			return x, nil
		}
	}
	x := tiles[len(tiles)-1]
	if n := shared(x); n > int64(g.SharedPerBlock) {
		return x, unsupported(op, "the smallest tiles take %d bytes of shared memory, a block has %d", n, g.SharedPerBlock)
	}
	return x, nil
}

// check refuses sizes that the kernels do not take.
func (a Attention) check(op string, more ...size) error {
	sizes := []size{{"batch", a.B}, {"queries", a.S}, {"keys", a.T}, {"heads", a.Hq}, {"kv heads", a.Hkv}, {"dim", a.D}, {"value dim", a.Dv}}
	if err := check(op, a.Type, sizes...); err != nil {
		return err
	}
	for _, s := range more {
		if s.n < 1 {
			return unsupported(op, "%s is %d, want at least 1", s.name, s.n)
		}
	}
	if a.Hq%a.Hkv != 0 {
		return unsupported(op, "heads %d not a multiple of kv heads %d", a.Hq, a.Hkv)
	}
	for _, s := range []size{{"queries times heads of a group", a.S * (a.Hq / a.Hkv)}, {"keys", a.T}, {"batch", a.B}, {"heads", a.Hq}, {"dim", a.D}, {"value dim", a.Dv}} {
		if s.n >= math.MaxInt32-1024 {
			return unsupported(op, "%s: %d, want less than 2^31", s.name, s.n)
		}
	}
	return nil
}

func (a Attention) sizes() attentionSizes {
	return attentionSizes{
		int32(a.B), int32(a.S), int32(a.T), int32(a.Hq), int32(a.Hkv), int32(a.Hq / a.Hkv), int32(a.D), int32(a.Dv),
		float32(1 / math.Sqrt(float64(a.D))),
	}
}

// groups is the number of groups of the whole batch.
func (a Attention) groups() int64 { return a.B * a.Hkv }

// each is h, the heads of a group.
func (a Attention) each() int64 { return a.Hq / a.Hkv }

// rowTiles is the number of blocks that own count rows of a group each.
func (a Attention) rowTiles(count int64) int64 { return a.groups() * pieces(a.S*a.each(), count) }

// wholeQueries is the rows of a tile of m that belong to whole queries; m where one query has more.
func (a Attention) wholeQueries(m int64) int64 {
	if h := a.each(); h <= m {
		return m / h * h
	}
	return m
}

func (a Attention) forwardBytes(x shape) int64 {
	return 4 * (tileFloats(x.m, a.D) + tileFloats(x.m, a.Dv) + tileFloats(x.n, max(a.D, a.Dv)) + tileFloats(x.m, x.n))
}

func (a Attention) dqBytes(x shape) int64 {
	return 4 * (tileFloats(2*x.m+x.n, a.D) + tileFloats(x.m+x.n, a.Dv) + tileFloats(x.m, x.n))
}

func (a Attention) dkvBytes(x shape) int64 {
	return 4 * (tileFloats(2*x.m+x.n, a.D) + tileFloats(2*x.m+x.n, a.Dv) + tileFloats(x.m, x.n) + 4*x.n)
}

// walkBytes is what the slots of a tile of chosen blocks add to the shared memory of a kernel.
func walkBytes(x shape) int64 { return 4 * (3*x.n + 4) }

// tiled appends the launch of a kernel that is compiled for several tiles.
func (a Attention) tiled(to []Launch, op string, kernel *byTile, x shape, grid, shared int64, p *attentionParams) ([]Launch, error) {
	return a.plain(to, op, kernel.of(x, a.Type), grid, attentionThreads, shared, p)
}

// plain appends the launch of any kernel.
func (a Attention) plain(to []Launch, op, kernel string, grid int64, block Dim, shared int64, p *attentionParams) ([]Launch, error) {
	if grid > math.MaxInt32 {
		return to, unsupported(op, "%s needs %d blocks, a grid has less than 2^31", kernel, grid)
	}
	return append(to, launch(kernel, Dim{int(grid), 1, 1}, block, int(shared), p)), nil
}

// delta appends the launch that sets delta = rowsum(do*o).
func (a Attention) delta(to []Launch, op string, p *attentionParams) ([]Launch, error) {
	return a.plain(to, op, attentionNames.delta[a.Type], pieces(a.B*a.S*a.Hq, attentionWarps*deltaRows), attentionThreads, 0, p)
}

func (a Attention) deltaBytes() int64 { return align(4 * a.B * a.S * a.Hq) }

const (
	spanOp     = "span attention"
	selectedOp = "selected attention"
)

// params returns the arguments that do not depend on a kernel. Sizes beyond the sequence are cut to what has the same effect.
func (a SpanAttention) params() (attentionParams, error) {
	if err := a.check(spanOp, size{"block length l", a.BlockLen}, size{"stride d", a.Stride}, size{"window w", a.Window}); err != nil {
		return attentionParams{}, err
	}
	most := max(a.S, a.T)
	return attentionParams{
		n:    a.sizes(),
		span: spanMask{int32(min(a.BlockLen, a.S+1)), int32(min(a.Stride, a.S+1)), int32(min(a.Window, most))},
	}, nil
}

// Forward appends the launches of q, k, v -> o, lse.
func (a SpanAttention) Forward(to []Launch, q, k, v, o, lse Ptr) ([]Launch, error) {
	p, err := a.params()
	if err != nil {
		return to, err
	}
	p.q, p.k, p.v, p.o, p.lse = q, k, v, o, lse
	m := a.matrix(0, q, k, v, o)
	if err := m.fit(spanOp, a.GPU, m.forwardBytes()); err != nil {
		return to, err
	}
	if m.width > 0 {
		p.count = int32(matrixRows)
		return a.plain(to, spanOp, attentionNames.matrixSpanForward.of(m, a.Type), a.rowTiles(matrixRows), attentionThreads, m.forwardBytes(), &p)
	}
	grid := func(x shape) int64 { return a.rowTiles(x.m) }
	x, err := a.GPU.choose(spanOp, spanForwardTiles, a.forwardBytes, grid)
	if err != nil {
		return to, err
	}
	p.count = int32(x.m)
	return a.tiled(to, spanOp, &attentionNames.spanForward, x, grid(x), a.forwardBytes(x), &p)
}

// WorkBytes returns the size of the memory that Backward needs, linear in S.
func (a SpanAttention) WorkBytes() int64 {
	if _, err := a.params(); err != nil {
		return 0
	}
	bytes := a.deltaBytes()
	if x := a.chunks(); x.items > 1 {
		bytes += 4 * a.groups() * int64(x.items) * a.T * (a.D + a.Dv)
	}
	return bytes
}

// Backward appends the launches of q, k, v, o, lse, do -> dq, dk, dv.
func (a SpanAttention) Backward(to []Launch, q, k, v, o, lse, do, dq, dk, dv, work Ptr) ([]Launch, error) {
	p, err := a.params()
	if err != nil {
		return to, err
	}
	p.q, p.k, p.v, p.o, p.lse, p.dout, p.delta, p.dq, p.dk, p.dv = q, k, v, o, lse, do, work, dq, dk, dv
	if to, err = a.delta(to, spanOp, &p); err != nil {
		return to, err
	}
	m := a.matrix(0, q, k, v, do, dq, dk, dv)
	if err := m.fit(spanOp, a.GPU, m.backwardBytes()); err != nil {
		return to, err
	}
	if m.width > 0 {
		p.count = int32(matrixRows)
		if to, err = a.plain(to, spanOp, attentionNames.matrixSpanDQ.of(m, a.Type), a.rowTiles(matrixRows), attentionThreads, m.dqBytes(), &p); err != nil {
			return to, err
		}
		p.index, p.partial = a.chunks(), work.plus(a.deltaBytes())
		grid := a.groups() * pieces(a.T, matrixKeys) * int64(p.index.items)
		to, err = a.plain(to, spanOp, attentionNames.matrixSpanDKV.of(m, a.Type), grid, attentionThreads, m.dkvBytes(), &p)
		if err != nil || p.index.items == 1 {
			return to, err
		}
		return a.plain(to, spanOp, attentionNames.matrixSpanReduce[a.Type], pieces(a.groups()*a.T, attentionWarps), attentionThreads, 0, &p)
	}
	grid := func(x shape) int64 { return a.rowTiles(x.m) }
	x, err := a.GPU.choose(spanOp, gradientTiles, a.dqBytes, grid)
	if err != nil {
		return to, err
	}
	p.count = int32(x.m)
	if to, err = a.tiled(to, spanOp, &attentionNames.spanDQ, x, grid(x), a.dqBytes(x), &p); err != nil {
		return to, err
	}
	grid = func(x shape) int64 { return a.groups() * pieces(a.T, x.m) }
	if x, err = a.GPU.choose(spanOp, gradientTiles, a.dkvBytes, grid); err != nil {
		return to, err
	}
	return a.tiled(to, spanOp, &attentionNames.spanDKV, x, grid(x), a.dkvBytes(x), &p)
}
