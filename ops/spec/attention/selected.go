package attention

import (
	"fmt"
	"math"
	"slices"

	"gorgonia.org/gorgonia"

	"github.com/gorgonia-nsa/nsa/internal/cpu"
	"github.com/gorgonia-nsa/nsa/ops/spec"
)

// Selected is the Spec of SelectedAttention: q, k, v, idx and optionally a table of documents or a start of the queries
// -> o, lse.
type Selected struct {
	SelectBlock int // l': tokens in a selection block
}

func (Selected) Name() string       { return "selected attention" }
func (Selected) InputNames() string { return "q k v idx documents" }

func (op Selected) MaxTokens(in []spec.Operand) int { return maxTokens(op.Blocks(), in) }

func (Selected) inputCount() int { return 4 }

func (Selected) Blocks() spec.CompressionBlocks { return spec.CompressionBlocks{} }

func (op Selected) FLOPs(in []spec.Operand) float64 { return attentionFLOPs(op, in, 2, 2) }

// pairs assumes that each query has n different blocks, one of them the block of the query itself.
func (op Selected) pairs(in []spec.Operand) float64 {
	sum, others := 0.0, float64(in[3].Shape[3]-1)*float64(op.SelectBlock) // keys in the blocks before the query's own
	for t := range in[0].Shape[1] {
		sum += min(float64(t), others+float64(t%op.SelectBlock)) + 1
	}
	return sum
}

func (op Selected) Infer(in []spec.Operand) ([]spec.Operand, error) {
	if err := spec.WantPositive("selection block l'", op.SelectBlock); err != nil {
		return nil, err
	}
	out, err := infer(in, "k", "v", func(s int) int { return s }, spec.IndexInput("idx", 4))
	if err != nil {
		return nil, err
	}
	q, k, idx := in[0].Shape, in[1].Shape, in[3].Shape
	return out, spec.WantShape("idx", idx, q[0], q[1], k[2], idx[3])
}

func (op Selected) Bind(k *cpu.Kernel, in, out []spec.Arg) {
	spec.BindRounded(k, out, func(out []spec.Arg) {
		spec.ByType(in[0].Dtype, bindSelected[float32], bindSelected[float64])(k, op.SelectBlock, in, out)
	})
}

func (op Selected) TakesBF16(in, out []spec.Arg) bool {
	return op.SelectBlock%2 == 0 && takesBF16(in, out)
}

func (op Selected) bindGrad(k *cpu.Kernel, takesDelta bool, in, out []spec.Arg) {
	spec.ByType(in[0].Dtype, bindSelectedGrad[float32], bindSelectedGrad[float64])(k, op.SelectBlock, takesDelta, in, out)
}

func (op Selected) Grad(_ []bool, in gorgonia.Nodes, o, do *gorgonia.Node) (gorgonia.Nodes, error) {
	return grad(op, in, o, do)
}

// SelectedGrad is the Spec of the gradient of SelectedAttention.
type SelectedGrad = Grad[Selected]

func (Selected) CheckedInput() int { return 3 }

// Check does not read the table of documents, so it allows the blocks of a whole row. No query sees a block past the
// end of its document.
func (op Selected) Check(in []spec.Operand, b *cpu.Buf) error {
	return newSelectedBlocks(dimsOf(in[0].Shape, in[1].Shape, in[2].Shape), op.SelectBlock,
		spec.Arg{Operand: in[3], Buf: b}).Check()
}

// selectedBlocks is the mask of the blocks that each query has selected.
type selectedBlocks struct {
	dims
	size int      // l'
	n    int      // entries of idx for a query and a group
	idx  spec.Arg // int32 [B,S,Hkv,n]
}

// newSelectedBlocks returns the blocks of the given size that idx names. A size larger than the tokens of a row is cut
// to these.
func newSelectedBlocks(a dims, size int, idx spec.Arg) selectedBlocks {
	return selectedBlocks{a, min(size, a.RowKeys), idx.Shape[3], idx}
}

// numBlocks returns the number of selection blocks of s tokens. The last block may be shorter.
func (c selectedBlocks) numBlocks(s int) int { return cpu.CeilDiv(s, c.size) }

// maxKeys returns the largest number of keys that a query can have selected.
func (c selectedBlocks) maxKeys() int { return min(c.n*c.size, c.RowKeys) }

func (c selectedBlocks) list(seq spec.Sequence, g, t int) []int32 {
	return cpu.Slice[int32](c.idx.Buf)[((seq.Row*c.RowTokens+seq.FirstToken+t)*c.groups+g)*c.n:][:c.n]
}

// nextRun implements mask. It relies on ascending blocks, see check.
func (c selectedBlocks) nextRun(seq spec.Sequence, g, t, from int) (lo, hi int) {
	token := seq.Start + t
	for _, j := range c.list(seq, g, t) {
		switch first := int(j) * c.size; {
		case j < 0 || first > token:
			return lo, min(hi, token+1)
		case first < from:
		case hi == 0:
			lo, hi = first, first+c.size
		case first == hi:
			hi += c.size
		default:
			return lo, hi
		}
	}
	return lo, min(hi, token+1)
}

// startedBlocks returns the blocks of query t that begin at or before it.
func (c selectedBlocks) startedBlocks(seq spec.Sequence, g, t int) []int32 {
	idx := c.list(seq, g, t)
	for i, j := range idx {
		if j < 0 || int(j)*c.size > seq.Start+t {
			return idx[:i]
		}
	}
	return idx
}

func (c selectedBlocks) contains(seq spec.Sequence, g, t, key int) bool {
	return slices.Contains(c.list(seq, g, t), int32(key/c.size))
}

// hide replaces the scores of keys whose block query t has not selected. x holds the scores of the keys from key from
// on; the new scores come from values, whose elements are all equal.
func hide[T cpu.Float](c *selectedBlocks, seq spec.Sequence, g, t, from int, x, values []T) {
	end := 0 // end in x of the selected block before
	for _, j := range c.startedBlocks(seq, g, t) {
		lo, hi := overlap(int(j)*c.size, (int(j)+1)*c.size, from, from+len(x))
		copy(x[end:lo], values)
		end = hi
	}
	copy(x[end:], values)
}

// minusInfs returns a chunk of -Inf: the scores of keys that a query has not selected.
func minusInfs[T cpu.Float]() []T {
	return slices.Repeat([]T{T(math.Inf(-1))}, chunkKeys)
}

// Check returns an error that names the first invalid block.
func (c selectedBlocks) Check() (err error) {
	if err := c.CheckStart(); err != nil {
		return err
	}
	defer spec.AsValueError(&err)
	all := cpu.Slice[int32](c.idx.Buf)
	for at := 0; at < len(all); at += c.n {
		token := at / c.n / c.groups
		seq, last := c.OfToken(token/c.RowTokens, token%c.RowTokens), int32(-1)
		blocks := int32(c.numBlocks(seq.Keys))
		for _, j := range all[at : at+c.n] {
			switch {
			case j < -1 || j >= blocks:
				return c.errorAt(at, "block %d is not one of the %d blocks of %d tokens", j, blocks, seq.Keys)
			case j == -1:
				last = blocks // only padding may follow
			case last == blocks:
				return c.errorAt(at, "block %d comes after padding", j)
			case j <= last:
				return c.errorAt(at, "block %d comes after block %d, want ascending blocks", j, last)
			default:
				last = j
			}
		}
	}
	return nil
}

func (c selectedBlocks) errorAt(at int, format string, args ...any) error {
	at /= c.n
	b, t, g := at/c.groups/c.RowTokens, at/c.groups%c.RowTokens, at%c.groups
	return fmt.Errorf("idx of batch %d, query %d, group %d: %w", b, t, g, fmt.Errorf(format, args...))
}

// spanTokens returns how many first tokens of a sequence the kernels of spans compute, a multiple of a tile. So early
// queries select a good part of the keys that they may see. Adjoining queries then share tiles of all these keys, and
// each query hides the keys that it has not selected. The products of such tiles are several times as fast as those of
// the few heads of one query. The number does not depend on the sequence, nor do then the bits of a query on later
// tokens.
func (c selectedBlocks) spanTokens() int {
	return cpu.CeilDiv(min(shortSequence, 3*c.n*c.size), c.tileQueries) * c.tileQueries
}

// selectedForward is attention over selected blocks. The heads of a group at one query are the rows of a tile. A worker
// holds the scores of all selected keys at once.
type selectedForward[T cpu.Float] struct {
	selectedBlocks
	q, v, o, lse spec.Arg // q and v may be bf16
	keys         transposed[T]
	pairs        valuePairs

	// Scratch of each worker.
	row      cpu.Region[T] // [Dv]: a value
	scores   cpu.Region[T] // [h,selected keys]
	max, sum cpu.Region[T] // [h]: the softmax state
}

// queriesPerPiece is the number of adjoining queries in one piece of work.
const queriesPerPiece = 16

// bindSelected adds to k the phases of attention over selected blocks: in is q, k, v, idx, out is o, lse.
func bindSelected[T cpu.Float](k *cpu.Kernel, block int, in, out []spec.Arg) {
	in, a := splitDims(in, 4, spec.CompressionBlocks{})
	c := newSelectedBlocks(a, block, in[3])
	k.Check = c.Check
	early := c.spanTokens()
	spans := newSpanForward[T](k, a, maskedSpan{tokenSpan(a.RowKeys), &c}, in, out)
	bindQueries(k, a, a.tileQueries, func(seq spec.Sequence, g, t0, t1 int, w *cpu.Worker) {
		if seq.Start+t0 < early {
			spans.tile(seq, g, t0, t1, w)
		}
	})
	if a.RowKeys > early {
		f := &selectedForward[T]{
			selectedBlocks: c, q: in[0], v: in[2], o: out[0], lse: out[1],
			keys:   spans.keys,
			pairs:  spans.pairs,
			row:    cpu.Scratch[T](k, a.valueDim),
			scores: cpu.Scratch[T](k, a.h*c.maxKeys()),
			max:    cpu.Scratch[T](k, a.h),
			sum:    cpu.Scratch[T](k, a.h),
		}
		bindQueries(k, a, queriesPerPiece, func(seq spec.Sequence, g, first, end int, w *cpu.Worker) {
			f.queries(seq, g, max(first, early-seq.Start), end, w)
		})
	}
}

// queries computes o and lse for the queries [first,end) of a group.
func (f *selectedForward[T]) queries(seq spec.Sequence, g, first, end int, w *cpu.Worker) {
	state := OnlineSoftmax[T]{f.max.Local(w), f.sum.Local(w), SoftmaxScale[T](f.keyDim)}
	s, ld := f.scores.Local(w), f.maxKeys()
	keys, v := f.keys.group(seq, g), cpu.Slice[T](f.v.Buf)
	lse := cpu.Slice[T](f.lse.Buf)[f.statAt(seq, g, 0):]
	for t := first; t < end; t++ {
		q := cpu.Slice[T](f.q.Buf)[f.queryAt(seq, g, t, keys.c):]
		o := cpu.Slice[T](f.o.Buf)[f.queryAt(seq, g, t, f.valueDim):][:f.h*f.valueDim]
		state.Start()
		clear(o)
		n := 0
		for lo, hi := f.nextRun(seq, g, t, 0); lo < hi; lo, hi = f.nextRun(seq, g, t, hi) {
			dots(f.h, q, keys, lo, hi, s[n:], ld)
			n += hi - lo
		}
		for j := range f.h {
			state.Add(j, s[j*ld:][:n], 0, n, o[j*f.valueDim:][:f.valueDim])
		}
		n = 0
		for lo, hi := f.nextRun(seq, g, t, 0); lo < hi; lo, hi = f.nextRun(seq, g, t, hi) {
			if f.pairs.buf != nil {
				f.addPairs(float32s(o), float32s(s[n:]), seq, g, lo, hi, float32s(f.row.Local(w)))
			} else {
				cpu.TileAdd(f.h, f.valueDim, hi-lo, s[n:], ld, 1, v[f.keyAt(seq, g, lo, f.valueDim):],
					f.groups*f.valueDim, o, f.valueDim)
			}
			n += hi - lo
		}
		for j := range f.h {
			lse[j*f.RowTokens+t] = state.Finish(j, o[j*f.valueDim:][:f.valueDim])
		}
	}
}

// addPairs adds to o [h,Dv] the product of the weights p, whose rows lie maxKeys elements apart, and the values of the
// keys [lo,hi) of bf16. lo is even. If hi is odd, the last key comes alone, since its query may not see the one with
// which it is paired. row is scratch for a value.
func (f *selectedForward[T]) addPairs(o, p []float32, seq spec.Sequence, g, lo, hi int, row []float32) {
	n, ld := (hi-lo)/2*2, f.maxKeys()
	if n < hi-lo {
		cpu.WidenBF16(row, cpu.Slice[cpu.BFloat16](f.v.Buf)[f.keyAt(seq, g, hi-1, f.valueDim):][:f.valueDim])
		for j := range f.h {
			cpu.Axpy(p[j*ld+n], row, o[j*f.valueDim:][:f.valueDim])
		}
	}
	if n > 0 {
		addPairs(f.h, n, f.valueDim, p, ld, f.pairs.group(seq, g)[lo/2*f.valueDim:], o)
	}
}
