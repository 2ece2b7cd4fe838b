package ops

import (
	"cmp"
	"fmt"
	"math"

	"gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/internal/cpu"
)

// The attention ops share one contract. The inputs are q [B,S,Hq,D], k [B,T,Hkv,D] and v [B,T,Hkv,Dv]; query head i belongs to
// group i/(Hq/Hkv). The sums run over the keys that the op's mask shows to a query:
//
//	o   [B,S,Hq,Dv]  softmax(q·k/sqrt(D))·v, the main output
//	lse [B,Hq,S]     natural log of the sum of exp(q·k/sqrt(D)), the second output
//
// A query that sees no key, or whose logits are all -Inf, gets o = 0 and lse = -Inf and passes no gradient on. Keys and values
// that a query does not see change no bit of its results, not even if they are NaN or infinite. No gradient flows through lse.
//
// The gradient ops recompute the softmax from lse, as FlashAttention does (arXiv 2205.14135 and 2307.08691). If lse is too large
// for that, they recompute it from the scores (see rowStats). Time is proportional to the visible pairs, memory to S.

// LSE returns the second output of an attention op, [B,Hq,S]: for each query the natural log of the sum of the exponentials of
// its scaled logits, -Inf if the query sees no key. o is a node that CompressedAttention, SelectedAttention, SlidingWindow or
// CausalAttention returned. Any other node is an error.
func LSE(o *gorgonia.Node) (*gorgonia.Node, error) {
	if o == nil {
		return nil, fmt.Errorf("ops: LSE of a nil node")
	}
	spec, _ := SpecOf(o.Op())
	if _, ok := spec.(AttentionSpec); ok {
		return Output(o, 1)
	}
	return nil, fmt.Errorf("ops: LSE of %v: not an attention op", o)
}

// AttentionSpec is the Spec of an attention op: its inputs begin with q, k and v, its outputs are o and lse.
type AttentionSpec interface {
	Spec
	// pairs returns, for one head of one row of the batch, the number of pairs of a query and a key that it sees.
	pairs(in []Operand) float64
	// inputs returns the number of inputs, not counting the table of documents that may follow them.
	inputs() int
	// bindGrad is the Bind of the op's AttentionGradOp. takesDelta is its Delta: in has delta instead of o.
	bindGrad(k *cpu.Kernel, takesDelta bool, in, out []Arg)
}

// dims are the sizes of an attention op. Methods name a query or a key by its sequence and its place in that sequence.
type dims struct {
	b, s, t     int // batch; queries and keys of a row of the batch
	hq, hkv, h  int // query heads, groups, query heads of a group
	d, dv       int // key dim, value dim
	tileQueries int // queries of a tile; each has h rows
	sequences
}

// maxTileRows bounds the rows of a tile: the heads of one group at a few adjoining queries. It is a multiple of 6, the number of
// rows of the widest register tile of cpu.Tile.
const maxTileRows = 60

// dimsOf returns the sizes of q [B,S,Hq,D], k [B,T,Hkv,D] and v [B,T,Hkv,Dv], which inferAttention has accepted. Each row of the
// batch is one sequence.
func dimsOf(q, k, v tensor.Shape) dims {
	h := q[2] / k[2]
	return dims{b: q[0], s: q[1], t: k[1], hq: q[2], hkv: k[2], h: h, d: q[3], dv: v[3], tileQueries: max(1, maxTileRows/h),
		sequences: sequencesOf(nil, q[1], k[1], 0, 0)}
}

// splitDims returns the inputs q, k, v, ... and their sizes. It removes input n if that is a table of documents. Keys are compression
// blocks of blockLen tokens, stride tokens apart; if blockLen is 0, keys are tokens.
func splitDims(in []Arg, n, blockLen, stride int) ([]Arg, dims) {
	in, table := splitTable(in, n)
	a := dimsOf(in[0].Shape, in[1].Shape, in[2].Shape)
	a.sequences = sequencesOf(table, a.s, a.t, blockLen, stride)
	return in, a
}

// queryAt returns the offset in an array [B,S,Hq,c] of the first of the h adjoining rows of group g at query t.
func (a dims) queryAt(seq sequence, t, g, c int) int {
	return ((seq.b*a.s+seq.first+t)*a.hq + g*a.h) * c
}

// keyAt returns the offset in an array [B,T,Hkv,c] of the row of a key of group g. The next key lies hkv*c elements further.
func (a dims) keyAt(seq sequence, key, g, c int) int {
	return ((seq.b*a.t+seq.firstKey+key)*a.hkv + g) * c
}

// statAt returns the offset in an array [B,Hq,S] of query t of the first head of group g. The next head lies s elements further.
func (a dims) statAt(seq sequence, g, t int) int { return (seq.b*a.hq+g*a.h)*a.s + seq.first + t }

// softmaxScale is 1/sqrt(D).
func softmaxScale[T cpu.Float](d int) T { return T(1 / math.Sqrt(float64(d))) }

// inferAttention is the shape rule q, k, v, ... -> o, lse. k and v have rows(S) keys for S queries. The inputs in more follow v;
// the op checks their shapes itself. A table of documents may come last.
func inferAttention(in []Operand, kName, vName string, rows func(s int) int, more ...input) ([]Operand, error) {
	in, table := splitTable(in, 3+len(more))
	if err := wantInputs(in, append([]input{float("q", 4), float(kName, 4), float(vName, 4)}, more...)...); err != nil {
		return nil, err
	}
	q, k, v, dt := in[0].Shape, in[1].Shape, in[2].Shape, in[0].Dtype
	switch want := rows(q[1]); {
	case k[0] != q[0]:
		return nil, fmt.Errorf("%s has batch %d, q has %d", kName, k[0], q[0])
	case q[2]%k[2] != 0:
		return nil, fmt.Errorf("heads %d not a multiple of kv heads %d", q[2], k[2])
	case k[3] != q[3]:
		return nil, fmt.Errorf("%s has dim %d, q has %d", kName, k[3], q[3])
	case k[1] != want:
		return nil, fmt.Errorf("%s has %d rows, want %d for %d queries", kName, k[1], want, q[1])
	}
	return []Operand{{dt, tensor.Shape{q[0], q[1], q[2], v[3]}}, {dt, tensor.Shape{q[0], q[2], q[1]}}},
		cmp.Or(wantShape(vName, v, k[0], k[1], k[2], v[3]), checkTable(table, q[0], q[1]))
}

// mask lists the keys that a query sees, in runs of adjoining keys.
type mask interface {
	// nextRun returns the first run [lo,hi) of keys that query t of group g sees, at or after key from. lo >= hi if there is none.
	nextRun(seq sequence, g, t, from int) (lo, hi int)
}

// overlap returns the part of the run [lo,hi) that lies in [from,to), relative to from. If it is empty, both results are equal.
func overlap(lo, hi, from, to int) (int, int) {
	lo = min(max(lo, from), to)
	return lo - from, max(lo, min(hi, to)) - from
}

// tileRows returns the largest number of rows of a tile.
func (a dims) tileRows() int { return a.tileQueries * a.h }

// bindGroups adds to k a phase that calls f for the pieces 0 to n-1 of each group of each row of the batch.
func bindGroups(k *cpu.Kernel, a dims, n int, f func(b, g, piece int, w *cpu.Worker)) {
	k.Phase(a.b*a.hkv*n, func(piece int, w *cpu.Worker) {
		bg := piece / n
		f(bg/a.hkv, bg%a.hkv, piece%n, w)
	})
}

// bindQueries adds to k a phase that calls f, for each group, with runs [t0,t1) of at most size queries of a sequence. The newest
// queries come first, since they may see the most keys.
func bindQueries(k *cpu.Kernel, a dims, size int, f func(seq sequence, g, t0, t1 int, w *cpu.Worker)) {
	n := cpu.CeilDiv(a.s, size)
	bindGroups(k, a, n, func(b, g, piece int, w *cpu.Worker) {
		from, to := part(n-1-piece, size, a.s)
		a.tiles(b, from, to, size, func(seq sequence, t0, t1 int) { f(seq, g, t0, t1, w) })
	})
}

// bindKeys adds to k a phase that calls f, for each group, with runs [lo,hi) of at most size keys of a sequence.
func bindKeys(k *cpu.Kernel, a dims, size int, f func(seq sequence, g, lo, hi int, w *cpu.Worker)) {
	bindGroups(k, a, cpu.CeilDiv(a.t, size), func(b, g, piece int, w *cpu.Worker) {
		from, to := part(piece, size, a.t)
		a.keyTiles(b, from, to, size, func(seq sequence, lo, hi int) { f(seq, g, lo, hi, w) })
	})
}

// gatherRows copies the rows of group g at the queries [t0,t1) of x [B,S,Hq,c] to dst [(t1-t0)*h,c].
func gatherRows[T cpu.Float](a dims, dst, x []T, seq sequence, g, t0, t1, c int) {
	n := a.h * c
	for t := t0; t < t1; t++ {
		copy(dst[(t-t0)*n:][:n], x[a.queryAt(seq, t, g, c):])
	}
}

// scatterRows is the inverse of gatherRows.
func scatterRows[T cpu.Float](a dims, x, src []T, seq sequence, g, t0, t1, c int) {
	n := a.h * c
	for t := t0; t < t1; t++ {
		copy(x[a.queryAt(seq, t, g, c):][:n], src[(t-t0)*n:])
	}
}
