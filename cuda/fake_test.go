package cuda_test

import (
	"errors"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	G "gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/cuda"
	"github.com/gorgonia-nsa/nsa/cuda/internal/driver"
	"github.com/gorgonia-nsa/nsa/cuda/internal/fakedriver"
	"github.com/gorgonia-nsa/nsa/graph"
	"github.com/gorgonia-nsa/nsa/ops"
)

// newFake returns a driver whose kernels compute nothing.
func newFake() *fakedriver.Driver {
	f := fakedriver.New()
	f.HideParams, f.AnyKernel = true, true
	return f
}

// open returns a backend on a fake driver, which is closed without leaks at the end.
func open(t testing.TB) (*cuda.Backend, *fakedriver.Driver) {
	f := newFake()
	b, err := cuda.Open(0, driver.WithDriver(f))
	require.NoError(t, err)
	t.Cleanup(func() {
		require.NoError(t, b.Close())
		require.Empty(t, f.Leaks())
	})
	return b, f
}

func machine(t testing.TB, g *G.ExprGraph, b graph.Backend, opts ...graph.Option) *graph.Machine {
	m, err := graph.NewMachine(g, append(opts, graph.WithBackend(b))...)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, m.Close()) })
	return m
}

// TestEveryOpHasKernels runs every op of package ops in machines, and none on the host.
func TestEveryOpHasKernels(t *testing.T) {
	seen := map[reflect.Type]bool{}
	for _, c := range opCases() {
		t.Run(c.name, func(t *testing.T) {
			b, f := open(t)
			g, results := c.graph(t, tensor.Float32)
			m := machine(t, g, b, graph.WithKeep(results...))
			require.NoError(t, m.RunAll())
			require.NoError(t, m.Synchronize())
			for _, s := range m.Plan().Steps {
				require.Equal(t, "cuda", s.Implementation, s.Op)
				for _, r := range s.Refused {
					require.Equal(t, graph.Refusal{Name: "cublaslt", Why: &graph.Unsupported{Reason: graph.ReasonMissing, Detail: "the library is not there"}}, r)
				}
				spec, ok := ops.SpecOf(s.Node.Op())
				require.True(t, ok)
				seen[reflect.TypeOf(spec)] = true
			}
			require.NotZero(t, f.Launches(""))
		})
	}
	for _, s := range []ops.Spec{
		ops.SlidingWindowOp{}, ops.SlidingWindowGradOp{}, ops.CompressedAttentionOp{},
		ops.CompressedAttentionGradOp{}, ops.SelectedAttentionOp{}, ops.SelectedAttentionGradOp{}, ops.SelectBlocksOp{}, ops.CompressMeanOp{},
		ops.CompressMeanGradOp{}, ops.CompressMLPOp{}, ops.CompressMLPGradOp{}, ops.LinearOp{}, ops.LinearInputGradOp{}, ops.LinearWeightGradOp{},
		ops.LinearBiasGradOp{}, ops.SiLUOp{}, ops.SiLUGradOp{}, ops.SigmoidOp{}, ops.SigmoidGradOp{}, ops.SoftmaxOp{}, ops.SoftmaxGradOp{},
		ops.AddOp{}, ops.AddGradOp{}, ops.RoPEOp{}, ops.RMSNormOp{}, ops.RMSNormGradOp{}, ops.EmbeddingOp{}, ops.EmbeddingGradOp{},
		ops.CrossEntropyOp{}, ops.CrossEntropyGradOp{}, ops.GatedSumOp{}, ops.GatedSumGradOp{},
		ops.LinearsOp{}, ops.LinearsGradOp{}, ops.LinearAddOp{}, ops.RMSNormGradAddOp{},
	} {
		require.True(t, seen[reflect.TypeOf(s)], "%s is not among the cases", s.Name())
	}
}

// TestHalfPrecisionHasKernels binds and launches every op with the operands where Storage wants them.
func TestHalfPrecisionHasKernels(t *testing.T) {
	for _, p := range []graph.Precision{graph.BF16, graph.FP16} {
		for _, c := range opCases() {
			b, _ := open(t)
			g, results := c.graph(t, tensor.Float32)
			m := machine(t, g, b, graph.WithKeep(results...), graph.WithPrecision(p))
			require.NoError(t, m.RunAll())
			require.NoError(t, m.Synchronize())
			require.Zero(t, m.Counts()["host"], "%s: %v", c.name, m.Plan())
			for _, s := range m.Plan().Steps {
				for _, o := range append(slices.Clone(s.Inputs), outputs(s)...) {
					require.True(t, o.Dtype != tensor.Float32 || mayBeSingle(s), "%s: %v of %v", c.name, o, s.Op)
				}
			}
		}
	}
}

func outputs(s graph.PlanStep) (list []ops.Operand) {
	for _, o := range s.Outputs {
		list = append(list, o.Operand)
	}
	return list
}

// mayBeSingle reports whether an op has operands that are float32 beside half precision: sums, and gradients of weights.
func mayBeSingle(s graph.PlanStep) bool {
	switch s.Spec.(type) {
	case ops.SiLUOp, ops.SiLUGradOp, ops.SigmoidOp, ops.SigmoidGradOp, ops.SoftmaxOp, ops.SoftmaxGradOp, ops.RoPEOp, ops.RMSNormOp,
		ops.LinearOp, ops.LinearsOp, ops.LinearAddOp, ops.LinearInputGradOp, ops.CompressMeanOp, ops.CompressMeanGradOp, ops.CompressMLPOp, ops.EmbeddingOp,
		ops.GatedSumOp, ops.GatedSumGradOp:
		return false
	}
	return true
}

// TestFloat64RunsOnTheHost says why.
func TestFloat64RunsOnTheHost(t *testing.T) {
	for _, c := range opCases() {
		b, _ := open(t)
		g, results := c.graph(t, tensor.Float64)
		m := machine(t, g, b, graph.WithKeep(results...))
		require.NoError(t, m.RunAll())
		for _, s := range m.Plan().Steps {
			require.Equal(t, "host", s.Implementation)
			if _, ok := ops.SpecOf(s.Node.Op()); !ok {
				continue // hands out a further output
			}
			require.Equal(t, graph.ReasonType, s.Refused[0].Why.Reason, "%s: %v", s.Op, s.Refused)
		}
	}
}

// TestRunsAllocateNothing covers all ops, eager and captured.
func TestRunsAllocateNothing(t *testing.T) {
	for _, c := range opCases() {
		for _, opts := range [][]graph.Option{nil, {graph.WithCapture()}} {
			b, _ := open(t)
			g, results := c.graph(t, tensor.Float32)
			m := machine(t, g, b, append(opts, graph.WithKeep(results...))...)
			run := func() {
				if err := m.RunAll(); err != nil {
					t.Fatal(err)
				}
				if err := m.Synchronize(); err != nil {
					t.Fatal(err)
				}
			}
			for range 3 {
				run()
			}
			require.Zero(t, testing.AllocsPerRun(10, run), "%s, %d options", c.name, len(opts))
		}
	}
}

// network is a graph of several ops with gradients, and its results.
func network(t testing.TB) (*G.ExprGraph, G.Nodes) {
	t.Helper()
	g := G.NewGraph()
	x, w := floats("x", 2, 7, 12).node(g, tensor.Float32, 1), floats("w", 12, 12).node(g, tensor.Float32, 2)
	scale := floats("scale", 12).node(g, tensor.Float32, 3)
	targets := input{name: "targets", shape: []int{2, 7}, ints: make([]int32, 14)}.node(g, tensor.Int32, 0)
	y := G.Must(ops.SiLU(G.Must(ops.Linear(G.Must(ops.RMSNorm(x, scale, 1e-5)), w))))
	loss := G.Must(ops.CrossEntropy(y, targets))
	_, err := graph.Grad(loss, w, scale)
	require.NoError(t, err)
	return g, G.Nodes{loss, w.Deriv(), scale.Deriv()}
}

// program opens a backend and uses everything that it has, in a machine and beside it. It gives back what it has got.
func program(t testing.TB, drv driver.Driver) (m *graph.Machine, err error) {
	b, err := cuda.Open(0, driver.WithDriver(drv))
	if err != nil {
		return nil, err
	}
	undo := []func() error{func() error {
		err := b.Close()
		if err != nil {
			require.NoError(t, b.Close(), "goes on where it failed")
		}
		return err
	}}
	defer func() {
		for _, f := range slices.Backward(undo) {
			err = errors.Join(err, f())
		}
	}()
	g, results := network(t)
	if m, err = graph.NewMachine(g, graph.WithBackend(b), graph.WithCapture(), graph.WithKeep(results...)); err != nil {
		return m, err
	}
	undo = append(undo, m.Close)
	for range 3 {
		if err := m.RunAll(); err != nil {
			return m, err
		}
	}
	if err := m.Synchronize(); err != nil {
		return m, err
	}
	if err, ok := results[0].Value().Data().(error); ok {
		return m, err
	}
	gs, err := b.NewStream()
	if err != nil {
		return m, err
	}
	undo = append(undo, gs.Close)
	s := gs.(*cuda.Stream)
	from := results[0].Value().(*cuda.Value)
	o := ops.Operand{Dtype: from.Dtype(), Shape: from.Shape()}
	memory, err := b.Alloc(o.Bytes())
	if err != nil {
		return m, err
	}
	undo = append(undo, memory.Free)
	arg := newArg(o)
	memory.Place(arg.Buf, 0, o.Bytes())
	if err := s.Upload(arg, from); err != nil {
		return m, err
	}
	back, err := s.NewReadback(o)
	if err != nil {
		return m, err
	}
	undo = append(undo, back.Close)
	first, err := s.NewEvent()
	if err != nil {
		return m, err
	}
	undo = append(undo, first.Close)
	last, err := s.NewEvent()
	if err != nil {
		return m, err
	}
	undo = append(undo, last.Close)
	for _, step := range []func() error{
		first.Record,
		func() error { return back.Fetch(arg) },
		last.Record,
		func() error { _, err := back.Value(); return err },
		func() error { _, err := last.Since(first); return err },
		s.Synchronize,
	} {
		if err := step(); err != nil {
			return m, err
		}
	}
	return m, nil
}

// TestEveryCallFailsOnce makes each call of the driver fail in turn: the error names it, and nothing leaks.
func TestEveryCallFailsOnce(t *testing.T) {
	drv := newFake()
	drv.Record()
	_, err := program(t, drv)
	require.NoError(t, err)
	require.Empty(t, drv.Leaks())
	for _, f := range drv.Failures() {
		if strings.HasPrefix(f.Method, "FuncGet") && f.N > 8 || f.Method == "CtxSetCurrent" && f.N > 40 && f.N%16 != 0 {
			continue // more of the same
		}
		t.Run(f.String(), func(t *testing.T) {
			drv := newFake()
			drv.Fail(f.Method, f.N, f.Result)
			_, err := program(t, drv)
			require.Error(t, err)
			var none *driver.NoMemory
			if !errors.As(err, &none) {
				require.ErrorContains(t, err, "cu"+f.Method)
			}
			var fault *driver.Fault
			if got := errors.As(err, &fault); f.Result != driver.IllegalAddress {
				require.False(t, got, "%v", err)
			}
			require.Empty(t, drv.Leaks(), "after %v", err)
		})
	}
}

// TestMachineGoesOn runs again after an error that has not hurt the device.
func TestMachineGoesOn(t *testing.T) {
	for _, method := range []string{"LaunchKernel", "MemcpyHtoDAsync", "StreamBeginCapture", "StreamEndCapture", "GraphInstantiate", "GraphLaunch"} {
		b, f := open(t)
		g, results := network(t)
		m := machine(t, g, b, graph.WithCapture(), graph.WithKeep(results...))
		require.NoError(t, m.RunAll())
		f.Fail(method, 1, driver.Unknown)
		require.ErrorContains(t, m.RunAll(), "cu"+method)
		for range 3 {
			require.NoError(t, m.RunAll(), method)
		}
		require.NoError(t, m.Synchronize())
	}
}

// TestFaultNamesTheOp puts a fault down to the op that alone can have caused it, and lists the suspects otherwise.
func TestFaultNamesTheOp(t *testing.T) {
	for _, blocking := range []bool{true, false} {
		f := newFake()
		opts := []cuda.Option{driver.WithDriver(f)}
		want := "graph: machine: cuda: an illegal memory access was encountered (CUDA_ERROR_700) in one of "
		if blocking {
			opts = append(opts, driver.WithBlockingLaunches())
			want = "ops: silu: cuda: silu (kernel nsa_silu_f32): an illegal memory access"
		}
		b, err := cuda.Open(0, opts...)
		require.NoError(t, err)
		g, results := network(t)
		m, err := graph.NewMachine(g, graph.WithBackend(b), graph.WithKeep(results...))
		require.NoError(t, err)
		require.NoError(t, m.RunAll())
		require.NoError(t, m.Synchronize())
		f.Kernel("nsa_silu_f32", fakedriver.Kernel{Run: func(l *fakedriver.Launch) { l.Fault(driver.IllegalAddress) }})
		err = m.RunAll()
		if err == nil {
			err = m.Synchronize()
		}
		require.ErrorContains(t, err, want)
		var launch *graph.LaunchError
		require.True(t, errors.As(err, &launch))
		require.Equal(t, blocking, launch.Kernel != nil)
		require.Error(t, m.RunAll())
		require.Error(t, m.Close())
		_ = b.Close()
		require.NoError(t, b.Close())
		require.Empty(t, f.Leaks())
	}
}
