package attention

import (
	"math"

	"github.com/gorgonia-nsa/nsa/cuda/internal/kernels"
	"github.com/gorgonia-nsa/nsa/graph"
	"github.com/gorgonia-nsa/nsa/ops/spec"
	"github.com/gorgonia-nsa/nsa/ops/spec/attention"
)

// params is AttentionParams of attention_params.cuh.
type params struct {
	q, k, v, idx, o, lse, dout, delta, dq, dk, dv, counts, starts, queries, partial, documents kernels.Ref

	n      sizes
	span   span
	blocks blocks
	index  index
	count  int32 // set by one of the methods below
}

// The kernels read count by these names: see AttentionParams.
func (p *params) ownRows(n int64)    { p.count = int32(n) } // rows that a thread block owns
func (p *params) ownKeys(n int64)    { p.count = int32(n) } // keys that a thread block of the kernel before span_reduce owned
func (p *params) joinBlocks(n int64) { p.count = int32(n) } // selection blocks in a block of the inverse index

// sizes is Sizes of attention_mask.cuh.
type sizes struct {
	starts                              kernels.Ref
	batch, queries, keys, heads, groups int32
	h                                   int32 // Hq/Hkv, heads of a group
	d, dv, lastStart                    int32
	scale, scaleLog2                    float32
}

// span is Span of attention_mask.cuh: what a query sees in window, dense and compressed attention. Key i covers the tokens [i*d, i*d+l)
// and is visible from the last of them on; a query sees the newest w of the visible keys.
type span struct{ l, d, w int32 }

// blocks is Blocks of attention_mask.cuh.
type blocks struct{ size, topN int32 }

// index is Index of attention_params.cuh: the sizes of the inverse index, or the chunks of rows of a kernel that owns keys under a span.
type index struct{ segments, chunk, items, partials int32 }

// problem holds the sizes that all attention ops share: q [B,S,Hq,D], k [B,T,Hkv,D], v [B,T,Hkv,Dv], o [B,S,Hq,Dv], and lse
// [B,Hq,S] float32. Groups may have any size. T is S, or the number of compressed keys. With a start T is at least S, or
// the number of compressed keys of the sequence that the queries are part of.
type problem struct {
	*kernels.Call
	B, S, T, Hq, Hkv, D, Dv int64
	// tokens is the number of places in the sequence that queries may have: S, or with a start all those that the keys allow.
	tokens int64
}

// sizeLimit is less than 2^31, so that the end of a tile that begins below a size fits int32, too.
const sizeLimit = math.MaxInt32 - 1024

// problemOf returns the sizes of q, the first input, of k and of v, for keys that stand for such blocks.
func problemOf(c *kernels.Call, k, v kernels.Operand, keys spec.CompressionBlocks) problem {
	q := c.In[0]
	a := problem{c, q.Dim(0), q.Dim(1), k.Dim(1), q.Dim(2), k.Dim(2), q.Dim(3), v.Dim(3), q.Dim(1)}
	if c.Starts != 0 {
		a.tokens = int64(keys.MaxTokens(int(a.S), int(a.T)))
	}
	return a
}

// check refuses sizes that 32 bits cannot count.
func (a problem) check() error {
	for _, size := range []struct {
		name string
		n    int64
	}{
		{"queries times heads of a group", a.tokens * a.headsPerGroup()}, {"keys", a.T}, {"batch", a.B}, {"heads", a.Hq},
		{"dim", a.D}, {"value dim", a.Dv},
	} {
		if size.n >= sizeLimit {
			return graph.Refuse(graph.ReasonSize, "%s: %d, want less than %d", size.name, size.n, sizeLimit)
		}
	}
	return nil
}

func (a problem) sizes() sizes {
	scale := float32(1 / math.Sqrt(float64(a.D)))
	return sizes{
		starts: a.Starts, batch: int32(a.B), queries: int32(a.S), keys: int32(a.T), heads: int32(a.Hq), groups: int32(a.Hkv),
		h: int32(a.headsPerGroup()), d: int32(a.D), dv: int32(a.Dv), lastStart: int32(a.tokens - a.S), scale: scale,
		scaleLog2: scale * math.Log2E,
	}
}

// groups is the number of groups of the whole batch.
func (a problem) groups() int64 { return a.B * a.Hkv }

func (a problem) headsPerGroup() int64 { return a.Hq / a.Hkv }

func (a problem) packed() bool { return a.Documents != 0 }

// rowTiles is the number of tiles of m rows, of all groups.
func (a problem) rowTiles(m int64) int64 {
	return a.groups() * kernels.CeilDiv(a.S*a.headsPerGroup(), m)
}

// wholeQueries is the number of rows of a tile of m that belong to whole queries, or m if one query has more.
func (a problem) wholeQueries(m int64) int64 {
	if h := a.headsPerGroup(); h <= m {
		return m / h * h
	}
	return m
}

const (
	warps     = 4
	deltaRows = 16 // rows of a warp of the kernel that computes delta
)

// addFourWarps adds a launch of blocks of 4 warps.
func addFourWarps(b *kernels.Builder, kernel string, grid, shared int64, p any) {
	b.AddLaunch(kernel, kernels.Line(grid), kernels.Line(32*warps), shared, p)
}

// addDelta adds the launch that computes p.delta [B,Hq,S] = rowsum(do*o), unless delta is an input.
func (a problem) addDelta(b *kernels.Builder, p *params) {
	if p.o != 0 {
		addFourWarps(b, a.Type.Name("attention_delta"), a.deltaBlocks(), 0, p) // attention_dq.cu
	}
}

// deltaBlocks is the number of thread blocks of a kernel that computes delta.
func (a problem) deltaBlocks() int64 { return kernels.CeilDiv(a.B*a.S*a.Hq, warps*deltaRows) }

// forwardParams returns the argument of q, k, v -> o, lse. In selected attention idx follows v.
func (a problem) forwardParams() *params {
	in, out := a.In, a.Out
	p := &params{q: in[0].Ref, k: in[1].Ref, v: in[2].Ref, o: out[0].Ref, lse: out[1].Ref, documents: a.Documents, n: a.sizes()}
	if len(in) == 4 {
		p.idx = in[3].Ref
	}
	return p
}

// gradParams returns the argument of q, k, v, o or delta, lse, do -> dq, dk, dv. If o [B,S,Hq,Dv] is the input, it reserves memory for
// delta [B,Hq,S]. In selected attention idx follows v.
func (a problem) gradParams(b *kernels.Builder) *params {
	in, out := a.In, a.Out
	p := &params{
		q: in[0].Ref, k: in[1].Ref, v: in[2].Ref, dq: out[0].Ref, dk: out[1].Ref, dv: out[2].Ref,
		documents: a.Documents, n: a.sizes(),
	}
	if len(in) == 7 {
		p.idx = in[3].Ref
	}
	oOrDelta, lse, dout := attention.GradInputs(in)
	p.lse, p.dout = lse.Ref, dout.Ref
	if len(oOrDelta.Shape) == 3 {
		p.delta = oOrDelta.Ref
	} else {
		p.o, p.delta = oOrDelta.Ref, b.Work(4*a.B*a.S*a.Hq)
	}
	return p
}
