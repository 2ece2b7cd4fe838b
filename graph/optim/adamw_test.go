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

// newAdamW returns a solver that ends with the test.
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
	for i, w := range []struct {
		name  string
		shape []int
	}{{"a.weight", []int{130, 150}}, {"a.bias", []int{150}}, {"phi.pe", []int{4, 8}}, {"b.weight", []int{3, 5, 7}}} {
		n := tensor.Shape(w.shape).TotalSize()
		grad := testutil.Normal(seed+uint64(i)+100, n)
		for j := range grad {
			grad[j] *= scale
		}
		list = append(list, &weight{name: w.name, value: dense(dt, testutil.Normal(seed+uint64(i), n), w.shape...),
			grad: dense(dt, grad, w.shape...)})
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
				require.InEpsilon(t, ref.AdamWStep(params, grads, &state, schedule.At(i), h),
					testutil.Must(s.Norm())(t), c.tol)
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
	none := errors.New("no gradient here")
	for _, c := range []struct {
		name    string
		change  func(w []*weight)
		message string
	}{
		{"no value", func(w []*weight) { w[1].value = nil }, "optim: adamw: a.bias has no value"},
		{"nil tensor", func(w []*weight) { w[1].value = (*tensor.Dense)(nil) }, "optim: adamw: a.bias has no value"},
		{"no elements", func(w []*weight) { w[1].value = tensor.New(tensor.Of(tensor.Float64), tensor.WithShape(0)) },
			"a.bias"},
		{"nil tensor as gradient", func(w []*weight) { w[1].grad = (*tensor.Dense)(nil) }, "a.bias has no gradient"},
		{"no gradient", func(w []*weight) { w[1].grad = nil }, "a.bias has no gradient"},
		{"gradient's error", func(w []*weight) { w[1].err = none }, "no gradient here"},
		{"gradient's shape", func(w []*weight) { w[1].grad = w[2].grad }, "gradient of a.bias"},
		{"gradient's type", func(w []*weight) { w[1].grad = dense(tensor.Float32, make([]float64, 150), 150) },
			"gradient of a.bias"},
		{"NaN", func(w []*weight) { w[1].grad.(*tensor.Dense).Float64s()[7] = math.NaN() },
			"norm is NaN, from a.bias"},
		{"infinity", func(w []*weight) { w[3].grad.(*tensor.Dense).Float64s()[0] = math.Inf(-1) },
			"norm is +Inf, from b.weight"},
		{"overflow", func(w []*weight) { w[3].grad.(*tensor.Dense).Float64s()[0] = 1e200 },
			"sum of squares overflows"},
		{"shape", func(w []*weight) { w[3].value = dense(tensor.Float64, make([]float64, 105), 105) }, "b.weight"},
		{"transposed", func(w []*weight) {
			d := dense(tensor.Float64, make([]float64, 105), 7, 5, 3)
			require.NoError(t, d.T(2, 1, 0))
			w[3].value = d
		}, "b.weight"},
	} {
		t.Run(c.name, func(t *testing.T) {
			list := someWeights(tensor.Float64, 1, 1)
			s := newAdamW(t)
			require.NoError(t, s.Step(list))
			before := testutil.Floats(t, list[0].Value().Data())
			c.change([]*weight{list[0].(*weight), list[1].(*weight), list[2].(*weight), list[3].(*weight)})
			require.ErrorContains(t, s.Step(list), c.message)
			require.Equal(t, before, testutil.Floats(t, list[0].Value().Data()))
			require.Equal(t, 1, s.Steps())
		})
	}

	s := newAdamW(t)
	require.ErrorContains(t, s.Step(nil), "no weights")
	list := someWeights(tensor.Float64, 1, 1)
	require.ErrorContains(t, s.Step(append(list, list[0])), "named a.weight")
	require.ErrorContains(t, s.Step(append(list, &weight{name: "c", value: dense(tensor.Float32, []float64{1}, 1),
		grad: dense(tensor.Float32, []float64{1}, 1)})),
		"c is float32")
	require.ErrorContains(t, s.Step([]G.ValueGrad{&weight{name: "c"}}), "c has no value")
	require.ErrorContains(t, s.Step([]G.ValueGrad{&weight{name: "c", value: (*tensor.Dense)(nil)}}), "c has no value")
	require.ErrorContains(t, s.Step([]G.ValueGrad{list[0], (*weight)(nil)}), "weight 1 is nil")
	for _, shape := range []tensor.Shape{{0}, {0, 3}} {
		empty := &weight{name: "c", value: tensor.New(tensor.Of(tensor.Float64), tensor.WithShape(shape...)),
			grad: list[0].Value()}
		require.ErrorContains(t, s.Step(append(list[:2:2], empty)), "c has no elements")
	}
	require.ErrorContains(t, s.Step(append(list[:2:2], &weight{name: "d", value: list[2].Value()})),
		"d has no gradient")
	require.NoError(t, s.Step(list), "those of the step that failed are not the weights")
	before := testutil.Floats(t, list[0].Value().Data())
	require.Equal(t, before, testutil.Floats(t, list[0].Value().Data()))
	require.Equal(t, 1, s.Steps())
	require.ErrorContains(t, s.Step(list[:3]), "3 weights")
	require.ErrorContains(t, s.Step([]G.ValueGrad{list[1], list[0], list[2], list[3]}), "weight 0 is a.bias")
	require.NoError(t, s.Close())
	require.NoError(t, s.Close())
	require.ErrorIs(t, s.Step(list), errClosed)
	require.ErrorIs(t, testutil.Err(s.State()), errClosed)
	require.ErrorIs(t, testutil.Err(s.Norm()), errClosed)
	require.ErrorIs(t, s.SetState(safetensors.File{}), errClosed)
	require.ErrorContains(t, new(AdamW).Step(list), "NewAdamW")

	muon := newAdamW(t, WithMuon(func(name string, _ tensor.Shape) bool { return name == "a.bias" }))
	require.ErrorContains(t, muon.Step(someWeights(tensor.Float32, 1, 1)), "a.bias has shape (150)")

	fresh := newAdamW(t)
	nothing := safetensors.File{Tensors: map[string]*tensor.Dense{"first.a": nil},
		Metadata: map[string]string{"adamw.step": "3"}}
	require.ErrorContains(t, fresh.SetState(nothing), "no tensor first.a")
	require.Empty(t, testutil.Must(fresh.State())(t).Tensors)
}

// TestAdamWSharedMemory: a weight that shares memory with another weight or with a gradient is refused.
func TestAdamWSharedMemory(t *testing.T) {
	whole := dense(tensor.Float64, make([]float64, 6), 6)
	part := func(from, to int) G.Value {
		return testutil.Must(whole.Slice(tensor.S(from, to)))(t).(*tensor.Dense)
	}
	of := func(name string, value, grad G.Value) *weight { return &weight{name: name, value: value, grad: grad} }
	other := func() G.Value { return dense(tensor.Float64, []float64{1, 1}, 2) }
	grad := other()
	for want, w := range map[string][]G.ValueGrad{
		"": {of("a", part(0, 2), grad), of("b", part(4, 6), grad), of("c", part(2, 4), other())},
		"a and b share memory": {
			of("a", whole, dense(tensor.Float64, make([]float64, 6), 6)), of("c", other(), other()),
			of("b", part(4, 6), other()),
		},
		"a and the gradient of b share memory": {of("a", part(0, 2), other()), of("b", other(), part(1, 3))},
	} {
		s := newAdamW(t)
		if want == "" {
			require.NoError(t, s.Step(w))
		} else {
			require.ErrorContains(t, s.Step(w), want)
		}
	}
}

// TestStepsOnGorgoniasMachines trains the same weights on a Machine, there also by Machine.Step, and on two TapeMachines;
// one of these adds up gradients.
func TestStepsOnGorgoniasMachines(t *testing.T) {
	for _, c := range []struct {
		dt   tensor.Dtype
		two  any
		muon func(string, tensor.Shape) bool
	}{{tensor.Float64, 2.0, nil}, {tensor.Float32, float32(2), matrices}} {
		train := func(newVM func(g *G.ExprGraph, wrt G.Nodes) G.VM, atOnce bool) []float64 {
			g := G.NewGraph()
			x := G.NewMatrix(g, c.dt, G.WithShape(5, 8), G.WithName("x"), G.WithValue(dense(c.dt,
				testutil.Normal(1, 40), 5, 8)))
			w := G.NewScalar(g, c.dt, G.WithName("w"), G.WithValue(c.two))
			cost := G.Must(G.Sum(G.Must(G.Square(G.Must(G.Square(G.Must(G.HadamardProd(x, w))))))))
			testutil.Must(graph.Grad(cost, x, w))(t)
			wrt := G.Nodes{x, w}
			s := testutil.Must(NewAdamW(WithLR(0.1), WithMuon(c.muon)))(t)
			defer s.Close()
			vm := newVM(g, wrt)
			if atOnce {
				vm = testutil.Must(graph.NewMachine(g, graph.WithOptimizer(s, wrt...)))(t)
			}
			defer vm.Close()
			for range 4 {
				if m, ok := vm.(*graph.Machine); ok && atOnce {
					require.NoError(t, m.Step())
					continue
				}
				require.NoError(t, vm.RunAll())
				require.NoError(t, s.Step(G.NodesToValueGrads(wrt)))
				vm.Reset()
			}
			return append(testutil.Floats(t, x.Value().Data()), testutil.Floats(t, w.Value().Data())...)
		}
		machine := func(g *G.ExprGraph, _ G.Nodes) G.VM { return testutil.Must(graph.NewMachine(g))(t) }
		want := train(machine, false)
		require.Equal(t, want, train(machine, true))
		require.Equal(t, want, train(func(g *G.ExprGraph, _ G.Nodes) G.VM { return G.NewTapeMachine(g) }, false))
		require.Equal(t, want, train(func(g *G.ExprGraph, wrt G.Nodes) G.VM {
			return G.NewTapeMachine(g,
				G.BindDualValues(wrt...))
		}, false))
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
