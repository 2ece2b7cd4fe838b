package ops_test

import (
	"cmp"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/graph"
	"github.com/gorgonia-nsa/nsa/internal/cpu"
	"github.com/gorgonia-nsa/nsa/internal/opcases"
	"github.com/gorgonia-nsa/nsa/internal/ref"
	"github.com/gorgonia-nsa/nsa/internal/testutil"
	"github.com/gorgonia-nsa/nsa/ops"
	"github.com/gorgonia-nsa/nsa/ops/spec"
	"github.com/gorgonia-nsa/nsa/ops/spec/compress"
	"github.com/gorgonia-nsa/nsa/ops/spec/decode"
)

// extendCase is a sequence whose keys and values go into a cache.
type extendCase struct {
	opcases.Decoding
	dt      tensor.Dtype
	tokens  []array // keys and values of all tokens, a pair for each branch
	blocks  []array // compressed
	phi     []array
	context int     // tokens of the outputs
	pages   []int32 // slot, number of tokens, pages
}

func newExtendCase(t *testing.T, r *rand.Rand, c opcases.Decoding, dt tensor.Dtype) extendCase {
	n := 1 + r.IntN(min(c.Tokens, 150))
	c.Cache.Slots, c.Cache.Pages = 3, (c.Tokens+c.Cache.PageLen-1)/c.Cache.PageLen+2
	x := extendCase{Decoding: c, dt: dt, context: n + r.IntN(30), pages: []int32{int32(r.IntN(3)), int32(n)}}
	for _, p := range r.Perm(c.Cache.Pages) {
		x.pages = append(x.pages, int32(p))
	}
	if c.Cache.Stores(decode.Compressed) {
		for _, p := range c.Phi() {
			x.phi = append(x.phi, array{Name: "phi", Shape: p.Shape, Floats: p.Data})
		}
	}
	s := c.Sequence(r.Uint64(), n)
	for b := range s.K {
		if !c.HasInputs(b) {
			continue
		}
		for side, a := range []*ref.Tensor{s.K[b], s.V[b]} {
			in := array{Name: "x", Shape: a.Shape, Floats: a.Data}
			x.tokens = append(x.tokens, in)
			if b == int(decode.Compressed) && !c.Cache.Dense() {
				var op spec.Spec = compress.Mean{BlockLen: c.Cache.BlockLen, Stride: c.Cache.Stride}
				if x.phi != nil {
					op = compress.MLP{BlockLen: c.Cache.BlockLen, Stride: c.Cache.Stride}
				}
				x.blocks = append(x.blocks, runSpec(t, op, dt, append([]array{in}, x.phi[side*len(x.phi)/2:][:len(x.phi)/2]...)...)[0])
			}
		}
	}
	return x
}

// cacheInputs returns a cache whose numbers are all NaN, and the page table for n more tokens.
func (x extendCase) cacheInputs(n int) []array {
	table := slices.Clone(x.pages)
	table[1] = int32(n)
	return []array{{Name: "cache", Shape: []int{x.Cache.Elements()}, Floats: slices.Repeat([]float64{math.NaN()}, x.Cache.Elements())},
		{Name: "page table", Shape: []int{1, len(table)}, Ints: table}}
}

// run runs an op on a cache, or on its own one if that is nil. It returns the outputs and the cache.
func (x extendCase) run(t *testing.T, op spec.Updating, cache []byte, in ...array) ([]array, []byte) {
	t.Helper()
	team := cpu.NewTeam(2)
	b := bindSpec(t, op, x.dt, team.Workers(), in...)
	own := cpu.Slice[uint8](b.in[op.UpdatedInputs()[0]].Buf)
	if cache != nil {
		copy(own, cache)
	}
	require.NoError(t, team.Run(&b.kernel, b.mem))
	return b.read(), own
}

// TestExtendMatchesFill: runs of any lengths leave the cache that FillCache leaves after all tokens at once, in the same
// bits. The outputs are the keys and values of all tokens so far, and zeros.
func TestExtendMatchesFill(t *testing.T) {
	r := rand.New(rand.NewPCG(7, 8))
	types := []tensor.Dtype{tensor.Float32, tensor.Float64}
	if graph.NewCPU(1).Device().Half {
		types = append(types, ops.BFloat16)
	}
	for range testutil.Tries(t, 1, 20) {
		for _, c := range opcases.Decodings() {
			x := newExtendCase(t, r, c, types[r.IntN(len(types))])
			n := int(x.pages[1])
			t.Run(fmt.Sprint(c.Name, "/", x.dt, "/", n), func(t *testing.T) {
				_, want := x.run(t, decode.FillCache{Cache: x.Cache}, nil, slices.Concat(x.blocks, x.tokens, x.cacheInputs(n))...)
				var cache []byte
				for start := 0; start < n; {
					run := 1 + r.IntN(n-start)
					size := min(x.context-start, run+r.IntN(10)) // the last ones are not stored
					var in, out []array
					for _, a := range x.tokens {
						in = append(in, padded(opcases.Queries{Start: []int32{int32(start)}, N: size}, a))
					}
					in = slices.Concat(in, x.phi, x.cacheInputs(run), []array{opcases.Queries{Start: []int32{int32(start)}}.Input()})
					out, cache = x.run(t, decode.Extend{Cache: x.Cache, Tokens: x.context, MLP: x.phi != nil}, cache, in...)
					start += run
					x.requireTokens(t, out, start-run, start, size)
				}
				require.Equal(t, want, cache)
			})
		}
	}
}

// padded returns the rows of a that belong to r, with NaN for queries past the last one.
func padded(r opcases.Queries, a array) array {
	have := min(r.N, a.Shape[1]-int(r.Start[0]))
	part := opcases.Queries{Start: r.Start, N: have}.Of(a, 1)
	part.Floats = append(part.Floats, slices.Repeat([]float64{math.NaN()}, (r.N-have)*a.Shape[2]*a.Shape[3])...)
	part.Shape[1] = r.N
	return part
}

// requireTokens checks the outputs after the tokens [start,end) of a run of the given size.
func (x extendCase) requireTokens(t *testing.T, out []array, start, end, size int) {
	t.Helper()
	i := 0
	for b := range decode.Branch(decode.NumBranches) {
		if !x.HasInputs(int(b)) {
			continue
		}
		want, first, have := x.tokens[i:], 0, end
		switch {
		case b == decode.Compressed && !x.Cache.Dense():
			want, have = x.blocks, spec.NumCompressed(end, x.Cache.BlockLen, x.Cache.Stride)
		case b == decode.Window && !x.Cache.Dense():
			first = max(0, start+1-x.Cache.Window)
		}
		for side := range 2 {
			got, width := out[i+side], out[i+side].Shape[2]*out[i+side].Shape[3]
			require.Equal(t, make([]float64, first*width), got.Floats[:first*width])
			require.Equal(t, x.rounded(want[side].Floats[first*width:have*width]), got.Floats[first*width:have*width], "output %d", i+side)
			if b != decode.Compressed {
				rest := got.Floats[(start+size)*width:]
				require.Equal(t, make([]float64, len(rest)), rest)
			}
		}
		i += 2
	}
}

// rounded returns x in the type of the case.
func (x extendCase) rounded(list []float64) []float64 {
	list = slices.Clone(list)
	for i, v := range list {
		switch x.dt {
		case tensor.Float32:
			list[i] = float64(float32(v))
		case ops.BFloat16:
			list[i] = testutil.FromBFloat16(testutil.BFloat16(v))
		}
	}
	return list
}

// TestExtendRefuses: shapes that do not fit are errors of the op, starts and page tables errors of the run,
// and of the checks of either input alone that a device makes, as far as these can tell.
func TestExtendRefuses(t *testing.T) {
	c := opcases.Decodings()[0].Cache
	c.Slots, c.Pages = 2, 3
	op := decode.Extend{Cache: c, Tokens: 20}
	inputs := func(change func(in []array)) (in []array) {
		for range decode.NumBranches {
			in = append(in, normal("k", 1, 1, 4, c.KVHeads, c.KeyDim), normal("v", 2, 1, 4, c.KVHeads, c.ValueDim))
		}
		in = append(in, normal("cache", 3, c.Elements()), array{Name: "page table", Shape: []int{1, 4}, Ints: []int32{1, 4, 0, 2}},
			array{Name: "start", Shape: []int{1}, Ints: []int32{16}})
		change(in)
		return in
	}
	for want, change := range map[string]func(in []array){
		"":                              func([]array) {},
		"window v has shape (1, 4, 2, ": func(in []array) { in[5] = in[4] },
		"cache has shape (5)":           func(in []array) { in[6] = normal("cache", 3, 5) },
		"start has shape (2)":           func(in []array) { in[8] = array{Name: "start", Shape: []int{2}, Ints: []int32{0, 0}} },
		"21 new tokens, want at most the 20": func(in []array) {
			for i := range in[:6] {
				in[i] = normal("x", 1, 1, 21, c.KVHeads, in[i].Shape[3])
			}
		},
	} {
		var operands []spec.Operand
		for _, a := range inputs(change) {
			operands = append(operands, a.Operand(tensor.Float32))
		}
		if err := testutil.Err(op.Infer(operands)); want != "" {
			require.ErrorContains(t, err, want)
		} else {
			require.NoError(t, err)
		}
	}
	for want, change := range map[string]func(in []array){
		"start of row 0 is 17, want 0 to 16": func(in []array) { in[8].Ints[0] = 17 },
		"start of row 0 is -1":               func(in []array) { in[8].Ints[0] = -1 },
		"start of row 0 is 16, want 0 to 0":  func(in []array) { in[7].Ints[0] = -1 },
		"slot 1 has 5 tokens, want 0 to 4":   func(in []array) { in[7].Ints[1] = 5 },
		"page 1 of slot 1 is 3":              func(in []array) { in[7].Ints[3] = 3 },
		"row 0 has slot 2":                   func(in []array) { in[7].Ints[0] = 2 },
	} {
		x := bindSpec(t, op, tensor.Float32, 1, inputs(change)...)
		err := cpu.NewTeam(1).Run(&x.kernel, x.mem)
		require.ErrorContains(t, err, want)
		require.ErrorAs(t, err, new(*spec.ValueError))
		var operands []spec.Operand
		for _, a := range x.in {
			operands = append(operands, a.Operand)
		}
		start, ok := spec.StartOf(op, operands)
		require.True(t, ok)
		err = cmp.Or(op.Check(operands, x.in[op.CheckedInput()].Buf), start.Check(operands, x.in[start.Input].Buf))
		if together := []string{"start of row 0 is 16, want 0 to 0", "page 1 of slot 1 is 3"}; slices.Contains(together, want) {
			require.NoError(t, err)
		} else {
			require.ErrorAs(t, err, new(*spec.ValueError))
		}
	}
}
