package kernels_test

import (
	"bytes"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/cuda/internal/kernels"
	"github.com/gorgonia-nsa/nsa/graph"
	"github.com/gorgonia-nsa/nsa/internal/opcases"
	"github.com/gorgonia-nsa/nsa/internal/ref"
	"github.com/gorgonia-nsa/nsa/internal/testutil"
	"github.com/gorgonia-nsa/nsa/ops/spec"
	"github.com/gorgonia-nsa/nsa/ops/spec/compress"
	"github.com/gorgonia-nsa/nsa/ops/spec/decode"
)

// extending are sequences of a case that go into a cache, each in its own slot and pages.
type extending struct {
	opcases.Decoding
	*fixture
	cache   decode.KVCache
	lengths []int32
	pages   [][]int32 // slot, pages
	context int       // tokens of the outputs of Extend
	tokens  []arg     // keys and values of all tokens, a pair for each branch [R,N,Hkv,.], with NaN behind a sequence
	blocks  []arg     // those of the first pair compressed, by the op for whole sequences
	phi     []arg
}

func newExtending(t *testing.T, dev device, c opcases.Decoding, s elemType, rng *rand.Rand) *extending {
	x := &extending{Decoding: c, fixture: &fixture{t, s, dev, 0, map[kernels.Ptr]buffer{}}, cache: decodingCache(c, s)}
	free := rng.Perm(x.cache.Pages)
	var seqs []opcases.Sequence
	for _, slot := range rng.Perm(decodingSlots)[:1+rng.IntN(decodingSlots)] {
		n := 1 + rng.IntN(min(c.Tokens, 150))
		row := []int32{int32(slot)}
		for range decodingPages(c) {
			row, free = append(row, int32(free[0])), free[1:]
		}
		x.lengths, x.pages = append(x.lengths, int32(n)), append(x.pages, row)
		seqs = append(seqs, c.Sequence(rng.Uint64(), n))
	}
	n := int(slices.Max(x.lengths))
	x.context = n + rng.IntN(30)
	for b := range seqs[0].K {
		for side := range 2 {
			if !c.HasInputs(b) {
				continue
			}
			var data []float64
			var shape []int
			for _, q := range seqs {
				part := []*ref.Tensor{q.K[b], q.V[b]}[side]
				shape = []int{len(seqs), n, part.Shape[2], part.Shape[3]}
				data = append(data, part.Data...)
				data = append(data, slices.Repeat([]float64{math.NaN()}, (n-part.Shape[1])*shape[2]*shape[3])...)
			}
			x.tokens = append(x.tokens, x.in(s, data, shape...))
		}
	}
	if x.cache.Stores(decode.Compressed) {
		for _, p := range c.Phi() {
			x.phi = append(x.phi, x.in(s, p.Data, p.Shape...))
		}
		for side, a := range x.tokens[:2] {
			x.blocks = append(x.blocks, x.compressed(a, x.phi[side*len(x.phi)/2:][:len(x.phi)/2]))
		}
	}
	return x
}

// compressed returns the compression of a by the op for whole sequences.
func (x *extending) compressed(a arg, phi []arg) arg {
	var op spec.Spec = compress.Mean{BlockLen: x.cache.BlockLen, Stride: x.cache.Stride}
	if len(phi) > 0 {
		op = compress.MLP{BlockLen: x.cache.BlockLen, Stride: x.cache.Stride}
	}
	in := append([]arg{a}, phi...)
	outs := x.outputs(op, in)
	runOp(x.t, x.dev, x.dev.variants()[0], op, in, outs)
	return outs[0]
}

// outputs returns memory for the outputs of an op.
func (x *extending) outputs(op spec.Spec, in []arg) (outs []arg) {
	operands := callOf(in, nil).In
	for i := range operands {
		if spec.IsHalf(operands[i].Dtype) {
			operands[i].Dtype = tensor.Float32
		}
	}
	for _, o := range testutil.Must(op.Infer(operands))(x.t) {
		if o.Dtype == tensor.Float32 {
			o.Dtype = dtypes[x.Type]
		}
		outs = append(outs, x.place(o, poison(o.Bytes())))
	}
	return outs
}

// table returns the page table for the given numbers of new tokens. A sequence with the number -1 rests.
func (x *extending) table(added []int32) arg {
	var rows []int32
	for i, n := range added {
		slot := x.pages[i][0]
		if n == -1 {
			slot, n = -1, 7
		}
		rows = append(append(rows, slot, n), x.pages[i][1:]...)
	}
	return x.place(operand(tensor.Int32, len(added), len(rows)/len(added)), encodeInts(rows))
}

func (x *extending) newCache() arg {
	o := operand(tensor.Float32, x.cache.Elements())
	return x.place(o, poison(o.Bytes()))
}

// row returns the rows [from,to) of sequence i of an array.
func (x *extending) row(a arg, i, from, to int) []byte {
	all := x.bytes(a)
	row := len(all) / a.Shape[0]
	token := row / a.Shape[1]
	return all[i*row:][from*token : to*token]
}

// from returns `size` tokens of each sequence from starts on: inputs of Extend.
func (x *extending) from(starts []int32, size int) (run []arg) {
	for _, a := range x.tokens {
		var data []byte
		for i, start := range starts {
			have := min(size, a.Shape[1]-int(start))
			data = append(append(data, x.row(a, i, int(start), int(start)+have)...),
				poison((size-have)*a.Shape[2]*a.Shape[3]*x.Type.Bytes())...)
		}
		run = append(run, x.place(operand(a.Dtype, a.Shape[0], size, a.Shape[2], a.Shape[3]), data))
	}
	return run
}

// extend runs Extend, which stores `added` tokens of each sequence.
func (x *extending) extend(run []arg, cache arg, starts, added []int32) (outs []arg) {
	op := decode.Extend{Cache: x.cache, Tokens: x.context, MLP: len(x.phi) > 0}
	in := append(slices.Concat(run, x.phi), cache, x.table(added), x.ints(starts...))
	outs = x.outputs(op, in)
	runOp(x.t, x.dev, x.dev.variants()[0], op, in, outs)
	return outs
}

// fill stores the first tokens of each sequence by FillCache, and returns how many the op says it has stored.
func (x *extending) fill(cache arg, added []int32) (stored arg) {
	op, in := decode.FillCache{Cache: x.cache}, append(slices.Concat(x.blocks, x.tokens), cache, x.table(added))
	outs := x.outputs(op, in)
	runOp(x.t, x.dev, x.dev.variants()[0], op, in, outs)
	return outs[0]
}

// extendCases: runs of any lengths, of sequences that begin anywhere and sometimes rest, leave the cache that FillCache
// leaves after all tokens at once, in the same bits. The outputs are the keys and values of all tokens so far, and zeros.
func extendCases(t *testing.T, dev device, tries int) {
	rng := rand.New(rand.NewPCG(51, 1))
	cases := slices.DeleteFunc(opcases.Decodings(), func(c opcases.Decoding) bool { return c.GateHidden > 0 }) // no other caches
	for i := range tries * len(cases) {
		c, s := cases[i%len(cases)], elemTypes[(i+i/len(cases))%len(elemTypes)]
		t.Run(fmt.Sprint(c.Name, "/", s.Type), func(t *testing.T) {
			defer dev.reset(t)
			newExtending(t, dev, c, s, rng).compare(rng)
		})
	}
}

func (x *extending) compare(rng *rand.Rand) {
	cache, starts := x.newCache(), make([]int32, len(x.lengths))
	for !slices.Equal(starts, x.lengths) {
		now, added := slices.Clone(starts), make([]int32, len(starts))
		for i, start := range starts {
			if start == x.lengths[i] || rng.IntN(4) == 0 {
				now[i], added[i] = 0, -1
			}
		}
		size := 1 + rng.IntN(x.context-int(slices.Max(now)))
		for i, start := range starts {
			if added[i] == 0 {
				added[i] = int32(rng.IntN(min(size, int(x.lengths[i]-start)) + 1))
			}
		}
		if slices.Max(added) < 0 {
			continue
		}
		outs := x.extend(x.from(now, size), cache, now, added)
		for i := range starts {
			x.compareTokens(outs, i, int(now[i]), int(max(0, added[i])), size)
			starts[i] += max(0, added[i])
		}
	}
	whole := x.newCache()
	require.Equal(x.t, x.lengths, decodeInts(x.bytes(x.fill(whole, x.lengths))))
	require.True(x.t, bytes.Equal(x.bytes(whole), x.bytes(cache)))
}

// compareTokens checks the outputs of sequence i after `added` tokens from start on, in a run of the given size.
func (x *extending) compareTokens(outs []arg, i, start, added, size int) {
	for b, j := decode.Branch(0), 0; b < decode.NumBranches; b++ {
		if !x.HasInputs(int(b)) {
			continue
		}
		for side := range 2 {
			got, want, first, end := outs[j+side], x.tokens[j+side], 0, start+size
			switch {
			case b == decode.Compressed && !x.Cache.Dense():
				want, end = x.blocks[side], spec.NumCompressed(start+added, x.Cache.BlockLen, x.Cache.Stride)
			case b == decode.Window && !x.Cache.Dense():
				first = max(0, start+1-x.Cache.Window)
			}
			zeros := func(from, to int) {
				rows := x.row(got, i, from, to)
				require.Equal(x.t, make([]byte, len(rows)), rows, "rows [%d,%d) of output %d", from, to, j+side)
			}
			have := min(end, int(x.lengths[i]), want.Shape[1])
			require.Equal(x.t, x.row(want, i, first, have), x.row(got, i, first, have), "output %d after %d and %d tokens", j+side, start, added)
			zeros(0, first)
			if b != decode.Compressed || x.Cache.Dense() {
				zeros(end, x.context)
			}
		}
		j += 2
	}
}

// wrongExtends: whatever numbers start and page table have, Extend and FillCache stay in their arrays: Extend reads what the
// nearest right numbers name.
func wrongExtends(t *testing.T, dev device, tries int) {
	rng := rand.New(rand.NewPCG(52, 1))
	wrong := func() int32 {
		return []int32{-1, 0, 1, 2, 3, 40, 1000, math.MaxInt32, math.MinInt32, rng.Int32()}[rng.IntN(10)]
	}
	cases := opcases.Decodings()
	for i := range tries {
		x := newExtending(t, dev, cases[i%len(cases)], elemTypes[i%len(elemTypes)], rng)
		x.context += rng.IntN(200) // more than the pages hold
		n, size := len(x.lengths), 1+rng.IntN(x.context)
		starts, added := make([]int32, n), make([]int32, n)
		for j, row := range x.pages {
			starts[j], added[j] = wrong(), wrong()
			for k := range row {
				row[k] = wrong()
			}
		}
		data := testutil.Normal(rng.Uint64(), 2*x.cache.Elements())[:x.newCache().Bytes()/x.Type.Bytes()]
		run := x.from(make([]int32, n), size)
		outputs := func() (all []byte) {
			cache := x.newCache()
			dev.copyTo(t, cache.at, x.encode(data))
			for _, o := range x.extend(run, cache, starts, added) {
				all = append(all, x.bytes(o)...)
			}
			x.fill(cache, added)
			x.bytes(cache)
			return all
		}
		want := outputs()
		for j, row := range x.pages {
			context := (len(row) - 1) * x.cache.PageLen
			if starts[j] = max(0, min(starts[j], int32(x.context-size), int32(context))); row[0] < 0 || added[j] == -1 {
				row[0], starts[j] = -1, 0
			}
		}
		require.True(t, bytes.Equal(want, outputs()), "%s: sequences of %d tokens", x.Name, added)
		dev.reset(t)
	}
}

// TestExtendOnGPU extends caches in 20 random ways for each case.
func TestExtendOnGPU(t *testing.T) {
	g := openGPU(t)
	extendCases(t, g, 20)
	wrongExtends(t, g, 100)
}

// extendPlan returns the plan of Extend for a run of 20 tokens of a case.
func extendPlan(t *testing.T, c opcases.Decoding, s elemType) *kernels.Plan {
	k, dt := decodingCache(c, s), dtypes[s.Type]
	op := decode.Extend{Cache: k, Tokens: c.Tokens, MLP: c.MLP > 0}
	var in []spec.Operand
	for b := range decode.NumBranches {
		if c.HasInputs(b) {
			in = append(in, operand(tensor.Float32, 1, 20, k.KVHeads, k.KeyDim), operand(tensor.Float32, 1, 20, k.KVHeads, k.ValueDim))
		}
	}
	for _, p := range c.Phi() {
		in = append(in, operand(tensor.Float32, p.Shape...))
	}
	in = append(in, operand(tensor.Float32, k.Elements()), operand(tensor.Int32, 1, 2+decodingPages(c)), operand(tensor.Int32, 1))
	call := graph.Call{In: in, Out: testutil.Must(op.Infer(in))(t)}
	for i := range in[:len(in)-3] {
		in[i].Dtype = dt
	}
	for i := range call.Out {
		call.Out[i].Dtype = dt
	}
	return testutil.Must(planOf(h200, "cuda", op, call))(t)
}
