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

func (op FillCache) Check(in []spec.Operand, b *cpu.Buf) error {
	return op.checkPageTable(spec.Arg{Operand: in[op.CheckedInput()], Buf: b}, in[op.cacheInput()-1].Shape[1])
}

// checkPageTable checks a page table for prompts of at most maxTokens tokens.
func (op FillCache) checkPageTable(table spec.Arg, maxTokens int) (err error) {
	defer spec.AsValueError(&err)
	for i := range table.Shape[0] {
		row := pageRow(table, i)
		switch {
		case row[0] < -1 || int(row[0]) >= op.Cache.Slots:
			return fmt.Errorf("row %d has slot %d, want -1 to %d", i, row[0], op.Cache.Slots-1)
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
		if err := op.Cache.checkPages(int(row[0]), int(row[1]), row[2:]); err != nil {
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
	k.Check = func() error { return op.checkPageTable(table, in[at-1].Shape[1]) }
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
		inputs := in
		// put stores the keys and values [from,to) of the next two inputs.
		put := func(from, to int, entry func(t int) entries[T]) {
			k, v := inputs[0], inputs[1]
			inputs = inputs[2:]
			for t := from; t < to; t++ {
				r := (i*k.Shape[1]+t)*c.KVHeads + g
				entry(t).put(cpu.Slice[T](k.Buf)[r*c.KeyDim:][:c.KeyDim], cpu.Slice[T](v.Buf)[r*c.ValueDim:][:c.ValueDim])
			}
		}
		if c.Stores(Compressed) {
			put(0, spec.NumCompressed(n, c.BlockLen, c.Stride), s.blockEntry)
			put(max(0, n-c.BlockLen), n, s.tailEntry)
		}
		if c.StoresTokens() {
			put(0, n, s.tokenEntry)
		}
		if c.Has(Window) {
			put(max(0, n-c.Window), n, s.windowEntry)
		}
	})
}
