package graph_test

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	G "gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/graph"
	"github.com/gorgonia-nsa/nsa/internal/testutil"
	"github.com/gorgonia-nsa/nsa/ops"
)

// random is a graph of stock and NSA ops of float64. The same seed gives the same graph, and fewer ops its beginning.
type random struct {
	*rand.Rand
	graph  *G.ExprGraph
	in     G.Nodes
	values [][]float64
	nodes  G.Nodes
	cost   *G.Node
	log    []string // a line for each op
}

// shapes24 are shapes of 24 elements, the first one that of q, k and v of an attention op.
var shapes24 = []tensor.Shape{{1, 6, 2, 2}, {24}, {4, 6}, {6, 4}, {2, 3, 4}, {3, 2, 4}, {2, 12}, {1, 4, 6}}

func newRandom(seed uint64, length int) *random {
	r := &random{Rand: rand.New(rand.NewPCG(seed, 7)), graph: G.NewGraph()}
	for _, shape := range []tensor.Shape{{4, 6}, {2, 3, 4}, {1, 6, 2, 2}, {6}, {}} {
		r.nodes = append(r.nodes, r.input(shape...))
	}
	for range length {
		n, line := r.apply()
		r.nodes, r.log = append(r.nodes, n), append(r.log, fmt.Sprintf("%v = %s", n.Shape(), line))
	}
	for _, n := range r.nodes[max(0, len(r.nodes)-4):] {
		if n = G.Must(G.Tanh(n)); !n.IsScalar() {
			n = G.Must(G.Sum(G.Must(G.HadamardProd(n, fixed(n, fmt.Sprint("weights ", n.ID()), testutil.Normal(uint64(n.ID()), n.Shape().TotalSize()), n.Shape()...)))))
		}
		if r.cost == nil {
			r.cost = n
		} else {
			r.cost = G.Must(G.Add(r.cost, n))
		}
	}
	return r
}

func (r *random) input(shape ...int) *G.Node {
	o := operand{name: fmt.Sprint("in", len(r.in)), shape: shape}
	v := o.values(r.Uint64())
	n := G.NewTensor(r.graph, tensor.Float64, len(shape), G.WithShape(shape...), G.WithName(o.name), G.WithValue(o.value(tensor.Float64, v)))
	r.in, r.values = append(r.in, n), append(r.values, v)
	return n
}

// pick returns one of the nodes, most often a late one, of rank lo to hi.
func (r *random) pick(lo, hi int) *G.Node {
	for {
		n := r.nodes[len(r.nodes)-1-min(len(r.nodes)-1, int(r.ExpFloat64()*5))]
		if d := n.Dims(); lo <= d && d <= hi {
			return n
		}
	}
}

// like returns a node of the shape of n: another one, a new input or n itself.
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

// apply adds an op and returns its result and its description.
func (r *random) apply() (*G.Node, string) {
	must := func(what string, in ...*G.Node) func(*G.Node, error) (*G.Node, string) {
		for _, n := range in {
			what += fmt.Sprintf(" %d%v", n.ID(), n.Shape())
		}
		return func(n *G.Node, err error) (*G.Node, string) {
			if err != nil {
				panic(fmt.Sprintf("%s: %v", what, err))
			}
			return n, what
		}
	}
	axis := func(n *G.Node) int { return r.IntN(n.Dims()) }
	switch r.IntN(24) {
	case 0, 1, 2, 3:
		x, f := r.pick(0, 4), r.IntN(len(smooth))
		return must(smooth[f].name, x)(chain(x, smooth[f].f...))
	case 4, 5, 6:
		x, f := r.pick(0, 4), []func(a, b *G.Node) (*G.Node, error){G.Add, G.Sub, G.HadamardProd}[r.IntN(3)]
		y := r.like(x)
		return must("binary", x, y)(f(x, y))
	case 7:
		x, y := r.pick(0, 4), r.pick(0, 0)
		if r.IntN(2) == 0 {
			return must("with scalar", x, y)(G.Add(x, y))
		}
		return must("with scalar", y, x)(G.HadamardProd(y, x))
	case 8:
		x := r.pick(0, 4)
		y := G.Must(G.Add(G.Must(G.Square(r.like(x))), G.NewConstant(1.0)))
		return must("quotient", x, y)(G.HadamardDiv(x, y))
	case 9:
		x := r.pick(2, 3)
		k := axis(x)
		shape := x.Shape()
		shape[k] = 1
		return must(fmt.Sprint("broadcast ", k), x)(G.BroadcastHadamardProd(x, r.input(shape...), nil, []byte{byte(k)}))
	case 10:
		x := r.pick(2, 2)
		return must("product", x)(G.Mul(x, r.input(x.Shape()[1], 1+r.IntN(4))))
	case 11:
		x := r.pick(2, 2)
		return must("product with vector", x)(G.Mul(x, r.input(x.Shape()[1])))
	case 12:
		x := r.pick(3, 3)
		return must("batched product", x)(G.BatchedMatMul(x, r.input(x.Shape()[0], x.Shape()[2], 2)))
	case 13:
		shape := shapes24[r.IntN(len(shapes24))]
		x := r.as24(shape)
		return must("reshape", x)(G.Tanh(x))
	case 14:
		x := r.pick(2, 4)
		axes := r.Perm(x.Dims())
		return must(fmt.Sprint("transpose ", axes), x)(G.Transpose(x, axes...))
	case 15:
		x := r.pick(1, 3)
		by := make([]tensor.Slice, x.Dims())
		for i, l := range x.Shape() {
			if from := r.IntN(l); r.IntN(2) == 0 {
				by[i] = G.S(from, from+1+r.IntN(l-from))
			}
		}
		by[0] = G.S(r.IntN(x.Shape()[0]))
		return must(fmt.Sprint("slice ", by), x)(G.Slice(x, by...))
	case 16:
		x := r.pick(1, 3)
		k, y := axis(x), r.like(x)
		return must(fmt.Sprint("concat ", k), x, y)(G.Concat(k, x, y))
	case 17, 18:
		x, f := r.pick(1, 4), r.IntN(3)
		axes := r.Perm(x.Dims())[:r.IntN(x.Dims()+1)]
		if f == 2 { // without ties
			x = G.Must(G.Add(x, r.input(x.Shape()...)))
		}
		return must(fmt.Sprint("reduction ", f, axes), x)([]func(*G.Node, ...int) (*G.Node, error){G.Sum, G.Mean, G.Max}[f](x, axes...))
	case 19:
		x := r.pick(1, 3)
		for x.Dims() > 1 && x.Shape().IsVector() { // upstream's gradient takes a column for a row
			x = r.pick(1, 3)
		}
		return must("softmax", x)(G.SoftMax(x))
	case 20:
		x := r.pick(3, 4)
		last := x.Shape()[x.Dims()-1]
		return must("linear", x)(ops.Linear(x, r.input(3, last), ops.WithBias(r.input(3))))
	case 21:
		x := r.pick(2, 4)
		return must("RMSNorm", x)(ops.RMSNorm(x, r.input(x.Shape()[x.Dims()-1]), 1e-3))
	case 22:
		x := r.pick(0, 4)
		return must("ops.Add", x)(ops.Add(x, r.like(x), x))
	}
	q, k, v := r.as24(shapes24[0]), r.as24(shapes24[0]), r.as24(shapes24[0])
	switch r.IntN(3) {
	case 0:
		return must("window", q, k, v)(ops.SlidingWindow(q, k, v, 1+r.IntN(6)))
	case 1:
		return must("causal", q, k, v)(ops.CausalAttention(q, k, v))
	}
	k, v = G.Must(ops.CompressMean(k, 2, 2)), G.Must(ops.CompressMean(v, 2, 2))
	return must("compressed", q, k, v)(ops.CompressedAttention(q, k, v, 2, 2))
}

// smooth are functions with bounded derivatives, but for squares and cubes.
var smooth = []struct {
	name string
	f    []func(*G.Node) (*G.Node, error)
}{
	{"tanh", []func(*G.Node) (*G.Node, error){G.Tanh}}, {"sigmoid", []func(*G.Node) (*G.Node, error){G.Sigmoid}}, {"square of tanh", []func(*G.Node) (*G.Node, error){G.Tanh, G.Square}},
	{"neg", []func(*G.Node) (*G.Node, error){G.Neg}}, {"sin", []func(*G.Node) (*G.Node, error){G.Sin}}, {"cos", []func(*G.Node) (*G.Node, error){G.Cos}},
	{"softplus", []func(*G.Node) (*G.Node, error){G.Softplus}}, {"exp of tanh", []func(*G.Node) (*G.Node, error){G.Tanh, G.Exp}}, {"log1p of square", []func(*G.Node) (*G.Node, error){G.Square, G.Log1p}},
	{"log of sigmoid", []func(*G.Node) (*G.Node, error){G.Sigmoid, G.Log}}, {"rectify", []func(*G.Node) (*G.Node, error){G.Rectify}}, {"cube of sin", []func(*G.Node) (*G.Node, error){G.Sin, G.Cube}},
	{"SiLU", []func(*G.Node) (*G.Node, error){ops.SiLU}}, {"ops.Sigmoid", []func(*G.Node) (*G.Node, error){ops.Sigmoid}},
	{"inverse root", []func(*G.Node) (*G.Node, error){G.Tanh, G.Square, G.Exp, G.Sqrt, G.Inverse}},
}

// arranged returns a tensor of the elements v, by variant row-major, transposed or a view with gaps, which are NaN.
func arranged(shape tensor.Shape, v []float64, variant int) G.Value {
	dims := len(shape)
	switch {
	case variant%3 == 1 && dims == 2:
		turned := make([]float64, len(v))
		for i, x := range v {
			turned[i%shape[1]*shape[0]+i/shape[1]] = x
		}
		d := tensor.New(tensor.WithShape(shape[1], shape[0]), tensor.WithBacking(turned))
		if err := d.T(); err != nil {
			panic(err)
		}
		return d
	case variant%3 == 2 && dims > 0 && shape[dims-1] > 1:
		last, wide, by := shape[dims-1], shape.Clone(), make([]tensor.Slice, dims)
		wide[dims-1], by[dims-1] = last+2, tensor.S(1, 1+last)
		backing := slices.Repeat([]float64{math.NaN()}, wide.TotalSize())
		for i, x := range v {
			backing[i/last*(last+2)+1+i%last] = x
		}
		d, err := tensor.New(tensor.WithShape(wide...), tensor.WithBacking(backing)).Slice(by...)
		if err != nil {
			panic(err)
		}
		return d.(*tensor.Dense)
	}
	return operand{shape: shape}.value(tensor.Float64, v)
}

// let binds the values of all inputs times scale.
func (r *random) let(scale float64, variant int) error {
	for i, n := range r.in {
		v := slices.Clone(r.values[i])
		for j := range v {
			v[j] *= scale
		}
		if err := G.Let(n, arranged(n.Shape(), v, variant+i)); err != nil {
			return err
		}
	}
	return nil
}

// randomMachines are the options of the machines that random graphs run on, in turns.
func randomMachines(seed uint64) []graph.Option {
	switch seed % 6 {
	case 0:
		return []graph.Option{graph.WithBackend(newFake()), graph.WithCapture()}
	case 1:
		return []graph.Option{graph.WithBackend(newFake())}
	case 2:
		return []graph.Option{graph.WithCapture()}
	}
	return nil
}

// check compares the gradient by each input, along a random direction, with central differences of another machine, which
// has no gradients in its graph. In every second run the inputs are halved, and the cost and a kept node alone are compared;
// inputs are transposed or views in turns, and free memory of the CPU is poisoned. It returns whether the cost is smooth
// enough to tell.
func (r *random) check(seed uint64, length int) (smooth bool, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("panic: %v", p)
		}
	}()
	kept := r.pick(0, 4)
	forward, err := graph.NewMachine(r.graph, graph.WithKeep(kept))
	if err != nil {
		return false, err
	}
	defer forward.Close()
	cost := func(i int, direction []float64, step float64) (float64, error) {
		v := append([]float64(nil), r.values[i]...)
		for j := range v {
			v[j] += step * direction[j]
		}
		if err := G.Let(r.in[i], operand{shape: r.in[i].Shape()}.value(tensor.Float64, v)); err != nil {
			return 0, err
		}
		if err := forward.RunAll(); err != nil {
			return 0, err
		}
		return r.cost.Value().Data().(float64), nil
	}
	var wrt G.Nodes
	var want []float64
	var directions [][]float64
	for i, n := range r.in {
		d := testutil.Normal(seed+uint64(i), len(r.values[i]))
		var slopes [2]float64
		for k, step := range []float64{1e-5, 4e-5} {
			up, err := cost(i, d, step)
			if err != nil {
				return false, err
			}
			down, err := cost(i, d, -step)
			if err != nil {
				return false, err
			}
			slopes[k] = (up - down) / (2 * step)
		}
		if _, err := cost(i, d, 0); err != nil {
			return false, err
		}
		if !(math.Abs(slopes[0]-slopes[1]) <= 1e-6*max(1, math.Abs(slopes[0]))) { // a kink, or too steep
			return false, nil
		}
		if math.Abs(slopes[0]) > 1e-9 { // the cost depends on it: sums of other bits, by another alignment, do not reach that
			wrt, want, directions = append(wrt, n), append(want, slopes[0]), append(directions, d)
		}
	}
	if len(wrt) == 0 {
		return false, nil
	}
	var values [2][][]float64 // of the cost and the kept node, from the inputs and from their halves
	for i, scale := range []float64{1, 0.5} {
		if err := errors.Join(r.let(scale, 0), forward.RunAll()); err != nil {
			return false, err
		}
		for _, n := range (G.Nodes{r.cost, kept}) {
			values[i] = append(values[i], slices.Clone(floats(n.Value())))
		}
	}
	if _, err := graph.Grad(r.cost, wrt...); err != nil {
		return false, err
	}
	m, err := graph.NewMachine(r.graph, append(randomMachines(seed), graph.WithKeep(kept))...)
	if err != nil {
		return false, err
	}
	defer m.Close()
	if m.Plan().Device.Host {
		m.PoisonFreed()
	}
	for run := range 4 {
		if err := errors.Join(r.let([]float64{1, 0.5}[run%2], run), m.RunAll()); err != nil {
			return false, err
		}
		for i, n := range (G.Nodes{r.cost, kept}) {
			v, err := graph.HostValue(n.Value())
			if err != nil {
				return false, err
			}
			for j, got := range floats(v) {
				if want := values[run%2][i][j]; !(math.Abs(got-want) <= 1e-12*max(1, math.Abs(want))) {
					return true, fmt.Errorf("run %d: node %d is %v at %d with gradients, %v without", run, n.ID(), got, j, want)
				}
			}
		}
		if run%2 == 1 {
			continue
		}
		for i, n := range wrt {
			d, err := n.Grad()
			if err != nil {
				return false, err
			}
			got := 0.0
			for j, g := range floats(d) {
				got += g * directions[i][j]
			}
			if !(math.Abs(got-want[i]) <= 1e-5*max(1, math.Abs(want[i]))) {
				return true, fmt.Errorf("run %d: slope by %s is %v, want %v", run, n.Name(), got, want[i])
			}
		}
	}
	return true, nil
}

// floats are the elements of a float64 value, row by row.
func floats(v G.Value) []float64 {
	switch v := v.(type) {
	case *tensor.Dense:
		if v.RequiresIterator() {
			return v.Materialize().(*tensor.Dense).Float64s()
		}
		return v.Float64s()
	case *G.F64:
		return []float64{float64(*v)}
	}
	return nil
}

// TestRandomGradients holds random graphs to central differences. A graph that fails is cut to the ops that it takes.
func TestRandomGradients(t *testing.T) {
	const graphs, longest = 1000, 14
	told := 0
	for seed := uint64(1); told < graphs; seed++ {
		require.Less(t, seed, uint64(2*graphs), "too many graphs are not smooth")
		length := 1 + int(seed)%longest
		smooth, err := newRandom(seed, length).check(seed, length)
		if smooth {
			told++
		}
		if err == nil {
			continue
		}
		for l := 1; l <= length; l++ {
			r := newRandom(seed, l)
			if _, err := r.check(seed, l); err != nil {
				t.Errorf("seed %d, %d ops: %v\n%s", seed, l, err, strings.Join(r.log, "\n"))
				break
			}
		}
	}
}
