package kernels_test

import (
	"encoding/binary"
	"fmt"
	"math"
	"slices"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"
	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/cuda/internal/kernels"
	"github.com/gorgonia-nsa/nsa/internal/ref"
	"github.com/gorgonia-nsa/nsa/internal/testutil"
	"github.com/gorgonia-nsa/nsa/ops/spec/optimizer"
)

// adamWTensor is a tensor before and after a step: weight, m and v.
type adamWTensor struct {
	grad          []float64
	before, after [3][]float64
	half          []float64 // the copy of the weight in half precision
}

// adamWScale is the scale of the gradients.
const adamWScale = 4

// eachCopies calls f without copies of the weights, with gradients in the type of x. In half precision it calls f again with copies in
// that type: AdamWOp then takes gradients in float32.
func (x *fixture) eachCopies(f func(copies bool, gradients elemType)) {
	f(false, x.elemType)
	if x.Type != kernels.F32 {
		f(true, f32)
	}
}

// adamW runs one step twice, from moments of earlier steps. If bad is not 0, one gradient is bad. It returns the norm and the
// tensors.
func (x *fixture) adamW(steps int, clip, bad float64, copies bool, gradients elemType) (norm float64, tensors []adamWTensor) {
	defer x.dev.reset(x.t)
	hyper := make([]float64, optimizer.HyperLen)
	optimizer.Hyper{LR: 0.01, Beta1: 0.9, Beta2: 0.95, Eps: 1e-8, Decay: 0.1, Clip: clip, Scale: adamWScale, Step: steps + 1}.Write(hyper)
	numbers := testutil.Must(binary.Append(nil, binary.LittleEndian, hyper))(x.t)
	op, aligned := optimizer.Update{}, *x
	aligned.skew = 0
	if copies {
		op.Copies = dtypes[x.Type]
	}
	var first [][]byte
	for range 2 {
		tensors, op.DecayMask = nil, ""
		in := []arg{aligned.place(operand(tensor.Float64, optimizer.HyperLen), numbers)}
		out := aligned.place(operand(tensor.Float64, 1), poison(8))
		for i, n := range []int{1, 17, 1 << 14, 40001} {
			seed := uint64(10 * i)
			w, m := f32.roundAll(testutil.Normal(seed+1, n)), f32.roundAll(testutil.Normal(seed+2, n))
			v := f32.roundAll(testutil.Uniform(seed+3, n, 0.1, 1))
			a := adamWTensor{grad: x.roundAll(testutil.Normal(seed, n)), before: [3][]float64{w, m, v}}
			if i == 2 && bad != 0 {
				a.grad[n/2] = bad
			}
			in = append(in, x.in(f32, w, n), x.in(gradients, a.grad, n), x.in(f32, m, n), x.in(f32, v, n))
			if copies {
				var shape []int // of the copy: the second tensor has none
				if i != 1 {
					shape = []int{n}
				}
				in = append(in, x.out(x.elemType, shape...))
			}
			op.DecayMask += strconv.Itoa(i % 2)
			tensors = append(tensors, a)
		}
		runOp(x.t, x.dev, x.dev.variants()[0], op, in, []arg{out})
		var got [][]byte
		for _, a := range append(in[1:], out) {
			got = append(got, x.bytes(a))
		}
		if first == nil {
			first = got
		}
		require.Equal(x.t, first, got, "two runs differ")
	}
	perTensor := len(first) / len(tensors)
	for i := range tensors {
		arrays, a := first[perTensor*i:], &tensors[i]
		a.after = [3][]float64{f32.decode(arrays[0]), f32.decode(arrays[2]), f32.decode(arrays[3])}
		if copies {
			a.half = x.decode(arrays[4])
		}
	}
	return math.Float64frombits(binary.LittleEndian.Uint64(first[len(first)-1])), tensors
}

func TestAdamWMatchesOracle(t *testing.T) {
	onFixture(t, func(t *testing.T, x *fixture) {
		x.eachCopies(func(copies bool, gradients elemType) {
			for _, clip := range []float64{1, 1e6} {
				const steps = 4
				norm, tensors := x.adamW(steps, clip, 0, copies, gradients)
				h := ref.DefaultAdamW()
				h.Clip = clip
				grads, params, m, v := map[string]*ref.Tensor{}, map[string]*ref.Tensor{}, map[string]*ref.Tensor{}, map[string]*ref.Tensor{}
				want := [3]map[string]*ref.Tensor{params, m, v}
				for i, a := range tensors {
					name, shape := fmt.Sprint("w", i), []int{len(a.grad)}
					if i%2 == 1 {
						shape = []int{1, len(a.grad)} // two axes: it decays
					}
					for j, values := range a.before {
						want[j][name] = ref.From(slices.Clone(values), shape...)
					}
					grads[name] = ref.From(slices.Clone(a.grad), shape...)
					for j := range a.grad {
						grads[name].Data[j] /= adamWScale
					}
				}
				wantNorm := ref.AdamWStep(params, grads, &ref.AdamWState{T: steps, M: m, V: v}, 0.01, h)
				testutil.Within(t, "norm", []float64{norm}, []float64{wantNorm}, 1e-12)
				for i, a := range tensors {
					for j, what := range []string{"weight", "m", "v"} {
						testutil.Within(t, what, a.after[j], want[j][fmt.Sprint("w", i)].Data, f32.tolerance())
					}
					if copies && i != 1 {
						testutil.Within(t, "copy in half precision", a.half, x.roundAll(a.after[0]), 0)
					}
				}
			}
		})
	})
}

func TestAdamWOfANormThatIsNotFinite(t *testing.T) {
	onFixture(t, func(t *testing.T, x *fixture) {
		x.eachCopies(func(copies bool, gradients elemType) {
			for _, bad := range []float64{math.NaN(), math.Inf(1)} {
				norm, tensors := x.adamW(0, 1, bad, copies, gradients)
				require.True(t, math.IsNaN(norm) || math.IsInf(norm, 0), "norm %v of gradients with %v", norm, bad)
				for _, a := range tensors {
					require.Equal(t, a.before, a.after)
				}
			}
		})
	})
}
