package kernels_test

import (
	"encoding/binary"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/cuda/internal/kernels"
	"github.com/gorgonia-nsa/nsa/internal/ref"
	"github.com/gorgonia-nsa/nsa/internal/testutil"
	"github.com/gorgonia-nsa/nsa/ops/spec"
	"github.com/gorgonia-nsa/nsa/ops/spec/optimizer"
)

// stepTensor is a tensor of a step: weight, m, v and, in half precision, the copy of the weight.
type stepTensor struct {
	shape               []int
	decay, muon, copied bool
	grad                []float64
	weight, m, v, half  []float64
}

// adamWScale is the scale of the gradients.
const adamWScale = 4

// eachCopies calls f without copies of the weights, with gradients in the type of x. In half precision it calls f again
// with copies in that type: the update then takes gradients in float32.
func (x *fixture) eachCopies(f func(copies bool, gradients elemType)) {
	f(false, x.elemType)
	if x.Type != kernels.F32 {
		f(true, f32)
	}
}

// step runs the ops of a step twice: the norm, AdamW without and with copies, and Muon without and with copies. It
// returns the norm and the tensors after the step.
func (x *fixture) step(h optimizer.Hyper, gradients elemType, before []stepTensor) (norm float64, after []stepTensor) {
	defer x.dev.reset(x.t)
	hyper, aligned := make([]float64, optimizer.HyperLen), *x
	h.Write(hyper)
	aligned.skew = 0
	numbers := testutil.Must(binary.Append(nil, binary.LittleEndian, hyper))(x.t)
	var first [][]byte
	for range 2 {
		hyper := aligned.place(operand(tensor.Float64, optimizer.HyperLen), numbers)
		out := aligned.place(operand(tensor.Float64, 1), poison(8))
		args, grads := make([][]arg, len(before)), []arg(nil)
		for i, a := range before {
			args[i] = []arg{x.in(f32, a.weight, a.shape...), x.in(gradients, a.grad, a.shape...), x.in(f32, a.m, a.shape...)}
			if !a.muon {
				args[i] = append(args[i], x.in(f32, a.v, a.shape...))
			}
			if a.copied {
				args[i] = append(args[i], x.out(x.elemType, a.shape...))
			}
			grads = append(grads, args[i][1])
		}
		run := func(op spec.Spec, in, out []arg) { runOp(x.t, x.dev, x.dev.variants()[0], op, in, out) }
		runs := 0
		for _, a := range before {
			runs += (len(a.grad) + spec.PieceElements - 1) / spec.PieceElements
		}
		squares := aligned.place(operand(tensor.Float64, runs), poison(8*runs))
		run(optimizer.SumSquares{}, grads, []arg{squares})
		run(optimizer.GradNorm{}, []arg{hyper, squares}, []arg{out})
		for group := range 4 {
			muon, copied, half := group >= 2, group%2 == 1, tensor.Dtype{}
			if copied {
				half = dtypes[x.Type]
			}
			in, results, decay := []arg{hyper, out}, []arg(nil), ""
			for i, a := range before {
				if a.muon == muon && a.copied == copied {
					in, results = append(in, args[i]...), append(results, args[i][2:]...)
					decay += map[bool]string{false: "0", true: "1"}[a.decay]
				}
			}
			switch {
			case decay == "":
			case muon:
				run(optimizer.Muon{Decay: decay, Copies: half}, in, results)
			default:
				run(optimizer.AdamW{Decay: decay, Copies: half}, in, results)
			}
		}
		got, list := [][]byte{x.bytes(out)}, slices.Clone(before)
		norm = math.Float64frombits(binary.LittleEndian.Uint64(got[0]))
		for i, a := range args {
			for _, y := range a {
				got = append(got, x.bytes(y))
			}
			list[i].weight, list[i].m = f32.decode(x.bytes(a[0])), f32.decode(x.bytes(a[2]))
			if !list[i].muon {
				list[i].v = f32.decode(x.bytes(a[3]))
			}
			if list[i].copied {
				list[i].half = x.decode(x.bytes(a[len(a)-1]))
			}
		}
		if first == nil {
			first = got
		}
		require.Equal(x.t, first, got, "two runs differ")
		after = list
	}
	return norm, after
}

// newStepTensor draws a tensor before a step, with a gradient in the type of x.
func (x *fixture) newStepTensor(seed uint64, shape ...int) stepTensor {
	n := tensor.Shape(shape).TotalSize()
	return stepTensor{
		shape: shape, grad: x.roundAll(testutil.Normal(seed, n)), weight: f32.roundAll(testutil.Normal(seed+1, n)),
		m: f32.roundAll(testutil.Normal(seed+2, n)), v: f32.roundAll(testutil.Uniform(seed+3, n, 0.1, 1)),
	}
}

// requireStep compares a step with the oracle's. Before it were steps.
func (x *fixture) requireStep(h optimizer.Hyper, gradients elemType, before []stepTensor) {
	x.t.Helper()
	norm, after := x.step(h, gradients, before)
	constants, p := ref.DefaultAdamW(), optimizer.MuonPolynomials()
	constants.Clip, constants.Momentum, constants.Polynomials = h.Clip, h.Momentum, p[:]
	constants.Muon = func(name string) bool {
		return before[testutil.Must(strconv.Atoi(strings.TrimSuffix(name, ".pe")))(x.t)].muon
	}
	name := func(i int) string { // by which the oracle decays the tensor if the step does
		if !before[i].decay {
			return fmt.Sprint(i, ".pe")
		}
		return fmt.Sprint(i)
	}
	type tensors = map[string]*ref.Tensor
	params, grads, m, v := tensors{}, tensors{}, tensors{}, tensors{}
	for i, a := range before {
		shape := a.shape
		if len(shape) == 1 {
			shape = []int{1, shape[0]} // two axes: it decays
		}
		of := func(data []float64) *ref.Tensor { return ref.From(slices.Clone(data), shape...) }
		params[name(i)], grads[name(i)], m[name(i)], v[name(i)] = of(a.weight), of(a.grad), of(a.m), of(a.v)
		for j := range a.grad {
			grads[name(i)].Data[j] /= adamWScale
		}
	}
	want := ref.AdamWStep(params, grads, &ref.AdamWState{T: h.Step - 1, M: m, V: v}, h.LR, constants)
	testutil.Within(x.t, "norm", []float64{norm}, []float64{want}, 1e-12)
	for i, a := range after {
		testutil.Within(x.t, "weight "+name(i), a.weight, params[name(i)].Data, f32.tolerance())
		testutil.Within(x.t, "m "+name(i), a.m, m[name(i)].Data, f32.tolerance())
		if !a.muon {
			testutil.Within(x.t, "v "+name(i), a.v, v[name(i)].Data, f32.tolerance())
		}
		if a.copied {
			testutil.Within(x.t, "copy "+name(i), a.half, x.roundAll(a.weight), 0)
		}
	}
}

// adamWTensors draws tensors of AdamW, of which every second decays. With copies, all but the second have one.
func (x *fixture) adamWTensors(copies bool) (list []stepTensor) {
	for i, n := range []int{1, 17, 1 << 14, 40001} {
		a := x.newStepTensor(uint64(10*i), n)
		a.decay, a.copied = i%2 == 1, copies && i != 1
		list = append(list, a)
	}
	return list
}

func adamWHyper(step int, clip float64) optimizer.Hyper {
	return optimizer.Hyper{LR: 0.01, Beta1: 0.9, Beta2: 0.95, Eps: 1e-8, Decay: 0.1, Clip: clip, Scale: adamWScale,
		Step:     step,
		Momentum: 0.95}
}

func TestAdamWMatchesOracleOnHostAndGPU(t *testing.T) {
	onFixture(t, func(t *testing.T, x *fixture) {
		x.eachCopies(func(copies bool, gradients elemType) {
			for _, clip := range []float64{1, 1e6} {
				x.requireStep(adamWHyper(5, clip), gradients, x.adamWTensors(copies))
			}
		})
	})
}

// requireNoStep wants a step to change no tensor if a gradient is not finite.
func (x *fixture) requireNoStep(bad float64, of, at int, gradients elemType, before []stepTensor) {
	x.t.Helper()
	before[of].grad[at] = bad
	norm, after := x.step(adamWHyper(1, 1), gradients, before)
	require.True(x.t, math.IsInf(norm, 1) || math.IsNaN(norm) && math.IsNaN(bad), "norm %v of gradients with %v", norm, bad)
	for i, a := range after {
		require.Equal(x.t, before[i].weight, a.weight)
		require.Equal(x.t, before[i].m, a.m)
		require.Equal(x.t, before[i].v, a.v)
	}
}

func TestAdamWOfANormThatIsNotFinite(t *testing.T) {
	onFixture(t, func(t *testing.T, x *fixture) {
		x.eachCopies(func(copies bool, gradients elemType) {
			for _, bad := range []float64{math.NaN(), math.Inf(1)} {
				x.requireNoStep(bad, 2, 1<<13, gradients, x.adamWTensors(copies))
			}
		})
	})
}

// muonTensors draws three matrices of one shape, one with more rows than columns, and one row. The second takes no step
// of Muon.
func (x *fixture) muonTensors(copies bool) (list []stepTensor) {
	for i, shape := range [][]int{{24, 40}, {24, 40}, {24, 40}, {70, 33}, {1, 9}} {
		a := x.newStepTensor(uint64(10*i), shape...)
		a.decay, a.muon, a.copied = i%2 == 0, i != 1, copies
		list = append(list, a)
	}
	return list
}

func TestMuonMatchesOracleOnHostAndGPU(t *testing.T) {
	onFixture(t, func(t *testing.T, x *fixture) {
		x.eachCopies(func(copies bool, gradients elemType) {
			x.requireStep(adamWHyper(1, 1), gradients, x.muonTensors(copies))
		})
	})
}

func TestMuonOfANormThatIsNotFinite(t *testing.T) {
	onFixture(t, func(t *testing.T, x *fixture) {
		x.eachCopies(func(copies bool, gradients elemType) {
			x.requireNoStep(math.Inf(1), 3, 5, gradients, x.muonTensors(copies))
		})
	})
}
