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
	"github.com/gorgonia-nsa/nsa/internal/ref"
	"github.com/gorgonia-nsa/nsa/internal/testutil"
	"github.com/gorgonia-nsa/nsa/ops"
)

// decodeCase is a layer whose sequences are decoded.
type decodeCase struct {
	name   string
	cache  ops.KVCache // without slots and pages
	heads  int
	tokens int // of the longest sequence
	mlp    int // hidden width, 0 for the mean
}

func decodeCases() []decodeCase {
	cases := []decodeCase{
		{"small", ops.KVCache{Params: ops.Params{BlockLen: 8, Stride: 4, SelectBlock: 8, TopN: 4, Window: 16}, KVHeads: 2, KeyDim: 8, ValueDim: 6, PageLen: 16}, 4, 150, 0},
		{"mlp", ops.KVCache{Params: ops.Params{BlockLen: 8, Stride: 4, SelectBlock: 8, TopN: 4, Window: 13}, KVHeads: 1, KeyDim: 6, ValueDim: 10, PageLen: 8}, 3, 90, 5},
		{"stride is l", ops.KVCache{Params: ops.Params{BlockLen: 4, Stride: 4, SelectBlock: 16, TopN: 3, Window: 1}, KVHeads: 2, KeyDim: 4, ValueDim: 4, PageLen: 32}, 2, 80, 0},
		{"l above l'", ops.KVCache{Params: ops.Params{BlockLen: 32, Stride: 8, SelectBlock: 8, TopN: 5, Window: 50}, KVHeads: 1, KeyDim: 4, ValueDim: 3, PageLen: 24}, 2, 130, 0},
		{"no block", ops.KVCache{Params: ops.Params{BlockLen: 64, Stride: 64, SelectBlock: 64, TopN: 3, Window: 100}, KVHeads: 1, KeyDim: 2, ValueDim: 1, PageLen: 64}, 1, 40, 0},
		{"dense", ops.KVCache{KVHeads: 2, KeyDim: 8, ValueDim: 6, PageLen: 16}, 6, 70, 0},
		{"paper", ops.KVCache{Params: ops.Params{BlockLen: 32, Stride: 16, SelectBlock: 64, TopN: 6, Window: 128}, KVHeads: 1, KeyDim: 32, ValueDim: 32, PageLen: 128}, 4, 700, 0},
	}
	for _, without := range []ops.Branches{ops.Compressed, ops.Selected, ops.Window, ops.Selected | ops.Window, ops.Compressed | ops.Window, ops.Compressed | ops.Selected} {
		c := cases[0]
		c.name, c.cache.Without = fmt.Sprintf("without %03b", without), without
		cases = append(cases, c)
	}
	return cases
}

// sequence is the inputs of one sequence [1,S,...] as the oracle takes them.
type sequence struct {
	q, gates *ref.Tensor
	k, v     []*ref.Tensor
}

// has reports whether the layer has branch i, and stores whether its keys and values are inputs: those of the compressed
// branch choose blocks.
func (c decodeCase) has(i int) bool { return c.cache.Without>>i&1 == 0 }

func (c decodeCase) stores(i int) bool {
	if c.cache.Dense() {
		return i == 0
	}
	return c.has(i) || i == 0 && c.has(1)
}

// gates returns the number of gates of a head.
func (c decodeCase) gates() (n int) {
	for i := range 3 {
		if c.has(i) {
			n++
		}
	}
	return n
}

func normalTensor(seed uint64, shape ...int) *ref.Tensor {
	n := 1
	for _, s := range shape {
		n *= s
	}
	return ref.From(testutil.Normal(seed, n), shape...)
}

func (c decodeCase) sequence(seed uint64, n int) (s sequence) {
	seed *= 100
	s.q, s.gates = normalTensor(seed, 1, n, c.heads, c.cache.KeyDim), normalTensor(seed+1, 1, n, c.heads, c.gates())
	for i := range uint64(3) {
		s.k = append(s.k, normalTensor(seed+2+2*i, 1, n, c.cache.KVHeads, c.cache.KeyDim))
		s.v = append(s.v, normalTensor(seed+3+2*i, 1, n, c.cache.KVHeads, c.cache.ValueDim))
	}
	return s
}

// phi returns the parameters of the compression, those of keys first.
func (c decodeCase) phi() (p []*ref.Tensor) {
	for i, d := range []int{c.cache.KeyDim, c.cache.ValueDim} {
		seed := uint64(7000 + 10*i)
		p = append(p, normalTensor(seed, c.cache.BlockLen, d), normalTensor(seed+1, c.mlp, c.cache.BlockLen*d), normalTensor(seed+2, d, c.mlp))
	}
	return p
}

const decodeBase = 1000

// oracle returns the outputs of all tokens of s, with the blocks that it chooses, or with idx if that is not nil.
func (c decodeCase) oracle(s sequence, idx []int32) (o *ref.Tensor, chosen []int32) {
	p, n := c.cache.Params, s.q.Shape[1]
	q, k := ref.RoPE(s.q, decodeBase, 0), make([]*ref.Tensor, len(s.k))
	for i := range k {
		k[i] = ref.RoPE(s.k[i], decodeBase, 0)
	}
	if c.cache.Dense() {
		o, _ = ref.Attention(q, k[0], s.v[0], ref.CausalMask())
		return o, nil
	}
	kc, vc := c.compressed(k[0], 0), c.compressed(s.v[0], 1)
	if chosen, _ = ref.SelectBlocks(q, kc, p.BlockLen, p.Stride, p.SelectBlock, p.TopN); idx == nil {
		idx = chosen
	}
	var outputs []*ref.Tensor
	for i, branch := range []struct {
		k, v *ref.Tensor
		mask ref.Mask
	}{
		{kc, vc, ref.CompressedMask(p.BlockLen, p.Stride)},
		{k[1], s.v[1], ref.SelectedMask(idx, 1, n, c.cache.KVHeads, p.SelectBlock)},
		{k[2], s.v[2], ref.WindowMask(p.Window)},
	} {
		if c.has(i) {
			o, _ := ref.Attention(q, branch.k, branch.v, branch.mask)
			outputs = append(outputs, o)
		}
	}
	return ref.GatedSum(s.gates, outputs...), chosen
}

// compressed is the compression of rotated keys, side 0, or of values, side 1.
func (c decodeCase) compressed(x *ref.Tensor, side int) *ref.Tensor {
	p := c.cache.Params
	if c.mlp == 0 {
		return ref.CompressMean(x, p.BlockLen, p.Stride)
	}
	phi := c.phi()[3*side:]
	return ref.CompressMLP(x, p.BlockLen, p.Stride, phi[0], phi[1], phi[2])
}

// set writes numbers into a from element at on.
func set(a ops.Arg, at int, x []float64) {
	for i, v := range x {
		if a.Dtype == tensor.Float32 {
			cpu.Slice[float32](a.Buf)[at+i] = float32(v)
		} else {
			cpu.Slice[float64](a.Buf)[at+i] = v
		}
	}
}

// decoding is a DecodeOp over several slots, whose sequences are at different tokens.
type decoding struct {
	decodeCase
	*bound
	team  *cpu.Team
	cell  int // index of the input cache
	width int // of rows
	free  []int32
}

// newDecoding returns one with free pages in random order. All numbers of the cache are NaN.
func (c decodeCase) newDecoding(t testing.TB, dt tensor.Dtype, slots int) *decoding {
	perSlot := (c.tokens + c.cache.PageLen - 1) / c.cache.PageLen
	c.cache.Slots, c.cache.Pages = slots, slots*perSlot+1
	d := &decoding{decodeCase: c, width: 1 + perSlot, team: cpu.NewTeam(0)}
	for _, p := range rand.New(rand.NewPCG(1, 2)).Perm(c.cache.Pages) {
		d.free = append(d.free, int32(p))
	}
	zeros := func(name string, shape ...int) array {
		return array{Name: name, Shape: shape, Floats: make([]float64, tensor.Shape(shape).TotalSize())}
	}
	in := []array{zeros("q", slots, 1, c.heads, c.cache.KeyDim)}
	for i := range 3 {
		if c.stores(i) {
			in = append(in, zeros("k", slots, 1, c.cache.KVHeads, c.cache.KeyDim), zeros("v", slots, 1, c.cache.KVHeads, c.cache.ValueDim))
		}
	}
	if !c.cache.Dense() {
		in = append(in, zeros("gates", slots, 1, c.heads, c.gates()))
	}
	d.cell = len(in)
	cache := zeros("cache", c.cache.Elements())
	for i := range cache.Floats {
		cache.Floats[i] = math.NaN()
	}
	in = append(in, cache, array{Name: "rows", Shape: []int{slots, d.width}, Ints: slices.Repeat([]int32{-1}, slots*d.width)})
	if c.mlp > 0 {
		for _, p := range c.phi() {
			in = append(in, array{Name: "phi", Shape: p.Shape, Floats: p.Data})
		}
	}
	d.bound = bind(t, ops.DecodeOp{Cache: c.cache, Base: decodeBase, MLP: c.mlp > 0}, dt, d.team.Workers(), in...)
	return d
}

// row is the tokens and pages of a slot.
func (d *decoding) row(slot int) []int32 {
	return cpu.Slice[int32](d.in[d.cell+1].Buf)[slot*d.width:][:d.width]
}

// token makes token t of s the next one of a slot, which gets a page if it needs one.
func (d *decoding) token(slot int, s sequence, t int) {
	row := d.row(slot)
	row[0] = int32(t)
	if page := 1 + t/d.cache.PageLen; row[page] < 0 {
		row[page], d.free = d.free[0], d.free[1:]
	}
	put := func(i int, x *ref.Tensor) {
		data := x.Row(0, t)
		n := d.in[i].Elements() / d.cache.Slots
		set(d.in[i], slot*n, data[:n])
	}
	put(0, s.q)
	next := 1
	for i := range s.k {
		if d.stores(i) {
			put(next, s.k[i])
			put(next+1, s.v[i])
			next += 2
		}
	}
	if !d.cache.Dense() {
		put(next, s.gates)
	}
}

// step runs the op and returns what it gave each slot.
func (d *decoding) step(t testing.TB) (outs []stepOutput) {
	t.Helper()
	require.NoError(t, d.team.Run(&d.kernel, d.mem))
	all := d.read()
	for i := range d.cache.Slots {
		part := func(a array) (lo, hi int) {
			n := tensor.Shape(a.Shape).TotalSize() / d.cache.Slots
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

// stepOutput is what a step gives one slot.
type stepOutput struct {
	o         []float64
	idx, read []int32
}

// TestDecodeMatchesOracle decodes sequences of different lengths that begin at different steps, and holds every token to the
// oracle's attention over the whole sequence, and the keys read to their number. Nothing else of the cache may be read: it is NaN.
func TestDecodeMatchesOracle(t *testing.T) {
	for _, c := range decodeCases() {
		for _, dt := range []tensor.Dtype{tensor.Float32, tensor.Float64} {
			t.Run(fmt.Sprint(c.name, "/", dt), func(t *testing.T) {
				const slots = 3
				d := c.newDecoding(t, dt, slots)
				p, kvHeads := c.cache.Params, c.cache.KVHeads
				var seqs [slots]sequence
				var outs [slots][]float64
				var blocks [slots][]int32
				lengths, begins := [slots]int{c.tokens, c.tokens / 2, c.tokens - 9}, [slots]int{0, 3, 9}
				for i := range seqs {
					seqs[i] = c.sequence(uint64(i+1), lengths[i])
				}
				for step := range c.tokens {
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
							want := []int32{0, 0, int32(at + 1)}
							if !c.cache.Dense() {
								want = []int32{int32(ops.NumVisible(at, p.BlockLen, p.Stride)), 0, int32(min(p.Window, at+1))}
								for i := range want {
									if !c.stores(i) {
										want[i] = 0
									}
								}
								for _, j := range idx[g*p.TopN:][:p.TopN] {
									if j >= 0 {
										want[1] += int32(min(p.SelectBlock, at+1-int(j)*p.SelectBlock))
									}
								}
							}
							require.Equal(t, want, read[g*3:][:3], "keys read at token %d", at)
						}
					}
				}
				for i, s := range seqs {
					want, chosen := c.oracle(s, blocks[i])
					if !c.cache.Dense() && c.has(1) && dt == tensor.Float64 {
						require.Equal(t, chosen, blocks[i])
					}
					testutil.Within(t, fmt.Sprint("sequence ", i), outs[i], want.Data, tolerance(dt))
				}
			})
		}
	}
}

// fill stores the first n tokens of s in a slot, by FillCacheOp with room for more tokens, and gives the slot its pages.
func (d *decoding) fill(t testing.TB, dt tensor.Dtype, slot int, s sequence, n int) {
	const room = 5
	t.Helper()
	row, p := d.row(slot), d.cache.Params
	for i := range (n + d.cache.PageLen - 1) / d.cache.PageLen {
		row[1+i], d.free = d.free[0], d.free[1:]
	}
	cut := func(x *ref.Tensor) *ref.Tensor { // to n tokens and NaN behind them
		width := x.Shape[2] * x.Shape[3]
		data := slices.Repeat([]float64{math.NaN()}, (n+room)*width)
		copy(data, x.Data[:n*width])
		return ref.From(data, 1, n+room, x.Shape[2], x.Shape[3])
	}
	var in []array
	add := func(x *ref.Tensor) { in = append(in, array{Name: "x", Shape: x.Shape, Floats: x.Data}) }
	for i := range s.k {
		if !d.stores(i) {
			continue
		}
		k, v := cut(ref.RoPE(s.k[i], decodeBase, 0)), cut(s.v[i])
		if i == 0 && !d.cache.Dense() {
			for side, x := range []*ref.Tensor{k, v} {
				if ref.NumCompressed(n+room, p.BlockLen, p.Stride) == 0 {
					add(ref.New(1, 1, x.Shape[2], x.Shape[3]))
				} else {
					add(d.compressed(x, side))
				}
			}
		}
		add(k)
		add(v)
	}
	in = append(in, array{Name: "cache", Shape: d.in[d.cell].Shape, Floats: make([]float64, d.cache.Elements())},
		array{Name: "rows", Shape: []int{1, 1 + d.width}, Ints: append([]int32{int32(slot), int32(n)}, row[1:]...)})
	x := bind(t, ops.FillCacheOp{Cache: d.cache}, dt, d.team.Workers(), in...)
	x.in[len(in)-2].Set(d.in[d.cell].Pointer(), d.in[d.cell].Buf.Bytes())
	require.NoError(t, d.team.Run(&x.kernel, x.mem))
	require.Equal(t, []int32{int32(n)}, x.read()[0].Ints)
}

// TestDecodeGoesOnBehindFill fills the cache with the first tokens of a sequence, for many numbers of them, and decodes the others.
func TestDecodeGoesOnBehindFill(t *testing.T) {
	for _, c := range decodeCases() {
		for _, dt := range []tensor.Dtype{tensor.Float32, tensor.Float64} {
			t.Run(fmt.Sprint(c.name, "/", dt), func(t *testing.T) {
				c.tokens = min(c.tokens, 150)
				s := c.sequence(5, c.tokens)
				for n := 0; n < c.tokens; n += 1 + n/4 {
					d := c.newDecoding(t, dt, 2)
					d.fill(t, dt, 1, s, n)
					var out []float64
					var idx []int32
					for at := n; at < c.tokens; at++ {
						d.token(1, s, at)
						got := d.step(t)[1]
						out, idx = append(out, got.o...), append(idx, got.idx...)
					}
					_, chosen := c.oracle(s, nil)
					want, _ := c.oracle(s, append(chosen[:max(0, len(chosen)-len(idx))], idx...))
					testutil.Within(t, fmt.Sprint("behind ", n), out, want.Data[len(want.Data)-len(out):], tolerance(dt))
				}
			})
		}
	}
}

// TestDecodeAloneAndInBatch: the bits of a sequence do not depend on the number of slots, on its slot, its pages and its neighbours.
func TestDecodeAloneAndInBatch(t *testing.T) {
	for _, c := range decodeCases() {
		t.Run(c.name, func(t *testing.T) {
			c.tokens = min(c.tokens, 200)
			s, other := c.sequence(1, c.tokens), c.sequence(2, c.tokens)
			alone, batch := c.newDecoding(t, tensor.Float32, 1), c.newDecoding(t, tensor.Float32, 5)
			for at := range c.tokens {
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

func TestDecodeChecksRows(t *testing.T) {
	c := decodeCases()[0]
	for _, x := range []struct {
		row  []int32
		want string
	}{
		{[]int32{-2, 0}, "row 1 has -2 tokens, want -1 or more"},
		{[]int32{16, 0, -1}, "page 1 of row 1 is -1, want 0 to 20"},
		{[]int32{15, 21}, "page 0 of row 1 is 21, want 0 to 20"},
		{[]int32{160, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9}, "row 1 has 161 tokens, want at most 160: 10 pages of 16"},
	} {
		d := c.newDecoding(t, tensor.Float32, 2)
		copy(d.row(1), x.row)
		require.EqualError(t, d.team.Run(&d.kernel, d.mem), x.want)
	}
}

// TestDecodeAllocatesNothing in a step.
func TestDecodeAllocatesNothing(t *testing.T) {
	c := decodeCases()[0]
	d, s := c.newDecoding(t, tensor.Float32, 1), c.sequence(1, 150)
	for at := range 140 {
		d.token(0, s, at)
		require.NoError(t, d.team.Run(&d.kernel, d.mem))
	}
	d.team = cpu.NewTeam(1)
	require.Zero(t, testing.AllocsPerRun(5, func() { require.NoError(t, d.team.Run(&d.kernel, d.mem)) }))
}

func TestKVCacheErrors(t *testing.T) {
	good := decodeCases()[0].cache
	good.Slots, good.Pages = 1, 1
	require.NoError(t, good.Validate())
	for want, change := range map[string]func(c *ops.KVCache){
		"kv heads is 0, want at least 1":                              func(c *ops.KVCache) { c.KVHeads = 0 },
		"pages is 0, want at least 1":                                 func(c *ops.KVCache) { c.Pages = 0 },
		"page length 12 is no multiple of the selection block l' = 8": func(c *ops.KVCache) { c.PageLen = 12 },
		"top n = 2 is smaller than the 3 forced blocks":               func(c *ops.KVCache) { c.TopN = 2 },
		"a cache of 1.23e+12 elements, want at most 1099511627776":    func(c *ops.KVCache) { c.Pages = 1 << 30; c.Slots = 1 << 30; c.Window = 1 },
	} {
		c := good
		change(&c)
		require.EqualError(t, c.Validate(), want)
	}
}
