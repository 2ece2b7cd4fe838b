package optim

import (
	"errors"
	"math"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	G "gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/graph"
	"github.com/gorgonia-nsa/nsa/graph/safetensors"
	"github.com/gorgonia-nsa/nsa/internal/ref"
	"github.com/gorgonia-nsa/nsa/internal/testutil"
	"github.com/gorgonia-nsa/nsa/ops/spec/optimizer"
)

// weight is a ValueGrad that is no node.
type weight struct {
	name        string
	value, grad G.Value
	err         error
}

func (w *weight) Name() string           { return w.name }
func (w *weight) Value() G.Value         { return w.value }
func (w *weight) Grad() (G.Value, error) { return w.grad, w.err }

func newAdamW(t testing.TB, opts ...AdamWOption) *AdamW {
	t.Helper()
	return testutil.Closing(NewAdamW(opts...))(t)
}

func dense(dt tensor.Dtype, x []float64, shape ...int) *tensor.Dense {
	if dt == tensor.Float32 {
		return tensor.New(tensor.WithShape(shape...), tensor.WithBacking(testutil.Convert[float32](x)))
	}
	return tensor.New(tensor.WithShape(shape...), tensor.WithBacking(append([]float64(nil), x...)))
}

// someWeights are weights of several ranks and sizes, with gradients of the given scale.
func someWeights(dt tensor.Dtype, seed uint64, scale float64) []G.ValueGrad {
	var list []G.ValueGrad
	for i, shape := range [][]int{{130, 150}, {150}, {4, 8}, {3, 5, 7}} {
		n := tensor.ProdInts(shape)
		grad := testutil.Normal(seed+uint64(i)+100, n)
		for j := range grad {
			grad[j] *= scale
		}
		list = append(list, &weight{name: []string{"a.weight", "a.bias", "phi.pe", "b.weight"}[i],
			value: dense(dt, testutil.Normal(seed+uint64(i), n), shape...), grad: dense(dt, grad, shape...)})
	}
	return list
}

// matrices is a rule for all matrices except position embeddings.
func matrices(name string, shape tensor.Shape) bool {
	return shape.Dims() == 2 && DefaultDecayRule(name, shape)
}

// TestStepsMatchOracle: with Muon one weight takes steps of Muon, the others of AdamW.
func TestStepsMatchOracle(t *testing.T) {
	for _, c := range []struct {
		name  string
		dt    tensor.Dtype
		scale float64
		clip  float64
		muon  bool
		tol   float64
	}{
		{"clipped", tensor.Float64, 1, 1, false, 1e-13}, {"not clipped", tensor.Float64, 1e-4, 1, false, 1e-13},
		{"without a bound", tensor.Float64, 1, 0, false, 1e-13}, {"float32", tensor.Float32, 1, 1, false, 1e-5},
		{"muon", tensor.Float64, 1, 1, true, 1e-12}, {"muon in float32", tensor.Float32, 1, 1, true, 1e-5},
	} {
		t.Run(c.name, func(t *testing.T) {
			weights := someWeights(c.dt, 1, c.scale)
			params, grads := map[string]*ref.Tensor{}, map[string]*ref.Tensor{}
			for _, w := range weights {
				w := w.(*weight)
				params[w.name] = ref.From(testutil.Floats(t, w.value.Data()), w.value.Shape()...)
				grads[w.name] = ref.From(testutil.Floats(t, w.grad.Data()), w.value.Shape()...)
			}
			schedule := WarmupCosine{LR: 1e-2, Warmup: 2, Total: 5, Floor: 0.1}
			opts, h := []AdamWOption{WithSchedule(schedule), WithClip(c.clip)}, ref.DefaultAdamW()
			if h.Clip = c.clip; c.clip == 0 {
				h.Clip = math.Inf(1)
			}
			if c.muon {
				p := optimizer.MuonPolynomials()
				h.Muon, h.Momentum, h.Polynomials = func(name string) bool { return name == "a.weight" }, momentum, p[:]
				opts = append(opts, WithMuon(matrices))
			}
			s := newAdamW(t, opts...)
			var state ref.AdamWState
			for i := range 5 {
				require.NoError(t, s.Step(weights))
				require.InEpsilon(t, ref.AdamWStep(params, grads, &state, schedule.At(i), h), testutil.Must(s.Norm())(t), c.tol)
			}
			require.Equal(t, 5, s.Steps())
			for _, w := range weights {
				w := w.(*weight)
				testutil.Within(t, w.name, testutil.Floats(t, w.value.Data()), params[w.name].Data, c.tol)
			}
		})
	}
}

func TestAdamWOptions(t *testing.T) {
	for message, o := range map[string]AdamWOption{
		"beta1 is 1":               WithBetas(1, 0.9),
		"beta2 is -1":              WithBetas(0.9, -1),
		"eps is 0":                 WithEps(0),
		"decay is NaN":             WithDecay(math.NaN()),
		"clip is -1":               WithClip(-1),
		"learning rate is -1":      WithLR(-1),
		"learning rate is 0, want": WithSchedule(WarmupCosine{}),
		"is nil":                   WithSchedule(nil),
		"schedule or the":          WithSchedule((*WarmupCosine)(nil)),
		"rule is nil":              WithDecayRule(nil),
	} {
		require.ErrorContains(t, testutil.Err(NewAdamW(o)), message)
	}
	require.ErrorContains(t, testutil.Err(NewAdamW(nil)), "nil option")
	s := newAdamW(t, WithLR(0.5))
	require.InDelta(t, 0.5, s.LR(), 0)
	require.NoError(t, s.SetLR(0.25))
	require.InDelta(t, 0.25, s.LR(), 0)
	require.ErrorContains(t, s.SetLR(math.Inf(1)), "+Inf")
	require.Zero(t, testutil.Must(s.Norm())(t))

	// With a learning rate of 1 and no gradients a weight that decays becomes (1-decay) of itself.
	s = newAdamW(t, WithLR(1), WithDecay(0.5), WithDecayRule(func(name string, _ tensor.Shape) bool {
		return strings.HasPrefix(name, "b.")
	}))
	weights := someWeights(tensor.Float64, 1, 0)
	require.NoError(t, s.Step(weights))
	require.InDeltaSlice(t, testutil.Normal(1, 130*150), testutil.Floats(t, weights[0].Value().Data()), 0)
	require.InDelta(t, testutil.Normal(4, 105)[0]/2, testutil.Floats(t, weights[3].Value().Data())[0], 1e-15)
}

// TestAdamWRefuses makes steps with one fault each. The weights and the number of steps do not change.
func TestAdamWRefuses(t *testing.T) {
	zeros := func(dt tensor.Dtype, shape ...int) *tensor.Dense {
		return dense(dt, make([]float64, tensor.ProdInts(shape)), shape...)
	}
	turned := zeros(tensor.Float64, 7, 5, 3)
	require.NoError(t, turned.T(2, 1, 0))
	grad := func(w *weight) []float64 { return w.grad.(*tensor.Dense).Float64s() }
	for _, c := range []struct {
		name    string
		change  func(a, bias, pe, b *weight)
		message string
	}{
		{"no value", func(_, w, _, _ *weight) { w.value = nil }, "optim: adamw: a.bias has no value"},
		{"nil tensor", func(_, w, _, _ *weight) { w.value = (*tensor.Dense)(nil) }, "optim: adamw: a.bias has no value"},
		{"no elements", func(_, w, _, _ *weight) { w.value = zeros(tensor.Float64, 0) }, "a.bias"},
		{"nil tensor as gradient", func(_, w, _, _ *weight) { w.grad = (*tensor.Dense)(nil) }, "a.bias has no gradient"},
		{"no gradient", func(_, w, _, _ *weight) { w.grad = nil }, "a.bias has no gradient"},
		{"gradient's error", func(_, w, _, _ *weight) { w.err = errors.New("no gradient here") }, "no gradient here"},
		{"gradient's shape", func(_, w, pe, _ *weight) { w.grad = pe.grad }, "gradient of a.bias"},
		{"gradient's type", func(_, w, _, _ *weight) { w.grad = zeros(tensor.Float32, 150) }, "gradient of a.bias"},
		{"NaN", func(_, w, _, _ *weight) { grad(w)[7] = math.NaN() }, "norm is NaN, from a.bias"},
		{"infinity", func(_, _, _, w *weight) { grad(w)[0] = math.Inf(-1) }, "norm is +Inf, from b.weight"},
		{"overflow", func(_, _, _, w *weight) { grad(w)[0] = 1e200 }, "sum of squares overflows"},
		{"shape", func(_, _, _, w *weight) { w.value = zeros(tensor.Float64, 105) }, "b.weight"},
		{"transposed", func(_, _, _, w *weight) { w.value = turned }, "b.weight"},
	} {
		t.Run(c.name, func(t *testing.T) {
			list := someWeights(tensor.Float64, 1, 1)
			s := newAdamW(t)
			require.NoError(t, s.Step(list))
			before := testutil.Floats(t, list[0].Value().Data())
			c.change(list[0].(*weight), list[1].(*weight), list[2].(*weight), list[3].(*weight))
			require.ErrorContains(t, s.Step(list), c.message)
			require.Equal(t, before, testutil.Floats(t, list[0].Value().Data()))
			require.Equal(t, 1, s.Steps())
		})
	}

	s, list := newAdamW(t), someWeights(tensor.Float64, 1, 1)
	first := list[:2:2]
	with := func(w *weight) []G.ValueGrad { w.name = "c"; return append(first, w) }
	for _, c := range []struct {
		list []G.ValueGrad
		want string
	}{
		{nil, "no weights"}, {append(list, list[0]), "named a.weight"},
		{with(&weight{value: zeros(tensor.Float32, 1), grad: zeros(tensor.Float32, 1)}), "c is float32"},
		{[]G.ValueGrad{&weight{name: "c"}}, "c has no value"},
		{[]G.ValueGrad{&weight{name: "c", value: (*tensor.Dense)(nil)}}, "c has no value"},
		{[]G.ValueGrad{list[0], (*weight)(nil)}, "weight 1 is nil"},
		{with(&weight{value: list[2].Value()}), "c has no gradient"},
		{with(&weight{value: zeros(tensor.Float64, 0), grad: list[0].Value()}), "c has no elements"},
		{with(&weight{value: tensor.New(tensor.Of(tensor.Float64), tensor.WithShape(0, 3)), grad: list[0].Value()}),
			"c has no elements"},
	} {
		require.ErrorContains(t, s.Step(c.list), c.want)
	}
	require.NoError(t, s.Step(list), "those of the step that failed are not the weights")
	before := testutil.Floats(t, list[0].Value().Data())
	require.Equal(t, before, testutil.Floats(t, list[0].Value().Data()))
	require.Equal(t, 1, s.Steps())
	require.ErrorContains(t, s.Step(list[:3]), "3 weights")
	require.ErrorContains(t, s.Step([]G.ValueGrad{list[1], list[0], list[2], list[3]}), "weight 0 is a.bias")
	require.NoError(t, errors.Join(s.Close(), s.Close()))
	for _, err := range []error{s.Step(list), testutil.Err(s.State()), testutil.Err(s.Norm()),
		s.SetState(safetensors.File{})} {
		require.ErrorIs(t, err, errClosed)
	}
	require.ErrorContains(t, new(AdamW).Step(list), "NewAdamW")
	muon := newAdamW(t, WithMuon(func(name string, _ tensor.Shape) bool { return name == "a.bias" }))
	require.ErrorContains(t, muon.Step(someWeights(tensor.Float32, 1, 1)), "a.bias has shape (150)")
}

// TestAdamWSharedMemory: a weight that shares memory with another weight or with a gradient is refused.
func TestAdamWSharedMemory(t *testing.T) {
	whole := dense(tensor.Float64, make([]float64, 6), 6)
	part := func(from, to int) G.Value { return testutil.Must(whole.Slice(tensor.S(from, to)))(t).(*tensor.Dense) }
	other := func() G.Value { return dense(tensor.Float64, []float64{1, 1}, 2) }
	grad := other()
	for want, w := range map[string][]G.ValueGrad{
		"": {&weight{"a", part(0, 2), grad, nil}, &weight{"b", part(4, 6), grad, nil},
			&weight{"c", part(2, 4), other(), nil}},
		"a and b share memory": {&weight{"a", whole, dense(tensor.Float64, make([]float64, 6), 6), nil},
			&weight{"c", other(), other(), nil},
			&weight{"b", part(4, 6), other(), nil}},
		"a and the gradient of b share memory": {&weight{"a", part(0, 2), other(), nil},
			&weight{"b", other(), part(1, 3), nil}},
	} {
		if err := newAdamW(t).Step(w); want == "" {
			require.NoError(t, err)
		} else {
			require.ErrorContains(t, err, want)
		}
	}
}

// TestStepsOnGorgoniasMachines trains the same weights on a Machine, there also by Step, and on two TapeMachines;
// one of these adds up gradients.
func TestStepsOnGorgoniasMachines(t *testing.T) {
	for _, c := range []struct {
		dt   tensor.Dtype
		two  any
		muon func(string, tensor.Shape) bool
	}{{tensor.Float64, 2.0, nil}, {tensor.Float32, float32(2), matrices}} {
		var want []float64
		for _, vm := range []string{"machine", "machine, at once", "tape", "tape, bound"} {
			g, m := G.NewGraph(), G.VM(nil)
			x := G.NodeFromAny(g, dense(c.dt, testutil.Normal(1, 40), 5, 8), G.WithName("x"))
			w := G.NewScalar(g, c.dt, G.WithName("w"), G.WithValue(c.two))
			cost := G.Must(G.Sum(G.Must(G.Square(G.Must(G.Square(G.Must(G.HadamardProd(x, w))))))))
			testutil.Must(graph.Grad(cost, x, w))(t)
			weights, s := G.NodesToValueGrads(G.Nodes{x, w}), testutil.Must(NewAdamW(WithLR(0.1), WithMuon(c.muon)))(t)
			switch vm {
			case "tape":
				m = G.NewTapeMachine(g)
			case "tape, bound":
				m = G.NewTapeMachine(g, G.BindDualValues(x, w))
			case "machine, at once":
				m = testutil.Must(graph.NewMachine(g, graph.WithOptimizer(s, x, w)))(t)
			default:
				m = testutil.Must(graph.NewMachine(g))(t)
			}
			for range 4 {
				if vm == "machine, at once" {
					require.NoError(t, m.(*graph.Machine).Step())
				} else {
					require.NoError(t, errors.Join(m.RunAll(), s.Step(weights)))
					m.Reset()
				}
			}
			got := append(testutil.Floats(t, x.Value().Data()), testutil.Floats(t, w.Value().Data())...)
			if want == nil {
				want = got
			}
			require.Equal(t, want, got, vm)
			require.NoError(t, errors.Join(s.Close(), m.Close()))
		}
	}
}

func TestStepsAllocateNothing(t *testing.T) {
	for _, muon := range []func(string, tensor.Shape) bool{nil, matrices} {
		weights, s := someWeights(tensor.Float32, 1, 1), newAdamW(t, WithMuon(muon))
		require.Zero(t, testing.AllocsPerRun(10, func() {
			if err := errors.Join(s.SetLR(1e-3), s.Step(weights), testutil.Err(s.Norm())); err != nil {
				t.Error(err)
			}
		}))
	}
}
