package ops

import (
	"cmp"
	"fmt"
	"math"

	"gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/internal/cpu"
)

// The attention ops share one contract. With q [B,S,Hq,D], k [B,T,Hkv,D] and v [B,T,Hkv,Dv], query head i of group
// i/(Hq/Hkv), and the keys that the op's mask shows to a query:
//
//	o   [B,S,Hq,Dv]  softmax(q·k/sqrt(D))·v, the main output
//	lse [B,Hq,S]     log of the sum of exp(q·k/sqrt(D)), the second output, natural
//
// A query that sees nothing gets o = 0 and lse = -Inf and passes no gradient on; so does one whose logits are all -Inf.
// Keys and values that a query does not see change no bit of its results, not even if they are NaN or infinite. No gradient
// flows through lse. The gradient ops recompute the softmax from lse, as FlashAttention does (arXiv 2205.14135 and
// 2307.08691), or from the scores where lse is too large to hold it (see rowStats): time is proportional to the visible
// pairs, memory to S.

// LSE returns the second output of an attention op, [B,Hq,S]: the natural log of the sum of the exponentials of the
// scaled logits of each query, -Inf where it sees nothing. o is the node of CompressedAttention, SelectedAttention,
// SlidingWindow or CausalAttention; any other is an error.
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
	// pairs counts the pairs of a query and a key that it sees, of one head.
	pairs(in []Operand) float64
	// inputs is the number of its inputs, without a table of documents, which may come behind them.
	inputs() int
	// bindGrad is Bind of its AttentionGradOp.
	bindGrad(k *cpu.Kernel, in, out []Arg)
}

// dims are the sizes of an attention op. Queries and keys are named by their sequence and their place in it.
type dims struct {
	b, s, t    int // batch; queries and keys of a row
	hq, hkv, h int // query heads, groups, query heads of a group
	d, dv      int // key dim, value dim
	tokens     int // queries of a tile of rows
	sequences
}

// mostRows bounds the rows of a tile: the heads of one group at a few adjoining queries. It is a multiple of the 6 rows
// that the widest register tile of cpu.Tile has.
const mostRows = 60

// dimsOf returns the sizes of q [B,S,Hq,D], k [B,T,Hkv,D] and v [B,T,Hkv,Dv], which inferAttention has accepted, with each row as
// one sequence.
func dimsOf(q, k, v tensor.Shape) dims {
	h := q[2] / k[2]
	return dims{b: q[0], s: q[1], t: k[1], hq: q[2], hkv: k[2], h: h, d: q[3], dv: v[3], tokens: max(1, mostRows/h),
		sequences: sequencesOf(nil, q[1], k[1], 0, 0)}
}

// splitDims returns the inputs q, k, v, ... without a table of documents at n, and their sizes. Keys are of compression blocks of l
// tokens, d apart, or tokens where l is 0.
func splitDims(in []Arg, n, l, d int) ([]Arg, dims) {
	in, table := splitTable(in, n)
	a := dimsOf(in[0].Shape, in[1].Shape, in[2].Shape)
	a.sequences = sequencesOf(table, a.s, a.t, l, d)
	return in, a
}

// row is the offset in an array [B,S,Hq,c] of the first of the h adjoining rows of group g at query t.
func (a dims) row(q sequence, t, g, c int) int { return ((q.b*a.s+q.first+t)*a.hq + g*a.h) * c }

// at is the offset in an array [B,T,Hkv,c] of the row of key s of group g. The next key is hkv*c further.
func (a dims) at(q sequence, s, g, c int) int { return ((q.b*a.t+q.key+s)*a.hkv + g) * c }

// stat is the offset in an array [B,Hq,S] of query t of the first head of group g. The next head is s further.
func (a dims) stat(q sequence, g, t int) int { return (q.b*a.hq+g*a.h)*a.s + q.first + t }

// softmaxScale is 1/sqrt(D).
func softmaxScale[T cpu.Float](d int) T { return T(1 / math.Sqrt(float64(d))) }

// inferAttention is the shape rule q, k, v, ... -> o, lse of the ops that have rows(S) keys for S queries; more are inputs
// behind v, whose shapes it leaves to the op. A table of documents may come last.
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
	// run returns the first run [lo,hi) of keys, from the given one on, that query t of group g sees; lo >= hi if there is
	// none.
	run(q sequence, g, t, from int) (lo, hi int)
}

// span is the mask of the ops whose queries see one run of keys. Key i is a block of the tokens [i*d, i*d+l), which queries
// see from its last token on; a query sees the w newest of these keys. Tokens are blocks of l = d = 1. A w of S or more
// hides nothing.
type span struct{ l, d, w int }

// keys returns the run of keys [lo,hi) that query t sees; lo >= hi where it sees nothing.
func (m span) keys(t int) (lo, hi int) { return max(0, t+1-m.w), NumVisible(t, m.l, m.d) }

// tile returns a run of keys, from the start of a vector on, that holds those of the queries [t0,t1).
func (m span) tile(t0, t1 int) (lo, hi int) {
	lo, _ = m.keys(t0)
	_, hi = m.keys(t1 - 1)
	return lo / 16 * 16, hi
}

func (m span) run(_ sequence, _, t, from int) (lo, hi int) {
	lo, hi = m.keys(t)
	return max(lo, from), hi
}

// pairs counts the keys that the queries 0 to s-1 see.
func (m span) pairs(s int) float64 {
	n := 0
	for t := range s {
		lo, hi := m.keys(t)
		n += max(0, hi-lo)
	}
	return float64(n)
}

// sees reports whether query t sees the key.
func (m span) sees(t, key int) bool {
	lo, hi := m.keys(t)
	return lo <= key && key < hi
}

// queries returns the run of queries, of s, outside of which no query sees any of the keys [lo,hi).
func (m span) queries(lo, hi, s int) (from, to int) { return lo*m.d + m.l - 1, min(s, hi-1+m.w) }

// overlap returns the part of the run [lo,hi) that lies in [from,to), relative to from. Both are equal where it is empty.
func overlap(lo, hi, from, to int) (int, int) {
	lo = min(max(lo, from), to)
	return lo - from, max(lo, min(hi, to)) - from
}

// tileRows is the largest number of rows of a tile.
func (a dims) tileRows() int { return a.tokens * a.h }

// bindGroups adds to k the phase that calls f for the pieces 0 to n-1 of each group.
func bindGroups(k *cpu.Kernel, a dims, n int, f func(b, g, piece int, w *cpu.Worker)) {
	k.Phase(a.b*a.hkv*n, func(piece int, w *cpu.Worker) {
		bg := piece / n
		f(bg/a.hkv, bg%a.hkv, piece%n, w)
	})
}

// bindQueries adds to k the phase that calls f for runs [t0,t1) of at most size queries of a sequence, of each group. The newest
// come first: they may see the most.
func bindQueries(k *cpu.Kernel, a dims, size int, f func(q sequence, g, t0, t1 int, w *cpu.Worker)) {
	n := pieces(a.s, size)
	bindGroups(k, a, n, func(b, g, piece int, w *cpu.Worker) {
		from, to := part(n-1-piece, size, a.s)
		a.tiles(b, from, to, size, func(q sequence, t0, t1 int) { f(q, g, t0, t1, w) })
	})
}

// bindKeys adds to k the phase that calls f for runs [lo,hi) of at most size keys of a sequence, of each group.
func bindKeys(k *cpu.Kernel, a dims, size int, f func(q sequence, g, lo, hi int, w *cpu.Worker)) {
	bindGroups(k, a, pieces(a.t, size), func(b, g, piece int, w *cpu.Worker) {
		from, to := part(piece, size, a.t)
		a.keyTiles(b, from, to, size, func(q sequence, lo, hi int) { f(q, g, lo, hi, w) })
	})
}

// gatherRows copies the rows of group g at the queries [t0,t1) of x [B,S,Hq,c] to dst [(t1-t0)*h,c].
func gatherRows[T cpu.Float](a dims, dst, x []T, q sequence, g, t0, t1, c int) {
	n := a.h * c
	for t := t0; t < t1; t++ {
		copy(dst[(t-t0)*n:][:n], x[a.row(q, t, g, c):])
	}
}

// scatterRows is the inverse of gatherRows.
func scatterRows[T cpu.Float](a dims, x, src []T, q sequence, g, t0, t1, c int) {
	n := a.h * c
	for t := t0; t < t1; t++ {
		copy(x[a.row(q, t, g, c):][:n], src[(t-t0)*n:])
	}
}
