package ops_test

import (
	"fmt"
	"math/rand/v2"
	"os"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	G "gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/internal/cpu"
	"github.com/gorgonia-nsa/nsa/internal/opcases"
	"github.com/gorgonia-nsa/nsa/internal/ref"
	"github.com/gorgonia-nsa/nsa/internal/testutil"
	"github.com/gorgonia-nsa/nsa/ops/spec"
	"github.com/gorgonia-nsa/nsa/ops/spec/attention"
	"github.com/gorgonia-nsa/nsa/ops/spec/compress"
	"github.com/gorgonia-nsa/nsa/ops/spec/linear"
	"github.com/gorgonia-nsa/nsa/ops/spec/norm"
	"github.com/gorgonia-nsa/nsa/ops/spec/pointwise"
	"github.com/gorgonia-nsa/nsa/ops/spec/vocab"
)

var dtypes = []tensor.Dtype{tensor.Float64, tensor.Float32}

// tolerance is the relative error allowed against float64.
func tolerance(dt tensor.Dtype) float64 {
	if dt == tensor.Float32 {
		return 1e-5
	}
	return 1e-10
}

// casesOf are the cases that a CPU runs in seconds, with those of packed documents, by the type of the op's Spec.
var casesOf = sync.OnceValue(func() map[reflect.Type][]opcases.Case {
	list := map[reflect.Type][]opcases.Case{}
	for _, c := range append(opcases.All(opcases.Small, opcases.Large), opcases.DocumentCases()...) {
		plan, err := c.Plan()
		if err != nil {
			panic(err)
		}
		main := slices.IndexFunc(plan.Calls, func(x opcases.Call) bool { return slices.Contains(x.Out, plan.Out[0]) })
		op := reflect.TypeOf(plan.Calls[main].Spec)
		list[op] = append(list[op], c)
	}
	return list
})

// withOneOracle returns the case with an oracle that is computed once for the case's inputs, and again for another dy.
func withOneOracle(c opcases.Case) opcases.Case {
	outputs, gradients := c.Outputs, c.Gradients
	var out, grads []*ref.Tensor
	var of []float64 // the dy of grads
	c.Outputs = func(in []*ref.Tensor) []*ref.Tensor {
		if out == nil {
			out = outputs(in)
		}
		return out
	}
	if gradients != nil {
		c.Gradients = func(in []*ref.Tensor, dy *ref.Tensor) []*ref.Tensor {
			if !slices.Equal(of, dy.Data) {
				grads, of = gradients(in, dy), dy.Data
			}
			return grads
		}
	}
	return c
}

// requireOracle compares the outputs of a case, and its gradients for dy, with the oracle's.
func requireOracle(t *testing.T, c opcases.Case, dt tensor.Dtype, out, grads []array, dy array) {
	t.Helper()
	if c.Selection != nil {
		q, kc := c.Inputs[0].Tensor(), c.Inputs[1].Tensor()
		others := testutil.Must(c.CheckSelection(q, kc, out[0].Ints, tolerance(dt)))(t)
		require.False(t, dt == tensor.Float64 && others > 0, "%d rows have other blocks", others)
		return
	}
	for i, want := range c.Outputs(opcases.Tensors(c.Inputs)) {
		if want != nil {
			require.Equal(t, append([]int{}, want.Shape...), append([]int{}, out[i].Shape...))
			testutil.Within(t, fmt.Sprint("output ", i), out[i].Floats, want.Data, tolerance(dt))
		}
	}
	if c.Gradients == nil {
		return
	}
	for i, want := range c.Gradients(opcases.Tensors(c.Inputs), dy.Tensor()) {
		if want != nil {
			testutil.Within(t, "gradient of "+c.Inputs[i].Name, grads[i].Floats, want.Data, tolerance(dt))
		}
	}
}

// Each op, by its name, with its gradient: see testOp. AdamW and Muon have no case: their tests are in
// ops/spec/optimizer, those of their GPU kernels in cuda/internal/kernels/adamw_test.go. Decoding has decode_test.go and
// extend_test.go.
func TestAdd(t *testing.T)                 { testOp[pointwise.Add](t) }
func TestCompressMLP(t *testing.T)         { testOp[compress.MLP](t) }
func TestCompressMean(t *testing.T)        { testOp[compress.Mean](t) }
func TestCompressedAttention(t *testing.T) { testOp[attention.Compressed](t) }
func TestCrossEntropy(t *testing.T)        { testOp[vocab.CrossEntropy](t) }
func TestEmbedding(t *testing.T)           { testOp[vocab.Embedding](t) }
func TestFused(t *testing.T)               { testOp[linear.Fused](t) }
func TestFusedGrad(t *testing.T)           { testOp[linear.FusedGrad](t) }
func TestGatedSum(t *testing.T)            { testOp[pointwise.GatedSum](t) }
func TestInputGradSiLU(t *testing.T)       { testOp[linear.InputGradSiLU](t) }
func TestLinear(t *testing.T)              { testOp[linear.Linear](t) }
func TestLinearAdd(t *testing.T)           { testOp[linear.LinearAdd](t) }
func TestLinearSiLU(t *testing.T)          { testOp[linear.LinearSiLU](t) }
func TestRMSNorm(t *testing.T)             { testOp[norm.RMSNorm](t) }
func TestRMSNormGradAdd(t *testing.T)      { testOp[norm.RMSNormGradAdd](t) }
func TestRepeat(t *testing.T)              { testOp[pointwise.Repeat](t) }
func TestRoPE(t *testing.T)                { testOp[pointwise.RoPE](t) }
func TestSelectBlocks(t *testing.T)        { testOp[attention.SelectBlocks](t) }
func TestSelectedAttention(t *testing.T)   { testOp[attention.Selected](t) }
func TestSiLU(t *testing.T)                { testOp[pointwise.SiLU](t) }
func TestSwiGLU(t *testing.T)              { testOp[pointwise.SwiGLU](t) }
func TestSigmoid(t *testing.T)             { testOp[pointwise.Sigmoid](t) }
func TestSlidingWindow(t *testing.T)       { testOp[attention.SlidingWindow](t) } // and CausalAttention
func TestSoftmax(t *testing.T)             { testOp[norm.Softmax](t) }
func TestTopK(t *testing.T)                { testOp[vocab.TopK](t) }

// TestEveryCaseHasATest: every Spec with cases has a test above.
func TestEveryCaseHasATest(t *testing.T) {
	source := string(testutil.Must(os.ReadFile("cases_test.go"))(t))
	for op := range casesOf() {
		require.Contains(t, source, "testOp["+op.String()+"]")
	}
}

// testOp tests the Spec of an op by all its cases: outputs and gradients against the oracle, by central differences, in
// graphs on two machines, and with the same bits for any number of workers.
func testOp[S spec.Spec](t *testing.T) {
	for _, c := range casesOf()[reflect.TypeFor[S]()] {
		t.Run(c.Name, func(t *testing.T) {
			if c.Cost == opcases.Huge {
				testutil.FullOnly(t)
			}
			t.Parallel()
			if c.Cost == opcases.Large {
				testWorkers(t, c)
				return
			}
			c = withOneOracle(c)
			for _, dt := range dtypes {
				t.Run(dt.String(), func(t *testing.T) {
					out, grads, dy := runCase(t, c, dt, 2)
					requireOracle(t, c, dt, out, grads, dy)
				})
			}
			if c.Gradients != nil {
				testInGraphs(t, c)
				testDifferences(t, c)
			}
		})
	}
}

// testInGraphs: outputs and gradients in graphs, with gorgonia.Grad.
func testInGraphs(t *testing.T, c opcases.Case) {
	if len(c.Inputs[0].Floats) > 7000 {
		return
	}
	weights := testutil.Must(c.Plan())(t).Inputs[len(c.Inputs)]
	if len(weights.Shape) == 0 {
		weights.Floats = []float64{1} // runGraph takes the gradient of the scalar itself
	}
	want := c.Outputs(opcases.Tensors(c.Inputs))[:1]
	inGraph := c
	inGraph.Outputs = func([]*ref.Tensor) []*ref.Tensor { return want }
	for vm := range vms {
		for _, dt := range dtypes {
			t.Run(fmt.Sprint(vm, "/", dt), func(t *testing.T) {
				res := runGraph(t, vm, dt, c.Build, weights.Floats, c.Inputs...)
				out, grads := []array{{Shape: want[0].Shape, Floats: res.out}}, []array{}
				for _, a := range c.Inputs {
					grads = append(grads, array{Floats: res.grads[a.Name]})
				}
				requireOracle(t, inGraph, dt, out, grads, weights)
			})
		}
	}
}

// testWorkers: any number of workers gives the same bits.
func testWorkers(t *testing.T, c opcases.Case) {
	out, grads, dy := runCase(t, c, tensor.Float32, 1)
	requireOracle(t, c, tensor.Float32, out, grads, dy)
	for _, workers := range []int{7, 2, 3}[:testutil.Tries(t, 2, 3)] {
		out2, grads2, _ := runCase(t, c, tensor.Float32, workers)
		requireSame(t, out, out2, fmt.Sprint(workers, " workers"))
		requireSame(t, grads, grads2, fmt.Sprint(workers, " workers"))
	}
}

// testDifferences holds the gradients to central differences of the op itself.
func testDifferences(t *testing.T, c opcases.Case) {
	elements := 0
	for _, a := range c.Inputs {
		elements += len(a.Floats)
	}
	if elements > 1500 || c.Documents != nil { // the first call of a case with documents makes a table
		return
	}
	_, grads, dy := runCase(t, c, tensor.Float64, 1)
	plan := testutil.Must(c.Plan())(t)
	team := cpu.NewTeam(1)
	for i, a := range c.Inputs {
		if plan.Grads[i] < 0 {
			continue
		}
		x := bindSpec(t, plan.Calls[0].Spec, tensor.Float64, 1, c.Inputs...)
		want := testutil.CentralDifference(func(at []float64) (sum float64) {
			copy(cpu.Slice[float64](x.in[i].Buf), at)
			require.NoError(t, team.Run(&x.kernel, x.mem))
			for j, y := range cpu.Slice[float64](x.out[0].Buf) {
				sum += y * dy.Floats[j]
			}
			return sum
		}, a.Floats, 1e-5)
		testutil.Within(t, "gradient of "+a.Name, grads[i].Floats, want, 1e-6)
	}
}

// TestRandomCalls: constructors accept valid calls. The error of a wrong call names the op and the argument.
func TestRandomCalls(t *testing.T) {
	rng := rand.New(rand.NewPCG(11, 1))
	wrong, huge, tries := 0, 0, testutil.Tries(t, 5000, 20_000)
	for i := range tries {
		c := opcases.Random(rng, 30_000)
		g := G.NewGraph()
		var in []*G.Node
		for j, o := range c.In {
			in = append(in, G.NewTensor(g, o.Dtype, o.Shape.Dims(), G.WithShape(o.Shape...), G.WithName(fmt.Sprint("input", j))))
		}
		y, err := spec.Apply(c.Spec, in...)
		what := fmt.Sprintf("call %d: %s %+v of %v", i, c.Spec.Name(), c.Spec, c.In)
		switch {
		case c.Huge:
			huge++
			if err != nil {
				require.ErrorContains(t, err, "is too large", what)
			}
		case c.Wrong == nil:
			require.NoError(t, err, what)
			require.Equal(t, c.Out, spec.OutputsOf(y.Op()), what)
		default:
			wrong++
			require.Error(t, err, what)
			require.Nil(t, y, what)
			detail, ok := strings.CutPrefix(err.Error(), "ops: "+c.Spec.Name()+": ")
			require.True(t, ok && names(detail, c.Wrong), "%s: %v, want one of %q", what, err, c.Wrong)
		}
	}
	require.Greater(t, wrong, tries/4)
	require.Greater(t, huge, tries*3/40)
}

func names(text string, list []string) bool {
	return slices.ContainsFunc(list, func(name string) bool {
		return regexp.MustCompile(`\b` + regexp.QuoteMeta(name) + `(\W|$)`).MatchString(text)
	})
}
