package graph_test

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"
	G "gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/graph"
	"github.com/gorgonia-nsa/nsa/graph/fakedevice"
	"github.com/gorgonia-nsa/nsa/internal/testutil"
	"github.com/gorgonia-nsa/nsa/ops/spec"
	"github.com/gorgonia-nsa/nsa/ops/spec/decode"
)

// TestBatchNormStatistics: the running statistics go on over the runs of several machines, evaluation uses them, and
// its gradient is that of their scale.
func TestBatchNormStatistics(t *testing.T) {
	const momentum, eps = 0.3, 1e-3
	for _, dt := range []tensor.Dtype{tensor.Float64, tensor.Float32} {
		for _, shape := range [][]int{{4, 3}, {3, 3, 2, 2}} {
			tol := map[tensor.Dtype]float64{tensor.Float64: 1e-12, tensor.Float32: 1e-5}[dt]
			g := G.NewGraph()
			x := G.NewTensor(g, dt, len(shape), G.WithShape(shape...), G.WithName("x"))
			one := operand{shape: []int{1, 3, 1, 1}[:len(shape)]}
			scale := G.NewTensor(g, dt, len(shape), G.WithShape(one.shape...), G.WithName("scale"), G.WithValue(one.value(dt,
				[]float64{1, 2, 3})))
			bias := G.NewTensor(g, dt, len(shape), G.WithShape(one.shape...), G.WithName("bias"), G.WithValue(one.value(dt,
				[]float64{0, 1, 2})))
			y, _, _, op, err := G.BatchNorm(x, scale, bias, momentum, eps)
			require.NoError(t, err)
			testutil.Must(graph.Grad(G.Must(G.Sum(y)), x))(t)
			mean, variance := []float64{0, 0, 0}, []float64{1, 1, 1}
			area := tensor.ProdInts(shape[2:])
			channel := func(i int) int { return i / area % 3 }
			first, second, eval := newMachine(t, g), newMachine(t, g), newMachine(t, g, graph.WithEvalMode(), graph.WithKeep(y))
			for run, m := range []*graph.Machine{first, first, eval, second, first, eval} {
				v := testutil.Convert[float64](testutil.Convert[float32](testutil.Normal(uint64(run), tensor.ProdInts(shape))))
				require.NoError(t, G.Let(x, operand{shape: shape}.value(dt, v)))
				require.NoError(t, m.RunAll())
				if m == eval {
					want, slopes := make([]float64, len(v)), make([]float64, len(v))
					for i := range v {
						c := channel(i)
						slopes[i] = float64(c+1) / math.Sqrt(variance[c]+eps)
						want[i] = (v[i]-mean[c])*slopes[i] + float64(c)
					}
					testutil.Within(t, "value", numbers(t, y.Value()), want, tol)
					testutil.Within(t, "gradient", gradient(t, x), slopes, tol)
					continue
				}
				lists := make([][]float64, 3)
				for i := range v {
					lists[channel(i)] = append(lists[channel(i)], v[i])
				}
				for c, list := range lists {
					average, squares := sum(list)/float64(len(list)), 0.0
					for _, v := range list {
						squares += (v - average) * (v - average)
					}
					mean[c] = momentum*average + (1-momentum)*mean[c]
					variance[c] = momentum*squares/float64(len(list)-1) + (1-momentum)*variance[c]
				}
				gotMean, gotVariance := op.Stats()
				testutil.Within(t, "mean", numbers(t, gotMean), mean, tol)
				testutil.Within(t, "variance", numbers(t, gotVariance), variance, tol)
			}
		}
	}
}

// decoding is a graph of one decode.Step with dense attention over up to 4 tokens.
type decoding struct {
	graph    *G.ExprGraph
	op       decode.Step
	q, k, v  *G.Node
	cache, o *G.Node
	rows     []int32
}

// newDecoding builds the graph. cacheOf returns the cache for a size; nil means an input of zeros.
func newDecoding(t *testing.T, cacheOf func(g *G.ExprGraph, n int) *G.Node) *decoding {
	c := decode.KVCache{KVHeads: 1, KeyDim: 2, ValueDim: 2, Slots: 1, Pages: 1, PageLen: 4}
	d := &decoding{graph: G.NewGraph(), op: decode.Step{Cache: c, Base: 10}}
	input := func(name string, data []float32, shape ...int) *G.Node {
		v := tensor.New(tensor.WithShape(shape...), tensor.WithBacking(data))
		return G.NewTensor(d.graph, tensor.Float32, len(shape), G.WithShape(shape...), G.WithName(name), G.WithValue(v))
	}
	d.q, d.k, d.v = input("q", []float32{1, 0}, 1, 1, 1, 2), input("k", []float32{0, 1}, 1, 1, 1, 2), input("v", []float32{3, 4}, 1, 1, 1, 2)
	if d.cache = input("cache", make([]float32, c.Elements()), c.Elements()); cacheOf != nil {
		d.cache = cacheOf(d.graph, c.Elements())
	}
	rows := tensor.New(tensor.Of(tensor.Int32), tensor.WithShape(1, 2))
	d.rows = rows.Int32s()
	d.o = testutil.Must(spec.Apply(d.op, d.q, d.k, d.v, d.cache,
		G.NewTensor(d.graph, tensor.Int32, 2, G.WithShape(1, 2), G.WithName("rows"), G.WithValue(rows))))(t)
	return d
}

// TestUpdatedInput: an op that writes to an input does so in place, and the next run reads the new values: with a Machine,
// with a TapeMachine and on a device.
func TestUpdatedInput(t *testing.T) {
	for name, newVM := range map[string]func(d *decoding) G.VM{
		"machine": func(d *decoding) G.VM { return testutil.Must(graph.NewMachine(d.graph))(t) },
		"tape":    func(d *decoding) G.VM { return G.NewTapeMachine(d.graph) },
		"device": func(d *decoding) G.VM {
			f := fakedevice.New()
			r := testutil.Must(graph.MoveInputs(f, d.cache))(t)
			t.Cleanup(func() { require.NoError(t, r.Close()) })
			return testutil.Must(graph.NewMachine(d.graph, graph.WithBackend(f), graph.WithCapture()))(t)
		},
	} {
		t.Run(name, func(t *testing.T) {
			d := newDecoding(t, nil)
			var o G.Value
			G.Read(d.o, &o)
			vm := newVM(d)
			defer func() { require.NoError(t, vm.Close()) }()
			for at := range 4 {
				d.rows[0] = int32(at)
				value := tensor.New(tensor.WithShape(1, 1, 1, 2), tensor.WithBacking([]float32{float32(at), 1}))
				require.NoError(t, G.UnsafeLet(d.v, value))
				q := tensor.New(tensor.WithShape(1, 1, 1, 2), tensor.WithBacking([]float32{0, 0})) // the mean of all values
				require.NoError(t, G.UnsafeLet(d.q, q))
				require.NoError(t, vm.RunAll())
				vm.Reset()
				require.InDeltaSlice(t, []float32{float32(at) / 2, 1}, o.Data(), 1e-6, "token %d", at)
			}
		})
	}
}

// TestUpdatedInputRefuses graphs that would update a copy, or in which the order of the update and other reads is undefined.
func TestUpdatedInputRefuses(t *testing.T) {
	planned := func(d *decoding, opts ...graph.Option) error { return testutil.Err(graph.NewMachine(d.graph, opts...)) }
	d := newDecoding(t, nil)
	G.Must(G.Square(d.cache))
	require.ErrorContains(t, planned(d), "input 3: the op writes to")
	require.ErrorContains(t, planned(d), "also reads")

	d = newDecoding(t, func(g *G.ExprGraph, n int) *G.Node {
		x := G.NewVector(g, tensor.Float32, G.WithShape(n), G.WithName("x"), G.WithInit(G.Zeroes()))
		return G.Must(G.Square(x))
	})
	require.ErrorContains(t, planned(d), "not an input of the graph")

	d = newDecoding(t, nil)
	f := fakedevice.New()
	f.Missing = d.op.Name()
	require.ErrorContains(t, planned(d, graph.WithBackend(f)), "would update a copy")

	m := testutil.Closing(graph.NewMachine(newDecoding(t, nil).graph, graph.WithBackend(fakedevice.New())))(t)
	require.ErrorContains(t, m.RunAll(), "must be on the device")

	withGaps := func() *decoding {
		d := newDecoding(t, nil)
		n := d.op.Cache.Elements()
		wide := tensor.New(tensor.WithShape(n, 2), tensor.WithBacking(make([]float32, 2*n)))
		require.NoError(t, G.UnsafeLet(d.cache, testutil.Must(wide.Slice(nil, G.S(0)))(t)))
		return d
	}
	m = testutil.Closing(graph.NewMachine(withGaps().graph))(t)
	require.ErrorContains(t, m.RunAll(), "memory of its own")
	tape := G.NewTapeMachine(withGaps().graph)
	defer tape.Close()
	require.ErrorContains(t, tape.RunAll(), "input 3 is updated")
}
