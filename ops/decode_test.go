package ops_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/internal/cpu"
	"github.com/gorgonia-nsa/nsa/internal/opcases"
	"github.com/gorgonia-nsa/nsa/internal/ref"
	"github.com/gorgonia-nsa/nsa/internal/testutil"
	"github.com/gorgonia-nsa/nsa/ops"
	"github.com/gorgonia-nsa/nsa/ops/spec"
	"github.com/gorgonia-nsa/nsa/ops/spec/decode"
)

// set writes x into a, from element at on.
func set(a spec.Arg, at int, x []float64) {
	for i, v := range x {
		if a.Dtype == tensor.Float32 {
			cpu.Slice[float32](a.Buf)[at+i] = float32(v)
		} else {
			cpu.Slice[float64](a.Buf)[at+i] = v
		}
	}
}

// decoding is a decode.Step over several slots, whose sequences are at different tokens.
type decoding struct {
	opcases.Decoding
	*bound
	team  *cpu.Team
	cell  int     // index of the input cache
	width int     // width of the page table
	free  []int32 // pages that no slot has
}

// newDecoding returns a decoding whose free pages are in random order. All numbers of the cache are NaN.
func newDecoding(t testing.TB, c opcases.Decoding, dt tensor.Dtype, slots int) *decoding {
	perSlot := (c.Tokens + c.Cache.PageLen - 1) / c.Cache.PageLen
	c.Cache.Slots, c.Cache.Pages = slots, slots*perSlot+1
	d := &decoding{Decoding: c, width: 1 + perSlot, team: cpu.NewTeam(0)}
	for _, p := range rand.New(rand.NewPCG(1, 2)).Perm(c.Cache.Pages) {
		d.free = append(d.free, int32(p))
	}
	zeros := func(name string, shape ...int) array {
		return array{Name: name, Shape: shape, Floats: make([]float64, tensor.Shape(shape).TotalSize())}
	}
	var in []array
	for _, shape := range c.InputShapes(slots) {
		in = append(in, zeros("input", shape...))
	}
	for _, p := range c.Weights() {
		in = append(in, array{Name: "weights", Shape: p.Shape, Floats: p.Data})
	}
	d.cell = len(in)
	cache := zeros("cache", c.Cache.Elements())
	for i := range cache.Floats {
		cache.Floats[i] = math.NaN()
	}
	in = append(in, cache, array{Name: "page table", Shape: []int{slots, d.width},
		Ints: slices.Repeat([]int32{-1}, slots*d.width)})
	d.bound = bindSpec(t, decode.Step{Cache: c.Cache, Base: opcases.DecodingBase, MLP: c.MLP > 0,
		GateLayer: c.GateHidden > 0}, dt, d.team.Workers(), in...)
	return d
}

// row returns the row of a slot: its number of tokens and its pages.
func (d *decoding) row(slot int) []int32 {
	return cpu.Slice[int32](d.in[d.cell+1].Buf)[slot*d.width:][:d.width]
}

// token makes token t of s the next token of a slot. The slot gets a new page if the token needs one.
func (d *decoding) token(slot int, s opcases.Sequence, t int) {
	row := d.row(slot)
	row[0] = int32(t)
	if page := 1 + t/d.Cache.PageLen; row[page] < 0 {
		row[page], d.free = d.free[0], d.free[1:]
	}
	for i, x := range d.Token(s, t) {
		set(d.in[i], slot*len(x), x)
	}
}

// step runs the op and returns the outputs of each slot.
func (d *decoding) step(t testing.TB) (outs []stepOutput) {
	t.Helper()
	require.NoError(t, d.team.Run(&d.kernel, d.mem))
	all := d.read()
	for i := range d.Cache.Slots {
		part := func(a array) (lo, hi int) {
			n := tensor.Shape(a.Shape).TotalSize() / d.Cache.Slots
			return i * n, (i + 1) * n
		}
		var out stepOutput
		lo, hi := part(all[0])
		out.o = all[0].Floats[lo:hi]
		lo, hi = part(all[1])
		out.idx = all[1].Ints[lo:hi]
		lo, hi = part(all[2])
		out.read = all[2].Ints[lo:hi]
		outs = append(outs, out)
	}
	return outs
}

// stepOutput holds the outputs of a step for one slot.
type stepOutput struct {
	o         []float64
	idx, read []int32
}

// TestDecodeMatchesOracle decodes sequences of different lengths that begin at different steps. It compares every token
// with the oracle's attention over the whole sequence, and checks the number of keys read. The rest of the cache is NaN
// and must not be read.
func TestDecodeMatchesOracle(t *testing.T) {
	const slots = 3
	for _, c := range opcases.Decodings() {
		var seqs [slots]opcases.Sequence
		lengths, begins := [slots]int{c.Tokens, c.Tokens / 2, c.Tokens - 9}, [slots]int{0, 3, 9}
		for i := range seqs {
			seqs[i] = c.Sequence(uint64(i+1), lengths[i])
		}
		var oracles [slots]struct { // computed again only if another type selects other blocks
			blocks, selected []int32
			o                *ref.Tensor
		}
		for _, dt := range []tensor.Dtype{tensor.Float32, tensor.Float64} {
			t.Run(fmt.Sprint(c.Name, "/", dt), func(t *testing.T) {
				d := newDecoding(t, c, dt, slots)
				p, kvHeads := c.Cache.Params, c.Cache.KVHeads
				var outs [slots][]float64
				var blocks [slots][]int32
				for step := range c.Tokens {
					for i := range seqs {
						d.row(i)[0] = -1
						if at := step - begins[i]; at >= 0 && at < lengths[i] {
							d.token(i, seqs[i], at)
						}
					}
					for i, out := range d.step(t) {
						o, idx, read := out.o, out.idx, out.read
						if d.row(i)[0] < 0 {
							require.Equal(t, make([]float64, len(o)), o, "a slot that rests")
							continue
						}
						outs[i], blocks[i] = append(outs[i], o...), append(blocks[i], idx...)
						at := step - begins[i]
						for g := range kvHeads {
							want := c.KeysRead(at, idx[g*p.TopN:][:p.TopN])
							require.Equal(t, want, read[g*3:][:3], "keys read at token %d", at)
						}
					}
				}
				for i, s := range seqs {
					want := &oracles[i]
					if want.o == nil || !slices.Equal(want.blocks, blocks[i]) {
						want.blocks = blocks[i]
						want.o, want.selected = c.Oracle(s, blocks[i])
					}
					if !c.Cache.Dense() && c.Cache.Has(decode.Selected) && dt == tensor.Float64 {
						require.Equal(t, want.selected, blocks[i])
					}
					testutil.Within(t, fmt.Sprint("sequence ", i), outs[i], want.o.Data, tolerance(dt))
				}
			})
		}
	}
}

// TestDecodeOfOverflowingLogits: a head whose compressed logits are all -Inf has no part in block selection.
func TestDecodeOfOverflowingLogits(t *testing.T) {
	const tokens = 45
	both := opcases.Decoding{Heads: 2, Tokens: tokens, Cache: decode.KVCache{KVHeads: 1, KeyDim: 4, ValueDim: 4,
		PageLen: 16,
		Params:  ops.Params{BlockLen: 4, Stride: 2, SelectBlock: 4, TopN: 4, Window: 8}}}
	alone := both
	alone.Heads = 1
	all := both.Sequence(1, tokens)
	one := alone.Sequence(1, tokens)
	for at := range tokens { // dims 2 and 3 rotate by less than a quarter turn in all
		k := all.K[0].Row(0, at)
		k[2], k[3] = -1e30*(1+float64(at*7%5)), 0
		q := all.Q.Row(0, at)
		copy(q, []float64{0, 0, 1e30, 0})
		copy(q[4:], []float64{q[4], q[5], -3e-30, 0})
		copy(one.Q.Row(0, at), q[4:])
	}
	one.K, one.V = all.K, all.V
	d, want := newDecoding(t, both, tensor.Float32, 1), newDecoding(t, alone, tensor.Float32, 1)
	for at := range tokens {
		d.token(0, all, at)
		want.token(0, one, at)
		require.Equal(t, want.step(t)[0].idx, d.step(t)[0].idx, "token %d", at)
	}
}

// fill stores the first n tokens of s in a slot and gives the slot its pages. It uses a decode.FillCache for n+room
// tokens.
func (d *decoding) fill(t testing.TB, dt tensor.Dtype, slot int, s opcases.Sequence, n int) {
	const room = 5
	t.Helper()
	row := d.row(slot)
	for i := range (n + d.Cache.PageLen - 1) / d.Cache.PageLen {
		row[1+i], d.free = d.free[0], d.free[1:]
	}
	cut := func(x *ref.Tensor) *ref.Tensor { // to n tokens, followed by NaN
		width := x.Shape[2] * x.Shape[3]
		data := slices.Repeat([]float64{math.NaN()}, (n+room)*width)
		copy(data, x.Data[:n*width])
		return ref.From(data, 1, n+room, x.Shape[2], x.Shape[3])
	}
	var in []array
	for _, x := range d.FillInputs(s, cut) {
		in = append(in, array{Name: "x", Shape: x.Shape, Floats: x.Data})
	}
	in = append(in, array{Name: "cache", Shape: d.in[d.cell].Shape, Floats: make([]float64, d.Cache.Elements())},
		array{Name: "page table", Shape: []int{1, 1 + d.width}, Ints: append([]int32{int32(slot), int32(n)}, row[1:]...)})
	x := bindSpec(t, decode.FillCache{Cache: d.Cache}, dt, d.team.Workers(), in...)
	x.in[len(in)-2].Set(d.in[d.cell].Pointer(), d.in[d.cell].Buf.Bytes())
	require.NoError(t, d.team.Run(&x.kernel, x.mem))
	require.Equal(t, []int32{int32(n)}, x.read()[0].Ints)
}

// TestDecodeContinuesAfterFill fills the cache with the first tokens of a sequence and decodes the others, for many
// numbers of first tokens.
func TestDecodeContinuesAfterFill(t *testing.T) {
	for i, c := range opcases.Decodings() {
		types := []tensor.Dtype{tensor.Float32, tensor.Float64}
		if !testutil.Full(t) {
			types = types[i%2:][:1]
		}
		for _, dt := range types {
			t.Run(fmt.Sprint(c.Name, "/", dt), func(t *testing.T) {
				c.Tokens = min(c.Tokens, 150)
				s := c.Sequence(5, c.Tokens)
				all, selected := c.Oracle(s, nil)
				for n := 0; n < c.Tokens; n += 1 + n/testutil.Tries(t, 1, 4) {
					d := newDecoding(t, c, dt, 2)
					d.fill(t, dt, 1, s, n)
					var out []float64
					var idx []int32
					for at := n; at < c.Tokens; at++ {
						d.token(1, s, at)
						got := d.step(t)[1]
						out, idx = append(out, got.o...), append(idx, got.idx...)
					}
					want := all
					if other := slices.Concat(selected[:max(0, len(selected)-len(idx))], idx); !slices.Equal(other, selected) {
						want, _ = c.Oracle(s, other)
					}
					testutil.Within(t, fmt.Sprint("behind ", n), out, want.Data[len(want.Data)-len(out):], tolerance(dt))
				}
			})
		}
	}
}

// TestDecodeAloneAndInBatch: the bits of a sequence do not depend on the number of slots, nor on its slot, its pages or
// its neighbours.
func TestDecodeAloneAndInBatch(t *testing.T) {
	for _, c := range opcases.Decodings() {
		t.Run(c.Name, func(t *testing.T) {
			c.Tokens = min(c.Tokens, 200)
			s, other := c.Sequence(1, c.Tokens), c.Sequence(2, c.Tokens)
			alone, batch := newDecoding(t, c, tensor.Float32, 1), newDecoding(t, c, tensor.Float32, 5)
			for at := range c.Tokens {
				alone.token(0, s, at)
				batch.token(3, s, at)
				batch.token(2, other, at)
				if at%3 == 0 {
					batch.token(4, other, at/3)
				} else {
					batch.row(4)[0] = -1
				}
				require.Equal(t, alone.step(t)[0], batch.step(t)[3], "token %d", at)
			}
		})
	}
}

func TestDecodeChecksPageTable(t *testing.T) {
	c := opcases.Decodings()[0]
	for _, x := range []struct {
		row  []int32
		want string
	}{
		{[]int32{-2, 0}, "slot 1 has -2"},
		{[]int32{16, 0, -1}, "page 1 of slot 1 is -1"},
		{[]int32{15, 21}, "page 0 of slot 1 is 21"},
		{[]int32{160, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9}, "slot 1 has 161"},
	} {
		d := newDecoding(t, c, tensor.Float32, 2)
		copy(d.row(1), x.row)
		require.ErrorContains(t, d.team.Run(&d.kernel, d.mem), x.want)
	}
}

// TestDecodeAllocatesNothing: a step allocates no memory.
func TestDecodeAllocatesNothing(t *testing.T) {
	c := opcases.Decodings()[0]
	d, s := newDecoding(t, c, tensor.Float32, 1), c.Sequence(1, 150)
	for at := range 140 {
		d.token(0, s, at)
		require.NoError(t, d.team.Run(&d.kernel, d.mem))
	}
	d.team = cpu.NewTeam(1)
	require.Zero(t, testing.AllocsPerRun(5, func() { require.NoError(t, d.team.Run(&d.kernel, d.mem)) }))
}

func TestKVCacheErrors(t *testing.T) {
	good := opcases.Decodings()[0].Cache
	good.Slots, good.Pages = 1, 1
	require.NoError(t, good.Validate())
	for want, change := range map[string]func(c *decode.KVCache){
		"kv heads is 0":    func(c *decode.KVCache) { c.KVHeads = 0 },
		"pages is 0":       func(c *decode.KVCache) { c.Pages = 0 },
		"page length 12":   func(c *decode.KVCache) { c.PageLen = 12 },
		"top n = 2":        func(c *decode.KVCache) { c.TopN = 2 },
		"unknown branches": func(c *decode.KVCache) { c.Without = 8 },
		"all branches": func(c *decode.KVCache) {
			c.Without = decode.BranchesOf(decode.Compressed, decode.Selected, decode.Window)
		},
		"cache type is float64": func(c *decode.KVCache) {
			c.Params, c.Half = ops.Params{}, tensor.Float64
		},
		"a cache of 1.24e+12": func(c *decode.KVCache) { c.Pages = 1 << 30; c.Slots = 1 << 30; c.Window = 1 },
	} {
		c := good
		change(&c)
		require.ErrorContains(t, c.Validate(), "ops: "+want)
	}
}
