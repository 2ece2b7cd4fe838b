package decode

import (
	"cmp"
	"fmt"

	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/internal/cpu"
	"github.com/gorgonia-nsa/nsa/ops/spec"
)

// FillCache is the Spec that fills a KVCache with a prompt: it stores the keys and values of a sequence's first tokens,
// which a graph for whole sequences has computed. Step continues after these tokens. The inputs are
//
//	kc, vc  [R,Nc,Hkv,D], [R,Nc,Hkv,Dv]  compressed; only if the cache stores the compressed branch
//	k, v    [R,S,Hkv,D], [R,S,Hkv,Dv]    a pair for each branch, as in Step
//	cache   [Elements()]                 the op writes to it
//	page table  int32 [R,2+P]  for each sequence its slot, its number of tokens, at most S, and its pages; slot -1 stores nothing
//
// All keys are after RoPE. The output int32 [R] is the number of tokens stored.
type FillCache struct {
	Cache KVCache
}

func (FillCache) Name() string { return "fill cache" }

// UpdatedInputs implements Updating: the op writes to the cache.
func (op FillCache) UpdatedInputs() []int { return []int{op.cacheInput()} }

func (op FillCache) CheckedInput() int { return op.cacheInput() + 1 }

func (op FillCache) cacheInput() int { return len(op.names()) }

// names returns the names of the inputs before the cache.
func (op FillCache) names() (names []string) {
	if op.Cache.Stores(Compressed) {
		names = append(names, "kc", "vc")
	}
	for b := range Branch(NumBranches) {
		if op.Cache.hasInputs(b) {
			k, v := op.Cache.inputNames(b)
			names = append(names, k, v)
		}
	}
	return names
}

func (op FillCache) Infer(in []spec.Operand) ([]spec.Operand, error) {
	c, at, names := op.Cache, op.cacheInput(), op.names()
	if err := c.check(); err != nil {
		return nil, err
	}
	var want []spec.InputRule
	for _, name := range names {
		want = append(want, spec.FloatInput(name, 4))
	}
	if err := spec.WantInputs(in, append(want, spec.FloatInput("cache", 1),
		spec.IndexInput("page table", 2))...); err != nil {
		return nil, err
	}
	k := in[at-2].Shape
	err := c.inferCache(in[at], in[at+1], k[0], 2)
	for i, name := range names {
		tokens, width := k[1], c.KeyDim
		if name == "kc" || name == "vc" {
			tokens = spec.CompressedRows(k[1], c.BlockLen, c.Stride)
		}
		if i%2 == 1 {
			width = c.ValueDim
		}
		err = cmp.Or(err, spec.WantShape(name, in[i].Shape, k[0], tokens, c.KVHeads, width))
	}
	return []spec.Operand{{Dtype: tensor.Int32, Shape: tensor.Shape{k[0]}}}, err
}

func (op FillCache) Check(in []spec.Operand, b *cpu.Buf) (err error) {
	defer spec.AsValueError(&err)
	return op.Cache.checkRuns(spec.Arg{Operand: in[op.CheckedInput()], Buf: b}, nil, in[op.cacheInput()-1].Shape[1])
}

// checkRuns checks a page table for runs of at most maxTokens tokens that begin at the given tokens, or at token 0
// without starts.
func (c KVCache) checkRuns(table spec.Arg, starts []int32, maxTokens int) error {
	for i := range table.Shape[0] {
		row, start := pageRow(table, i), 0
		if starts != nil {
			start = int(starts[i])
		}
		switch {
		case row[0] < -1 || int(row[0]) >= c.Slots:
			return fmt.Errorf("row %d has slot %d, want -1 to %d", i, row[0], c.Slots-1)
		case row[0] == -1:
			continue
		case row[1] < 0 || int(row[1]) > maxTokens:
			return fmt.Errorf("slot %d has %d tokens, want 0 to %d", row[0], row[1], maxTokens)
		}
		for j := range i {
			if pageRow(table, j)[0] == row[0] {
				return fmt.Errorf("rows %d and %d have the slot %d", j, i, row[0])
			}
		}
		if err := c.checkPages(int(row[0]), start+int(row[1]), row[2:]); err != nil {
			return err
		}
	}
	return nil
}

func (op FillCache) Bind(k *cpu.Kernel, in, out []spec.Arg) {
	if spec.IsHalf(op.Cache.Half) {
		k.Check = spec.NoHalf
		return
	}
	spec.ByType(in[0].Dtype, bindFill[float32], bindFill[float64])(k, op, in, out[0])
}

func bindFill[T cpu.Float](k *cpu.Kernel, op FillCache, in []spec.Arg, stored spec.Arg) {
	c, at := op.Cache, op.cacheInput()
	layout, table := c.Layout(), in[at+1]
	blocks, tokens := in[:0], in[:at]
	if c.Stores(Compressed) {
		blocks, tokens = in[:2], in[2:at]
	}
	k.Check = func() (err error) {
		defer spec.AsValueError(&err)
		return c.checkRuns(table, nil, tokens[0].Shape[1])
	}
	k.Phase(table.Shape[0]*c.KVHeads, func(piece int, _ *cpu.Worker) {
		i, g := piece/c.KVHeads, piece%c.KVHeads
		row := pageRow(table, i)
		slot, n := int(row[0]), int(row[1])
		if slot < 0 {
			n = 0
		}
		if g == 0 {
			cpu.Slice[int32](stored.Buf)[i] = int32(n)
		}
		s := &sequenceCache[T]{c, layout, cpu.Slice[T](in[at].Buf), slot, g, row[2:]}
		s.store(i, 0, n, blocks, tokens)
	})
}

// store stores n tokens from token start on. Their keys and values are in row row of tokens, a pair of arrays for each
// branch. blocks has those of the compression blocks that end in these tokens, if the cache stores any.
func (s *sequenceCache[T]) store(row, start, n int, blocks, tokens []spec.Arg) {
	// put stores the entries [from,to), of which entry first is in row 0 of a pair.
	put := func(pair []spec.Arg, first, from, to int, entry func(t int) entries[T]) {
		k, v := pair[0], pair[1]
		for t := from; t < to; t++ {
			r := (row*k.Shape[1]+t-first)*s.KVHeads + s.g
			entry(t).put(cpu.Slice[T](k.Buf)[r*s.KeyDim:][:s.KeyDim], cpu.Slice[T](v.Buf)[r*s.ValueDim:][:s.ValueDim])
		}
	}
	end := start + n
	for b := range Branch(NumBranches) {
		if !s.hasInputs(b) {
			continue
		}
		pair := tokens[:2]
		switch tokens = tokens[2:]; {
		case b == Compressed:
			first := spec.NumCompressed(start, s.BlockLen, s.Stride)
			put(blocks, first, first, spec.NumCompressed(end, s.BlockLen, s.Stride), s.blockEntry)
			put(pair, start, max(start, end-s.BlockLen), end, s.tailEntry)
		case b == Selected || s.Dense():
			put(pair, start, start, end, s.tokenEntry)
		default:
			put(pair, start, max(start, end-s.KVCache.Window), end, s.windowEntry)
		}
	}
}
