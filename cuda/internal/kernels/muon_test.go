package kernels_test

import (
	"encoding/binary"
	"fmt"
	"math"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/internal/ref"
	"github.com/gorgonia-nsa/nsa/internal/testutil"
	"github.com/gorgonia-nsa/nsa/ops/spec/optimizer"
)

// The tensors of a step: three of one shape, one with more rows than columns, and one row. The second tensor takes no step of Muon.
var (
	muonSpec   = optimizer.Update{DecayMask: "10101", MuonMask: "10111"}
	muonShapes = [][]int{{24, 40}, {24, 40}, {24, 40}, {70, 33}, {1, 9}}
)

// muonState holds the arrays that a step reads and changes, by the names of tensors.
type muonState struct{ weight, grad, m, v map[string]*ref.Tensor }

// muonName returns a name by which the oracle decays the tensor if the step does.
func muonName(i int) string {
	if muonSpec.DecayMask[i] == '0' {
		return fmt.Sprint(i, ".pe")
	}
	return fmt.Sprint(i)
}

// muon runs one step twice from s. It returns the state after a step, the norm, and the weights in half precision.
func (x *fixture) muon(s muonState, copies bool, gradients elemType) (after muonState, norm float64, half map[string][]float64) {
	defer x.dev.reset(x.t)
	hyper := make([]float64, optimizer.HyperLen)
	optimizer.Hyper{LR: 0.01, Beta1: 0.9, Beta2: 0.95, Eps: 1e-8, Decay: 0.1, Clip: 1, Scale: adamWScale, Step: 1, Momentum: 0.95}.Write(hyper)
	numbers := testutil.Must(binary.Append(nil, binary.LittleEndian, hyper))(x.t)
	op, aligned := muonSpec, *x
	aligned.skew = 0
	if copies {
		op.Copies = dtypes[x.Type]
	}
	var first [][]byte
	for range 2 {
		in := []arg{aligned.place(operand(tensor.Float64, optimizer.HyperLen), numbers)}
		out := aligned.place(operand(tensor.Float64, 1), poison(8))
		for i, shape := range muonShapes {
			name := muonName(i)
			in = append(in, x.in(f32, s.weight[name].Data, shape...), x.in(gradients, s.grad[name].Data, shape...), x.in(f32, s.m[name].Data, shape...))
			if op.MuonMask[i] == '1' {
				in = append(in, x.out(f32))
			} else {
				in = append(in, x.in(f32, s.v[name].Data, shape...))
			}
			if copies {
				in = append(in, x.out(x.elemType, shape...))
			}
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
	after = muonState{weight: map[string]*ref.Tensor{}, m: map[string]*ref.Tensor{}}
	half = map[string][]float64{}
	perTensor := op.PerTensor()
	for i, shape := range muonShapes {
		arrays := first[perTensor*i:]
		after.weight[muonName(i)], after.m[muonName(i)] = ref.From(f32.decode(arrays[0]), shape...), ref.From(f32.decode(arrays[2]), shape...)
		if copies {
			half[muonName(i)] = x.decode(arrays[4])
		}
	}
	return after, math.Float64frombits(binary.LittleEndian.Uint64(first[len(first)-1])), half
}

// newMuonState draws the state before a step.
func (x *fixture) newMuonState() muonState {
	s := muonState{map[string]*ref.Tensor{}, map[string]*ref.Tensor{}, map[string]*ref.Tensor{}, map[string]*ref.Tensor{}}
	for i, shape := range muonShapes {
		n, seed := shape[0]*shape[1], uint64(10*i)
		s.weight[muonName(i)] = ref.From(f32.roundAll(testutil.Normal(seed+1, n)), shape...)
		s.grad[muonName(i)] = ref.From(x.roundAll(testutil.Normal(seed, n)), shape...)
		s.m[muonName(i)] = ref.From(f32.roundAll(testutil.Normal(seed+2, n)), shape...)
		s.v[muonName(i)] = ref.From(make([]float64, n), shape...)
	}
	return s
}

func TestMuonMatchesOracle(t *testing.T) {
	onFixture(t, func(t *testing.T, x *fixture) {
		x.eachCopies(func(copies bool, gradients elemType) {
			s := x.newMuonState()
			after, norm, half := x.muon(s, copies, gradients)
			h, p := ref.DefaultAdamW(), optimizer.MuonPolynomials()
			h.Momentum, h.Polynomials = 0.95, p[:]
			h.Muon = func(name string) bool { return muonSpec.MuonMask[name[0]-'0'] == '1' }
			for _, g := range s.grad {
				for i := range g.Data {
					g.Data[i] /= adamWScale
				}
			}
			want := ref.AdamWStep(s.weight, s.grad, &ref.AdamWState{M: s.m, V: s.v}, 0.01, h)
			testutil.Within(t, "norm", []float64{norm}, []float64{want}, 1e-12)
			for i := range muonShapes {
				name := muonName(i)
				testutil.Within(t, "weight "+name, after.weight[name].Data, s.weight[name].Data, f32.tolerance())
				testutil.Within(t, "m "+name, after.m[name].Data, s.m[name].Data, f32.tolerance())
				if copies {
					testutil.Within(t, "copy "+name, half[name], x.roundAll(after.weight[name].Data), 0)
				}
			}
		})
	})
}

func TestMuonOfANormThatIsNotFinite(t *testing.T) {
	onFixture(t, func(t *testing.T, x *fixture) {
		x.eachCopies(func(copies bool, gradients elemType) {
			s := x.newMuonState()
			s.grad[muonName(3)].Data[5] = math.Inf(1)
			before := slices.Clone(s.weight[muonName(0)].Data)
			after, norm, _ := x.muon(s, copies, gradients)
			require.True(t, math.IsInf(norm, 1))
			require.Equal(t, before, after.weight[muonName(0)].Data)
			require.Equal(t, s.m[muonName(0)].Data, after.m[muonName(0)].Data)
		})
	})
}
