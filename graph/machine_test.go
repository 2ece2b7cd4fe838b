package graph_test

import (
	"hash"
	"hash/fnv"
	"strings"
	"testing"

	"github.com/chewxy/hm"
	"github.com/stretchr/testify/require"
	G "gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/graph"
	"github.com/gorgonia-nsa/nsa/ops"
)

// TestMachineMatchesTapeMachine: the same bits, on any number of workers, from a recording and with freed memory poisoned.
func TestMachineMatchesTapeMachine(t *testing.T) {
	n := newNetwork(t).grad(t)
	tape, eager, captured, poisoned := G.NewTapeMachine(n.graph), newMachine(t, n.graph), newMachine(t, n.graph, graph.WithCapture()), newMachine(t, n.graph)
	defer tape.Close()
	poisoned.PoisonFreed()
	for seed := range uint64(6) {
		n.let(t, 1+seed/2)
		want := n.results(t, tape)
		for i, m := range []*graph.Machine{eager, captured, poisoned, newMachine(t, n.graph, graph.WithBackend(graph.NewCPU(1)))} {
			require.Equal(t, want, n.results(t, m), "machine %d", i)
		}
	}
	require.Equal(t, eager.Counts(), captured.Counts())
}

func TestMachinesOfOneGraph(t *testing.T) {
	n := newNetwork(t).grad(t)
	a, b := newMachine(t, n.graph), newMachine(t, n.graph)
	want := n.results(t, a)
	require.Equal(t, want, n.results(t, b))
	n.let(t, 2)
	other := n.results(t, a)
	require.NotEqual(t, want, other)
	require.Equal(t, other, n.results(t, b))
	n.let(t, 1)
	require.Equal(t, want, n.results(t, a), "values of a after those of b were bound")
	n.graph.UnbindAll()
	n.let(t, 1)
	require.Equal(t, want, n.results(t, a), "after UnbindAll, which recycles the values")
}

// TestNoStaleValues: a node that an earlier machine has kept has no value after the run of one that does not keep it.
func TestNoStaleValues(t *testing.T) {
	g := G.NewGraph()
	x := G.NewVector(g, tensor.Float64, G.WithShape(2), G.WithName("x"), G.WithValue(tensor.New(tensor.WithBacking([]float64{1, 2}))))
	inner := G.Must(G.Neg(x))
	outer := G.Must(ops.Apply(scaledSum{2}, inner))
	keeps, other := newMachine(t, g, graph.WithKeep(inner)), newMachine(t, g)
	for i := range 3 {
		v := float64(i)
		require.NoError(t, G.Let(x, tensor.New(tensor.WithBacking([]float64{v, v}))))
		require.NoError(t, keeps.RunAll())
		kept := inner.Value()
		require.Equal(t, []float64{-v, -v}, numbers(t, kept))
		require.NoError(t, other.RunAll())
		require.Nil(t, inner.Value())
		require.Equal(t, []float64{-v, -v}, numbers(t, kept), "what was handed out")
		require.Equal(t, []float64{-2 * v, -2 * v}, numbers(t, outer.Value()))
	}
}

func TestMachineAllocatesNothing(t *testing.T) {
	for name, opts := range map[string][]graph.Option{"eager": nil, "captured": {graph.WithCapture()}} {
		n := newNetwork(t).grad(t)
		var kept G.Value
		G.Read(n.cost, &kept)
		m := newMachine(t, n.graph, append(opts, graph.WithBackend(graph.NewCPU(2)))...)
		for range 3 {
			require.NoError(t, m.RunAll())
		}
		x := n.in[0].Value().(*tensor.Dense)
		y := x.Clone().(*tensor.Dense)
		require.Zero(t, testing.AllocsPerRun(20, func() {
			if err := m.RunAll(); err != nil {
				t.Fatal(err)
			}
		}), name)
		if name == "eager" { // a capture allocates when an input has moved
			require.Zero(t, testing.AllocsPerRun(20, func() {
				x, y = y, x
				x.Float64s()[0]++
				if err := m.RunAll(); err != nil {
					t.Fatal(err)
				}
			}), name)
		}
	}
}

// TestResultAsInput feeds a result, which lies in the machine's memory, back as an input.
func TestResultAsInput(t *testing.T) {
	for _, stock := range []bool{false, true} {
		g := G.NewGraph()
		state := G.NewVector(g, tensor.Float64, G.WithShape(4), G.WithName("state"))
		next := state
		for i := range 6 {
			next = G.Must(ops.Apply(scaledSum{1 + float64(i)}, next, state))
		}
		if stock {
			next = G.Must(G.Add(next, state))
		}
		last := G.Must(ops.Apply(scaledSum{1}, next))
		require.NoError(t, G.Let(state, tensor.New(tensor.WithBacking([]float64{1, 2, 3, 4}))))
		m := newMachine(t, g)
		m.PoisonFreed()
		require.NoError(t, m.RunAll())
		first := numbers(t, last.Value())
		factor := first[0]
		for range 3 {
			require.NoError(t, G.Let(state, last.Value()))
			require.NoError(t, m.RunAll())
			for i, x := range numbers(t, last.Value()) {
				require.Equal(t, first[i]*factor, x)
				first[i] = x
			}
		}
		require.EqualValues(t, 3, m.Counts()["upload"])
	}
}

func TestMachineErrors(t *testing.T) {
	g := G.NewGraph()
	x := G.NewVector(g, tensor.Float64, G.WithShape(2), G.WithName("x of the test"))
	y := G.Must(ops.Apply(refuses{}, x))
	z := G.Must(ops.Apply(scaledSum{3}, y))
	for _, opts := range [][]graph.Option{nil, {graph.WithCapture()}} {
		m := newMachine(t, g, opts...)
		let := func(a, b float64) {
			require.NoError(t, G.Let(x, tensor.New(tensor.WithBacking([]float64{a, b}))))
		}
		if x.Value() == nil {
			err := m.RunAll()
			require.ErrorContains(t, err, "x of the test")
			require.ErrorContains(t, err, "no value")
		}
		for range 3 {
			let(1, 2)
			require.NoError(t, m.RunAll())
			require.Equal(t, []float64{3, 6}, numbers(t, z.Value()))
			let(-1, 2)
			err := m.RunAll()
			require.ErrorIs(t, err, errNegative)
			require.ErrorContains(t, err, "node 1, shape (2): ops: refuses: ")
			let(101, 2)
			err = m.RunAll()
			require.ErrorContains(t, err, "node 1, shape (2): ops: refuses: ")
			require.ErrorContains(t, err, "too large")
		}
		require.NoError(t, m.Close())
		require.NoError(t, m.Close(), "twice")
		require.ErrorContains(t, m.RunAll(), "closed")
	}
	m := newMachine(t, g) // goes on after a run that failed
	for _, v := range []float64{1, -1, 2} {
		require.NoError(t, G.Let(x, tensor.New(tensor.WithBacking([]float64{v, 0}))))
		require.Equal(t, v < 0, m.RunAll() != nil)
	}
	require.Equal(t, []float64{6, 0}, numbers(t, z.Value()))
	_, err := graph.NewMachine(nil)
	require.Error(t, err)
	_, err = graph.NewMachine(g, nil)
	require.ErrorContains(t, err, "nil option")
	_, err = graph.NewMachine(g, graph.WithBackend(nil))
	require.ErrorContains(t, err, "graph: machine: the backend is nil")
	other := G.NewScalar(G.NewGraph(), tensor.Float64, G.WithName("elsewhere"))
	_, err = graph.NewMachine(g, graph.WithKeep(other))
	require.ErrorContains(t, err, "elsewhere")
}

// panics is an op of somebody else's that panics.
type panics struct{}

func (panics) Arity() int                                       { return 1 }
func (panics) Type() hm.Type                                    { return hm.NewFnType(hm.TypeVariable('a'), hm.TypeVariable('a')) }
func (panics) ReturnsPtr() bool                                 { return false }
func (panics) CallsExtern() bool                                { return false }
func (panics) OverwritesInput() int                             { return -1 }
func (panics) String() string                                   { return "panics" }
func (panics) WriteHash(h hash.Hash)                            { h.Write([]byte("panics")) }
func (panics) Hashcode() uint32                                 { h := fnv.New32a(); h.Write([]byte("panics")); return h.Sum32() }
func (panics) Do(...G.Value) (G.Value, error)                   { panic("at the disco") }
func (panics) InferShape(s ...G.DimSizer) (tensor.Shape, error) { return s[0].(tensor.Shape), nil }

func TestPanicOfAnOp(t *testing.T) {
	g := G.NewGraph()
	x := G.NewScalar(g, tensor.Float64, G.WithName("x"), G.WithValue(1.0))
	_, err := G.ApplyOp(panics{}, x)
	require.NoError(t, err)
	err = newMachine(t, g).RunAll()
	require.ErrorContains(t, err, "op panics")
	require.ErrorContains(t, err, "at the disco")
}

// returns is an op of somebody else's that returns a value of its own.
type returns struct {
	panics
	name  string
	value G.Value
}

func (o returns) String() string                 { return o.name }
func (o returns) WriteHash(h hash.Hash)          { h.Write([]byte(o.name)) }
func (o returns) Do(...G.Value) (G.Value, error) { return o.value, nil }
func (o returns) Hashcode() uint32 {
	h := fnv.New32a()
	o.WriteHash(h)
	return h.Sum32()
}

func TestWrongResultOfAnOp(t *testing.T) {
	two := tensor.New(tensor.WithBacking([]float64{1, 2}))
	for name, c := range map[string]struct {
		value G.Value
		want  string
	}{
		"nothing":    {nil, "the op returned no value"},
		"other size": {tensor.New(tensor.WithBacking([]float64{1, 2, 3})), "the op returned float64 (3), want float64 (2)"},
		"other type": {tensor.New(tensor.WithBacking([]float32{1, 2})), "the op returned float32 (2), want float64 (2)"},
	} {
		g := G.NewGraph()
		x := G.NewVector(g, tensor.Float64, G.WithShape(2), G.WithName("x"), G.WithValue(two))
		y, err := G.ApplyOp(returns{name: name, value: c.value}, x)
		require.NoError(t, err)
		G.Must(G.Neg(y))
		err = newMachine(t, g).RunAll()
		require.ErrorContains(t, err, "op "+name+" (node 1, shape (2)): "+c.want)
	}
}

func TestPanicWhilePlanning(t *testing.T) {
	g := G.NewGraph()
	x := G.NewVector(g, tensor.Float64, G.WithShape(2), G.WithName("x"))
	G.Must(ops.Apply(unbindable{}, x))
	_, err := graph.NewMachine(g)
	require.ErrorContains(t, err, "op unbindable (node 1, shape (2)): panic: at binding")
}

// TestWrongInputs binds values that gorgonia.Let does not check.
func TestWrongInputs(t *testing.T) {
	g := G.NewGraph()
	x := G.NewMatrix(g, tensor.Float64, G.WithShape(2, 3), G.WithName("x"))
	s := G.NewScalar(g, tensor.Float64, G.WithName("s"))
	G.Must(G.HadamardProd(x, s))
	m := newMachine(t, g)
	let := func(n *G.Node, v any) {
		require.NoError(t, G.Let(n, v))
	}
	let(x, 3.0)
	let(s, 2.0)
	require.ErrorContains(t, m.RunAll(), `input "x" (node 0, shape (2, 3)): got float64 (), want float64 (2, 3)`)
	let(x, tensor.New(tensor.Of(tensor.Float64), tensor.WithShape(2, 3)))
	let(s, float32(2))
	require.ErrorContains(t, m.RunAll(), `input "s" (node 1, shape ()): got float32 (), want float64 ()`)
	let(s, 2.0)
	require.NoError(t, m.RunAll())
}

// TestAfterDualValues: inputs whose gradients a TapeMachine has added up have the machine's gradient after its run, and
// not that sum.
func TestAfterDualValues(t *testing.T) {
	n := newNetwork(t).grad(t)
	n.let(t, 2)
	want := n.results(t, newMachine(t, n.graph))
	n.let(t, 1)
	tape := G.NewTapeMachine(n.graph, G.BindDualValues(n.in...))
	defer tape.Close()
	first := n.results(t, tape)
	m := newMachine(t, n.graph)
	require.Equal(t, first, n.results(t, m))
	n.let(t, 2)
	for range 2 {
		require.Equal(t, want, n.results(t, m))
	}
}

func TestReads(t *testing.T) {
	g := G.NewGraph()
	x := G.NewVector(g, tensor.Float64, G.WithShape(2), G.WithName("x"))
	var input, kernel, host G.Value
	y := G.Must(ops.Apply(scaledSum{2}, x))
	G.Read(x, &input)
	G.Read(y, &kernel)
	h := G.Must(G.Neg(y))
	G.Read(h, &host)
	G.Set(x, h)
	m := newMachine(t, g)
	for i := range 3 {
		v := float64(i + 1)
		require.NoError(t, G.Let(x, tensor.New(tensor.WithBacking([]float64{v, 0}))))
		require.NoError(t, m.RunAll())
		require.Equal(t, []float64{v, 0}, numbers(t, input))
		require.Equal(t, []float64{2 * v, 0}, numbers(t, kernel))
		require.Equal(t, -2*v, numbers(t, host)[0])
		require.Equal(t, []float64{2 * v, 0}, numbers(t, y.Value()))
		require.Equal(t, []float64{v, 0}, numbers(t, x.Value()), "gorgonia.Set changes nothing, as in a TapeMachine")
	}
	other := G.NewF64(7)
	kernel = other
	require.NoError(t, m.RunAll())
	require.Equal(t, G.F64(7), *other, "a value that the machine did not make is not written to")
	require.Equal(t, []float64{6, 0}, numbers(t, kernel))
	G.NewUniqueNode(G.WithOp(h.Op()), G.WithChildren(G.Nodes{x}), G.WithName("other"), G.In(g)) // has no type
	_, err := graph.NewMachine(g)
	require.ErrorContains(t, err, "is not known")
}

func TestEvalMode(t *testing.T) {
	g := G.NewGraph()
	x := G.NewVector(g, tensor.Float64, G.WithShape(200), G.WithName("x"), G.WithValue(tensor.Ones(tensor.Float64, 200)))
	y := G.Must(G.Dropout(x, 0.5))
	train, eval := newMachine(t, g), newMachine(t, g, graph.WithEvalMode())
	zeros := func(m *graph.Machine) (n int) {
		require.NoError(t, m.RunAll())
		for _, v := range numbers(t, y.Value()) {
			if v == 0 {
				n++
			}
		}
		return n
	}
	for range 2 {
		require.NotZero(t, zeros(train))
		require.Zero(t, zeros(eval))
	}
}

// TestRandomNode: an op without inputs gives other numbers in each run, in Gorgonia's TestGt and here.
func TestRandomNode(t *testing.T) {
	g := G.NewGraph()
	x := G.UniformRandomNode(g, tensor.Float64, 0, 1, 20)
	y := G.Must(G.Gt(G.Must(G.HadamardProd(x, G.NewConstant(2.0))), x, true))
	m := newMachine(t, g, graph.WithKeep(x))
	require.NoError(t, m.RunAll())
	first := numbers(t, x.Value())
	require.NoError(t, m.RunAll())
	require.NotEqual(t, first, numbers(t, x.Value()))
	require.NotContains(t, numbers(t, y.Value()), 0.0)
}

func TestPlan(t *testing.T) {
	n := newNetwork(t).grad(t)
	m := newMachine(t, n.graph)
	require.NoError(t, m.RunAll())
	p := m.Plan()
	require.EqualValues(t, map[string]int64{"cpu": int64(len(p.Steps)), "upload": 0, "download": 0}, m.Counts())
	require.Zero(t, p.Host)
	require.Positive(t, p.Workspace)
	require.Less(t, p.Arena, p.Results, "memory is used again")
	require.GreaterOrEqual(t, p.Arena, p.ArenaMin)
	for _, s := range p.Steps {
		require.Equal(t, "cpu", s.Implementation)
		for _, o := range s.Outputs {
			require.Zero(t, o.Offset%64)
			require.LessOrEqual(t, o.Offset+o.Operand.Bytes(), p.Arena)
		}
	}
	text := p.String()
	for _, want := range []string{"sliding window", "squares gradient", "float64 (2, 21, 4, 5)", "kept", "arena", "workspace"} {
		require.Contains(t, text, want)
	}
	require.Equal(t, len(p.Steps), strings.Count(text, " cpu "), text)
}

// BenchmarkMachineStep measures what a node costs beside its work.
func BenchmarkMachineStep(b *testing.B) {
	const nodes = 1000
	g := G.NewGraph()
	x := G.NewVector(g, tensor.Float64, G.WithShape(1), G.WithName("x"), G.WithValue(tensor.New(tensor.WithShape(1), tensor.WithBacking([]float64{1}))))
	y := x
	for range nodes {
		var err error
		if y, err = ops.Apply(scaledSum{1}, y); err != nil {
			b.Fatal(err)
		}
	}
	m, err := graph.NewMachine(g, graph.WithBackend(graph.NewCPU(1)))
	require.NoError(b, err)
	b.ReportAllocs()
	for b.Loop() {
		if err := m.RunAll(); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/nodes, "ns/node")
}
