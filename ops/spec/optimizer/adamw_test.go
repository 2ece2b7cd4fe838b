package optimizer_test

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"
	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/internal/cpu"
	"github.com/gorgonia-nsa/nsa/internal/ref"
	"github.com/gorgonia-nsa/nsa/internal/testutil"
	"github.com/gorgonia-nsa/nsa/ops"
	"github.com/gorgonia-nsa/nsa/ops/spec"
	"github.com/gorgonia-nsa/nsa/ops/spec/optimizer"
)

// adamW are the ops of a step, one after the other, and the state of the tensors that they are bound to.
type adamW[T cpu.Float] struct {
	hyper   []float64
	state   [][]T // weight, grad, m and v of each tensor; no v with Muon
	guards  []func(testing.TB, string)
	norm    []float64
	kernels []*cpu.Kernel
	team    *cpu.Team
	mem     *cpu.Buf
}

// newAdamW returns the ops for random weights, before the first step. decay and muon have a character for each tensor;
// muon "" is AdamW for all.
func newAdamW[T cpu.Float](t testing.TB, decay, muon string, workers int, shapes ...[]int) *adamW[T] {
	t.Helper()
	a := &adamW[T]{hyper: make([]float64, optimizer.HyperLen), norm: []float64{-1}, team: cpu.NewTeam(workers)}
	dt := tensor.Float32
	if unsafe.Sizeof(T(0)) == 8 {
		dt = tensor.Float64
	}
	arg := func(dt tensor.Dtype, shape tensor.Shape, buf *cpu.Buf) spec.Arg {
		return spec.Arg{Operand: spec.Operand{Dtype: dt, Shape: shape}, Buf: buf}
	}
	hyper := arg(tensor.Float64, tensor.Shape{optimizer.HyperLen}, cpu.NewBuf(a.hyper))
	norm := arg(tensor.Float64, tensor.Shape{1}, cpu.NewBuf(a.norm))
	grads, adamWArgs, muonArgs := []spec.Arg(nil), []spec.Arg{hyper, norm}, []spec.Arg{hyper, norm}
	var adamWOut, muonOut []spec.Arg
	var adamWOp optimizer.AdamW
	var muonOp optimizer.Muon
	for i, shape := range shapes {
		var of []spec.Arg
		for j := range 4 {
			if j == 3 && muon != "" && muon[i] == '1' {
				a.state, a.guards = append(a.state, nil), append(a.guards, func(testing.TB, string) {})
				continue
			}
			x, guard := testutil.Guarded[T](tensor.Shape(shape).TotalSize())
			clear(x)
			a.state, a.guards = append(a.state, x), append(a.guards, guard)
			of = append(of, arg(dt, shape, cpu.NewBuf(x)))
		}
		grads = append(grads, of[1])
		if len(of) == 3 {
			muonOp.Decay += decay[i : i+1]
			muonArgs, muonOut = append(muonArgs, of...), append(muonOut, of[2:]...)
		} else {
			adamWOp.Decay += decay[i : i+1]
			adamWArgs, adamWOut = append(adamWArgs, of...), append(adamWOut, of[2:]...)
		}
	}
	runs := 0
	for _, g := range grads {
		runs += cpu.CeilDiv(g.Elements(), spec.PieceElements)
	}
	squares := []spec.Arg{arg(tensor.Float64, []int{runs}, cpu.NewBuf(make([]float64, runs)))}
	a.bind(t, optimizer.SumSquares{}, grads, squares)
	a.bind(t, optimizer.GradNorm{}, []spec.Arg{hyper, squares[0]}, []spec.Arg{norm})
	a.bind(t, adamWOp, adamWArgs, adamWOut)
	a.bind(t, muonOp, muonArgs, muonOut)
	a.fill(0, 1, 1)
	return a
}

// bind adds an op, unless it has no tensors.
func (a *adamW[T]) bind(t testing.TB, s spec.Spec, in, out []spec.Arg) {
	t.Helper()
	if len(out) == 0 {
		return
	}
	operands := func(args []spec.Arg) (list []spec.Operand) {
		for _, x := range args {
			list = append(list, x.Operand)
		}
		return list
	}
	require.Equal(t, operands(out), testutil.Must(s.Infer(operands(in)))(t))
	k := new(cpu.Kernel)
	s.Bind(k, in, out)
	a.kernels = append(a.kernels, k)
	if n := k.WorkBytes(a.team.Workers()); a.mem == nil || n > a.mem.Bytes() {
		a.mem = cpu.NewBuf(cpu.AlignedBytes(n))
	}
}

// step does one step after poisoning the work memory, and checks the guards.
func (a *adamW[T]) step(t testing.TB, h optimizer.Hyper) float64 {
	t.Helper()
	h.Write(a.hyper)
	for _, k := range a.kernels {
		testutil.Poison(cpu.Slice[float64](a.mem))
		require.NoError(t, a.team.Run(k, a.mem))
	}
	for i, guard := range a.guards {
		guard(t, fmt.Sprint("state ", i))
	}
	return a.norm[0]
}

// The tensors of the tests fill several chunks. Weight decay follows the rule of the oracle: tensors of rank 2 and more
// have it, except "pe".
const adamWDecay = "000110"

var (
	adamWNames  = []string{"a.pe", "b", "c.bias", "d.weight", "e.weight", "f.weight"}
	adamWShapes = [][]int{{3, 2}, {1}, {19}, {130, 150}, {2, 3, 5}, {16384}}
)

// fill draws the weights of all tensors if of is 0, or the gradients if it is 1, and multiplies them by scale.
func (a *adamW[T]) fill(of int, seed uint64, scale float64) {
	for i := of; i < len(a.state); i += 4 {
		for j, x := range testutil.Normal(seed+uint64(i), len(a.state[i])) {
			a.state[i][j] = T(float32(x * scale))
		}
	}
}

func testAdamW[T cpu.Float](t *testing.T, scale, clip, tol float64) {
	a := newAdamW[T](t, adamWDecay, "", 2, adamWShapes...)
	params := map[string]*ref.Tensor{}
	for i, name := range adamWNames {
		params[name] = ref.From(testutil.Convert[float64](a.state[4*i]), adamWShapes[i]...)
	}
	var state ref.AdamWState
	constants := ref.AdamW{Beta1: 0.9, Beta2: 0.95, Eps: 1e-8, Decay: 0.1, Clip: cmp.Or(clip, math.Inf(1))}
	for step := 1; step <= 4; step++ {
		a.fill(1, uint64(100*step), scale)
		grads := map[string]*ref.Tensor{}
		for i, name := range adamWNames {
			grads[name] = ref.From(testutil.Convert[float64](a.state[4*i+1]), adamWShapes[i]...)
		}
		want := ref.AdamWStep(params, grads, &state, 0.01, constants)
		norm := a.step(t, optimizer.Hyper{LR: 0.01, Beta1: 0.9, Beta2: 0.95, Eps: 1e-8, Decay: 0.1, Clip: clip, Step: step})
		require.InEpsilon(t, want, norm, 1e-12)
		for i, name := range adamWNames {
			testutil.Within(t, "weight "+name, a.state[4*i], params[name].Data, tol)
			testutil.Within(t, "m "+name, a.state[4*i+2], state.M[name].Data, tol)
			testutil.Within(t, "v "+name, a.state[4*i+3], state.V[name].Data, tol)
		}
	}
}

// TestAdamWMatchesOracleOnCPU: four steps, with gradients above and below the clip norm, and without clipping. The
// output is the norm before clipping.
func TestAdamWMatchesOracleOnCPU(t *testing.T) {
	for _, c := range []struct{ scale, clip float64 }{{1, 1}, {1e-4, 1}, {1, 0}} {
		t.Run(fmt.Sprint("float64/", c), func(t *testing.T) { testAdamW[float64](t, c.scale, c.clip, 1e-12) })
		t.Run(fmt.Sprint("float32/", c), func(t *testing.T) { testAdamW[float32](t, c.scale, c.clip, 1e-5) })
	}
}

// TestAdamWScale: gradients and their scale cancel, exactly for powers of two.
func TestAdamWScale(t *testing.T) {
	var want *adamW[float32]
	for _, scale := range []float64{0, 1, 1 << 16} {
		a := newAdamW[float32](t, "10", "", 2, []int{30, 50}, []int{7})
		for step := 1; step <= 3; step++ {
			a.fill(1, uint64(step), max(1, scale))
			a.step(t, optimizer.Hyper{LR: 0.1, Beta1: 0.9, Beta2: 0.95, Eps: 1e-8, Decay: 0.1, Clip: 1, Scale: scale,
				Step: step})
		}
		if want == nil {
			want = a
		}
		require.Equal(t, want.norm, a.norm)
		for i, x := range a.state {
			if i%4 != 1 {
				require.Equal(t, want.state[i], x)
			}
		}
	}
}

// TestAdamWNotFinite: a gradient that is not finite changes no state, and the norm is not finite.
func TestAdamWNotFinite(t *testing.T) {
	for _, bad := range []float32{float32(math.NaN()), float32(math.Inf(1)), float32(math.Inf(-1))} {
		for _, clip := range []float64{0, 1} {
			a := newAdamW[float32](t, "10", "", 2, []int{3, 5000}, []int{7})
			a.fill(1, 2, 1)
			h := optimizer.Hyper{LR: 0.1, Beta1: 0.9, Beta2: 0.95, Eps: 1e-8, Decay: 0.1, Clip: clip, Step: 1}
			a.step(t, h)
			var before [][]float32
			a.state[5][6] = bad
			for _, x := range a.state {
				before = append(before, slices.Clone(x))
			}
			norm := a.step(t, h)
			require.True(t, math.IsNaN(norm) || math.IsInf(norm, 1))
			for i, x := range a.state {
				if i%4 != 1 { // NaN is not equal to itself
					require.Equal(t, before[i], x)
				}
			}
		}
	}
}

// TestBitsOfTeams: two steps of AdamW, and of Muon, give the same bits with any number of workers.
func TestBitsOfTeams(t *testing.T) {
	for _, c := range []struct {
		decay, muon string
		shapes      [][]int
	}{{adamWDecay, "", adamWShapes}, {muonDecay, byMuon, muonShapes}} {
		var want *adamW[float32]
		for _, workers := range []int{1, 2, 3, 7} {
			a := newAdamW[float32](t, c.decay, c.muon, workers, c.shapes...)
			a.fill(1, 2, 1)
			a.step(t, muonStep(1))
			a.step(t, muonStep(2))
			if want == nil {
				want = a
			}
			require.Equal(t, want.norm, a.norm)
			require.Equal(t, want.state, a.state)
		}
	}
}

// TestSplit: the split inputs, one tensor after the other, are the inputs.
func TestSplit(t *testing.T) {
	for _, copies := range []tensor.Dtype{{}, ops.BFloat16} {
		extra := map[bool]int{true: 1}[spec.IsHalf(copies)]
		numbers := func(n int) []int {
			in := make([]int, n)
			for i := range in {
				in[i] = i + 1
			}
			return in
		}
		in := numbers(2 + 3*(4+extra))
		hyper, norm, tensors := optimizer.SplitAdamW(optimizer.AdamW{Decay: "010", Copies: copies}, in)
		joined := []int{hyper, norm}
		for _, x := range tensors {
			joined = append(joined, []int{x.Weight, x.Grad, x.M, x.V, x.Copy}[:4+extra]...)
		}
		require.Equal(t, in, joined)
		in = numbers(2 + 3*(3+extra))
		hyper, norm, matrices := optimizer.SplitMuon(optimizer.Muon{Decay: "010", Copies: copies}, in)
		joined = []int{hyper, norm}
		for _, x := range matrices {
			joined = append(joined, []int{x.Weight, x.Grad, x.M, x.Copy}[:3+extra]...)
		}
		require.Equal(t, in, joined)
	}
}
