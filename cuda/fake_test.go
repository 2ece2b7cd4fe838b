package cuda_test

import (
	"errors"
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	G "gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/cuda"
	"github.com/gorgonia-nsa/nsa/cuda/internal/driver"
	"github.com/gorgonia-nsa/nsa/cuda/internal/driver/fakedriver"
	"github.com/gorgonia-nsa/nsa/graph"
	"github.com/gorgonia-nsa/nsa/internal/opcases"
	"github.com/gorgonia-nsa/nsa/internal/testutil"
	"github.com/gorgonia-nsa/nsa/internal/value"
	"github.com/gorgonia-nsa/nsa/ops"
	"github.com/gorgonia-nsa/nsa/ops/spec"
	"github.com/gorgonia-nsa/nsa/ops/spec/attention"
	"github.com/gorgonia-nsa/nsa/ops/spec/compress"
	"github.com/gorgonia-nsa/nsa/ops/spec/linear"
	"github.com/gorgonia-nsa/nsa/ops/spec/norm"
	"github.com/gorgonia-nsa/nsa/ops/spec/pointwise"
	"github.com/gorgonia-nsa/nsa/ops/spec/vocab"
)

// newFake returns a driver whose kernels compute nothing.
func newFake(gpus ...driver.Properties) *fakedriver.Driver {
	f := fakedriver.New(gpus...)
	f.AnyKernel = true
	return f
}

// open returns a backend on a fake driver, which is closed without leaks at the end.
func open(t testing.TB) (*cuda.Backend, *fakedriver.Driver) { return openWith(t, 256<<20) }

// openWith is open for a device with that many bytes of memory.
func openWith(t testing.TB, memory int64) (*cuda.Backend, *fakedriver.Driver) {
	p := fakedriver.H200()
	p.Memory = memory
	f := newFake(p)
	b := testutil.Must(cuda.Open(0, driver.WithDriver(f)))(t)
	t.Cleanup(func() {
		require.NoError(t, b.Close())
		require.Empty(t, f.Leaks())
	})
	return b, f
}

func machine(t testing.TB, g *G.ExprGraph, b graph.Backend, opts ...graph.Option) *graph.Machine {
	return testutil.Closing(graph.NewMachine(g, append(opts, graph.WithBackend(b))...))(t)
}

// during returns how often f calls each of the functions while do runs. It leaves out zeros.
func during(f *fakedriver.Driver, functions []string, do func()) map[string]int {
	n := map[string]int{}
	for _, name := range functions {
		n[name] -= f.Calls(name)
	}
	do()
	for _, name := range functions {
		n[name] += f.Calls(name)
	}
	maps.DeleteFunc(n, func(_ string, n int) bool { return n == 0 })
	return n
}

// run runs a case on a fake driver, once.
func (c opCase) run(t testing.TB, dt tensor.Dtype, opts ...graph.Option) (*graph.Machine, *fakedriver.Driver) {
	b, f := open(t)
	g, results := c.graph(t, dt)
	m := machine(t, g, b, append(opts, graph.WithKeep(results...))...)
	run(t, m, nil)
	return m, f
}

// TestCeilings: whatever call fails, nothing stays open. The helper open checks that.
func TestCeilings(t *testing.T) {
	b, f := open(t)
	_, err := b.Ceilings()
	require.NoError(t, err)
	for _, call := range []string{"StreamCreateWithPriority", "MemAlloc", "EventCreate", "EventRecord", "LaunchKernelEx",
		"EventElapsedTime"} {
		f.Fail(call, 1, driver.Unknown)
		_, err := b.Ceilings()
		require.Error(t, err, call)
	}
}

// TestEveryOpHasKernels runs every op of package ops in machines, none of them on the host, with operands of the types
// that Storage wants. Runs allocate nothing.
func TestEveryOpHasKernels(t *testing.T) {
	seen := map[reflect.Type]bool{}
	noLibrary := graph.Refusal{Name: "cublaslt",
		Why: &graph.Unsupported{Reason: graph.ReasonMissing, Detail: "cuBLASLt was not found"}}
	cases := opCases()
	for name, opts := range map[string][]graph.Option{
		"f32": nil, "captured": {graph.WithCapture()},
		"bf16": {graph.WithPrecision(graph.BF16)}, "fp16": {graph.WithPrecision(graph.FP16)},
	} {
		half := name == "bf16" || name == "fp16"
		for i, c := range cases {
			if !testutil.Full(t) && name != "f32" && (i%2 == 0) != (name == "bf16") {
				continue
			}
			t.Run(name+"/"+c.Name, func(t *testing.T) {
				m, f := c.run(t, tensor.Float32, opts...)
				require.Zero(t, m.Counts()["host"], "%v", m.Plan())
				for _, s := range m.Plan().Steps {
					for _, o := range operandsOf(s) {
						require.True(t, !half || o.Dtype != tensor.Float32 || mayBeSingle(s), "%v of %v", o, s.Op)
					}
					if half {
						continue
					}
					require.Equal(t, "cuda", s.Implementation, s.Op)
					for _, r := range s.Refused {
						require.Equal(t, noLibrary, r)
					}
					spec, ok := spec.SpecOf(s.Node.Op())
					require.True(t, ok)
					seen[reflect.TypeOf(spec)] = true
				}
				require.NotZero(t, f.Launches(""))
				run := func() {
					if err := errors.Join(m.RunAll(), m.Synchronize()); err != nil {
						t.Fatal(err)
					}
				}
				for range 2 {
					run()
				}
				require.Zero(t, testing.AllocsPerRun(10, run))
			})
		}
	}
	for _, s := range []spec.Spec{
		attention.SlidingWindow{}, attention.SlidingWindowGrad{}, attention.Compressed{}, attention.CompressedGrad{},
		attention.Selected{}, attention.SelectedGrad{}, attention.SelectBlocks{}, compress.Mean{},
		compress.MeanGrad{}, compress.MLP{}, compress.MLPGrad{}, linear.Linear{}, linear.InputGrad{},
		linear.WeightGrad{}, linear.BiasGrad{}, pointwise.SiLU{}, pointwise.SiLUGrad{}, pointwise.Sigmoid{},
		pointwise.SigmoidGrad{}, norm.Softmax{}, norm.SoftmaxGrad{}, pointwise.Add{}, pointwise.AddGrad{}, pointwise.RoPE{},
		norm.RMSNorm{}, norm.RMSNormGrad{}, vocab.Embedding{}, vocab.EmbeddingGrad{}, vocab.CrossEntropy{},
		vocab.CrossEntropyGrad{}, pointwise.GatedSum{}, pointwise.GatedSumGrad{}, linear.Fused{}, linear.FusedGrad{},
		linear.LinearAdd{}, norm.RMSNormGradAdd{},
	} {
		require.True(t, seen[reflect.TypeOf(s)], "%s is not among the cases", s.Name())
	}
}

// operandsOf returns the operands of a step. It leaves out the result of a linear layer, which may be the result of a
// fused cast.
func operandsOf(s graph.PlanStep) []spec.Operand {
	list := slices.Clone(s.Inputs)
	if _, linear := s.Spec.(linear.Linear); !linear {
		for _, o := range s.Outputs {
			list = append(list, o.Operand)
		}
	}
	return list
}

// mayBeSingle reports whether an op may have float32 operands in half precision: sums, ops that read sums, and
// gradients of weights.
func mayBeSingle(s graph.PlanStep) bool {
	switch s.Spec.(type) {
	case pointwise.SiLU, pointwise.SiLUGrad, pointwise.Sigmoid, pointwise.SigmoidGrad, norm.Softmax, norm.SoftmaxGrad,
		pointwise.RoPE,
		linear.Linear, linear.Fused, linear.InputGrad, compress.Mean, compress.MeanGrad,
		compress.MLP, pointwise.GatedSum:
		return false
	}
	return true
}

// TestFloat64RunsOnTheHost: the plan says why ops in float64 run on the host.
func TestFloat64RunsOnTheHost(t *testing.T) {
	for _, c := range opCases() {
		if c.Inputs[len(c.Inputs)-1].Name == "cu_seqlens" {
			continue // the device makes a table of int32, for which the fake one computes nothing
		}
		m, _ := c.run(t, tensor.Float64)
		for _, s := range m.Plan().Steps {
			require.Equal(t, "host", s.Implementation)
			if _, ok := spec.SpecOf(s.Node.Op()); !ok {
				continue // an op that only returns a further output
			}
			require.Equal(t, graph.ReasonType, s.Refused[0].Why.Reason, "%s: %v", s.Op, s.Refused)
		}
	}
}

// network is a graph of several ops with gradients, and its results.
func network(t testing.TB) (*G.ExprGraph, G.Nodes) {
	t.Helper()
	g := G.NewGraph()
	input := func(name string, seed uint64, shape ...int) *G.Node {
		return opcases.Normal(name, seed, shape...).Node(g, tensor.Float32)
	}
	x, w, scale := input("x", 1, 2, 7, 12), input("w", 2, 12, 12), input("scale", 3, 12)
	targets := opcases.Array{Name: "targets", Shape: []int{2, 7}, Ints: make([]int32, 14)}.Node(g, tensor.Int32)
	y := G.Must(ops.SiLU(G.Must(ops.Linear(G.Must(ops.RMSNorm(G.Must(ops.Sigmoid(x)), scale, 1e-5)), w))))
	loss := G.Must(ops.CrossEntropy(y, targets))
	testutil.Must(graph.Grad(loss, w, scale))(t)
	return g, G.Nodes{loss, w.Deriv(), scale.Deriv()}
}

// TestFaultNamesTheOp: a fault names the op if only one can have caused it. Otherwise it lists the suspects.
func TestFaultNamesTheOp(t *testing.T) {
	for _, blocking := range []bool{true, false} {
		f := newFake()
		opts := []cuda.Option{driver.WithDriver(f)}
		want := "graph: machine: cuda: an illegal memory access was encountered (CUDA_ERROR_700) in one of "
		if blocking {
			opts = append(opts, driver.WithBlockingLaunches())
			want = "ops: silu: cuda: silu (kernel nsa_silu_f32): an illegal memory access"
		}
		b := testutil.Must(cuda.Open(0, opts...))(t)
		g, results := network(t)
		m := testutil.Must(graph.NewMachine(g, graph.WithBackend(b), graph.WithKeep(results...)))(t)
		run(t, m, nil)
		f.Kernel("nsa_silu_f32", fakedriver.Kernel{Run: func(l *fakedriver.Launch) { l.Fault(driver.IllegalAddress) }})
		err := m.RunAll()
		if err == nil {
			err = m.Synchronize()
		}
		require.ErrorContains(t, err, want)
		launch, ok := errors.AsType[*graph.LaunchError](err)
		require.True(t, ok)
		require.Equal(t, blocking, launch.Kernel != nil)
		require.Error(t, m.RunAll())
		require.Error(t, m.Close())
		_ = b.Close()
		require.NoError(t, b.Close())
		require.Empty(t, f.Leaks())
	}
}

// opCase is a case of an op that a machine runs.
type opCase struct{ opcases.Case }

// opCases returns cases of every op that has kernels, at small sizes, packed documents included. Attention has a size
// around each of its boundaries.
func opCases() (list []opCase) {
	cases := opcases.Layers()
	for _, c := range opcases.DocumentCases() {
		if c.Cost == opcases.Small {
			cases = append(cases, c)
		}
	}
	for _, s := range opcases.AttentionCases() {
		if s.S == 1 || s.S == 23 || s.S == 37 || s.S == 133 || s.S == 259 {
			cases = append(cases, s.Cases()...)
		}
	}
	for _, c := range cases {
		elements := 0
		for _, a := range c.Inputs {
			elements += tensor.Shape(a.Shape).TotalSize()
		}
		// A linear layer with SiLU or a norm runs as two ops in float32, and norms of more than 16384 run on the host.
		if strings.HasPrefix(c.Name, "linear with silu") || strings.HasPrefix(c.Name, "gradient of silu and linear") ||
			strings.HasPrefix(c.Name, "linears with neighbours") ||
			strings.Contains(c.Name, "rms norm") && strings.Contains(c.Name, "[2 17000]") {
			continue
		}
		if elements < 150_000 {
			list = append(list, opCase{c})
		}
	}
	return list
}

// graph builds the op and its gradients for a normal dy. The results are all outputs of the op and all gradients that
// it has.
func (c opCase) graph(t testing.TB, dt tensor.Dtype) (*G.ExprGraph, G.Nodes) {
	t.Helper()
	g := G.NewGraph()
	var in G.Nodes
	for _, a := range c.Inputs {
		in = append(in, a.Node(g, dt))
	}
	y := testutil.Must(c.Build(in))(t)
	results := G.Nodes{y}
	if c.Gradients == nil {
		for i := 1; i < len(spec.OutputsOf(y.Op())); i++ {
			results = append(results, G.Must(spec.Output(y, i)))
		}
		return g, results
	}
	dy := opcases.Normal("dy", 99, y.Shape()...).Node(g, dt)
	for _, d := range testutil.Must(y.Op().(G.SDOp).SymDiff(value.Inputs(g, y), y, dy))(t) {
		if d != nil {
			results = append(results, d)
		}
	}
	return g, results
}

// TestMain: no test leaves a goroutine behind.
func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }
