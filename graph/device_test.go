package graph_test

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"testing"

	"github.com/stretchr/testify/require"
	G "gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/graph"
	"github.com/gorgonia-nsa/nsa/graph/fakedevice"
	"github.com/gorgonia-nsa/nsa/internal/cpu"
	"github.com/gorgonia-nsa/nsa/internal/memory"
	"github.com/gorgonia-nsa/nsa/internal/testutil"
	"github.com/gorgonia-nsa/nsa/ops"
	"github.com/gorgonia-nsa/nsa/ops/spec"
	"github.com/gorgonia-nsa/nsa/ops/spec/optimizer"
)

// TestDevice runs the same graph on the CPU and on a device with memory of its own.
func TestDevice(t *testing.T) {
	for _, opts := range [][]graph.Option{nil, {graph.WithCapture()}} {
		n := newNetwork(t).grad(t)
		f := fakedevice.New()
		onCPU, onFake := newMachine(t, n.graph), newMachine(t, n.graph, append(opts, graph.WithBackend(f))...)
		for seed := range uint64(5) {
			n.let(t, seed/2)
			want := n.results(t, onCPU)
			f.Downloads = 0
			require.Equal(t, want, n.results(t, onFake))
			require.Equal(t, 1+len(n.in), f.Downloads, "only for the values that the test looks at")
			require.Equal(t, 1+int(seed+1)*len(n.in), f.Uploads, "one of a constant, and one an input and run")
		}
		steps := int64(len(onFake.Plan().Steps))
		counts := onFake.Counts()
		require.Equal(t, 5*steps, counts["plain"])
		require.Zero(t, counts["host"])
		if opts == nil {
			require.EqualValues(t, 5*steps, f.Launches)
			require.Zero(t, f.Captures)
		} else {
			require.Equal(t, 1, f.Captures, "once, since uploaded inputs do not move")
			require.Equal(t, 4, f.Replays)
		}
		require.NoError(t, onFake.Close())
		require.Zero(t, f.MemoryInUse)
		require.Zero(t, f.Streams)
		require.Equal(t, 1, f.Open, "the machine does not close a backend that is not its own")
	}
}

// TestDeviceValues: inputs may be values on the device, such as results of another machine. If one moves, the machine
// records again.
func TestDeviceValues(t *testing.T) {
	for _, opts := range [][]graph.Option{nil, {graph.WithCapture()}} {
		f := fakedevice.New()
		opts = append(opts, graph.WithBackend(f))
		x := vector(G.NewGraph(), "x", 1, 2, 3)
		y := G.Must(spec.Apply(scaledSum{2}, x))
		z := G.Must(G.Neg(x)) // on the host
		require.NoError(t, run(t, x.Graph(), opts...).Synchronize())
		inA := y.Value()
		b := run(t, x.Graph(), opts...)
		inB := y.Value()
		f.Uploads, f.Downloads = 0, 0
		for i, v := range []G.Value{inA, inA, inA, inB} { // the last one lies in the memory of machine b
			require.NoError(t, G.Let(x, v))
			require.NoError(t, b.RunAll())
			scale := float64(1 + i/3)
			require.Equal(t, []float64{4 * scale, 8 * scale, 12 * scale}, numbers(t, inB))
			require.Equal(t, []float64{-2 * scale, -4 * scale, -6 * scale}, numbers(t, z.Value()))
			require.Equal(t, 2*(i+1), f.Downloads, "of x for the host, and the test's own")
			require.Zero(t, f.Uploads)
		}
	}
}

// TestDeviceWithHostOps mixes kernels of a device with ops that run on the host, and counts the copies.
func TestDeviceWithHostOps(t *testing.T) {
	x := vector(G.NewGraph(), "x", 0, 1, 2)
	a := G.Must(spec.Apply(scaledSum{2}, x))        // device
	b := G.Must(G.Neg(a))                           // host: downloads a
	c := G.Must(G.HadamardProd(a, b))               // host: a has been downloaded already
	d := G.Must(spec.Apply(scaledSum{1}, c, a))     // device: uploads c
	minus := G.Must(G.Neg(x))                       // host
	e := G.Must(spec.Apply(scaledSum{1}, d, minus)) // device: uploads -x
	var read G.Value
	G.Read(e, &read)
	f := fakedevice.New()
	m := newMachine(t, x.Graph(), graph.WithBackend(f))
	for _, st := range m.Plan().Steps {
		up := st.Implementation == "plain" || st.Node == c || st.Node == minus
		require.Equal(t, up, st.Outputs[0].Offset >= 0, "%s: what kernels read or write lies in the arena", st.Op)
	}
	for i := range 3 {
		v := float64(i)
		let(t, x, v, 1, 2)
		require.NoError(t, m.RunAll())
		require.Equal(t, -4*v*v+2*v-v, numbers(t, read)[0])
		require.Equal(t, []int{3 * (i + 1), 2 * (i + 1)}, []int{f.Uploads, f.Downloads})
	}
	require.Equal(t, map[string]int64{"plain": 9, "host": 9, "upload": 9, "download": 6}, m.Counts())
	require.Equal(t, numbers(t, read), numbers(t, e.Value()))
}

func TestRefusals(t *testing.T) {
	n := newNetwork(t).grad(t)
	plan := newMachine(t, n.graph, graph.WithBackend(fakedevice.New())).Plan()
	seen := map[string]graph.Refusal{}
	for _, s := range plan.Steps {
		require.Equal(t, "plain", s.Implementation)
		for _, r := range s.Refused {
			seen[s.Op] = r
		}
	}
	require.Len(t, seen, 2)
	require.Equal(t, graph.Refusal{Name: "narrow", Why: &graph.Unsupported{Reason: graph.ReasonShape,
		Detail: "key dim 6, want at most 4"}}, seen["sliding window"])
	require.Equal(t, graph.ReasonMissing, seen["squares"].Why.Reason)
	require.Contains(t, plan.String(), "narrow: unsupported shape: key dim 6, want at most 4")
}

// TestHostFallback: a strict policy refuses to run an op on the host, but not on a CPU.
func TestHostFallback(t *testing.T) {
	n := newNetwork(t).grad(t)
	want := n.results(t, newMachine(t, n.graph))
	for _, missing := range []string{"sliding window", "compressed attention gradient", "squares", "scaled sum"} {
		f := fakedevice.New()
		f.Missing = missing
		m := newMachine(t, n.graph, graph.WithBackend(f))
		for range 2 {
			require.Equal(t, want, n.results(t, m), missing)
		}
	}
	stock := G.Must(G.Neg(scalars(G.NewGraph(), 1)[0])).Graph()
	strict := graph.WithPolicy(graph.Policy{Strict: true})
	newMachine(t, stock, strict)
	require.ErrorContains(t, testutil.Err(graph.NewMachine(stock, strict, graph.WithBackend(fakedevice.New()))),
		"strict: fake")
	_, err := graph.NewMachine(n.graph, strict, graph.WithBackend(fakedevice.New()))
	require.ErrorContains(t, err, "strict")
	require.ErrorAs(t, err, new(*graph.Unsupported))
}

// TestLaunchErrors: see TestTrainingSurvivesEachFailure for the other errors of a backend.
func TestLaunchErrors(t *testing.T) {
	// A panic while a kernel is recorded ends the recording.
	n := newNetwork(t)
	f := fakedevice.New()
	captured := run(t, n.graph, graph.WithBackend(f), graph.WithCapture())
	f.Fault = "a fault"
	err := captured.RunAll()
	require.ErrorContains(t, err, "a fault")
	require.ErrorContains(t, err, "ops: compressed attention: ")
	f.Fault = ""
	require.NoError(t, captured.RunAll())
	got := numbers(t, n.cost.Value())
	require.NoError(t, newMachine(t, n.graph).RunAll())
	require.Equal(t, numbers(t, n.cost.Value()), got)

	// The error of enqueued work comes only when the device runs the work.
	x := vector(G.NewGraph(), "x", -1, 0)
	G.Must(spec.Apply(scaledSum{1}, G.Must(spec.Apply(refuses{}, x))))
	m := run(t, x.Graph(), graph.WithBackend(fakedevice.New()))
	err = m.Synchronize()
	require.ErrorIs(t, err, errNegative)
	require.ErrorContains(t, err, "graph: machine: node 1, shape (2): ops: refuses: ")
}

// TestTrainingOnDevice trains weights on the device by runs and steps. None of these waits for another one.
// TestRandomNetsTrainAlike compares the results with those of the CPU.
func TestTrainingOnDevice(t *testing.T) {
	f, n := fakedevice.New(), newNetwork(t)
	testutil.Must(graph.Grad(n.cost, n.in[1:3]...))(t)
	x := newTrainer(t, f, true, n.in[1:3], graph.WithCapture())
	f.Synchronized, f.Downloads = 0, 0
	for i := range 4 {
		n.let(t, uint64(i))
		require.NoError(t, errors.Join(G.Let(n.in[1], x.moved.Values()[0]), G.Let(n.in[2], x.moved.Values()[1])))
		x.step(t)
	}
	require.Equal(t, [2]int{}, [2]int{f.Synchronized, f.Downloads}, "nothing waits")
	x.close(t)
	require.ErrorContains(t, x.Step(), "closed")
	require.ErrorContains(t, testutil.Err(x.solver.Norm()), "closed")
	require.Equal(t, [2]int{}, [2]int{f.Streams, f.MemoryInUse})
}

// TestIntTokensOnDevice: the host converts tokens of type int, checks the converted tokens and uploads them. A device's
// kernels cannot report wrong tokens and targets, so the machine refuses them, names the op, and runs again after it.
func TestIntTokensOnDevice(t *testing.T) {
	tokens := tensor.New(tensor.WithShape(1, 3), tensor.WithBacking([]int{2, 0, 2}))
	ids := G.NodeFromAny(G.NewGraph(), tokens, G.WithName("ids"))
	w := single(ids.Graph(), "w", func(i int) float64 { return float64(i) }, 3, 2)
	x := testutil.Must(ops.Embedding(w, ids))(t)
	var y G.Value
	G.Read(x, &y)
	testutil.Must(G.Grad(G.Must(G.Sum(x)), w))(t)
	device := fakedevice.New()
	device.Missing = "int32" // as on a GPU
	m := run(t, w.Graph(), graph.WithBackend(device))
	require.Equal(t, []float64{4, 5, 0, 1, 4, 5}, numbers(t, y))
	require.Equal(t, []float64{1, 1, 0, 0, 2, 2}, gradient(t, w))
	tokens.Ints()[1] = 3
	require.ErrorContains(t, m.RunAll(), "id 3 at (0, 1)")

	n := newTiny(t)
	m = run(t, n.graph, graph.WithBackend(fakedevice.New()))
	targets := n.targets.Value().(*tensor.Dense).Int32s()
	targets[2] = 6
	require.Regexp(t, `graph: machine: node .*target 6 at \(0, 2\)`, m.RunAll().Error())
	targets[2] = 2
	require.NoError(t, m.RunAll())
}

// TestMoveInputsRefuses: on any backend a node that is no input, or has no value, is an error, and all nodes stay
// unchanged.
func TestMoveInputsRefuses(t *testing.T) {
	for _, b := range []graph.Backend{graph.NewCPU(1), fakedevice.New()} {
		x := vector(G.NewGraph(), "x", 1, 1, 1)
		empty := G.NewVector(G.NewGraph(), tensor.Float32, G.WithShape(3), G.WithName("empty"))
		y := G.Must(G.Neg(x))
		require.NoError(t, G.NewTapeMachine(x.Graph()).RunAll())
		require.NotNil(t, y.Value())
		value := x.Value()
		for node, message := range map[*G.Node]string{
			y: "op neg (node 1, shape (3)) is not", G.Must(G.Neg(empty)): "op neg (node 1, shape (3)) is not",
			empty: `input "empty" (node 0, shape (3)) has no`, nil: "nil node",
		} {
			require.ErrorContains(t, testutil.Err(graph.MoveInputs(b, x, node)), "graph: move inputs: "+message)
			require.Same(t, value, x.Value())
		}
	}
}

// TestMoveInputsKeepsNothingOfTheCaller: Close binds each host value to its own node, whatever the caller has done to
// the slices.
func TestMoveInputsKeepsNothingOfTheCaller(t *testing.T) {
	g := G.NewGraph()
	a, b := vector(g, "a", 1, 1, 1), vector(g, "b", 0, 0, 0)
	values, nodes := []G.Value{a.Value(), b.Value()}, []*G.Node{a, b}
	r := testutil.Must(graph.MoveInputs(fakedevice.New(), nodes...))(t)
	nodes[0], nodes[1] = b, a
	require.NoError(t, r.Close())
	require.Same(t, values[0], a.Value())
	require.Same(t, values[1], b.Value())
}

// TestRefusesOutsideOfAGraph: values that are not there, and what binds kernels outside of a graph without a backend.
func TestRefusesOutsideOfAGraph(t *testing.T) {
	g := G.NewGraph()
	x, s := G.NewVector(g, tensor.Float32, G.WithShape(3), G.WithName("x")), scalars(g, 1)[0]
	for _, c := range []struct {
		err  error
		want string
	}{
		{testutil.Err(graph.HostTensor(nil)), "nil node"},
		{testutil.Err(graph.HostTensor(x)), `"x" (node 0, shape (3)): no value`},
		{testutil.Err(graph.HostTensor(G.Must(G.Square(x)))), `op square (node 2, shape (3)): no value`},
		{testutil.Err(graph.HostTensor(s)), `"a" (node 1, shape ()): its value is a *gorgonia.F64`},
	} {
		require.ErrorContains(t, c.err, c.want)
	}
}

func TestResidentRefuses(t *testing.T) {
	b := fakedevice.New()
	v := tensor.New(tensor.WithBacking([]float32{1, 2}))
	r := testutil.Must(graph.NewResident(b, []G.Value{v}))(t)
	for _, c := range []struct {
		b      graph.Backend
		values []G.Value
		want   string
	}{
		{nil, []G.Value{v}, "nil backend"},
		{b, []G.Value{v, nil}, "value 1 is nil"},
		{b, []G.Value{v, (*tensor.Dense)(nil)}, "value 1 is nil"},
		{graph.NewCPU(1), []G.Value{v, (*G.F32)(nil)}, "value 1 is nil"},
		{b, []G.Value{v, tensor.New(tensor.Of(tensor.Float32), tensor.WithShape(0, 3))}, "value 1 has no elements"},
		{b, []G.Value{v, v}, "values 0 and 1 share"},
		{b, r.Values(), "value 0, float32 (2) on"},
	} {
		require.ErrorContains(t, testutil.Err(graph.NewResident(c.b, c.values)), "graph: resident values: "+c.want)
	}
	require.NoError(t, r.Close())
	require.ErrorContains(t, r.Download(), "closed")
	require.ErrorContains(t, r.Upload(), "closed")
	require.NoError(t, r.Close())
	require.Zero(t, b.MemoryInUse)
	require.Zero(t, b.Streams)
}

// TestCPURefusesUnknownLevel runs this test binary again with a SIMD level that does not exist: a program reads the
// level when it starts.
func TestCPURefusesUnknownLevel(t *testing.T) {
	if os.Getenv("NSA_CPU") == "abacus" {
		require.ErrorContains(t, testutil.Err(graph.NewMachine(G.NewGraph())), `NSA_CPU="abacus"`)
		return
	}
	c := exec.Command(os.Args[0], "-test.run", "^TestCPURefusesUnknownLevel$")
	c.Env = append(os.Environ(), "NSA_CPU=abacus")
	out, err := c.CombinedOutput()
	require.NoError(t, err, "%s", out)
}

// TestHostMemory: a request for more memory than the host has is an error that names the size. Go's runtime would end
// the process.
func TestHostMemory(t *testing.T) {
	total, of := memory.Total()
	host := int(total)
	require.Equal(t, total, graph.NewCPU(1).Device().Memory)
	if host == 0 {
		t.Skip("the host's memory is not known")
	}
	refused := func(elements int, f func(*G.Node) (*G.Node, error), b graph.Backend) string {
		x := G.NewVector(G.NewGraph(), tensor.Float32, G.WithShape(elements), G.WithName("x"))
		G.Must(f(x))
		return testutil.Err(graph.NewMachine(x.Graph(), graph.WithBackend(b))).Error()
	}
	asked := func(bytes int) string {
		return fmt.Sprintf("out of memory: asked for %s, %s has %s", memory.Size(int64(bytes)), of, memory.Size(int64(host)))
	}
	require.ErrorContains(t, testutil.Err(graph.NewCPU(1).Alloc(host+1)), asked(host+1))
	// each of two results fits, but not both
	twice := func(x *G.Node) (*G.Node, error) { return chain(x, ops.SiLU, ops.SiLU) }
	require.Regexp(t, "graph: machine: arena of (.|\n)*cpu: "+regexp.QuoteMeta(asked(2*((host/4*4+63)/64*64))),
		refused(host/4, twice, graph.NewCPU(1)))
	require.Contains(t, refused(1<<48, ops.SiLU, graph.NewCPU(1)), "silu (node 1, shape (281474976710656)): "+asked(1<<50))
	// Gorgonia's op runs on the host with any backend
	for _, b := range []graph.Backend{graph.NewCPU(1), fakedevice.New()} {
		require.Contains(t, refused(1<<48, G.Neg, b), "(node 1, shape (281474976710656)): "+asked(1<<50))
	}
}

// TestCPURefusesFP16: the guard refuses an operand in fp16, and a kernel that is bound all the same refuses
// it, too.
func TestCPURefusesFP16(t *testing.T) {
	in := []spec.Operand{{Dtype: tensor.Float32, Shape: tensor.Shape{2}}}
	out := []spec.Operand{{Dtype: ops.Float16, Shape: tensor.Shape{2}}}
	cast := spec.Cast{To: ops.Float16}
	call := graph.Call{Spec: cast, In: in, Out: out}
	err := graph.NewCPU(1).Offers(call)[0].Guard(call)
	require.ErrorContains(t, err, "unsupported device: float16 (2)")
	for _, spec := range []spec.Spec{cast, optimizer.AdamW{Decay: "1", Copies: ops.Float16}} {
		var k cpu.Kernel
		spec.Bind(&k, nil, nil)
		require.ErrorContains(t, cpu.RunAlone(&k), "half precision")
	}
}
