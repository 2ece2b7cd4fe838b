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
	for dt, tol := range map[tensor.Dtype]float64{tensor.Float64: 1e-12, tensor.Float32: 1e-5} {
		for _, shape := range [][]int{{4, 3}, {3, 3, 2, 2}} {
			whole, one := operand{shape: shape}, operand{shape: []int{1, 3, 1, 1}[:len(shape)]}
			x := G.NodeFromAny(G.NewGraph(), whole.value(dt, whole.values(0)), G.WithName("x"))
			scale := G.NodeFromAny(x.Graph(), one.value(dt, []float64{1, 2, 3}), G.WithName("scale"))
			bias := G.NodeFromAny(x.Graph(), one.value(dt, []float64{0, 1, 2}), G.WithName("bias"))
			y, _, _, op, err := G.BatchNorm(x, scale, bias, momentum, eps)
			require.NoError(t, err)
			testutil.Must(graph.Grad(G.Must(G.Sum(y)), x))(t)
			averages, variances := []float64{0, 0, 0}, []float64{1, 1, 1}
			channel := func(i int) int { return i / tensor.ProdInts(shape[2:]) % 3 }
			first, second, eval := newMachine(t, x.Graph()), newMachine(t, x.Graph()), newMachine(t, x.Graph(),
				graph.WithEvalMode(), graph.WithKeep(y))
			for run, m := range []*graph.Machine{first, first, eval, second, first, eval} {
				v := rounded(tensor.Float32, whole.values(uint64(run)))
				require.NoError(t, G.Let(x, whole.value(dt, v)))
				require.NoError(t, m.RunAll())
				if m == eval {
					var want, slopes []float64
					for i := range v {
						c := channel(i)
						slopes = append(slopes, float64(c+1)/math.Sqrt(variances[c]+eps))
						want = append(want, (v[i]-averages[c])*slopes[i]+float64(c))
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
					squares := 0.0
					for _, v := range list {
						squares += (v - mean(list)) * (v - mean(list))
					}
					averages[c] += momentum * (mean(list) - averages[c])
					variances[c] += momentum * (squares/float64(len(list)-1) - variances[c])
				}
				gotMean, gotVariance := op.Stats()
				testutil.Within(t, "mean", numbers(t, gotMean), averages, tol)
				testutil.Within(t, "variance", numbers(t, gotVariance), variances, tol)
			}
		}
	}
}

// decoding is a graph of one decode.Step with dense attention over up to 4 tokens.
type decoding struct {
	graph       *G.ExprGraph
	op          decode.Step
	v, cache, o *G.Node
	rows        []int32
}

// newDecoding builds the graph. cacheOf returns the cache for an input of zeros; nil means the input.
func newDecoding(t *testing.T, cacheOf func(zeros *G.Node) *G.Node) *decoding {
	c := decode.KVCache{KVHeads: 1, KeyDim: 2, ValueDim: 2, Slots: 1, Pages: 1, PageLen: 4}
	d := &decoding{graph: G.NewGraph(), op: decode.Step{Cache: c, Base: 10}, rows: make([]int32, 2)}
	input := func(name string, shape ...int) *G.Node {
		return single(d.graph, name, func(int) float64 { return 0 }, shape...)
	}
	q, k := input("q", 1, 1, 1, 2), input("k", 1, 1, 1, 2) // zeros: the output is the mean of all values
	d.v = input("v", 1, 1, 1, 2)
	if d.cache = input("cache", c.Elements()); cacheOf != nil {
		d.cache = cacheOf(d.cache)
	}
	d.o = testutil.Must(spec.Apply(d.op, q, k, d.v, d.cache, fixed(q, "rows", d.rows, 1, 2)))(t)
	return d
}

// TestUpdatedInput: an op that writes to an input does so in place, and the next run reads the new values: with a
// Machine, with a TapeMachine and on a device.
func TestUpdatedInput(t *testing.T) {
	for name, newVM := range map[string]func(d *decoding) G.VM{
		"machine": func(d *decoding) G.VM { return newMachine(t, d.graph) },
		"tape":    func(d *decoding) G.VM { return G.NewTapeMachine(d.graph) },
		"device": func(d *decoding) G.VM {
			f := fakedevice.New()
			testutil.Closing(graph.MoveInputs(f, d.cache))(t)
			return newMachine(t, d.graph, graph.WithBackend(f), graph.WithCapture())
		},
	} {
		d := newDecoding(t, nil)
		var o G.Value
		G.Read(d.o, &o)
		vm := newVM(d)
		for at := range 4 {
			d.rows[0] = int32(at)
			value := tensor.New(tensor.WithShape(1, 1, 1, 2), tensor.WithBacking([]float32{float32(at), 1}))
			require.NoError(t, G.UnsafeLet(d.v, value))
			require.NoError(t, vm.RunAll())
			vm.Reset()
			require.InDeltaSlice(t, []float32{float32(at) / 2, 1}, o.Data(), 1e-6, "%s, token %d", name, at)
		}
		require.NoError(t, vm.Close())
	}
}

// TestUpdatedInputRefuses graphs that would update a copy, or in which the order of the update and other reads is
// undefined.
func TestUpdatedInputRefuses(t *testing.T) {
	planned := func(d *decoding, opts ...graph.Option) error { return testutil.Err(graph.NewMachine(d.graph, opts...)) }
	d, f := newDecoding(t, nil), fakedevice.New()
	f.Missing = d.op.Name()
	require.ErrorContains(t, planned(d, graph.WithBackend(f)), "would update a copy")
	require.ErrorContains(t, newMachine(t, d.graph, graph.WithBackend(fakedevice.New())).RunAll(), "must be on the device")
	G.Must(G.Square(d.cache))
	require.ErrorContains(t, planned(d), "input 3: the op writes to")
	require.ErrorContains(t, planned(d), "also reads")
	d = newDecoding(t, func(zeros *G.Node) *G.Node { return G.Must(G.Square(zeros)) })
	require.ErrorContains(t, planned(d), "not an input of the graph")

	withGaps := func() *G.ExprGraph {
		d := newDecoding(t, nil)
		wide := tensor.New(tensor.Of(tensor.Float32), tensor.WithShape(d.op.Cache.Elements(), 2))
		require.NoError(t, G.UnsafeLet(d.cache, testutil.Must(wide.Slice(nil, G.S(0)))(t)))
		return d.graph
	}
	require.ErrorContains(t, newMachine(t, withGaps()).RunAll(), "memory of its own")
	tape := G.NewTapeMachine(withGaps())
	defer tape.Close()
	require.ErrorContains(t, tape.RunAll(), "input 3 is updated")
}
