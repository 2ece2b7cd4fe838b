package graph_test

import (
	"errors"
	"hash"
	"hash/fnv"
	"slices"
	"strings"
	"testing"

	"github.com/chewxy/hm"
	"github.com/stretchr/testify/require"
	G "gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/graph"
	"github.com/gorgonia-nsa/nsa/graph/fakedevice"
	"github.com/gorgonia-nsa/nsa/internal/testutil"
	"github.com/gorgonia-nsa/nsa/ops/spec"
)

// TestMachineMatchesTapeMachine: the bits are the same on several machines of one graph, in turns, with any number of
// workers, from a recording, with freed memory poisoned, and after UnbindAll, which recycles the values.
func TestMachineMatchesTapeMachine(t *testing.T) {
	n := newNetwork(t).grad(t)
	tape, poisoned := G.NewTapeMachine(n.graph), newMachine(t, n.graph)
	defer tape.Close()
	poisoned.PoisonFreed()
	machines := []*graph.Machine{poisoned, newMachine(t, n.graph), newMachine(t, n.graph, graph.WithCapture(),
		graph.WithBackend(fakedevice.New()))}
	for seed := range uint64(6) {
		if seed == 3 {
			n.graph.UnbindAll()
		}
		n.let(t, 1+seed/2)
		want := n.results(t, tape)
		for i, m := range append(machines, newMachine(t, n.graph, graph.WithBackend(graph.NewCPU(1)))) {
			require.Equal(t, want, n.results(t, m), "machine %d", i)
		}
	}
}

// TestMachineUnbindsStaleValues: a node that an earlier machine has kept loses its value in the run of a machine that
// does not keep it.
func TestMachineUnbindsStaleValues(t *testing.T) {
	g := G.NewGraph()
	x := vector(g, "x", 1, 2)
	inner := G.Must(spec.Apply(scaledSum{-1}, x))
	outer := G.Must(spec.Apply(scaledSum{2}, inner))
	keeps, other := newMachine(t, g, graph.WithKeep(inner)), newMachine(t, g)
	for i := range 3 {
		v := float64(i)
		let(t, x, v, v)
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
	n := newNetwork(t).grad(t)
	G.Read(n.cost, new(G.Value))
	for what, g := range map[string]*G.ExprGraph{"network": n.graph, "fusions": newBlock(t).graph} {
		m := newMachine(t, g, graph.WithBackend(graph.NewCPU(2)))
		for range 3 {
			require.NoError(t, m.RunAll())
		}
		x := g.Inputs()[0].Value().(*tensor.Dense)
		require.Zero(t, testing.AllocsPerRun(20, func() {
			x.Float64s()[0]++
			if err := m.RunAll(); err != nil {
				t.Fatal(err)
			}
		}), what)
	}
}

// TestResultFedBackAsInput feeds a result, which lies in the machine's memory, back as an input.
func TestResultFedBackAsInput(t *testing.T) {
	for _, stock := range []bool{false, true} {
		state := vector(G.NewGraph(), "state", 1, 2, 3, 4)
		next := state
		for i := range 6 {
			next = G.Must(spec.Apply(scaledSum{1 + float64(i)}, next, state))
		}
		if stock {
			next = G.Must(G.Add(next, state))
		}
		last := G.Must(spec.Apply(scaledSum{1}, next))
		m := newMachine(t, state.Graph())
		m.PoisonFreed()
		factor := 0.0
		for run := range 4 {
			before := numbers(t, state.Value())
			require.NoError(t, m.RunAll())
			if run == 0 {
				factor = numbers(t, last.Value())[0]
			}
			for i, x := range numbers(t, last.Value()) {
				require.Equal(t, before[i]*factor, x)
			}
			require.NoError(t, G.Let(state, last.Value()))
		}
		require.EqualValues(t, 3, m.Counts()["upload"])
	}
}

// TestResultsFedBackInTurn feeds two results back as inputs. One of them would share memory with the copy of an earlier
// one.
func TestResultsFedBackInTurn(t *testing.T) {
	for _, opts := range backends() {
		g := G.NewGraph()
		a, b := ranged(g, "a", 1, 1, 2), ranged(g, "b", 10, 2, 1)
		nextA := G.Must(G.Reshape(b, tensor.Shape{1, 2}))
		nextB := G.Must(spec.Apply(scaledSum{1}, G.Must(G.Reshape(G.Must(spec.Apply(scaledSum{2}, a)), tensor.Shape{2, 1}))))
		m := newMachine(t, g, opts...)
		for range 6 {
			x, y := numbers(t, a.Value()), numbers(t, b.Value())
			require.NoError(t, m.RunAll())
			require.Equal(t, y, numbers(t, nextA.Value()))
			require.Equal(t, []float64{2 * x[0], 2 * x[1]}, numbers(t, nextB.Value()))
			require.NoError(t, errors.Join(G.Let(a, nextA.Value()), G.Let(b, nextB.Value())))
		}
	}
}

// TestMachineErrors: a machine names the node of an error, and works again after it.
func TestMachineErrors(t *testing.T) {
	g := G.NewGraph()
	x := G.NewVector(g, tensor.Float64, G.WithShape(2), G.WithName("x of the test"))
	z := G.Must(spec.Apply(scaledSum{3}, G.Must(spec.Apply(refuses{}, x))))
	m := newMachine(t, g)
	require.ErrorContains(t, m.RunAll(), `"x of the test" (node 0, shape (2)): no value`)
	for range 3 { // works again after a run that failed
		let(t, x, 1, 2)
		require.NoError(t, m.RunAll())
		require.Equal(t, []float64{3, 6}, numbers(t, z.Value()))
		let(t, x, -1, 2)
		err := m.RunAll()
		require.ErrorIs(t, err, errNegative)
		require.ErrorContains(t, err, "node 1, shape (2): ops: refuses: ")
		let(t, x, 101, 2)
		err = m.RunAll()
		require.ErrorContains(t, err, "node 1, shape (2): ops: refuses: ")
		require.ErrorContains(t, err, "too large")
	}
	require.NoError(t, m.Close())
	require.NoError(t, m.Close(), "twice")
	require.ErrorContains(t, m.RunAll(), "closed")

	elsewhere := scalars(G.NewGraph(), 1)[0]
	require.ErrorContains(t, testutil.Err(graph.NewMachine(nil)), "nil graph")
	for want, option := range map[string]graph.Option{
		"nil option":                    nil,
		"backend is nil":                graph.WithBackend(nil),
		"a nil *fakedevice.Backend":     graph.WithBackend((*fakedevice.Backend)(nil)),
		`WithKeep: input "a"`:           graph.WithKeep(elsewhere),
		`WithConstantInputs: input "a"`: graph.WithConstantInputs(elsewhere),
		"WithConstantInputs: nil node":  graph.WithConstantInputs(nil),
		`unknown fusion ""`:             graph.WithPolicy(graph.Policy{Unfused: []string{""}}),
	} {
		require.ErrorContains(t, testutil.Err(graph.NewMachine(g, option)), want)
	}
	G.Must(spec.Apply(unbindable{}, x))
	require.ErrorContains(t, testutil.Err(graph.NewMachine(g)), "op unbindable (node 3, shape (2)): panic: at binding")

	for name, c := range map[string]struct { // ops of other modules
		value func() G.Value
		want  string
	}{
		"panics":     {func() G.Value { panic("at the disco") }, "panic: at the disco"},
		"nothing":    {func() G.Value { return nil }, "the op returned no"},
		"other size": {func() G.Value { return dense(1, 2, 3) }, "the op returned float64 (3)"},
		"other type": {func() G.Value { return tensor.New(tensor.WithBacking([]float32{1, 2})) },
			"the op returned float32 (2)"},
	} {
		op := &foreign{name, 1, func(...G.Value) (G.Value, error) { return c.value(), nil }}
		y := G.Must(G.Neg(testutil.Must(G.ApplyOp(op, vector(G.NewGraph(), "x", 1, 2)))(t)))
		require.ErrorContains(t, newMachine(t, y.Graph()).RunAll(), "op "+name+" (node 1, shape (2)): "+c.want)
	}

	matrix := ranged(G.NewGraph(), "x", 0, 2, 3) // values that gorgonia.Let does not check
	scalar := G.NewScalar(matrix.Graph(), tensor.Float64, G.WithName("s"), G.WithValue(2.0))
	G.Must(G.HadamardProd(matrix, scalar))
	m, good := run(t, matrix.Graph()), matrix.Value()
	require.NoError(t, G.Let(matrix, 3.0))
	require.ErrorContains(t, m.RunAll(), `input "x" (node 0, shape (2, 3)): got float64 ()`)
	require.NoError(t, errors.Join(G.Let(matrix, good), G.Let(scalar, float32(2))))
	require.ErrorContains(t, m.RunAll(), `input "s" (node 1, shape ()): got float32 ()`)
	require.NoError(t, G.Let(scalar, 2.0))
	require.NoError(t, m.RunAll())
}

// foreign is an op from outside of this module and of Gorgonia, on tensors or scalars of one type and shape.
type foreign struct {
	name  string
	arity int
	do    func(...G.Value) (G.Value, error)
}

func (o *foreign) Arity() int { return o.arity }
func (o *foreign) Type() hm.Type {
	return hm.NewFnType(slices.Repeat([]hm.Type{hm.TypeVariable('a')}, o.arity+1)...)
}
func (o *foreign) ReturnsPtr() bool                                 { return false }
func (o *foreign) CallsExtern() bool                                { return false }
func (o *foreign) OverwritesInput() int                             { return -1 }
func (o *foreign) String() string                                   { return o.name }
func (o *foreign) WriteHash(h hash.Hash)                            { h.Write([]byte(o.name)) }
func (o *foreign) Hashcode() uint32                                 { h := fnv.New32a(); o.WriteHash(h); return h.Sum32() }
func (o *foreign) Do(v ...G.Value) (G.Value, error)                 { return o.do(v...) }
func (o *foreign) InferShape(s ...G.DimSizer) (tensor.Shape, error) { return s[0].(tensor.Shape), nil }

func TestGorgoniaReads(t *testing.T) {
	x := vector(G.NewGraph(), "x", 0, 0)
	g := x.Graph()
	var input, kernel, host G.Value
	y := G.Must(spec.Apply(scaledSum{2}, x))
	h := G.Must(G.Neg(y))
	G.Read(x, &input)
	G.Read(y, &kernel)
	G.Read(h, &host)
	G.Set(x, h)
	m := newMachine(t, g)
	for i := range 3 {
		v := float64(i + 1)
		let(t, x, v, 0)
		require.NoError(t, m.RunAll())
		for read, want := range map[G.Value]float64{input: v, kernel: 2 * v, host: -2 * v, y.Value(): 2 * v} {
			require.Equal(t, want, numbers(t, read)[0])
		}
		require.Equal(t, []float64{v, 0}, numbers(t, x.Value()), "gorgonia.Set changes nothing, as in a TapeMachine")
	}
	other := G.NewF64(7)
	kernel = other
	require.NoError(t, m.RunAll())
	require.Equal(t, G.F64(7), *other, "a value that the machine did not make is not written to")
	require.Equal(t, []float64{6, 0}, numbers(t, kernel))

	all := newMachine(t, g, graph.WithKeep(g.AllNodes()...)) // statements among them
	let(t, x, 5.0, 0)
	require.NoError(t, all.RunAll())
	require.Equal(t, []float64{10, 0}, numbers(t, y.Value()))
	require.Equal(t, []float64{-10, 0}, numbers(t, h.Value()))
	for _, n := range []*G.Node{y, h} { // of a kernel and of an op on the host
		require.IsType(t, G.StandardEngine{}, n.Value().(*tensor.Dense).Engine(), "as the results of a TapeMachine have")
	}
	G.NewUniqueNode(G.WithOp(h.Op()), G.WithChildren(G.Nodes{x}), G.WithName("other"), G.In(g)) // the node has no type
	require.ErrorContains(t, testutil.Err(graph.NewMachine(g)), "unknown statement of type")
}

// TestRandomOpDrawsInEachRun: an op without inputs gives other numbers in each run, in Gorgonia's TestGt and here.
func TestRandomOpDrawsInEachRun(t *testing.T) {
	g := G.NewGraph()
	x := G.UniformRandomNode(g, tensor.Float64, 0, 1, 20)
	y := G.Must(G.Gt(G.Must(G.HadamardProd(x, G.NewConstant(2.0))), x, true))
	m := run(t, g, graph.WithKeep(x))
	first := numbers(t, x.Value())
	require.NoError(t, m.RunAll())
	require.NotEqual(t, first, numbers(t, x.Value()))
	require.NotContains(t, numbers(t, y.Value()), 0.0)
}

func TestPlan(t *testing.T) {
	n := newNetwork(t).grad(t)
	m := run(t, n.graph)
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
	for _, want := range []string{"sliding window", "squares gradient", "float64 (2, 21, 4, 5)", "kept", "arena",
		"workspace"} {
		require.Contains(t, text, want)
	}
	require.Equal(t, len(p.Steps), strings.Count(text, " cpu "), text)
}

// TestReadOfSparse: the target of a Read of a sparse input gets a copy of it.
func TestReadOfSparse(t *testing.T) {
	g := G.NewGraph()
	x := G.NewMatrix(g, tensor.Float64, G.WithShape(2, 2), G.WithName("x"))
	var got G.Value
	G.Read(x, &got)
	v := tensor.CSCFromCoord(tensor.Shape{2, 2}, []int{0, 1}, []int{0, 1}, []float64{1, 2})
	require.NoError(t, G.Let(x, v))
	require.NoError(t, newMachine(t, g).RunAll())
	require.NotSame(t, v, got)
	require.Equal(t, []float64{1, 0, 0, 2}, got.(*tensor.CS).Dense().Data())
}

// TestReadWithoutTarget: the error names the node.
func TestReadWithoutTarget(t *testing.T) {
	for name, opts := range backends() {
		g := G.NewGraph()
		x := vector(g, "x", 1, 2)
		G.Read(G.Must(G.Tanh(x)), nil)
		require.ErrorContains(t, newMachine(t, g, opts...).RunAll(), "op tanh (node 1, shape (2)): the target is nil", name)
	}
}
