package decode

import (
	"cmp"
	"errors"
	"fmt"

	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/internal/cpu"
	"github.com/gorgonia-nsa/nsa/ops/spec"
	"github.com/gorgonia-nsa/nsa/ops/spec/compress"
)

// Extend is the Spec that continues sequences of a KVCache by a run of tokens, such as the next chunk of a prompt. It
// stores their keys and values, and returns the keys and values of the sequences from their first token on, to which the
// run attends by ops.WithStart. So the bits are those of the whole sequence. The inputs are
//
//	k, v    [R,S,Hkv,D], [R,S,Hkv,Dv]  of the new tokens: a pair for each branch, as in Step, after RoPE
//	phi     as in Step: with MLP
//	cache   [Elements()]               the op writes to it
//	page table  int32 [R,2+P]          for each sequence its slot, its number of new tokens, at most S, and its pages
//	start   int32 [R]                  for each sequence the number of tokens that the cache has of it, 0 to T-S
//
// and the outputs, of the same type as k,
//
//	kc, vc  [R,Nc,Hkv,D], [R,Nc,Hkv,Dv]  compressed, of T tokens; only if the cache stores the compressed branch
//	k, v    [R,T,Hkv,D], [R,T,Hkv,Dv]    a pair for the selected and for the window branch, or for dense attention
//
// Row t is token t: of the cache, or from start on of the inputs. Other rows are zero: those past the inputs, and in the
// window branch those that no new token sees. Slot -1 stores nothing, its start is 0. The op has no gradient.
//
// A machine on a device checks page table and start each alone: whether start, too, fits the pages is for the caller to
// know. Kernels stay in the arrays whatever the numbers are.
type Extend struct {
	Cache  KVCache
	Tokens int  // T: tokens of the outputs
	MLP    bool // blocks are compressed by an MLP, not by their mean
}

func (Extend) Name() string { return "extend cache" }

// UpdatedInputs implements Updating: the op writes to the cache.
func (op Extend) UpdatedInputs() []int { return []int{op.cacheInput()} }

// MaxTokens implements spec.Startable.
func (op Extend) MaxTokens([]spec.Operand) int { return op.Tokens }

func (op Extend) CheckedInput() int { return op.cacheInput() + 1 }

// Check checks the page table for runs that begin at any token.
func (op Extend) Check(in []spec.Operand, b *cpu.Buf) (err error) {
	defer spec.AsValueError(&err)
	return op.Cache.checkRuns(spec.Arg{Operand: in[op.CheckedInput()], Buf: b}, nil, in[0].Shape[1])
}

// inputBranches returns the branches whose keys and values are inputs of ops.
func (c KVCache) inputBranches() (list []Branch) {
	for b := range Branch(NumBranches) {
		if c.hasInputs(b) {
			list = append(list, b)
		}
	}
	return list
}

func (op Extend) cacheInput() int {
	n := 2 * len(op.Cache.inputBranches())
	if op.MLP {
		n += 6
	}
	return n
}

func (op Extend) Infer(in []spec.Operand) ([]spec.Operand, error) {
	c, at := op.Cache, op.cacheInput()
	if err := cmp.Or(c.check(), spec.WantPositive("tokens T", op.Tokens)); err != nil {
		return nil, err
	}
	if op.MLP && !c.Stores(Compressed) {
		return nil, errors.New("the cache has no compressed branch: MLP must be false")
	}
	var rules []spec.InputRule
	for _, b := range c.inputBranches() {
		k, v := c.inputNames(b)
		rules = append(rules, spec.FloatInput(k, 4), spec.FloatInput(v, 4))
	}
	if op.MLP {
		for _, name := range []string{"k pe", "k w1", "k w2", "v pe", "v w1", "v w2"} {
			rules = append(rules, spec.FloatInput(name, 2))
		}
	}
	if err := spec.WantInputs(in, append(rules, spec.FloatInput("cache", 1), spec.IndexInput("page table", 2),
		spec.IndexInput("start", 1))...); err != nil {
		return nil, err
	}
	rows, s := in[0].Shape[0], in[0].Shape[1]
	if s > op.Tokens {
		return nil, fmt.Errorf("%d new tokens, want at most the %d of the outputs", s, op.Tokens)
	}
	err := cmp.Or(c.inferCache(in[at], in[at+1], rows, 2), spec.WantShape("start", in[at+2].Shape, rows))
	var out []spec.Operand
	pair := func(tokens int) {
		for _, width := range []int{c.KeyDim, c.ValueDim} {
			out = append(out, spec.Operand{Dtype: in[0].Dtype, Shape: tensor.Shape{rows, tokens, c.KVHeads, width}})
		}
	}
	for i, b := range c.inputBranches() {
		err = cmp.Or(err, spec.WantShape(rules[2*i].Name, in[2*i].Shape, rows, s, c.KVHeads, c.KeyDim),
			spec.WantShape(rules[2*i+1].Name, in[2*i+1].Shape, rows, s, c.KVHeads, c.ValueDim))
		if b == Compressed {
			pair(spec.CompressedRows(op.Tokens, c.BlockLen, c.Stride))
		} else {
			pair(op.Tokens)
		}
	}
	if op.MLP {
		for i, width := range []int{c.KeyDim, c.ValueDim} {
			x := spec.Operand{Dtype: in[0].Dtype, Shape: tensor.Shape{rows, s, c.KVHeads, width}}
			_, wrong := op.compressed(x, in[at-6+3*i:][:3])
			err = cmp.Or(err, wrong)
		}
	}
	return out, err
}

// compression returns the op that compresses blocks.
func (op Extend) compression() spec.Spec {
	if op.MLP {
		return compress.MLP{BlockLen: op.Cache.BlockLen, Stride: op.Cache.Stride}
	}
	return compress.Mean{BlockLen: op.Cache.BlockLen, Stride: op.Cache.Stride}
}

// compressed returns the outputs of the compression of x, and an error if the parameters phi do not fit.
func (op Extend) compressed(x spec.Operand, phi []spec.Operand) ([]spec.Operand, error) {
	return op.compression().Infer(append([]spec.Operand{x}, phi...))
}

// TakesBF16 reports true: Bind rounds what it stores, too, as a machine rounds the inputs of FillCache.
func (Extend) TakesBF16(_, _ []spec.Arg) bool { return true }

func (op Extend) Bind(k *cpu.Kernel, in, out []spec.Arg) {
	if spec.IsHalf(op.Cache.Half) {
		k.Check = spec.NoHalf
		return
	}
	spec.BindRounded(k, out, func(out []spec.Arg) {
		spec.ByType(out[0].Dtype, bindExtend[float32], bindExtend[float64])(k, op, in, out)
	})
}

// extender is the kernel of Extend.
type extender[T cpu.Float] struct {
	KVCache
	Layout
	run          []spec.Arg // keys and values of the new tokens, as the inputs
	blocks       []spec.Arg // those of the compression blocks that the new tokens complete; those after them are not used
	cache        spec.Arg
	table, start spec.Arg
}

// bindExtend adds to k the phases that compress the new blocks, copy cache and run to the outputs, and store the run.
func bindExtend[T cpu.Float](k *cpu.Kernel, op Extend, in, out []spec.Arg) {
	c, at, branches := op.Cache, op.cacheInput(), op.Cache.inputBranches()
	e := &extender[T]{KVCache: c, Layout: c.Layout(), run: spec.InType(k, tensor.Float32, in[:2*len(branches)]...),
		cache: in[at], table: in[at+1], start: in[at+2]}
	if c.Stores(Compressed) {
		e.bindCompress(k, op, in[0].Dtype, in[2*len(branches):at])
	}
	rows, s := in[0].Shape[0], in[0].Shape[1]
	const tokens = 256 // of a piece
	pieces := cpu.CeilDiv(op.Tokens, tokens)
	k.Phase(rows*c.KVHeads*pieces, func(piece int, _ *cpu.Worker) {
		seq := e.sequence(piece / pieces)
		for i, b := range branches {
			dst, src, cached := seq.rowsOf(out[2*i:]), seq.rowsOf(e.run[2*i:]), seq.tokens(seq.start)
			switch b {
			case Compressed:
				src, cached = seq.rowsOf(e.blocks), seq.compressedKeys(spec.NumCompressed(seq.start, c.BlockLen, c.Stride))
			case Window:
				if !c.Dense() {
					cached = seq.windowTokens(max(0, seq.start+1-c.Window), seq.start)
				}
			}
			lo, hi := spec.PieceBounds(piece%pieces, cpu.CeilDiv(dst.n, pieces), dst.n)
			dst.set(min(lo, hi), hi, 0, cached, src)
		}
	})
	k.Phase(rows*c.KVHeads, func(piece int, _ *cpu.Worker) {
		seq := e.sequence(piece)
		seq.store(seq.row, seq.start, seq.added, e.blocks, e.run)
	})
	k.Check = func() error { return op.check(e.table, e.start, s) }
}

// bindCompress sets e.blocks and adds to k the phases that compute them, rounded to dt. phi are the parameters of the
// compression, those for keys first.
func (e *extender[T]) bindCompress(k *cpu.Kernel, op Extend, dt tensor.Dtype, phi []spec.Arg) {
	var x []spec.Arg // the new tokens, after the ones before them in the same blocks
	for _, run := range e.run[:2] {
		shape := run.Shape.Clone()
		shape[1] += e.BlockLen - 1
		x = append(x, spec.WorkLike(k, spec.Arg{Operand: spec.Operand{Dtype: run.Dtype, Shape: shape}}))
	}
	k.Phase(x[0].Shape[0]*e.KVHeads, func(piece int, _ *cpu.Worker) {
		seq := e.sequence(piece)
		dst, first := seq.rowsOf(x), spec.NumCompressed(seq.start, e.BlockLen, e.Stride)*e.Stride
		dst.set(0, dst.n, first, seq.tail(first, seq.start), seq.rowsOf(e.run))
	})
	for i, run := range e.run[:2] {
		in := append(spec.InType(k, dt, x[i]), phi[i*len(phi)/2:(i+1)*len(phi)/2]...)
		var operands []spec.Operand
		for _, a := range in[1:] {
			operands = append(operands, spec.Operand{Dtype: run.Dtype, Shape: a.Shape})
		}
		operands, _ = op.compressed(x[i].Operand, operands) // Infer has accepted them
		var y []spec.Arg
		for _, o := range operands {
			o.Dtype = dt
			y = append(y, spec.WorkLike(k, spec.Arg{Operand: o}))
		}
		spec.BindBF16(k, op.compression(), in, y)
		e.blocks = append(e.blocks, y[0])
	}
	e.blocks = spec.InType(k, tensor.Float32, e.blocks...)
}

// check checks where the runs of s tokens begin, and the page table.
func (op Extend) check(table, start spec.Arg, s int) (err error) {
	defer spec.AsValueError(&err)
	starts := cpu.Slice[int32](start.Buf)
	for i, n := range starts {
		most := op.Tokens - s
		if pageRow(table, i)[0] == -1 {
			most = 0
		}
		if n < 0 || int(n) > most {
			return fmt.Errorf("start of row %d is %d, want 0 to %d", i, n, most)
		}
	}
	return op.Cache.checkRuns(table, starts, s)
}

// extended is a sequence to which tokens are added: row row of the page table.
type extended[T cpu.Float] struct {
	sequenceCache[T]
	row, start, added int
}

// sequence returns the sequence and the group of a piece of work.
func (e *extender[T]) sequence(piece int) *extended[T] {
	i, g := piece/e.KVHeads, piece%e.KVHeads
	row := pageRow(e.table, i)
	seq := &extended[T]{sequenceCache[T]{e.KVCache, e.Layout, cpu.Slice[T](e.cache.Buf), int(row[0]), g, row[2:]}, i,
		int(cpu.Slice[int32](e.start.Buf)[i]), int(row[1])}
	if seq.slot < 0 {
		seq.added = 0
	}
	return seq
}

// rows are the n keys and values of a group of a sequence in arrays [R,n,Hkv,D] and [R,n,Hkv,Dv].
type rows[T cpu.Float] struct {
	n                      int
	keys, values           []T
	keyStride, valueStride int
	keyDim, valueDim       int
}

// rowsOf returns the rows of the sequence in a pair of arrays.
func (s *extended[T]) rowsOf(pair []spec.Arg) rows[T] {
	n := pair[0].Shape[1]
	at := s.row*n*s.KVHeads + s.g
	return rows[T]{n, cpu.Slice[T](pair[0].Buf)[at*s.KeyDim:], cpu.Slice[T](pair[1].Buf)[at*s.ValueDim:],
		s.KVHeads * s.KeyDim, s.KVHeads * s.ValueDim, s.KeyDim, s.ValueDim}
}

// key and value return the key and the value of row i.
func (x rows[T]) key(i int) []T   { return x.keys[i*x.keyStride:][:x.keyDim] }
func (x rows[T]) value(i int) []T { return x.values[i*x.valueStride:][:x.valueDim] }

// set sets the rows [lo,hi). Row 0 is entry first of a list. Its entries are the cached ones, then src; rows without an
// entry become zero.
func (x rows[T]) set(lo, hi, first int, cached entryIterator[T], src rows[T]) {
	within := func(entry, from int) int { return min(max(entry-first, from), hi) }
	old, fresh := within(cached.lo, lo), within(cached.hi, lo)
	end, next := within(cached.hi+src.n, lo), cached.hi-first
	cached.lo, cached.hi = max(cached.lo, first+lo), min(cached.hi, first+hi)
	for i := lo; i < hi; i++ {
		switch {
		case i < old || i >= end:
			clear(x.key(i))
			clear(x.value(i))
		case i >= fresh:
			copy(x.key(i), src.key(i-next))
			copy(x.value(i), src.value(i-next))
		}
	}
	for p, ok := cached.next(); ok; p, ok = cached.next() {
		cpu.Transpose(x.keyDim, p.n, x.keys[old*x.keyStride:], x.keyStride, p.keys, p.ld)
		for j := range p.n {
			copy(x.value(old+j), p.values[j*x.valueDim:])
		}
		old += p.n
	}
}
