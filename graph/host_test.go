package graph_test

import (
	"errors"
	"fmt"
	"io"
	"log"
	"math"
	"os"
	"reflect"
	"slices"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	G "gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/graph"
	"github.com/gorgonia-nsa/nsa/internal/testutil"
	"github.com/gorgonia-nsa/nsa/ops/spec"
)

// TestOpsThatReturnAnOperand: what reads the result of an op writes neither to the operand that the op has returned,
// nor to an input of the graph. The memory of the operand is used again after the last reader of both.
func TestOpsThatReturnAnOperand(t *testing.T) {
	dropout := func(p float64) build { return one(func(x *G.Node) (*G.Node, error) { return G.Dropout(x, p) }) }
	returns := func(i int) build {
		return one(func(x *G.Node) (*G.Node, error) {
			operands := []*G.Node{G.Must(G.Neg(x)), G.Must(G.Neg(x))}
			operands[i] = x
			do := func(v ...G.Value) (G.Value, error) { return v[i], nil }
			return G.ApplyOp(&foreign{fmt.Sprint("returns ", i), 2, do}, operands...)
		})
	}
	view := func(v ...G.Value) (G.Value, error) { return v[0].(*tensor.Dense).ShallowClone(), nil }
	exp := func(x *G.Node) *G.Node { return G.Must(G.Exp(x)) }
	product := func(a, b *G.Node) *G.Node { return G.Must(G.HadamardProd(a, b)) }
	for name, op := range map[string]build{
		"concat":                one(func(x *G.Node) (*G.Node, error) { return G.Concat(0, x) }),
		"dropout in evaluation": dropout(0.5), "dropout of nothing": dropout(0), "first": returns(0), "second": returns(1),
		"reshape": one(func(x *G.Node) (*G.Node, error) { return G.Reshape(x, tensor.Shape{3}) }),
		"slice":   one(func(x *G.Node) (*G.Node, error) { return G.Slice(x, G.S(0, 3)) }),
		"view":    one(func(x *G.Node) (*G.Node, error) { return G.ApplyOp(&foreign{"view", 1, view}, x) }),
	} {
		for _, ofResult := range []bool{false, true} {
			for reader, c := range map[string]struct {
				build func(x, h, d *G.Node) *G.Node // d is the op on h
				want  func(x, h, sum float64) float64
			}{
				"overwrites": {func(_, h, d *G.Node) *G.Node { return product(exp(d), h) },
					func(_, h, _ float64) float64 { return math.Exp(h) * h }},
				"releases": {func(x, h, d *G.Node) *G.Node { return product(G.Must(G.Add(G.Must(G.Cube(x)), total(d))), h) },
					func(x, h, sum float64) float64 { return (x*x*x + sum) * h }},
				"is the last of both": {func(x, _, d *G.Node) *G.Node { return product(exp(d), exp(G.Must(G.Neg(x)))) },
					func(x, h, _ float64) float64 { return math.Exp(h) * math.Exp(-x) }},
			} {
				what := fmt.Sprintf("%s of a result %v, whose reader %s", name, ofResult, reader)
				values, of, want := []float64{1, 2, 3}, []float64{1, 2, 3}, make([]float64, 3)
				x := vector(G.NewGraph(), "x", values...)
				h := x
				if ofResult {
					h, of = G.Must(G.Tanh(x)), []float64{math.Tanh(1), math.Tanh(2), math.Tanh(3)}
				}
				for i, v := range of {
					want[i] = c.want(values[i], v, sum(of))
				}
				out := c.build(x, h, G.Must(op(G.Nodes{h})))
				m := newMachine(t, x.Graph(), graph.WithEvalMode())
				for range 3 {
					require.NoError(t, m.RunAll(), what)
					require.InDeltaSlice(t, want, numbers(t, out.Value()), 1e-12, what)
					require.Equal(t, values, numbers(t, x.Value()), what)
				}
			}
		}
	}
}

// TestScalarsOfTensors: a node without axes has a scalar of Gorgonia as its value, whatever its op returns, and so the
// next op takes it. Only a Tensordot shows a vector of one element, as with a TapeMachine.
func TestScalarsOfTensors(t *testing.T) {
	rank0 := func(v ...G.Value) (G.Value, error) { return tensor.New(tensor.FromScalar(v[0].Data())), nil }
	part := func(x *G.Node, from, to int) *G.Node { return G.Must(G.Slice(x, G.S(from, to))) }
	for name, c := range map[string]struct {
		build build
		want  float64
	}{
		"Tensordot":  {one(func(x *G.Node) (*G.Node, error) { return G.Tensordot([]int{0}, []int{0}, x, x) }), 20},
		"Reshape":    {one(func(x *G.Node) (*G.Node, error) { return G.Reshape(part(x, 1, 2), tensor.ScalarShape()) }), 4},
		"Slice":      {one(func(x *G.Node) (*G.Node, error) { return G.Slice(x, G.S(1)) }), 4},
		"Sum":        {along(G.Sum), 6},
		"Sum of one": {one(func(x *G.Node) (*G.Node, error) { return G.Sum(part(x, 0, 1)) }), 2},
		"Max":        {along(G.Max), 4},
		"another op's": {one(func(x *G.Node) (*G.Node, error) { return G.ApplyOp(&foreign{"rank 0", 1, rank0}, total(x)) }),
			6},
	} {
		for i, backing := range []any{[]float32{2, 4}, []float64{2, 4}, []int{2, 4}, []int32{2, 4}, []int64{2, 4}} {
			if name == "Tensordot" && i > 1 { // package tensor has it for floats alone
				continue
			}
			x := G.NodeFromAny(G.NewGraph(), tensor.New(tensor.WithBacking(backing)), G.WithName("x"))
			y := G.Must(c.build(G.Nodes{x}))
			twice := G.Must(G.Add(y, y))
			run(t, x.Graph())
			value := y.Value()
			if name == "Tensordot" {
				require.Equal(t, tensor.Shape{1}, value.Shape(), "%s of %T", name, backing)
				value = tensor.New(tensor.FromScalar(value.(*tensor.Dense).Get(0)))
			} else {
				require.Implements(t, (*G.Scalar)(nil), value, "%s of %T", name, backing)
			}
			require.EqualValues(t, c.want, value.Data(), "%s of %T", name, backing)
			require.EqualValues(t, 2*c.want, twice.Value().Data(), "%s of %T", name, backing)
		}
	}
}

// TestHostOpsReadAnyLayout: Gorgonia's ops get transposed, column-major, cut and equivalent values as what they are, in
// each run: sums and maxima along any axes of four, and other ops.
func TestHostOpsReadAnyLayout(t *testing.T) {
	type row struct {
		name         string
		plain, value *tensor.Dense
		build        func(*G.Node) *G.Node
	}
	of := func(backing any, shape ...int) *tensor.Dense {
		return tensor.New(tensor.WithShape(shape...), tensor.WithBacking(backing))
	}
	turned := func(d *tensor.Dense, axes ...int) *tensor.Dense {
		require.NoError(t, d.T(axes...))
		return d
	}
	column := func(x *G.Node) *G.Node {
		whole := G.Must(G.Reshape(x, tensor.Shape{1, 3, 1}))
		return G.Must(G.Add(G.Must(G.Mean(whole)), total(G.Must(G.Square(G.Must(G.HadamardProd(G.Must(G.Sigmoid(x)), x)))))))
	}
	second := func(x *G.Node) *G.Node { return G.Must(G.Slice(x, G.S(1))) }
	numbers, three := []float64{0, 2, 4, 1, 3, 5}, of([]float64{1, 2, 3}, 3, 1)
	cut := testutil.Must(of([]float64{9, 1, 2, 9, 9, 3, 4, 9}, 2, 4).Slice(nil, G.S(1, 3)))(t).(*tensor.Dense)
	rows := []row{
		{"transposed row", three, turned(of([]float64{1, 2, 3}, 1, 3)), column},
		{"column-major column", three, tensor.New(tensor.WithShape(3, 1), tensor.AsFortran([]float64{1, 2, 3})), column},
		{"transposed matrix", of(numbers, 2, 3), turned(of([]float64{0, 1, 2, 3, 4, 5}, 3, 2)), second},
		{"transposed int64", of([]int64{0, 2, 4, 1, 3, 5}, 2, 3), turned(of([]int64{0, 1, 2, 3, 4, 5}, 3, 2)), second},
		{"vector in place of rows", of([]float64{1, 2, 3}, 1, 3), of([]float64{1, 2, 3}, 3),
			func(x *G.Node) *G.Node { return G.Must(G.SoftMax(x, 0)) }},
		// Package tensor transposes a view into memory that is larger than its elements.
		{"view that an op transposes", of([]float64{1, 2, 3, 4}, 2, 2), cut,
			func(x *G.Node) *G.Node { return G.Must(spec.Apply(scaledSum{1}, G.Must(G.Transpose(x, 1, 0)))) }},
	}
	shape := tensor.Shape{2, 3, 4, 5}
	for _, dt := range []tensor.Dtype{tensor.Float64, tensor.Float32, tensor.Int32, tensor.Int64} {
		plain := of(tensor.Range(dt, 0, shape.TotalSize()), shape...)
		other := turned(plain.Clone().(*tensor.Dense), 3, 0, 2, 1)
		require.NoError(t, other.Transpose())
		wide := testutil.Must(tensor.New(tensor.Of(dt), tensor.WithShape(3, 3, 4, 5)).Slice(G.S(1, 3)))(t).(*tensor.Dense)
		require.NoError(t, tensor.Copy(wide, plain))
		columns := tensor.New(tensor.Of(dt), tensor.WithShape(shape...), tensor.AsFortran(nil))
		for i := range shape.TotalSize() {
			at := testutil.Must(tensor.Itol(i, shape, shape.CalcStrides()))(t)
			require.NoError(t, columns.SetAt(testutil.Must(plain.At(at...))(t), at...))
		}
		for name, v := range map[string]*tensor.Dense{"transposed": turned(other, 1, 3, 2, 0), "cut": wide,
			"column-major": columns} {
			for _, axes := range [][]int{{0}, {1}, {2}, {3}, {0, 2}, {1, 2}, {1, 3}, {0, 1, 2, 3}} {
				for _, reduction := range []string{"Sum", "Max"} {
					rows = append(rows, row{fmt.Sprintf("%s of %s %v along %v", reduction, name, dt, axes), plain, v,
						func(x *G.Node) *G.Node { return G.Must(reductions[reduction](x, axes...)) }})
				}
			}
		}
	}
	for _, c := range rows {
		results := func(value *tensor.Dense, constant bool) (list [3]string) {
			g := G.NewGraph()
			x := G.NewTensor(g, value.Dtype(), len(c.plain.Shape()), G.WithShape(c.plain.Shape()...), G.WithName("x"))
			if constant {
				x = g.AddNode(G.NewConstant(value, G.WithName("x")))
			}
			var got G.Value
			G.Read(c.build(x), &got)
			m := newMachine(t, g)
			for i := range list {
				if !constant {
					require.NoError(t, G.Let(x, value), c.name)
				}
				require.NoError(t, m.RunAll(), c.name)
				list[i] = fmt.Sprint(got.Shape(), got.Data())
			}
			return list
		}
		want := results(c.plain, false)
		require.Equal(t, [3]string{want[0], want[0], want[0]}, want, c.name)
		require.Equal(t, want, results(c.value, false), c.name)
		if slices.Equal(c.plain.Shape(), c.value.Shape()) {
			require.Equal(t, want, results(c.value, true), c.name)
		}
	}
}

// headerOf returns what an op could change of a tensor.
func headerOf(v G.Value) string {
	if d, ok := v.(*tensor.Dense); ok {
		return fmt.Sprint(d.Shape(), d.Strides(), d.DataOrder(), d.IsMaterializable(), d.Data())
	}
	return fmt.Sprint(v.Data())
}

// TestMachinesShareInputs: machines that run at the same time on the same input tensors, each with a graph of its own,
// give the bits of their first run, and change no input: row-major, transposed or a view. The graphs have every kind of
// Gorgonia's ops and their gradients.
func TestMachinesShareInputs(t *testing.T) {
	log.SetOutput(io.Discard)
	defer log.SetOutput(os.Stderr)
	runs, kinds := testutil.Tries(t, 3, 20), map[string]bool{}
	for row, c := range gorgonias() {
		var shared []G.Value
		var before []string
		for i, v := range c.inputs(1) {
			shared = append(shared, arranged(c.in[i].shape, v, row+i))
			before = append(before, headerOf(shared[i]))
		}
		var wait sync.WaitGroup
		errs := make([]error, 3) // by machine
		for k := range errs {
			b := c.graph(t)
			if c.wrong == "" || c.corrected {
				testutil.Must(graph.Grad(b.cost, b.in...))(t)
			}
			for i, n := range b.in {
				require.NoError(t, G.Let(n, shared[i]))
			}
			m := newMachine(t, b.graph, append(c.options(), graph.WithKeep(b.out))...)
			for _, s := range m.Plan().Steps {
				if s.Implementation == "host" {
					kinds[reflect.Indirect(reflect.ValueOf(s.Node.Op())).Type().Name()] = true
				}
			}
			wait.Go(func() {
				var first string
				for run := range runs {
					if errs[k] = m.RunAll(); errs[k] != nil {
						return
					}
					got := fmt.Sprint(b.out.Value().Data())
					for _, n := range b.in {
						if n.Deriv() != nil {
							got += fmt.Sprint(n.Deriv().Value().Data())
						}
					}
					if run == 0 {
						first = got
					} else if got != first {
						errs[k] = errors.New("other bits than in the first run")
						return
					}
				}
			})
		}
		wait.Wait()
		require.NoError(t, errors.Join(errs...), c.name)
		for i, v := range shared {
			require.Equal(t, before[i], headerOf(v), "%s: input %d", c.name, i)
		}
	}
	require.GreaterOrEqual(t, len(kinds), 24, "%v", kinds)
}

// TestOpsChangeNoInput: neither an op that changes its operand, nor one that fails half-way, reaches a bound tensor or
// a constant.
func TestOpsChangeNoInput(t *testing.T) {
	of := func(backing any, shape ...int) *tensor.Dense {
		return tensor.New(tensor.WithShape(shape...), tensor.WithBacking(backing))
	}
	shared := of([]float64{1, 2, 3, 4, 5, 6}, 2, 3)
	before := headerOf(shared)
	failing, panics := false, false
	transpose := func(in ...G.Value) (G.Value, error) {
		d := in[0].(*tensor.Dense)
		if err := d.T(); err != nil {
			return nil, err
		}
		if failing && panics {
			panic("half-way")
		} else if failing {
			return nil, errors.New("half-way")
		}
		d.UT()
		return d.Clone().(*tensor.Dense), nil
	}
	for name, input := range map[string]func(g *G.ExprGraph) *G.Node{
		"input":    func(g *G.ExprGraph) *G.Node { return G.NodeFromAny(g, shared, G.WithName("x")) },
		"constant": func(*G.ExprGraph) *G.Node { return G.NewConstant(shared) },
		"result of a kernel": func(g *G.ExprGraph) *G.Node {
			return G.Must(spec.Apply(scaledSum{1}, G.NodeFromAny(g, shared, G.WithName("x"))))
		},
	} {
		g := G.NewGraph()
		y := G.Must(G.ApplyOp(&foreign{"transposes", 2, transpose}, input(g), ranged(g, "other", 1, 2, 3)))
		m := newMachine(t, g, graph.WithKeep(y))
		for run := range 6 {
			failing, panics = run%2 == 1, run == 3
			if err := m.RunAll(); failing {
				require.ErrorContains(t, err, "half-way", name)
			} else {
				require.NoError(t, err, name)
				require.Equal(t, []float64{1, 2, 3, 4, 5, 6}, y.Value().Data(), name)
			}
			require.Equal(t, before, headerOf(shared), "%s, run %d", name, run)
		}
	}
	// An op that fails by itself: package tensor multiplies no ints.
	g, ints := G.NewGraph(), of([]int{1, 2, 3, 4, 5, 6}, 2, 3)
	before = headerOf(ints)
	G.Must(G.Mul(G.NodeFromAny(g, of([]int{1, 2}, 2), G.WithName("v")), G.NodeFromAny(g, ints, G.WithName("m"))))
	require.Error(t, newMachine(t, g).RunAll())
	require.Equal(t, before, headerOf(ints))
}
