package graph_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	G "gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/graph"
	"github.com/gorgonia-nsa/nsa/graph/fakedevice"
	"github.com/gorgonia-nsa/nsa/internal/testutil"
	"github.com/gorgonia-nsa/nsa/ops"
)

// random is a graph of stock and NSA ops of float64. The same seed gives the same graph; with fewer ops it gives the
// beginning of the graph.
type random struct {
	*rand.Rand
	t      testing.TB
	graph  *G.ExprGraph
	in     G.Nodes
	values [][]float64
	nodes  G.Nodes
	cost   *G.Node
}

// must returns the value of a call that does not fail.
func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

// shapes24 are shapes of 24 elements. The first one is the shape of q, k and v of an attention op.
var shapes24 = []tensor.Shape{{1, 6, 2, 2}, {24}, {4, 6}, {6, 4}, {2, 3, 4}, {3, 2, 4}, {2, 12}, {1, 4, 6}}

func newRandom(t testing.TB, seed uint64, length int) *random {
	r := &random{Rand: rand.New(rand.NewPCG(seed, 7)), t: t, graph: G.NewGraph()}
	for _, shape := range []tensor.Shape{{4, 6}, {2, 3, 4}, {1, 6, 2, 2}, {6}, {}} {
		r.nodes = append(r.nodes, r.input(shape...))
	}
	for range length {
		r.nodes = append(r.nodes, must(r.apply()))
	}
	var terms G.Nodes
	for _, n := range r.nodes[max(0, len(r.nodes)-4):] {
		if n = G.Must(G.Tanh(n)); !n.IsScalar() {
			n = total(G.Must(G.HadamardProd(n, weighted(n, fmt.Sprint("weights ", n.ID()), uint64(n.ID())))))
		}
		terms = append(terms, n)
	}
	r.cost = G.Must(G.ReduceAdd(terms))
	return r
}

func (r *random) input(shape ...int) *G.Node {
	o := operand{name: fmt.Sprint("in", len(r.in)), shape: shape}
	v := o.values(r.Uint64())
	n := G.NodeFromAny(r.graph, o.value(tensor.Float64, v), G.WithName(o.name))
	r.in, r.values = append(r.in, n), append(r.values, v)
	return n
}

// pick returns a node of rank lo to hi, most often a late one.
func (r *random) pick(lo, hi int) *G.Node {
	for {
		n := r.nodes[len(r.nodes)-1-min(len(r.nodes)-1, int(r.ExpFloat64()*5))]
		if d := n.Dims(); lo <= d && d <= hi {
			return n
		}
	}
}

// like returns a node with the shape of n: another node, a new input, or n itself.
func (r *random) like(n *G.Node) *G.Node {
	for range 8 {
		if m := r.pick(0, 4); m.Shape().Eq(n.Shape()) && m.Dims() == n.Dims() {
			return m
		}
	}
	if r.IntN(4) == 0 {
		return n
	}
	return r.input(n.Shape()...)
}

// as24 returns a node of 24 elements in the given shape.
func (r *random) as24(shape tensor.Shape) *G.Node {
	for range 8 {
		if n := r.pick(1, 4); n.Shape().TotalSize() == 24 {
			return G.Must(G.Reshape(n, shape.Clone()))
		}
	}
	return r.input(shape...)
}

func (r *random) apply() (*G.Node, error) {
	axis := func(n *G.Node) int { return r.IntN(n.Dims()) }
	switch r.IntN(24) {
	case 0, 1, 2, 3:
		x := r.pick(0, 4)
		return chain(x, smooth[r.IntN(len(smooth))]...)
	case 4, 5, 6:
		x, f := r.pick(0, 4), []func(a, b *G.Node) (*G.Node, error){G.Add, G.Sub, G.HadamardProd}[r.IntN(3)]
		return f(x, r.like(x))
	case 7:
		x, y := r.pick(0, 4), r.pick(0, 0)
		if r.IntN(2) == 0 {
			return G.Add(x, y)
		}
		return G.HadamardProd(y, x)
	case 8:
		x := r.pick(0, 4)
		return G.HadamardDiv(x, G.Must(G.Add(G.Must(G.Square(r.like(x))), G.NewConstant(1.0))))
	case 9:
		x := r.pick(2, 3)
		k := axis(x)
		shape := x.Shape()
		shape[k] = 1
		return G.BroadcastHadamardProd(x, r.input(shape...), nil, []byte{byte(k)})
	case 10:
		x := r.pick(2, 2)
		return G.Mul(x, r.input(x.Shape()[1], 1+r.IntN(4)))
	case 11:
		x := r.pick(2, 2)
		return G.Mul(x, r.input(x.Shape()[1]))
	case 12:
		x := r.pick(3, 3)
		return G.BatchedMatMul(x, r.input(x.Shape()[0], x.Shape()[2], 2))
	case 13:
		return G.Tanh(r.as24(shapes24[r.IntN(len(shapes24))]))
	case 14:
		x := r.pick(2, 4)
		return G.Transpose(x, r.Perm(x.Dims())...)
	case 15:
		x := r.pick(1, 3)
		by := make([]tensor.Slice, x.Dims())
		for i, l := range x.Shape() {
			if from := r.IntN(l); r.IntN(2) == 0 {
				by[i] = G.S(from, from+1+r.IntN(l-from))
			}
		}
		by[0] = G.S(r.IntN(x.Shape()[0]))
		return G.Slice(x, by...)
	case 16:
		x := r.pick(1, 3)
		return G.Concat(axis(x), x, r.like(x))
	case 17, 18:
		x, f := r.pick(1, 4), r.IntN(3)
		axes := r.Perm(x.Dims())[:r.IntN(x.Dims()+1)]
		if f == 2 { // without ties
			x = G.Must(G.Add(x, r.input(x.Shape()...)))
		}
		return []reduction{G.Sum, G.Mean, G.Max}[f](x, axes...)
	case 19:
		x := r.pick(1, 3)
		for x.Dims() > 1 && x.Shape().IsVector() { // upstream's gradient confuses columns and rows
			x = r.pick(1, 3)
		}
		return G.SoftMax(x)
	case 20:
		x := r.pick(3, 4)
		return ops.Linear(x, r.input(3, x.Shape()[x.Dims()-1]), ops.WithBias(r.input(3)))
	case 21:
		x := r.pick(2, 4)
		return ops.RMSNorm(x, r.input(x.Shape()[x.Dims()-1]), 1e-3)
	case 22:
		x := r.pick(0, 4)
		return ops.Add(x, r.like(x), x)
	}
	q, k, v := r.as24(shapes24[0]), r.as24(shapes24[0]), r.as24(shapes24[0])
	switch r.IntN(3) {
	case 0:
		return ops.SlidingWindow(q, k, v, 1+r.IntN(6))
	case 1:
		return ops.CausalAttention(q, k, v)
	}
	p := ops.Params{BlockLen: 2, Stride: 2}
	return ops.CompressedAttention(q, G.Must(ops.CompressMean(k, p)), G.Must(ops.CompressMean(v, p)), p)
}

// smooth are functions whose derivatives are bounded, except for squares and cubes.
var smooth = [][]func(*G.Node) (*G.Node, error){
	{G.Tanh}, {G.Sigmoid}, {G.Tanh, G.Square}, {G.Neg}, {G.Sin}, {G.Cos}, {G.Softplus}, {G.Tanh, G.Exp},
	{G.Square, G.Log1p},
	{G.Sigmoid, G.Log}, {G.Rectify}, {G.Sin, G.Cube}, {ops.SiLU}, {ops.Sigmoid},
	{G.Tanh, G.Square, G.Exp, G.Sqrt, G.Inverse},
}

// arranged returns a tensor of the elements v. By variant it is row-major, transposed, or a view with gaps that hold
// NaN.
func arranged(shape tensor.Shape, v []float64, variant int) G.Value {
	dims := len(shape)
	switch {
	case variant%3 == 1 && dims == 2:
		turned := make([]float64, len(v))
		for i, x := range v {
			turned[i%shape[1]*shape[0]+i/shape[1]] = x
		}
		d := tensor.New(tensor.WithShape(shape[1], shape[0]), tensor.WithBacking(turned))
		check(d.T())
		return d
	case variant%3 == 2 && dims > 0 && shape[dims-1] > 1:
		last, wide, by := shape[dims-1], shape.Clone(), make([]tensor.Slice, dims)
		wide[dims-1], by[dims-1] = last+2, tensor.S(1, 1+last)
		backing := slices.Repeat([]float64{math.NaN()}, wide.TotalSize())
		for i, x := range v {
			backing[i/last*(last+2)+1+i%last] = x
		}
		return must(tensor.New(tensor.WithShape(wide...), tensor.WithBacking(backing)).Slice(by...)).(*tensor.Dense)
	}
	return operand{shape: shape}.value(tensor.Float64, v)
}

// let binds the inputs to their values times scale.
func (r *random) let(scale float64, variant int) {
	for i, n := range r.in {
		v := slices.Clone(r.values[i])
		for j := range v {
			v[j] *= scale
		}
		check(G.Let(n, arranged(n.Shape(), v, variant+i)))
	}
}

// randomMachines are the options of machines. Random graphs take them in turns.
func randomMachines(seed uint64) []graph.Option {
	switch seed % 6 {
	case 0:
		return []graph.Option{graph.WithBackend(fakedevice.New()), graph.WithCapture()}
	case 1:
		return []graph.Option{graph.WithBackend(fakedevice.New())}
	}
	return nil
}

// check compares the gradient by each input, along a random direction, with central differences by another machine,
// whose graph has no gradients. In every second run the inputs are halved, and only the cost and a kept node are
// compared. Inputs are transposed or views in turns, and free memory of the CPU is poisoned. check returns whether the
// cost is smooth enough to compare gradients.
func (r *random) check(seed uint64) (smooth bool, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("panic: %v", p)
		}
	}()
	kept := r.pick(0, 4)
	forward := must(graph.NewMachine(r.graph, graph.WithKeep(kept)))
	defer forward.Close()
	cost := func(i int, direction []float64, step float64) float64 {
		v := slices.Clone(r.values[i])
		for j := range v {
			v[j] += step * direction[j]
		}
		check(G.Let(r.in[i], operand{shape: r.in[i].Shape()}.value(tensor.Float64, v)))
		check(forward.RunAll())
		return r.cost.Value().Data().(float64)
	}
	var wrt G.Nodes
	var want []float64
	var directions [][]float64
	for i, n := range r.in {
		d := testutil.Normal(seed+uint64(i), len(r.values[i]))
		var slopes [2]float64
		for k, step := range []float64{1e-5, 4e-5} {
			slopes[k] = (cost(i, d, step) - cost(i, d, -step)) / (2 * step)
		}
		cost(i, d, 0)
		if !(math.Abs(slopes[0]-slopes[1]) <= 1e-6*max(1, math.Abs(slopes[0]))) { // a kink, or too steep
			return false, nil
		}
		// the cost depends on this input. Other bits of sums, due to another alignment, give smaller slopes
		if math.Abs(slopes[0]) > 1e-9 {
			wrt, want, directions = append(wrt, n), append(want, slopes[0]), append(directions, d)
		}
	}
	if len(wrt) == 0 {
		return false, nil
	}
	// values of the cost and the kept node
	results := func(m *graph.Machine, scale float64, variant int) (values [2][]float64) {
		r.let(scale, variant)
		check(m.RunAll())
		for i, n := range []*G.Node{r.cost, kept} {
			values[i] = numbers(r.t, n.Value())
		}
		return values
	}
	scales := [2]float64{1, 0.5}
	values := [2][2][]float64{results(forward, scales[0], 0), results(forward, scales[1], 0)}
	must(graph.Grad(r.cost, wrt...))
	if seed%3 == 0 { // further gradients, of another cost and of the same one, change none of these
		must(graph.Grad(G.Must(G.Tanh(r.cost)), wrt...))
		must(graph.Grad(r.cost, wrt[0]))
	}
	m := must(graph.NewMachine(r.graph, append(randomMachines(seed), graph.WithKeep(kept))...))
	defer m.Close()
	if m.Plan().Device.Host {
		m.PoisonFreed()
	}
	for run := range 4 {
		for i, got := range results(m, scales[run%2], run) {
			for j, got := range got {
				if want := values[run%2][i][j]; !(math.Abs(got-want) <= 1e-12*max(1, math.Abs(want))) {
					return true, fmt.Errorf("run %d: the cost or node %d is %v at %d with gradients, %v without", run,
						kept.ID(), got, j, want)
				}
			}
		}
		for i, n := range wrt {
			got := 0.0
			for j, g := range gradient(r.t, n) {
				got += g * directions[i][j]
			}
			if run%2 == 0 && !(math.Abs(got-want[i]) <= 1e-5*max(1, math.Abs(want[i]))) {
				return true, fmt.Errorf("run %d: slope by %s is %v, want %v", run, n.Name(), got, want[i])
			}
		}
	}
	return true, nil
}

// TestRandomGradients compares random graphs with central differences. A graph that fails is shortened to the ops that
// make it fail.
func TestRandomGradients(t *testing.T) {
	const longest = 14
	graphs, told := testutil.Tries(t, 150, 1000), 0
	for seed := uint64(1); told < graphs; seed++ {
		require.Less(t, seed, uint64(2*graphs), "too many graphs are not smooth")
		length := 1 + int(seed)%longest
		smooth, err := newRandom(t, seed, length).check(seed)
		if smooth {
			told++
		}
		if err == nil {
			continue
		}
		for l := 1; l <= length; l++ {
			r := newRandom(t, seed, l)
			if _, err := r.check(seed); err != nil {
				t.Errorf("seed %d, %d ops: %v", seed, l, err)
				for _, n := range r.graph.AllNodes() {
					t.Logf("%%%x %v = %s", n.ID(), n.Shape(), n.Name())
				}
				break
			}
		}
	}
}

// withGradients returns the graph of a seed with the gradient of the cost by each input that it depends on.
func withGradients(t testing.TB, seed uint64, length int) *random {
	r, probe := newRandom(t, seed, length), newRandom(t, seed, length)
	var wrt G.Nodes
	for i, n := range probe.in {
		if testutil.Err(graph.Grad(probe.cost, n)) == nil {
			wrt = append(wrt, r.in[i])
		}
	}
	testutil.Must(graph.Grad(r.cost, wrt...))(t)
	return r
}
