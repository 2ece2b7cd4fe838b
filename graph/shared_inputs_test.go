package graph_test

import (
	"errors"
	"fmt"
	"io"
	"log"
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

// header is what an op could change of a tensor.
type header struct {
	shape, strides []int
	order          tensor.DataOrder
	transposed     bool
	data           string
}

func headerOf(v G.Value) header {
	h := header{data: fmt.Sprint(v.Data())}
	if d, ok := v.(*tensor.Dense); ok {
		h.shape, h.strides, h.order, h.transposed = slices.Clone(d.Shape()), slices.Clone(d.Strides()), d.DataOrder(),
			d.IsMaterializable()
	}
	return h
}

// TestMachinesShareInputs: machines that run at the same time on the same input tensors, each with a graph of its own,
// give the bits of their first run, and change no input: row-major, transposed or a view. The graphs have every kind of
// Gorgonia's ops and their gradients.
func TestMachinesShareInputs(t *testing.T) {
	log.SetOutput(io.Discard)
	defer log.SetOutput(os.Stderr)
	machines, runs := 3, testutil.Tries(t, 3, 20)
	kinds := map[string]bool{}
	for row, c := range gorgonias() {
		values := c.inputs(1)
		var shared []G.Value
		var before []header
		for i, o := range c.in {
			shared = append(shared, arranged(o.shape, values[i], row+i))
			before = append(before, headerOf(shared[i]))
		}
		var wait sync.WaitGroup
		errs := make([]error, machines)
		for k := range machines {
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
	numbers := []float64{1, 2, 3, 4, 5, 6}
	shared := tensor.New(tensor.WithShape(2, 3), tensor.WithBacking(slices.Clone(numbers)))
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
		return tensor.New(tensor.WithShape(2, 3), tensor.WithBacking(slices.Clone(d.Data().([]float64)))), nil
	}
	for name, input := range map[string]func(g *G.ExprGraph) *G.Node{
		"input":    func(g *G.ExprGraph) *G.Node { return G.NodeFromAny(g, shared, G.WithName("x")) },
		"constant": func(*G.ExprGraph) *G.Node { return G.NewConstant(shared) },
		"result of a kernel": func(g *G.ExprGraph) *G.Node {
			return G.Must(spec.Apply(scaledSum{1}, G.NodeFromAny(g, shared, G.WithName("x"))))
		},
	} {
		g := G.NewGraph()
		x := input(g)
		y := G.Must(G.ApplyOp(&foreign{"transposes", 2, transpose}, x, G.NewMatrix(g, tensor.Float64, G.WithShape(2, 3),
			G.WithName("other"),
			G.WithValue(tensor.New(tensor.WithShape(2, 3), tensor.WithBacking(slices.Clone(numbers)))))))
		m := newMachine(t, g, graph.WithKeep(y))
		for run := range 6 {
			failing, panics = run%2 == 1, run == 3
			if err := m.RunAll(); failing {
				require.ErrorContains(t, err, "half-way", name)
			} else {
				require.NoError(t, err, name)
				require.Equal(t, numbers, y.Value().Data(), name)
			}
			require.Equal(t, before, headerOf(shared), "%s, run %d", name, run)
		}
	}
	// An op that fails by itself: package tensor multiplies no ints.
	g := G.NewGraph()
	ints := tensor.New(tensor.WithShape(2, 3), tensor.WithBacking([]int{1, 2, 3, 4, 5, 6}))
	before = headerOf(ints)
	G.Must(G.Mul(G.NodeFromAny(g, tensor.New(tensor.WithBacking([]int{1, 2})), G.WithName("v")), G.NodeFromAny(g, ints,
		G.WithName("m"))))
	require.Error(t, newMachine(t, g).RunAll())
	require.Equal(t, before, headerOf(ints))
}
