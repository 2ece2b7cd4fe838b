package kernels_test

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/cuda/internal/driver"
	"github.com/gorgonia-nsa/nsa/cuda/internal/kernels"
	"github.com/gorgonia-nsa/nsa/cuda/internal/kernels/memory"
	"github.com/gorgonia-nsa/nsa/internal/ref"
	"github.com/gorgonia-nsa/nsa/internal/testutil"
	"github.com/gorgonia-nsa/nsa/ops"
	"github.com/gorgonia-nsa/nsa/ops/spec"
	"github.com/gorgonia-nsa/nsa/ops/spec/linear"
	"github.com/gorgonia-nsa/nsa/ops/spec/norm"
	"github.com/gorgonia-nsa/nsa/ops/spec/pointwise"
	"github.com/gorgonia-nsa/nsa/ops/spec/vocab"
)

// onFixture runs f on the host and on a GPU, in all types, on aligned arrays and on arrays off their alignment.
func onFixture(t *testing.T, f func(t *testing.T, x *fixture)) {
	for where, open := range map[string]func(*testing.T) device{"host": hostDevice,
		"gpu": func(t *testing.T) device { return openGPU(t) }} {
		t.Run(where, func(t *testing.T) {
			dev := open(t)
			for _, s := range elemTypes {
				for skew, name := range []string{"aligned", "skewed"} {
					t.Run(s.Type.String()+"/"+name, func(t *testing.T) {
						defer dev.reset(t)
						f(t, &fixture{t, s, dev, skew, map[kernels.Ptr]buffer{}})
					})
				}
			}
		})
	}
}

func TestActivationsOfLargeInputsMatchOracle(t *testing.T) {
	onFixture(t, func(t *testing.T, x *fixture) {
		values := x.roundAll([]float64{-1e4, -100, -20, 0, 20, 100, 1e4})
		a, y, z := x.in(x.elemType, values, 7), x.out(x.elemType, 7), x.out(x.elemType, 7)
		x.run(pointwise.SiLU{}, a, y)
		x.run(pointwise.Sigmoid{}, a, z)
		testutil.Within(t, "silu", x.get(y), ref.SiLU(ref.From(values, 7)).Data, x.tolerance())
		testutil.Within(t, "sigmoid", x.get(z), ref.Sigmoid(ref.From(values, 7)).Data, x.tolerance())
	})
}

// TestSoftmaxOfInfinitiesMatchesOracle: a row that sees nothing, and one that does not see its first column.
func TestSoftmaxOfInfinitiesMatchesOracle(t *testing.T) {
	onFixture(t, func(t *testing.T, x *fixture) {
		for _, c := range [][2]int{{5, 3}, {33, 31}, {7, 1024}, {3, 1025}, {2, 20001}} {
			values := x.roundAll(testutil.Normal(3, c[0]*c[1]))
			values[0] = math.Inf(-1)
			for i := range c[1] {
				values[c[1]*(c[0]-1)+i] = math.Inf(-1)
			}
			dy := x.roundAll(testutil.Normal(4, len(values)))
			y, dx := x.out(x.elemType, c[:]...), x.out(x.elemType, c[:]...)
			x.run(norm.Softmax{}, x.in(x.elemType, values, c[:]...), y)
			x.run(norm.SoftmaxGrad{}, y, x.in(x.elemType, dy, c[:]...), dx)
			testutil.Within(t, fmt.Sprint("softmax ", c), x.get(y), ref.Softmax(ref.From(values, c[:]...)).Data, x.tolerance())
			want := ref.SoftmaxGrad(ref.From(x.get(y), c[:]...), ref.From(dy, c[:]...))
			testutil.Within(t, fmt.Sprint("gradient of softmax ", c), x.get(dx), want.Data, x.tolerance())
		}
	})
}

func TestEmbeddingOfAWrongIDIsNaN(t *testing.T) {
	onFixture(t, func(t *testing.T, x *fixture) {
		weight, grads, ids := f32.roundAll(testutil.Normal(1, 4*3)), x.roundAll(testutil.Normal(2, 3*3)), x.ints(3, -1, 4)
		ids.Shape = tensor.Shape{1, 3}
		y, dw := x.out(f32, 1, 3, 3), x.out(f32, 4, 3)
		x.run(vocab.Embedding{}, x.in(f32, weight, 4, 3), ids, y)
		x.run(vocab.EmbeddingGrad{Vocab: 4}, ids, x.in(x.elemType, grads, 1, 3, 3), dw)
		testutil.Within(t, "known row", x.get(y)[:3], weight[9:], 0)
		for _, v := range x.get(y)[3:] {
			require.True(t, math.IsNaN(v), "row of a wrong id has %v, want NaN", v)
		}
		testutil.Within(t, "dweight", x.get(dw), append(make([]float64, 9), grads[:3]...), f32.tolerance())
	})
}

func TestCrossEntropyOfAWrongTargetIsNaN(t *testing.T) {
	onFixture(t, func(t *testing.T, x *fixture) {
		loss, lse := x.out(f32), x.out(f32, 3)
		in := []arg{x.in(f32, testutil.Normal(1, 3*5), 3, 5), x.ints(1, 5, 2)}
		runOp(t, x.dev, x.dev.variants()[0], vocab.CrossEntropy{}, in, []arg{loss, lse, x.out(f32, 3)})
		require.True(t, math.IsNaN(x.get(loss)[0]), "loss %v, want NaN", x.get(loss))
	})
}

// TestCrossEntropyOfLargeLogitsIsExact: an offset of all logits of a row changes neither the loss nor the gradient.
func TestCrossEntropyOfLargeLogitsIsExact(t *testing.T) {
	onFixture(t, func(t *testing.T, x *fixture) {
		for _, offset := range []float64{0, 100, -1e3, 1e6, -3e38} {
			loss, lse, d := x.out(f32), x.out(f32, 2), x.out(x.elemType, 2, 4)
			logits, targets := x.in(f32, []float64{offset, offset, offset, offset, 1, 1, 1, 1}, 2, 4), x.ints(2, 0)
			runOp(t, x.dev, x.dev.variants()[0], vocab.CrossEntropy{}, []arg{logits, targets}, []arg{loss, lse, x.out(f32, 2)})
			testutil.Within(t, fmt.Sprint("loss at ", offset), x.get(loss), []float64{math.Log(4)}, f32.tolerance())
			x.run(vocab.CrossEntropyGrad{}, logits, targets, lse, x.in(f32, []float64{8}), d)
			testutil.Within(t, fmt.Sprint("gradient at ", offset), x.get(d), []float64{1, 1, -3, 1, -3, 1, 1, 1}, x.tolerance())
		}
	})
}

func TestCastsCopiesAndFillsKeepValues(t *testing.T) {
	onFixture(t, func(t *testing.T, x *fixture) {
		for _, n := range []int{1, 3, 1000, 4099} {
			values := f32.roundAll(testutil.Normal(40, n))
			y, back, same := x.out(x.elemType, n), x.out(f32, n), x.out(x.elemType, n)
			to, from := any(spec.Cast{To: dtypes[x.Type]}), any(spec.Cast{To: tensor.Float32})
			if x.Type == kernels.F32 { // no cast is from float32 to float32
				to, from = pointwise.AddGrad{}, pointwise.AddGrad{}
			}
			x.run(to, x.in(f32, values, n), y)
			x.run(from, y, back)
			x.run(pointwise.AddGrad{}, y, same)
			aligned := *x
			aligned.skew = 0
			filled, words := aligned.out(f32, n), aligned.out(f16, n)
			b := kernels.NewBuilder(h200, nil, callOf(nil, []arg{filled, words}))
			memory.AddFill(b, b.Out[0].Ref, int64(n), 32, math.Float32bits(2.5))
			memory.AddFill(b, b.Out[1].Ref, int64(n), 16, 0x3c00)
			runPlan(t, x.dev, testutil.Must(b.Plan())(t), filled, words)
			for _, a := range []arg{y, back, same} {
				testutil.Within(t, "copy", x.get(a), x.roundAll(values), 0)
			}
			testutil.Within(t, "fill", x.get(filled), slices.Repeat([]float64{2.5}, n), 0)
			testutil.Within(t, "fill of 16 bits", x.get(words), slices.Repeat([]float64{1}, n), 0)
		}
	})
}

// TestGradientsOfWeightsHaveTheSameBits whether a residual is added to the other gradient, and whether that one is
// computed.
func TestGradientsOfWeightsHaveTheSameBits(t *testing.T) {
	onFixture(t, func(t *testing.T, x *fixture) {
		normal := func(seed uint64, shape ...int) arg {
			return x.in(x.elemType, testutil.Normal(seed, tensor.Shape(shape).TotalSize()), shape...)
		}
		v := x.dev.variants()[0]
		in, w, dy, dw := normal(1, 300, 512), x.in(f32, testutil.Normal(2, 512), 512), normal(3, 300, 512),
			[2]arg{x.out(f32, 512), x.out(f32, 512)}
		runOp(t, x.dev, v, norm.RMSNormGrad{Eps: 1e-6}, []arg{in, w, dy}, []arg{x.out(x.elemType, 300, 512), dw[0]})
		runOp(t, x.dev, v, norm.RMSNormGradAdd{Eps: 1e-6}, []arg{in, w, dy, normal(4, 300, 512)},
			[]arg{x.out(x.elemType, 300, 512), dw[1]})
		require.Equal(t, x.bytes(dw[0]), x.bytes(dw[1]))
		w, dy, dw = normal(5, 48, 512), normal(6, 300, 48), [2]arg{x.out(f32, 48, 512), x.out(f32, 48, 512)}
		runOp(t, x.dev, v, linear.FusedGrad{In: 512, Terms: [linear.MaxFused]int{1}}, []arg{in, dy, w},
			[]arg{x.out(x.elemType, 300, 512), dw[0]})
		runOp(t, x.dev, v, linear.FusedGrad{In: 512, Terms: [linear.MaxFused]int{1}, WeightsOnly: true},
			[]arg{in, dy}, []arg{dw[1]})
		require.Equal(t, x.bytes(dw[0]), x.bytes(dw[1]))
	})
}

// TestLinearsOfAdjacentWeightsAreNotCopied: weights and their gradients that lie one after the other are not copied,
// and the bits are the same.
func TestLinearsOfAdjacentWeightsAreNotCopied(t *testing.T) {
	const rows, in = 65, 24 // more rows than the kernels for few rows take
	outs := []int{16, 5, 8}
	onFixture(t, func(t *testing.T, x *fixture) {
		normal := func(seed uint64, shape ...int) arg {
			return x.in(x.elemType, testutil.Normal(seed, tensor.Shape(shape).TotalSize()), shape...)
		}
		input, ws, dws := normal(1, rows, in), normal(2, 29, in), x.out(f32, 29, in)
		parts := func(whole arg) (list []arg) {
			at := whole.at
			for _, n := range outs {
				list = append(list, argOf(whole.Dtype, at, n, in))
				at += kernels.Ptr(list[len(list)-1].Bytes())
			}
			return list
		}
		var ys, dys []arg
		for i, n := range outs {
			ys, dys = append(ys, x.out(x.elemType, rows, n)), append(dys, normal(uint64(3+i), rows, n))
		}
		dx := x.out(x.elemType, rows, in)
		run := func(follows bool, op any, in, out []arg, runs ...arg) {
			call := callOf(in, out)
			for _, a := range slices.Concat(in, out) {
				first := slices.ContainsFunc(runs, func(whole arg) bool { return whole.at == a.at })
				inRun := slices.ContainsFunc(runs, func(whole arg) bool {
					return a.at > whole.at &&
						a.at < whole.at+kernels.Ptr(whole.Bytes())
				})
				call.Adjacent = append(call.Adjacent, follows && inRun && !first)
			}
			plan := testutil.Must(planOf(x.dev.variants()[0].GPU, "", op, call))(t)
			copies := slices.ContainsFunc(plan.Steps, func(s kernels.Step) bool { return s.Kernel == "nsa_copy" })
			require.Equal(t, !follows, copies)
			runPlan(t, x.dev, plan, slices.Concat(in, out)...)
		}
		var want [][]byte
		for _, follows := range []bool{false, true} {
			run(follows, linear.Fused{}, slices.Concat([]arg{input}, parts(ws)), ys, ws)
			grad := linear.FusedGrad{In: in, Terms: [linear.MaxFused]int{1, 1, 1}}
			run(follows, grad, slices.Concat([]arg{input}, dys, parts(ws)), slices.Concat([]arg{dx}, parts(dws)), ws, dws)
			var got [][]byte
			for _, a := range append([]arg{dx, dws}, ys...) {
				got = append(got, x.bytes(a))
			}
			if follows {
				require.Equal(t, want, got)
			}
			want = got
		}
	})
}

// TestMoreThan2To31Elements runs kernels whose offsets do not fit 32 bits, and looks at the ends of their results.
func TestMoreThan2To31Elements(t *testing.T) {
	dev := openGPU(t)
	const m, cols = 1<<20 + 1, 2056 // more than 2^31 elements, in bf16 more than 2^32 bytes
	const n = int64(m) * cols
	var at [2]kernels.Ptr
	for i := range at {
		memory, err := dev.dev.Alloc(int(2 * n))
		if none := (*driver.NoMemory)(nil); errors.As(err, &none) {
			testutil.NoGPU(t, err)
		}
		require.NoError(t, err)
		dev.memory = append(dev.memory, memory)
		at[i] = kernels.Ptr(memory.Ptr())
	}
	x, y := argOf(ops.BFloat16, at[0], m, cols), argOf(ops.BFloat16, at[1], m, cols)
	b := kernels.NewBuilder(h200, nil, callOf([]arg{x}, []arg{y}))
	memory.AddFill(b, b.In[0].Ref, n, 16, 0x3f80) // 1
	memory.AddFill(b, b.Out[0].Ref, n, 16, 0x7fed)
	fill := testutil.Must(b.Plan())(t)
	for name, c := range map[string]struct {
		op   any
		in   []arg
		want float64
	}{
		"silu":    {pointwise.SiLU{}, []arg{x}, 1 / (1 + math.Exp(-1))},
		"softmax": {norm.Softmax{}, []arg{x}, 1. / cols},
		// a weight has the bits of two ones in bf16: 1.002
		"rms norm": {norm.RMSNorm{Eps: 1e-6}, []arg{x, argOf(tensor.Float32, at[0], cols)}, 1},
		"add":      {pointwise.Add{}, []arg{x, x}, 2},
		"copy":     {pointwise.AddGrad{}, []arg{x}, 1},
	} {
		bindPlan(t, fill, 0, x, y).run(t, dev)
		p := testutil.Must(planOf(dev.properties(), "", c.op, callOf(c.in, []arg{y})))(t)
		bindPlan(t, p, 0, append(c.in, y)...).run(t, dev)
		for _, from := range []int64{0, 1<<31 - 64, 1 << 31, n - 64} {
			got := bf16.decode(dev.get(t, at[1]+kernels.Ptr(2*from), 128))
			testutil.Within(t, fmt.Sprint(name, " at ", from), got, slices.Repeat([]float64{c.want}, 64), bf16.tolerance())
		}
	}
}
