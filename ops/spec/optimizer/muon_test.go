package optimizer_test

import (
	"fmt"
	"math"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/internal/cpu"
	"github.com/gorgonia-nsa/nsa/internal/ref"
	"github.com/gorgonia-nsa/nsa/internal/testutil"
	"github.com/gorgonia-nsa/nsa/ops"
	"github.com/gorgonia-nsa/nsa/ops/spec"
	"github.com/gorgonia-nsa/nsa/ops/spec/optimizer"
)

// The tensors of the tests fill several groups. They have fewer, as many, and more rows than columns. AdamW updates the
// third one.
var (
	muonDecay  = "0101011"
	byMuon     = "1101111"
	muonShapes = [][]int{{3, 2}, {130, 150}, {19}, {1, 7}, {180, 95}, {64, 64}, {16, 16000}}
)

func muonStep(step int) optimizer.Hyper {
	return optimizer.Hyper{LR: 0.01, Beta1: 0.9, Beta2: 0.95, Eps: 1e-8, Decay: 0.1, Clip: 1, Step: step, Momentum: 0.95}
}

func testMuon[T cpu.Float](t *testing.T, scale, tol float64) {
	a := newAdamW[T](t, muonDecay, byMuon, 2, muonShapes...)
	name := func(i int) string {
		if muonDecay[i] == '0' {
			return fmt.Sprint(i, ".pe")
		}
		return fmt.Sprint(i)
	}
	constants := ref.DefaultAdamW()
	constants.Momentum, constants.Polynomials = 0.95, polynomials()
	constants.Muon = func(name string) bool { return byMuon[name[0]-'0'] == '1' }
	params := map[string]*ref.Tensor{}
	for i := range muonShapes {
		params[name(i)] = ref.From(testutil.Convert[float64](a.state[4*i]), muonShapes[i]...)
	}
	var state ref.AdamWState
	for step := 1; step <= testutil.Tries(t, 2, 3); step++ {
		a.fill(1, uint64(100*step), scale)
		grads := map[string]*ref.Tensor{}
		for i := range muonShapes {
			grads[name(i)] = ref.From(testutil.Convert[float64](a.state[4*i+1]), muonShapes[i]...)
		}
		want := ref.AdamWStep(params, grads, &state, 0.01, constants)
		require.InEpsilon(t, want, a.step(t, muonStep(step)), 1e-12)
		for i := range muonShapes {
			testutil.Within(t, "weight "+name(i), a.state[4*i], params[name(i)].Data, tol)
			testutil.Within(t, "m "+name(i), a.state[4*i+2], state.M[name(i)].Data, tol)
		}
	}
}

func polynomials() [][3]float64 { p := optimizer.MuonPolynomials(); return p[:] }

// TestMuonMatchesOracleOnCPU: some steps, with gradients above the clip norm and far below it.
func TestMuonMatchesOracleOnCPU(t *testing.T) {
	for _, scale := range []float64{1, 1e-12} {
		t.Run(fmt.Sprint("float64/", scale), func(t *testing.T) { testMuon[float64](t, scale, 1e-12) })
		t.Run(fmt.Sprint("float32/", scale), func(t *testing.T) { testMuon[float32](t, scale, 1e-5) })
	}
}

// TestMuonSingularValues: the update has the singular vectors of the momentum. Singular values of 0.01 to 1 times the
// bound become 1 ± 0.28, in units of the update's size, for any scale of the gradient.
func TestMuonSingularValues(t *testing.T) {
	const rows, cols = 24, 40
	left, right := orthogonal(1, rows), orthogonal(2, cols)
	for _, scale := range []float64{1, 1e-15, 1e15} {
		a := newAdamW[float32](t, "0", "1", 2, []int{rows, cols})
		clear(a.state[0])
		values := make([]float64, rows)
		for k := range rows {
			values[k] = math.Pow(0.02, float64(k)/(rows-1)) // the bound is below 2
			for i := range rows {
				for j := range cols {
					a.state[1][i*cols+j] += float32(scale * values[k] * left.Row(k)[i] * right.Row(k)[j])
				}
			}
		}
		h := muonStep(1)
		h.LR, h.Clip = 1, 0
		a.step(t, h)
		update := ref.From(testutil.Convert[float64](a.state[0]), rows, cols)
		for k := range rows {
			for l := range cols {
				got := 0.0 // leftᵀ update right
				for i := range rows {
					for j := range cols {
						got -= left.Row(k)[i] * update.Row(i)[j] * right.Row(l)[j]
					}
				}
				got /= 0.2 * math.Sqrt(cols)
				if k == l {
					require.InDelta(t, 1, got, 0.28, "singular value %v", values[k])
				} else {
					require.InDelta(t, 0, got, 1e-3)
				}
			}
		}
	}
}

// orthogonal returns orthonormal rows [n,n], by Gram-Schmidt.
func orthogonal(seed uint64, n int) *ref.Tensor {
	q := ref.From(testutil.Normal(seed, n*n), n, n)
	for i := range n {
		row := q.Row(i)
		for j := range i + 1 {
			dot := 0.0
			for k, x := range q.Row(j) {
				dot += x * row[k]
			}
			for k, x := range q.Row(j) {
				if j < i {
					row[k] -= dot * x
				} else {
					row[k] = x / math.Sqrt(dot)
				}
			}
		}
	}
	return q
}

// TestMuonPolynomials: the polynomials, one after the other, map [0.01,1] into 1 ± 0.28, and smaller numbers not above
// that.
func TestMuonPolynomials(t *testing.T) {
	for x := 1e-4; x <= 1; x *= 1.001 {
		y := x
		for _, c := range optimizer.MuonPolynomials() {
			y = y * (c[0] + y*y*(c[1]+y*y*c[2]))
		}
		require.Less(t, y, 1.28)
		require.Positive(t, y)
		if x >= 0.01 {
			require.Greater(t, y, 0.72, "of %v", x)
		}
	}
}

// TestMuonZeroOrNotFiniteGradient: a gradient that is zero or not finite moves no weight.
func TestMuonZeroOrNotFiniteGradient(t *testing.T) {
	a := newAdamW[float32](t, "00", "11", 2, []int{5, 7}, []int{30, 3})
	start := slices.Clone(a.state[0])
	a.step(t, muonStep(1))
	require.Equal(t, start, a.state[0])
	a.fill(1, 1, 1)
	a.step(t, muonStep(2))
	var before [][]float32
	a.state[1][3] = float32(math.NaN())
	for _, x := range a.state {
		before = append(before, slices.Clone(x))
	}
	require.True(t, math.IsNaN(a.step(t, muonStep(3))))
	for _, i := range []int{0, 2, 4, 6} {
		require.Equal(t, before[i], a.state[i])
	}
}

func TestUpdatesRefuse(t *testing.T) {
	of := func(shape ...int) spec.Operand { return spec.Operand{Dtype: tensor.Float32, Shape: shape} }
	float64s := func(n int) spec.Operand { return spec.Operand{Dtype: tensor.Float64, Shape: tensor.Shape{n}} }
	hyper, norm, copies := float64s(optimizer.HyperLen), float64s(1), ops.BFloat16
	type list = []spec.Operand
	for want, c := range map[string]struct {
		op spec.Spec
		in list
	}{
		"no tensors":                      {optimizer.SumSquares{}, nil},
		"squares is float32 (2)":          {optimizer.GradNorm{}, list{hyper, of(2)}},
		"hyper is float64 (7)":            {optimizer.GradNorm{}, list{float64s(7), float64s(2)}},
		"tensor 1 is float64, the inputs": {optimizer.SumSquares{}, list{of(3), float64s(3)}},
		"2 inputs, want hyper, norm":      {optimizer.AdamW{}, list{hyper, norm}},
		"4 for each of 1 tensors":         {optimizer.AdamW{Decay: "1"}, list{hyper, norm, of(2)}},
		"5 for each of 1 tensors": {optimizer.AdamW{Decay: "1", Copies: copies},
			list{hyper, norm, of(2), of(2), of(2), of(2)}},
		"decay of tensor 0 is '2'": {optimizer.AdamW{Decay: "2"}, list{hyper, norm, of(2), of(2), of(2), of(2)}},
		"norm is float64 (2)":      {optimizer.AdamW{Decay: "1"}, list{hyper, float64s(2), of(2), of(2), of(2), of(2)}},
		"v 0 has shape (3)":        {optimizer.AdamW{Decay: "1"}, list{hyper, norm, of(2), of(2), of(2), of(3)}},
		"copy 0 is float32 (2), want": {optimizer.AdamW{Decay: "1", Copies: copies},
			list{hyper, norm, of(2), of(2), of(2), of(2), of(2)}},
		"is float32 (6), want a matrix": {optimizer.Muon{Decay: "1"}, list{hyper, norm, of(6), of(6), of(6)}},
		"m 0 has shape (3, 2)":          {optimizer.Muon{Decay: "1"}, list{hyper, norm, of(2, 3), of(2, 3), of(3, 2)}},
	} {
		_, err := c.op.Infer(c.in)
		require.ErrorContains(t, err, want)
	}
}
