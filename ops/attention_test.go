package ops_test

import (
	"fmt"
	"math"
	"testing"

	"github.com/stretchr/testify/require"
	G "gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/internal/cpu"
	"github.com/gorgonia-nsa/nsa/internal/ref"
	"github.com/gorgonia-nsa/nsa/internal/testutil"
	"github.com/gorgonia-nsa/nsa/ops"
)

var dtypes = []tensor.Dtype{tensor.Float64, tensor.Float32}

// tolerance is the relative error allowed against float64.
func tolerance(dt tensor.Dtype) float64 {
	if dt == tensor.Float32 {
		return 1e-5
	}
	return 1e-10
}

// oracleCase is a case that is compared with the oracle.
type oracleCase struct {
	sizes
	ops.Params
}

// oracleCases have their sizes around every boundary: of blocks, windows, tiles of keys and of rows, and vectors.
func oracleCases() (list []oracleCase) {
	add := func(c sizes, p ops.Params) { list = append(list, oracleCase{c, p}) }
	small := ops.Params{BlockLen: 8, Stride: 4, SelectBlock: 8, TopN: 3, Window: 12}
	for _, S := range []int{1, 7, 8, 9, 11, 12, 13, 24, 63, 64, 65, 129} { // l, w, 2w, one and two tiles of keys
		add(sizes{1, S, 4, 2, 16, 16}, small)
	}
	large := ops.Params{BlockLen: 32, Stride: 16, SelectBlock: 64, TopN: 4, Window: 70}
	for _, S := range []int{31, 32, 69, 71, 140, 257, 330} {
		add(sizes{1, S, 6, 1, 24, 8}, large)
	}
	add(sizes{2, 129, 2, 2, 5, 19}, ops.Params{BlockLen: 6, Stride: 2, SelectBlock: 24, TopN: 3, Window: 1})    // groups of one, odd dims, blocks across tiles
	add(sizes{2, 65, 12, 2, 64, 64}, ops.Params{BlockLen: 4, Stride: 4, SelectBlock: 32, TopN: 3, Window: 64})  // groups of six
	add(sizes{1, 130, 70, 1, 3, 2}, ops.Params{BlockLen: 1, Stride: 1, SelectBlock: 5, TopN: 9, Window: 66})    // more heads than rows in a tile
	add(sizes{4, 97, 5, 1, 2, 33}, ops.Params{BlockLen: 48, Stride: 12, SelectBlock: 24, TopN: 3, Window: 200}) // l > l': selection blocks that start before their first weight
	add(sizes{1, 150, 80, 2, 3, 2}, ops.Params{BlockLen: 12, Stride: 2, SelectBlock: 4, TopN: 7, Window: 61})   // l > 2l'
	add(sizes{1, 700, 1, 1, 8, 8}, ops.Params{BlockLen: 2, Stride: 1, SelectBlock: 3, TopN: 40, Window: 400})   // several chunks of keys
	return list
}

func TestAttentionMatchesOracle(t *testing.T) {
	for _, x := range oracleCases() {
		c, p := x.sizes, x.Params
		do := c.normal("do", 9, c.B, c.S, c.Hq, c.Dv)
		for _, b := range branches(c, p) {
			q, k, v := tensorOf(b.inputs[0]), tensorOf(b.inputs[1]), tensorOf(b.inputs[2])
			o, lse := ref.Attention(q, k, v, b.mask)
			dq, dk, dv := ref.AttentionGrad(q, k, v, o, tensorOf(do), b.mask)
			for _, dt := range dtypes {
				t.Run(fmt.Sprintf("%s/%+v %+v/%v", b.name, c, p, dt), func(t *testing.T) {
					forward, backward := b.run(t, dt, do)
					testutil.Within(t, "o", forward[0].floats, o.Data, tolerance(dt))
					testutil.Within(t, "lse", forward[1].floats, lse.Data, tolerance(dt))
					testutil.Within(t, "dq", backward[0].floats, dq.Data, tolerance(dt))
					testutil.Within(t, "dk", backward[1].floats, dk.Data, tolerance(dt))
					testutil.Within(t, "dv", backward[2].floats, dv.Data, tolerance(dt))
				})
			}
		}
	}
}

// TestAttentionGradients holds the gradients to central differences of the op itself, the selection frozen.
func TestAttentionGradients(t *testing.T) {
	c, p := sizes{2, 11, 4, 2, 3, 2}, ops.Params{BlockLen: 4, Stride: 2, SelectBlock: 2, TopN: 3, Window: 4}
	weights := c.normal("weights", 9, c.B, c.S, c.Hq, c.Dv)
	for _, b := range branches(c, p) {
		_, grads := b.run(t, tensor.Float64, weights)
		for i, grad := range grads {
			t.Run(b.name+"/d"+b.inputs[i].name, func(t *testing.T) {
				x := bind(t, b.spec, tensor.Float64, 1, b.inputs...)
				team := cpu.NewTeam(1)
				want := testutil.CentralDifference(func(at []float64) (sum float64) {
					copy(cpu.Slice[float64](x.in[i].Buf), at)
					require.NoError(t, team.Run(&x.kernel, x.mem))
					for j, o := range cpu.Slice[float64](x.out[0].Buf) {
						sum += o * weights.floats[j]
					}
					return sum
				}, b.inputs[i].floats, 1e-5)
				testutil.Within(t, "gradient", grad.floats, want, 1e-6)
			})
		}
	}
}

// TestAttentionEmptyRows: the queries before the end of the first compression block see nothing, nor do those without a
// block; they pass no gradient on.
func TestAttentionEmptyRows(t *testing.T) {
	c, p := sizes{1, 20, 4, 2, 8, 8}, ops.Params{BlockLen: 16, Stride: 8, SelectBlock: 8, TopN: 3, Window: 4}
	do := c.normal("do", 9, c.B, c.S, c.Hq, c.Dv)
	for _, b := range branches(c, p)[2:] {
		for _, dt := range dtypes {
			t.Run(fmt.Sprint(b.name, "/", dt), func(t *testing.T) {
				empty := p.BlockLen - 1
				if b.name == "selected" {
					idx := b.inputs[3]
					idx.ints = append([]int32(nil), idx.ints...)
					for i := range idx.ints[:empty*c.Hkv*p.TopN] {
						idx.ints[i] = -1
					}
					copy(idx.ints, []int32{1, 2, -1}) // blocks in the future: allowed, and invisible
					b.inputs = []array{b.inputs[0], b.inputs[1], b.inputs[2], idx}
				}
				forward, backward := b.run(t, dt, do)
				for i, o := range forward[0].floats {
					require.Equal(t, i < empty*c.Hq*c.Dv, o == 0, "o at %d", i)
				}
				for i, l := range forward[1].floats {
					require.Equal(t, i%c.S < empty, math.IsInf(l, -1), "lse at %d", i)
				}
				require.Equal(t, make([]float64, empty*c.Hq*c.D), backward[0].floats[:empty*c.Hq*c.D], "dq")
			})
		}
	}
}

// TestAttentionOfOneNode: a node that is query, key and value at once gets the sum of its gradients, while its LSE is read.
func TestAttentionOfOneNode(t *testing.T) {
	c, p := sizes{2, 37, 3, 3, 8, 8}, ops.Params{BlockLen: 1, Stride: 1, SelectBlock: 4, TopN: 4, Window: 9}
	weights := c.normal("weights", 9, c.B, c.S, c.Hq, c.Dv)
	x, _, _ := c.tokens(1)
	for _, b := range branches(c, p) {
		X := tensorOf(x)
		o, lse := ref.Attention(X, X, X, b.mask)
		dq, dk, dv := ref.AttentionGrad(X, X, X, o, tensorOf(weights), b.mask)
		for vm := range vms {
			var read G.Value
			res := evaluate(t, vm, tensor.Float64, func(in []*G.Node) (*G.Node, error) {
				o, err := b.build(append([]*G.Node{in[0], in[0], in[0]}, in[1:]...))
				if err == nil {
					G.Read(G.Must(ops.LSE(o)), &read)
				}
				return o, err
			}, weights.floats, append([]array{x}, b.inputs[3:]...)...)
			what := vm + ", " + b.name + ": "
			testutil.Within(t, what+"o", res.out, o.Data, 1e-10)
			testutil.Within(t, what+"lse", testutil.Floats(t, read.Data()), lse.Data, 1e-10)
			testutil.Within(t, what+"gradient", res.grads[x.name], ref.Add(dq, dk, dv).Data, 1e-10)
		}
	}
}

// TestAttentionInfiniteLogits: logits of -Inf weigh nothing, before finite ones too, and a row of nothing else is empty.
func TestAttentionInfiniteLogits(t *testing.T) {
	c, p := sizes{1, 1100, 2, 1, 4, 3}, ops.Params{BlockLen: 1, Stride: 1, SelectBlock: 8, TopN: 4, Window: 600}
	const far = 700 // beyond the first chunk of keys
	do := c.normal("do", 9, c.B, c.S, c.Hq, c.Dv)
	for _, b := range branches(c, p) {
		q, k := b.inputs[0], b.inputs[1]
		for i, x := range q.floats {
			q.floats[i] = math.Abs(x)
		}
		for i := range k.floats[:far*c.Hkv*c.D] {
			k.floats[i] = math.Inf(-1)
		}
		o, lse := ref.Attention(tensorOf(q), tensorOf(k), tensorOf(b.inputs[2]), b.mask)
		for _, dt := range dtypes {
			t.Run(fmt.Sprint(b.name, "/", dt), func(t *testing.T) {
				forward := outputs(t, b.spec, dt, b.inputs...)
				testutil.Within(t, "o", forward[0].floats, o.Data, tolerance(dt))
				testutil.Within(t, "lse", forward[1].floats, lse.Data, tolerance(dt))
				require.Equal(t, make([]float64, far*c.Hq*c.Dv), forward[0].floats[:far*c.Hq*c.Dv])
				require.True(t, math.IsInf(forward[1].floats[far-1], -1))
				require.False(t, math.IsInf(forward[1].floats[far], -1))
				in := append(append(append([]array{}, b.inputs...), forward...), do)
				dv := outputs(t, b.grad, dt, in...)[2].floats
				require.Equal(t, make([]float64, far*c.Hkv*c.Dv), dv[:far*c.Hkv*c.Dv])
			})
		}
	}
}

// TestAttentionBitsOfTeams: the same bits from any number of workers.
func TestAttentionBitsOfTeams(t *testing.T) {
	c, p := sizes{2, 150, 6, 2, 16, 16}, ops.Params{BlockLen: 8, Stride: 4, SelectBlock: 16, TopN: 4, Window: 40}
	do := c.normal("do", 9, c.B, c.S, c.Hq, c.Dv)
	for _, b := range branches(c, p) {
		forward, backward := b.run(t, tensor.Float32, do)
		in := append(append(append([]array{}, b.inputs...), forward...), do)
		for _, workers := range []int{1, 2, 3, 7} {
			require.Equal(t, forward, outputsOf(t, workers, b.spec, tensor.Float32, b.inputs...), "%s, %d workers", b.name, workers)
			require.Equal(t, backward, outputsOf(t, workers, b.grad, tensor.Float32, in...), "%s, %d workers", b.name, workers)
		}
	}
	q, _, _ := c.tokens(1)
	kc, vc := c.compressed(4, p.BlockLen, p.Stride)
	lse := outputs(t, ops.CompressedAttentionOp{BlockLen: p.BlockLen, Stride: p.Stride}, tensor.Float32, q, kc, vc)[1]
	idx := outputs(t, ops.SelectBlocksOp{Params: p}, tensor.Float32, q, kc, lse)
	for _, workers := range []int{1, 2, 3, 7} {
		require.Equal(t, idx, outputsOf(t, workers, ops.SelectBlocksOp{Params: p}, tensor.Float32, q, kc, lse), "%d workers", workers)
	}
}

// TestAttentionMemory: work memory grows no faster than the sequence, and a run allocates nothing.
func TestAttentionMemory(t *testing.T) {
	p := nsaParams
	bytes := func(S int, spec ops.Spec, backward bool) int {
		c := sizes{1, S, 2, 1, 8, 8}
		shapes := [][]int{{1, S, 2, 8}, {1, S, 1, 8}, {1, S, 1, 8}}
		switch spec.(type) {
		case ops.CompressedAttentionOp, ops.CompressedAttentionGradOp:
			shapes[1][1] = ops.NumCompressed(S, p.BlockLen, p.Stride)
			shapes[2][1] = shapes[1][1]
		case ops.SelectBlocksOp:
			shapes[1][1], shapes[2] = ops.NumCompressed(S, p.BlockLen, p.Stride), []int{1, 2, S}
		case ops.SelectedAttentionOp, ops.SelectedAttentionGradOp:
			shapes = append(shapes, []int{1, S, 1, p.TopN})
		}
		if backward {
			shapes = append(shapes, []int{1, S, 2, 8}, []int{1, 2, S}, []int{1, S, 2, 8})
		}
		var in []array
		for i, s := range shapes {
			if a := c.normal(fmt.Sprint(i), uint64(i), s...); i == 3 && s[3] == p.TopN {
				in = append(in, array{shape: s, ints: make([]int32, len(a.floats))})
				for j := range in[3].ints {
					in[3].ints[j] = -1
				}
			} else {
				in = append(in, a)
			}
		}
		team := cpu.NewTeam(1)
		x := bind(t, spec, tensor.Float32, 1, in...)
		run := func() { require.NoError(t, team.Run(&x.kernel, x.mem)) }
		run()
		require.Zero(t, testing.AllocsPerRun(2, run), spec.Name())
		return x.kernel.WorkBytes(1)
	}
	for _, b := range append(branches(sizes{1, 40, 2, 1, 8, 8}, p), branch{spec: ops.SelectBlocksOp{Params: p}}) {
		short, long := bytes(2048, b.spec, false), bytes(4096, b.spec, false)
		require.LessOrEqual(t, float64(long), 2.01*float64(short), b.spec.Name())
		if b.grad != nil {
			short, long := bytes(2048, b.grad, true), bytes(4096, b.grad, true)
			require.LessOrEqual(t, float64(long), 2.01*float64(short), b.grad.Name())
		}
	}
}
