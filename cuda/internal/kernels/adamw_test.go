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
	"github.com/gorgonia-nsa/nsa/ops"
)

// adamW is a step over a few tensors on the device.
type adamW struct {
	norm    float64
	tensors []adamWTensor
}

// adamWTensor is a tensor before and after a step: weight, m and v.
type adamWTensor struct {
	grad          []float64
	before, after [3][]float64
	half          []float64 // the copy of the weight in half precision
}

// adamWScale is the scale of the gradients.
const adamWScale = 4

// adamW runs one step twice, from moments of steps before, with a bad gradient where bad is not 0.
func (x *bench) adamW(steps int, clip, bad float64) (c adamW) {
	defer x.dev.reset(x.t)
	hyper := make([]float64, ops.AdamWHyperLen)
	ops.AdamWHyper{LR: 0.01, Beta1: 0.9, Beta2: 0.95, Eps: 1e-8, Decay: 0.1, Clip: clip, Scale: adamWScale, Step: steps + 1}.Write(hyper)
	numbers, err := binary.Append(nil, binary.LittleEndian, hyper)
	require.NoError(x.t, err)
	op := ops.AdamWOp{}
	if x.Type != kernels.F32 {
		op.Copies = dtypes[x.Type]
	}
	var first [][]byte
	for range 2 {
		c = adamW{}
		op.Decay = ""
		aligned := *x
		aligned.skew = 0
		in := []arg{aligned.place(ops.Operand{Dtype: tensor.Float64, Shape: []int{ops.AdamWHyperLen}}, numbers)}
		norm := aligned.out(f32, 2) // float64
		norm.Dtype, norm.Shape = tensor.Float64, []int{1}
		for i, n := range []int{1, 17, 1 << 14, 40001} {
			seed := uint64(10 * i)
			a := adamWTensor{grad: x.roundAll(testutil.Normal(seed, n))}
			if i == 2 && bad != 0 {
				a.grad[n/2] = bad
			}
			a.before = [3][]float64{f32.roundAll(testutil.Normal(seed+1, n)), f32.roundAll(testutil.Normal(seed+2, n)), f32.roundAll(testutil.Uniform(seed+3, n, 0.1, 1))}
			in = append(in, x.in(f32, a.before[0], n), x.in(x.storage, a.grad, n), x.in(f32, a.before[1], n), x.in(f32, a.before[2], n))
			if x.Type != kernels.F32 {
				var shape []int // of the copy: the second tensor has none
				if i != 1 {
					shape = []int{n}
				}
				in = append(in, x.out(x.storage, shape...))
			}
			op.Decay += strconv.Itoa(i % 2)
			c.tensors = append(c.tensors, a)
		}
		runOp(x.t, x.dev, x.dev.variants()[0], op, in, []arg{norm})
		got := [][]byte{x.bytes(norm)}
		for _, a := range in[1:] {
			got = append(got, x.bytes(a))
		}
		if first == nil {
			first = got
		}
		require.Equal(x.t, first, got, "two runs differ")
	}
	c.norm = math.Float64frombits(binary.LittleEndian.Uint64(first[0]))
	each := (len(first) - 1) / len(c.tensors)
	for i := range c.tensors {
		arrays := first[1+each*i:]
		for j, at := range []int{0, 2, 3} {
			c.tensors[i].after[j] = f32.decode(arrays[at])
		}
		if each > 4 {
			c.tensors[i].half = x.decode(arrays[4])
		}
	}
	return c
}

func TestAdamWMatchesOracle(t *testing.T) {
	onBench(t, func(t *testing.T, x *bench) {
		for _, clip := range []float64{1, 1e6} {
			const steps = 4
			c := x.adamW(steps, clip, 0)
			h := ref.DefaultAdamW()
			h.Clip = clip
			params, grads := map[string]*ref.Tensor{}, map[string]*ref.Tensor{}
			state := &ref.AdamWState{T: steps, M: map[string]*ref.Tensor{}, V: map[string]*ref.Tensor{}}
			for i, a := range c.tensors {
				of := func(values []float64) *ref.Tensor {
					if i%2 == 1 {
						return ref.From(slices.Clone(values), 1, len(values)) // two axes: it decays
					}
					return ref.From(slices.Clone(values), len(values))
				}
				name := fmt.Sprint("w", i)
				params[name], grads[name], state.M[name], state.V[name] = of(a.before[0]), of(a.grad), of(a.before[1]), of(a.before[2])
				for j := range a.grad {
					grads[name].Data[j] /= adamWScale
				}
			}
			norm := ref.AdamWStep(params, grads, state, 0.01, h)
			testutil.Within(t, "norm", []float64{c.norm}, []float64{norm}, 1e-12)
			for i, a := range c.tensors {
				name := fmt.Sprint("w", i)
				testutil.Within(t, "weight", a.after[0], params[name].Data, f32.tolerance())
				testutil.Within(t, "m", a.after[1], state.M[name].Data, f32.tolerance())
				testutil.Within(t, "v", a.after[2], state.V[name].Data, f32.tolerance())
				if x.Type != kernels.F32 && i != 1 {
					testutil.Within(t, "copy in half precision", a.half, x.roundAll(a.after[0]), 0)
				}
			}
		}
	})
}

func TestAdamWOfANormThatIsNotFinite(t *testing.T) {
	onBench(t, func(t *testing.T, x *bench) {
		for _, bad := range []float64{math.NaN(), math.Inf(1)} {
			c := x.adamW(0, 1, bad)
			require.True(t, math.IsNaN(c.norm) || math.IsInf(c.norm, 0), "norm %v of gradients with %v", c.norm, bad)
			for _, a := range c.tensors {
				require.Equal(t, a.before, a.after)
			}
		}
	})
}
