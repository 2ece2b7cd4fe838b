package attention

import (
	"slices"

	"gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/internal/cpu"
	"github.com/gorgonia-nsa/nsa/ops/spec"
)

// Grad is the Spec of the gradient of an attention op: the inputs of Forward, o, lse, do -> dq, dk, dv. Further
// inputs of Forward have no gradient.
type Grad[F Forward] struct {
	Forward F
	Delta   bool // the op takes delta [B,Hq,S] = rowsum(do·o) instead of o
}

// grad applies the gradient of op to its inputs, o, lse and do.
func grad[F Forward](op F, inputs gorgonia.Nodes, o, do *gorgonia.Node) (gorgonia.Nodes, error) {
	lse, err := LSE(o)
	if err != nil {
		return nil, err
	}
	return spec.ApplyOutputs(Grad[F]{Forward: op}, 3, append(slices.Clone(inputs), o, lse, do)...)
}

// GradInputs returns the last three inputs of a Grad: o, or delta with Delta, lse and do.
func GradInputs[A any](in []A) (oOrDelta, lse, do A) {
	n := len(in)
	return in[n-3], in[n-2], in[n-1]
}

// SetDelta replaces o by delta among the inputs of a Grad, see WithDelta.
func SetDelta[A any](in []A, delta A) { in[len(in)-3] = delta }

// WithDelta returns a Spec that computes the same gradient of an attention op from delta instead of o, see GradInputs.
// pointwise.GatedSumGrad, which computes do and reads o, can compute delta as well. The result is false if grad is no
// gradient of an attention op or already takes delta.
func WithDelta(grad spec.Spec) (spec.Spec, bool) {
	if op, ok := grad.(interface{ withDelta() (spec.Spec, bool) }); ok {
		return op.withDelta()
	}
	return nil, false
}

func (op Grad[F]) withDelta() (spec.Spec, bool) {
	return Grad[F]{op.Forward, true}, !op.Delta
}

func (op Grad[F]) Name() string { return "gradient of " + op.Forward.Name() }

func (op Grad[F]) MaxTokens(in []spec.Operand) int { return maxTokens(op.Blocks(), in) }

func (op Grad[F]) Blocks() spec.CompressionBlocks { return op.Forward.Blocks() }

func (op Grad[F]) FLOPs(in []spec.Operand) float64 { return attentionFLOPs(op.Forward, in, 6, 4) }

func (op Grad[F]) Infer(in []spec.Operand) ([]spec.Operand, error) {
	o := spec.LikeOutput{Name: "o", Output: 0}
	if op.Delta {
		o = spec.LikeOutput{Name: "delta", Output: 1}
	}
	in, err := spec.InferWithMore(op.Forward, spec.InputsWithTable(in, op.Forward.inputCount()), in, o,
		spec.LikeOutput{Name: "lse", Output: 1}, spec.LikeOutput{Name: "do", Output: 0})
	if err != nil {
		return nil, err
	}
	return in[:3], nil
}

func (op Grad[F]) Bind(k *cpu.Kernel, in, out []spec.Arg) {
	spec.BindRounded(k, out, func(out []spec.Arg) { op.Forward.bindGrad(k, op.Delta, in, out) })
}

func (op Grad[F]) TakesBF16(in, _ []spec.Arg) bool {
	_, _, do := GradInputs(in)
	return spec.AllBF16(in[0], in[1], in[2], do) && in[0].Last()%2 == 0 && in[2].Last()%2 == 0
}

// backward is the common part of the gradients of all attention ops. A piece of work writes the dq of some queries, or
// the dk and dv of some keys; both recompute the scores. Only one piece writes an element of an output, so the bits do
// not depend on the order of execution.
type backward[T cpu.Float] struct {
	dims
	q, k, v, do         spec.Arg
	storedQ, storedDO   spec.Arg // q and do for dots: of pairs in bf16
	gradQ, gradK, gradV spec.Arg // dq, dk, dv
	keys, vals          transposed[T]
	stats               rowStats[T]

	// Scratch of each worker. The rows and the keys are those of a tile.
	rowsQ   cpu.Region[T] // [rows,D]
	rowsDO  cpu.Region[T] // [rows,Dv]
	pairsQ  cpu.Region[T] // [rows,D/2], only in bf16
	pairsDO cpu.Region[T] // [rows,Dv/2], only in bf16
	// [rows,keys] or [h,keys]: scores and do·v, then the probabilities and the gradients of the scores
	scores, dp cpu.Region[T]
	tileK      cpu.Region[T] // [keys,D]: dk
	tileV      cpu.Region[T] // [keys,Dv]: dv
	finiteRows cpu.Region[T] // scratch of weightedRows.addTo
}

// newBackward adds to k the phases that prepare the gradient: they transpose keys and values and compute the numbers of
// the rows. The caller adds the phases that compute the gradient. in is q, k, v, ..., o or delta, lse, do, out is dq,
// dk, dv. scores is the largest number of scores that a worker holds at a time, keys the largest number of keys that
// keyGrad gets.
func newBackward[T cpu.Float](k *cpu.Kernel, a dims, m mask, scores, keys int, takesDelta bool, in,
	out []spec.Arg) backward[T] {
	oOrDelta, lse, do := GradInputs(in)
	keyTiles, valueTiles := bindTranspose[T](k, a, in[1]), bindTranspose[T](k, a, in[2])
	wide := []spec.Arg{in[0], in[1], in[2], do, oOrDelta}
	pairs := do.Dtype == spec.BFloat16
	if pairs {
		wide = spec.InType(k, tensor.Float32, wide...)
	}
	f := backward[T]{
		dims: a, q: wide[0], k: wide[1], v: wide[2], do: wide[3], storedQ: in[0], storedDO: do,
		gradQ: out[0], gradK: out[1], gradV: out[2],
		keys:       keyTiles,
		vals:       valueTiles,
		rowsQ:      cpu.Scratch[T](k, a.tileRows()*a.keyDim),
		rowsDO:     cpu.Scratch[T](k, a.tileRows()*a.valueDim),
		scores:     cpu.Scratch[T](k, scores),
		dp:         cpu.Scratch[T](k, scores),
		tileK:      cpu.Scratch[T](k, keys*a.keyDim),
		tileV:      cpu.Scratch[T](k, keys*a.valueDim),
		finiteRows: cpu.Scratch[T](k, max(chunkKeys, a.tileRows())*max(a.keyDim, a.valueDim)),
	}
	if pairs {
		f.pairsQ, f.pairsDO = cpu.Scratch[T](k, a.tileRows()*keyTiles.c), cpu.Scratch[T](k, a.tileRows()*valueTiles.c)
	}
	f.stats = bindRowStats(k, a, m, in[0], f.keys, lse)
	if takesDelta {
		f.stats.bindCopyDelta(k, wide[4])
	} else {
		f.stats.bindDelta(k, wide[4], f.do)
	}
	return f
}

// tileRowsOf returns scratch for the q and do of a tile, and for those that dots takes: the same, or pairs in bf16.
func (f *backward[T]) tileRowsOf(w *cpu.Worker) (q, do, dotsQ, dotsDO []T) {
	q, do = f.rowsQ.Local(w), f.rowsDO.Local(w)
	if f.keys.pairs {
		return q, do, f.pairsQ.Local(w), f.pairsDO.Local(w)
	}
	return q, do, q, do
}

// gather fills the scratch of tileRowsOf from row at on, with the rows of the queries [t0,t1) of a group.
func (f *backward[T]) gather(q, do, dotsQ, dotsDO []T, at int, seq spec.Sequence, g, t0, t1 int) {
	gatherRows(f.dims, q[at*f.keyDim:], cpu.Slice[T](f.q.Buf), seq, g, t0, t1, f.keyDim)
	gatherRows(f.dims, do[at*f.valueDim:], cpu.Slice[T](f.do.Buf), seq, g, t0, t1, f.valueDim)
	if f.keys.pairs {
		gatherRows(f.dims, dotsQ[at*f.keys.c:], cpu.Slice[T](f.storedQ.Buf), seq, g, t0, t1, f.keys.c)
		gatherRows(f.dims, dotsDO[at*f.vals.c:], cpu.Slice[T](f.storedDO.Buf), seq, g, t0, t1, f.vals.c)
	}
}

// keyGrad writes the dk and dv of the keys [lo,hi) of a sequence and a group. They come from the n queries that may see
// any of these keys: query(i) returns the i-th of them, in ascending order. keysOf(t) returns a run of keys; query t
// sees exactly those of [lo,hi) that are in the run.
func (f *backward[T]) keyGrad(seq spec.Sequence, g, lo, hi, n int, query func(i int) int,
	keysOf func(t int) (lo, hi int), w *cpu.Worker) {
	keys := hi - lo
	q, do, dotsQ, dotsDO := f.tileRowsOf(w)
	s, dp, finiteRows := f.scores.Local(w), f.dp.Local(w), f.finiteRows.Local(w)
	dk, dv := f.tileK.Local(w)[:keys*f.keyDim], f.tileV.Local(w)[:keys*f.valueDim]
	transposedK, transposedV, stats := f.keys.group(seq, g), f.vals.group(seq, g), f.stats.rows(seq, g)
	clear(dk)
	clear(dv)
	for first := 0; first < n; first += f.tileQueries {
		end := min(n, first+f.tileQueries)
		rows, areFinite := (end-first)*f.h, true
		for i := first; i < end; i++ {
			t, at := query(i), (i-first)*f.h
			f.gather(q, do, dotsQ, dotsDO, at, seq, g, t, t+1)
			areFinite = areFinite && f.stats.finite(stats, t*f.h, (t+1)*f.h)
		}
		dots(rows, dotsQ, transposedK, lo, hi, s, keys)
		dots(rows, dotsDO, transposedV, lo, hi, dp, keys)
		for r := range rows {
			t := query(first + r/f.h)
			from, to := keysOf(t)
			from, to = overlap(from, to, lo, hi)
			softmaxGrad(s[r*keys:][:keys], dp[r*keys:][:keys], from, to, rowOf(stats, t*f.h+r%f.h), SoftmaxScale[T](f.keyDim))
		}
		visible := func(i, r int) bool {
			from, to := keysOf(query(first + r/f.h))
			return from <= lo+i && lo+i < to
		}
		// The weights are transposed: their rows are the keys.
		weightedRows[T]{
			m: keys, n: rows, c: f.valueDim, w: s, rs: 1, cs: keys, rows: do, ld: f.valueDim, visible: visible,
		}.addTo(dv, areFinite, finiteRows)
		weightedRows[T]{
			m: keys, n: rows, c: f.keyDim, w: dp, rs: 1, cs: keys, rows: q, ld: f.keyDim, visible: visible,
		}.addTo(dk, areFinite, finiteRows)
	}
	for i := range keys {
		copy(cpu.Slice[T](f.gradK.Buf)[f.keyAt(seq, g, lo+i, f.keyDim):][:f.keyDim], dk[i*f.keyDim:])
		copy(cpu.Slice[T](f.gradV.Buf)[f.keyAt(seq, g, lo+i, f.valueDim):][:f.valueDim], dv[i*f.valueDim:])
	}
}
