package ops_test

import (
	"fmt"
	"slices"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"
	G "gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/internal/cpu"
	"github.com/gorgonia-nsa/nsa/internal/ref"
	"github.com/gorgonia-nsa/nsa/internal/testutil"
	"github.com/gorgonia-nsa/nsa/ops"
)

// bound is an op bound to memory of its own, to be run without a graph.
type bound struct {
	kernel  cpu.Kernel
	in, out []ops.Arg
	mem     *cpu.Buf
	guards  []func()
}

// bind binds spec to copies of the inputs, in type dt, and to guarded, poisoned outputs.
func bind(t testing.TB, spec ops.Spec, dt tensor.Dtype, workers int, inputs ...array) *bound {
	t.Helper()
	var operands []ops.Operand
	b := new(bound)
	for _, a := range inputs {
		o := ops.Operand{Dtype: dt, Shape: a.shape}
		buf := new(cpu.Buf)
		switch {
		case a.ints != nil:
			o.Dtype = tensor.Int32
			cpu.Hold(buf, slices.Clone(a.ints))
		case dt == tensor.Float32:
			cpu.Hold(buf, testutil.Convert[float32](a.floats))
		default:
			cpu.Hold(buf, slices.Clone(a.floats))
		}
		operands, b.in = append(operands, o), append(b.in, ops.Arg{Operand: o, Buf: buf})
	}
	outputs, err := spec.Infer(operands)
	require.NoError(t, err)
	for i, o := range outputs {
		buf := new(cpu.Buf)
		what := fmt.Sprintf("output %d of %s", i, spec.Name())
		switch o.Dtype {
		case tensor.Float32:
			b.guards = append(b.guards, guarded[float32](t, buf, o, what))
		case tensor.Float64:
			b.guards = append(b.guards, guarded[float64](t, buf, o, what))
		case tensor.Int32:
			b.guards = append(b.guards, guarded[int32](t, buf, o, what))
		}
		b.out = append(b.out, ops.Arg{Operand: o, Buf: buf})
	}
	require.NoError(t, spec.Bind(&b.kernel, b.in, b.out))
	mem := cpu.AlignedBytes(b.kernel.WorkBytes(workers))
	b.mem = new(cpu.Buf)
	b.mem.Set(unsafe.Pointer(unsafe.SliceData(mem)), len(mem))
	if dt == tensor.Float32 {
		testutil.Poison(cpu.Slice[float32](b.mem))
	} else {
		testutil.Poison(cpu.Slice[float64](b.mem))
	}
	return b
}

func guarded[T float32 | float64 | int32](t testing.TB, buf *cpu.Buf, o ops.Operand, what string) func() {
	x, check := testutil.Guarded[T](o.Elements())
	cpu.Hold(buf, x)
	return func() { t.Helper(); check(t, what) }
}

// sizes are those of an attention op under test.
type sizes struct{ B, S, Hq, Hkv, D, Dv int }

// tokens returns q, k and v of the given sizes.
func (c sizes) tokens(seed uint64) (q, k, v array) {
	return c.normal("q", seed, c.B, c.S, c.Hq, c.D), c.normal("k", seed+1, c.B, c.S, c.Hkv, c.D), c.normal("v", seed+2, c.B, c.S, c.Hkv, c.Dv)
}

// compressed returns kc and vc for blocks of l tokens at a stride of d.
func (c sizes) compressed(seed uint64, l, d int) (kc, vc array) {
	n := max(1, ops.NumCompressed(c.S, l, d))
	return c.normal("kc", seed, c.B, n, c.Hkv, c.D), c.normal("vc", seed+1, c.B, n, c.Hkv, c.Dv)
}

// normal returns a normal array whose values are exact in float32.
func (sizes) normal(name string, seed uint64, shape ...int) array {
	x := testutil.Convert[float32](testutil.Normal(seed, tensor.Shape(shape).TotalSize()))
	return array{name: name, shape: shape, floats: testutil.Convert[float64](x)}
}

// outputs runs spec once and returns all its outputs, after checking that every element was written, inside the bounds.
func outputs(t testing.TB, spec ops.Spec, dt tensor.Dtype, inputs ...array) []array {
	t.Helper()
	return outputsOf(t, 0, spec, dt, inputs...)
}

// outputsOf is outputs on a team of the given number of workers.
func outputsOf(t testing.TB, workers int, spec ops.Spec, dt tensor.Dtype, inputs ...array) []array {
	t.Helper()
	team := cpu.NewTeam(workers)
	x := bind(t, spec, dt, team.Workers(), inputs...)
	require.NoError(t, team.Run(&x.kernel, x.mem))
	return x.results(t)
}

// results checks the outputs' bounds and returns their values.
func (b *bound) results(t testing.TB) []array {
	t.Helper()
	var out []array
	for i, o := range b.out {
		b.guards[i]()
		a := array{name: fmt.Sprint("output ", i), shape: o.Shape}
		switch o.Dtype {
		case tensor.Float32:
			a.floats = testutil.Convert[float64](cpu.Slice[float32](o.Buf))
			require.Equal(t, -1, testutil.Poisoned(cpu.Slice[float32](o.Buf)), a.name)
		case tensor.Float64:
			a.floats = append(a.floats, cpu.Slice[float64](o.Buf)...)
			require.Equal(t, -1, testutil.Poisoned(cpu.Slice[float64](o.Buf)), a.name)
		case tensor.Int32:
			a.ints = append(a.ints, cpu.Slice[int32](o.Buf)...)
			require.Equal(t, -1, testutil.Poisoned(cpu.Slice[int32](o.Buf)), a.name)
		}
		out = append(out, a)
	}
	return out
}

// chosen returns the blocks that random queries and keys choose.
func chosen(t testing.TB, c sizes, p ops.Params, dt tensor.Dtype, q, kc, vc array) array {
	o := outputs(t, ops.CompressedAttentionOp{BlockLen: p.BlockLen, Stride: p.Stride}, dt, q, kc, vc)
	return outputs(t, ops.SelectBlocksOp{Params: p}, dt, q, kc, o[1])[0]
}

// branch is an attention op under test: its Specs, its constructor, its inputs, and the oracle's view of its mask.
type branch struct {
	name       string
	spec, grad ops.Spec
	build      build
	inputs     []array
	mask       ref.Mask
}

// branches returns all attention ops for the given sizes.
func branches(c sizes, p ops.Params) []branch {
	q, k, v := c.tokens(1)
	kc, vc := c.compressed(4, p.BlockLen, p.Stride)
	idx := oracleBlocks(c, p, q, kc)
	return []branch{
		{
			"window", ops.SlidingWindowOp{Window: p.Window}, ops.SlidingWindowGradOp{Window: p.Window},
			func(in []*G.Node) (*G.Node, error) { return ops.SlidingWindow(in[0], in[1], in[2], p.Window) },
			[]array{q, k, v}, ref.WindowMask(p.Window),
		},
		{
			"dense", ops.SlidingWindowOp{Window: c.S}, ops.SlidingWindowGradOp{Window: c.S},
			func(in []*G.Node) (*G.Node, error) { return ops.CausalAttention(in[0], in[1], in[2]) },
			[]array{q, k, v}, ref.CausalMask(),
		},
		{
			"compressed", ops.CompressedAttentionOp{BlockLen: p.BlockLen, Stride: p.Stride},
			ops.CompressedAttentionGradOp{BlockLen: p.BlockLen, Stride: p.Stride},
			func(in []*G.Node) (*G.Node, error) {
				return ops.CompressedAttention(in[0], in[1], in[2], p.BlockLen, p.Stride)
			},
			[]array{q, kc, vc}, ref.CompressedMask(p.BlockLen, p.Stride),
		},
		{
			"selected", ops.SelectedAttentionOp{SelectBlock: p.SelectBlock}, ops.SelectedAttentionGradOp{SelectBlock: p.SelectBlock},
			func(in []*G.Node) (*G.Node, error) {
				return ops.SelectedAttention(in[0], in[1], in[2], in[3], p.SelectBlock)
			},
			[]array{q, k, v, idx}, ref.SelectedMask(idx.ints, c.B, c.S, c.Hkv, p.SelectBlock),
		},
	}
}

// oracleBlocks returns the blocks that the oracle selects.
func oracleBlocks(c sizes, p ops.Params, q, kc array) array {
	k := ref.New(c.B, 0, c.Hkv, c.D)
	if c.S >= p.BlockLen {
		k = tensorOf(kc)
	}
	idx, _ := ref.SelectBlocks(tensorOf(q), k, p.BlockLen, p.Stride, p.SelectBlock, p.TopN)
	return array{name: "idx", shape: []int{c.B, c.S, c.Hkv, p.TopN}, ints: idx}
}

func tensorOf(a array) *ref.Tensor { return ref.From(a.floats, a.shape...) }

// run returns o, lse and, from do, dq, dk and dv of the branch.
func (b branch) run(t testing.TB, dt tensor.Dtype, do array) (forward, backward []array) {
	t.Helper()
	forward = outputs(t, b.spec, dt, b.inputs...)
	in := append(append(append([]array{}, b.inputs...), forward...), do)
	return forward, outputs(t, b.grad, dt, in...)
}
