package ops_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/internal/opcases"
	"github.com/gorgonia-nsa/nsa/internal/testutil"
	"github.com/gorgonia-nsa/nsa/ops"
	"github.com/gorgonia-nsa/nsa/ops/spec"
	"github.com/gorgonia-nsa/nsa/ops/spec/attention"
	"github.com/gorgonia-nsa/nsa/ops/spec/compress"
	"github.com/gorgonia-nsa/nsa/ops/spec/linear"
	"github.com/gorgonia-nsa/nsa/ops/spec/pointwise"
)

// document is a document in a row: the row, its tokens [first,end), and its compressed keys, keys of them from key on.
type document struct{ b, first, end, key, keys int }

// packing holds documents in rows of S tokens, with the boundaries cu.
type packing struct {
	ops.Params
	B, S int
	cu   []int32
	docs []document // the documents that are not empty
}

func newPacking(p ops.Params, B, S int, cu []int32) packing {
	x := packing{Params: p, B: B, S: S, cu: cu}
	key := 0
	for i := range len(cu) - 1 {
		first, end := int(cu[i]), int(cu[i+1])
		if first%S == 0 {
			key = 0
		}
		if first < end {
			n := ops.NumCompressed(end-first, p.BlockLen, p.Stride)
			x.docs = append(x.docs, document{b: first / S, first: first % S, end: (end-1)%S + 1, key: key, keys: n})
			key += n
		}
	}
	return x
}

// randomPacking draws documents: empty ones, with one token, shorter and longer than a block, and as long as a row.
func randomPacking(r *rand.Rand, p ops.Params, B, S int) packing {
	cu := []int32{0}
	for b := range B {
		at, whole := b*S, r.IntN(5) == 0
		for at < (b+1)*S {
			n := []int{0, 1, r.IntN(p.BlockLen + 1), p.BlockLen, r.IntN(S + 1), r.IntN(S + 1)}[r.IntN(6)]
			if whole {
				n = S
			}
			at = min((b+1)*S, at+n)
			cu = append(cu, int32(at))
		}
	}
	for range r.IntN(3) {
		cu = append(cu, int32(B*S))
	}
	return newPacking(p, B, S, cu)
}

func (x packing) boundaries() array {
	return array{Name: "cu_seqlens", Shape: []int{len(x.cu)}, Ints: x.cu}
}

func (x packing) table(t testing.TB) array {
	return runSpec(t, spec.DocumentTable{Batch: x.B, Seq: x.S, BlockLen: x.BlockLen, Stride: x.Stride},
		tensor.Float32, x.boundaries())[0]
}

// axis is the axis along which the documents cut an operand of an op.
type axis int

const (
	alongTokens axis = iota // [B,S,...]
	alongKeys               // [B,Nc,...], compressed
	alongStats              // [B,Hq,S]
	uncut                   // weights
	summed                  // gradients of weights: the sum over the documents, with another rounding
)

func cut(a array, along axis, d document) array {
	rows, outer := a.Shape[0], 1 // rows of the cut axis follow each other
	lo, hi, size := d.first, d.end, 0
	switch along {
	case uncut, summed:
		return a
	case alongKeys:
		lo, hi, size = d.key, d.key+d.keys, a.Shape[1]
		if lo == hi { // without a complete block an op has one row of zeros
			shape := append([]int{1, 1}, a.Shape[2:]...)
			return array{Name: a.Name, Shape: shape, Floats: make([]float64, tensor.Shape(shape).TotalSize())}
		}
	case alongTokens:
		size = a.Shape[1]
	case alongStats:
		size, outer = a.Shape[2], a.Shape[1]
	}
	width := (len(a.Floats) + len(a.Ints)) / rows / outer / size
	part := array{Name: a.Name, Shape: slices.Clone(a.Shape)}
	part.Shape[0] = 1
	if along == alongStats {
		part.Shape[2] = hi - lo
	} else {
		part.Shape[1] = hi - lo
	}
	for i := range outer {
		at := ((d.b*outer+i)*size + lo) * width
		end := at + (hi-lo)*width
		if a.Ints != nil {
			part.Ints = append(part.Ints, a.Ints[at:end]...)
		} else {
			part.Floats = append(part.Floats, a.Floats[at:end]...)
		}
	}
	return part
}

// packedOp is an op with documents: its Spec for rows of S tokens, its inputs, and the axes along which the documents
// cut the inputs and the outputs.
type packedOp struct {
	spec    func(S int) spec.Spec
	in      []array
	along   []axis
	table   int // index of the table among the inputs
	results []axis
}

// run returns the outputs of the op for all documents.
func (o packedOp) run(t testing.TB, x packing, dt tensor.Dtype, workers int) []array {
	t.Helper()
	return runSpecWith(t, workers, o.spec(x.S), dt, slices.Insert(slices.Clone(o.in), o.table, x.table(t))...)
}

// own returns the outputs of the op for a document alone.
func (o packedOp) own(t testing.TB, d document, dt tensor.Dtype) []array {
	t.Helper()
	var in []array
	for i, a := range o.in {
		in = append(in, cut(a, o.along[i], d))
	}
	return runSpecWith(t, 1, o.spec(d.end-d.first), dt, in...)
}

// packedOps returns the ops for one packing. The inputs of a gradient op come from its forward op.
func packedOps(t testing.TB, x packing, dt tensor.Dtype, c dims, seed uint64) map[string]packedOp {
	t.Helper()
	p, list, hidden := x.Params, map[string]packedOp{}, 3
	nc := max(1, ops.NumCompressed(x.S, p.BlockLen, p.Stride))
	q, k, v := c.Tokens(seed)
	do, y := normal("do", seed+3, c.B, c.S, c.Hq, c.Dv), normal("dy", seed+4, c.B, nc, c.Hkv, c.D)
	pe, w1, w2 := normal("pe", seed+5, p.BlockLen, c.D), normal("w1", seed+6, hidden, p.BlockLen*c.D),
		normal("w2", seed+7, c.D, hidden)
	add := func(name string, o packedOp) []array {
		list[name] = o
		return o.run(t, x, dt, 1)
	}
	same := func(s spec.Spec) func(int) spec.Spec { return func(int) spec.Spec { return s } }

	rope := pointwise.RoPE{Base: 100, Start: 3}
	back := rope
	back.Inverse = true
	for _, op := range []pointwise.RoPE{rope, back} {
		add(op.Name(), packedOp{spec: same(op), in: []array{q}, along: []axis{alongTokens}, table: 1,
			results: []axis{alongTokens}})
	}
	linears := linear.Fused{RoPE: rope, Heads: [linear.MaxFused]int{2, 1}, Rotated: [linear.MaxFused]bool{true},
		Bias: [linear.MaxFused]bool{false, true}}
	grad := linear.FusedGrad{In: 6, RoPE: back, Terms: [linear.MaxFused]int{2, 1}, Rotated: linears.Rotated}
	u, a, b, bias := normal("u", seed+8, c.B, c.S, 6), normal("a", seed+9, 8, 6), normal("b", seed+10, 3, 6),
		normal("bias", seed+11, 3)
	add("linears", packedOp{spec: same(linears), in: []array{u, a, b, bias},
		along: []axis{alongTokens, uncut, uncut, uncut}, table: 4, results: []axis{alongTokens, alongTokens}})
	da, db := normal("da", seed+12, c.B, c.S, 2, 4), normal("db", seed+13, c.B, c.S, 1, 3)
	add("gradient of linears", packedOp{spec: same(grad), in: []array{u, da, da, db, a, b},
		along: []axis{alongTokens, alongTokens, alongTokens, alongTokens, uncut, uncut}, table: 6,
		results: []axis{alongTokens, summed, summed}})

	mean, mlp := compress.Mean{BlockLen: p.BlockLen, Stride: p.Stride}, compress.MLP{BlockLen: p.BlockLen,
		Stride: p.Stride}
	kc := add("compress mean", packedOp{spec: same(mean), in: []array{k}, along: []axis{alongTokens}, table: 1,
		results: []axis{alongKeys}})[0]
	meanGrad := func(S int) spec.Spec {
		return compress.MeanGrad{BlockLen: p.BlockLen, Stride: p.Stride, Tokens: S}
	}
	add("gradient of compress mean", packedOp{spec: meanGrad,
		in: []array{y}, along: []axis{alongKeys}, table: 1, results: []axis{alongTokens}})
	weights := []axis{alongTokens, uncut, uncut, uncut}
	made := add("compress mlp", packedOp{spec: same(mlp), in: []array{k, pe, w1, w2}, along: weights, table: 4,
		results: []axis{alongKeys, alongKeys}})
	add("gradient of compress mlp", packedOp{spec: same(compress.MLPGrad(mlp)), in: []array{k, pe, w1, w2, made[1], y},
		along: append(slices.Clip(weights), alongKeys, alongKeys), table: 4,
		results: []axis{alongTokens, summed, summed, summed}})

	qkv := []axis{alongTokens, alongTokens, alongTokens}
	attentionOp := func(name string, spec, grad func(S int) spec.Spec, in []array, along []axis) []array {
		out := add(name, packedOp{spec: spec, in: in, along: along, table: len(in), results: []axis{alongTokens, alongStats}})
		add("gradient of "+name, packedOp{spec: grad, in: slices.Concat(in, out, []array{do}),
			along: append(slices.Clip(along), alongTokens, alongStats, alongTokens), table: len(in), results: along[:3]})
		return out
	}
	window := attention.SlidingWindow{Window: p.Window}
	attentionOp("window", same(window), same(attention.SlidingWindowGrad{Forward: window}), []array{q, k, v}, qkv)
	attentionOp("dense", func(S int) spec.Spec { return attention.SlidingWindow{Window: S} },
		func(S int) spec.Spec { return attention.SlidingWindowGrad{Forward: attention.SlidingWindow{Window: S}} },
		[]array{q, k, v}, qkv)
	compressed := attention.Compressed{BlockLen: p.BlockLen, Stride: p.Stride}
	o := attentionOp("compressed", same(compressed), same(attention.CompressedGrad{Forward: compressed}),
		[]array{q, kc, normal("vc", seed+14, c.B, nc, c.Hkv, c.Dv)},
		[]axis{alongTokens, alongKeys, alongKeys})
	idx := add("select", packedOp{spec: same(attention.SelectBlocks{Params: p}), in: []array{q, kc, o[1]},
		along: []axis{alongTokens, alongKeys, alongStats}, table: 3, results: []axis{alongTokens}})[0]
	selected := attention.Selected{SelectBlock: p.SelectBlock}
	attentionOp("selected", same(selected), same(attention.SelectedGrad{Forward: selected}), []array{q, k, v, idx},
		append(slices.Clip(qkv), alongTokens))
	return list
}

// packings calls f with n random packings and small sizes of the ops, in parallel.
func packings(t *testing.T, n int, f func(t *testing.T, r *rand.Rand, x packing, c dims)) {
	r := rand.New(rand.NewPCG(7, 11))
	for i := range n {
		l := []int{1, 2, 4, 8, 6}[r.IntN(5)]
		d := l
		for l%d != 0 || r.IntN(2) == 0 && d > 1 {
			d = 1 + r.IntN(l)
		}
		p := ops.Params{BlockLen: l, Stride: d, SelectBlock: d * (1 + r.IntN(9)), TopN: 3 + r.IntN(4), Window: 1 + r.IntN(40)}
		B, S := 1+r.IntN(2), 1+r.IntN(150)
		if i%50 == 0 {
			S += 600 // several chunks of keys
		}
		group, kv := 1+r.IntN(7), 1+r.IntN(2)
		x := randomPacking(r, p, B, S)
		t.Run(fmt.Sprint(i), func(t *testing.T) {
			t.Parallel()
			f(t, rand.New(rand.NewPCG(7, uint64(i))), x, opcases.NewDims(B, S, group*kv, kv, 4, 3))
		})
	}
}

// bits returns the bits of floats: as bits NaN equals itself, and -0 differs from 0.
func bits(x []float64) (b []uint64) {
	for _, v := range x {
		b = append(b, math.Float64bits(v))
	}
	return b
}

// TestDocumentsEqualTheirOwnRuns: the outputs and gradients of every op have, for each document, the same bits as for
// the document alone. Keys that belong to no document are zero.
func TestDocumentsEqualTheirOwnRuns(t *testing.T) {
	packings(t, testutil.Tries(t, 24, 200), func(t *testing.T, r *rand.Rand, x packing, c dims) {
		dt := dtypes[r.IntN(2)]
		for name, o := range packedOps(t, x, dt, c, r.Uint64()) {
			got := o.run(t, x, dt, 2)
			sums := make([][]float64, len(got))
			for _, d := range x.docs {
				for i, want := range o.own(t, d, dt) {
					switch part := cut(got[i], o.results[i], d); {
					case o.results[i] == summed:
						if sums[i] == nil {
							sums[i] = make([]float64, len(want.Floats))
						}
						for j, v := range want.Floats {
							sums[i][j] += v
						}
					case want.Ints != nil:
						require.Equal(t, want.Ints, part.Ints, "%s: output %d of %+v among %v", name, i, d, x.cu)
					default:
						require.Equal(t, bits(want.Floats), bits(part.Floats), "%s: output %d of %+v among %v", name, i, d, x.cu)
					}
				}
			}
			for i, along := range o.results {
				if along == summed {
					testutil.Within(t, name, got[i].Floats, sums[i], map[tensor.Dtype]float64{tensor.Float64: 1e-12,
						tensor.Float32: 2e-5}[dt])
				}
				if along == alongKeys {
					for _, v := range x.rest(got[i]) {
						require.Zero(t, v, "%s: output %d", name, i)
					}
				}
			}
		}
	})
}

// rest returns the numbers of a, cut along keys, that belong to no document.
func (x packing) rest(a array) (list []float64) {
	width := len(a.Floats) / a.Shape[0] / a.Shape[1]
	for b := range x.B {
		n := 0
		for _, d := range x.docs {
			if d.b == b {
				n = d.key + d.keys
			}
		}
		list = append(list, a.Floats[(b*a.Shape[1]+n)*width:(b+1)*a.Shape[1]*width]...)
	}
	return list
}

// TestDocumentsIgnoreOthers: NaN and infinities in one document, or in compressed keys of no document, change no bit of
// other documents.
func TestDocumentsIgnoreOthers(t *testing.T) {
	packings(t, testutil.Tries(t, 12, 60), func(t *testing.T, r *rand.Rand, x packing, c dims) {
		dt, poison := dtypes[r.IntN(2)], poisons[r.IntN(3)]
		bad := x.docs[r.IntN(len(x.docs))]
		for name, o := range packedOps(t, x, dt, c, r.Uint64()) {
			want, rest, spoiled := o.run(t, x, dt, 2), o, o
			rest.in, spoiled.in = slices.Clone(o.in), slices.Clone(o.in)
			for i, a := range o.in {
				if a.Ints != nil || o.along[i] == uncut {
					continue
				}
				a.Floats = slices.Clone(a.Floats)
				if o.along[i] == alongKeys {
					for _, at := range x.rest(marked(a)) {
						a.Floats[int(at)] = poison
					}
				}
				rest.in[i] = a
				a.Floats = slices.Clone(a.Floats)
				for j, part := range cut(marked(a), o.along[i], bad).Floats {
					if j%3 == 0 && !(o.along[i] == alongKeys && bad.keys == 0) {
						a.Floats[int(part)] = poison
					}
				}
				spoiled.in[i] = a
			}
			for i, a := range rest.run(t, x, dt, 2) {
				require.Equal(t, bits(want[i].Floats), bits(a.Floats),
					"%s: output %d beside %v in keys of no document", name, i, poison)
				require.Equal(t, want[i].Ints, a.Ints, name)
			}
			got := spoiled.run(t, x, dt, 2)
			for _, d := range x.docs {
				if d == bad {
					continue
				}
				for i := range want {
					if o.results[i] == summed {
						continue
					}
					a, b := cut(want[i], o.results[i], d), cut(got[i], o.results[i], d)
					require.Equal(t, a.Ints, b.Ints, name)
					require.Equal(t, bits(a.Floats), bits(b.Floats), "%s: output %d of %+v beside %v in %+v", name, i, d, poison, bad)
				}
			}
		}
	})
}

// marked returns a copy of a in which each number is replaced by its index.
func marked(a array) array {
	a.Floats = slices.Clone(a.Floats)
	for i := range a.Floats {
		a.Floats[i] = float64(i)
	}
	return a
}

// TestDocumentsOfTeams: any number of workers gives the same bits.
func TestDocumentsOfTeams(t *testing.T) {
	packings(t, testutil.Tries(t, 4, 10), func(t *testing.T, r *rand.Rand, x packing, c dims) {
		for name, o := range packedOps(t, x, tensor.Float32, c, r.Uint64()) {
			want := o.run(t, x, tensor.Float32, 1)
			for workers := 2; workers <= 7; workers++ {
				require.Equal(t, want, o.run(t, x, tensor.Float32, workers), "%s with %d workers", name, workers)
			}
		}
	})
}
