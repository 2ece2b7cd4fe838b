package nn

import (
	"fmt"
	"math"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	G "gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/graph"
	"github.com/gorgonia-nsa/nsa/internal/memory"
	"github.com/gorgonia-nsa/nsa/internal/testutil"
	"github.com/gorgonia-nsa/nsa/ops"
)

func nsaConfig() NSAConfig {
	return NSAConfig{
		Dim: 6, Heads: 4, KVHeads: 2, KeyDim: 4, ValueDim: 3, GateHidden: 5,
		Params: ops.Params{BlockLen: 4, Stride: 2, SelectBlock: 4, TopN: 4, Window: 5},
	}
}

func TestNSAConfigRefuses(t *testing.T) {
	for _, c := range []struct {
		change  func(*NSAConfig)
		message string
	}{
		{func(c *NSAConfig) { c.Dim = 0 }, "dim is 0"},
		{func(c *NSAConfig) { c.Dim = 1 << 50 }, "dim is 1125899906842624"},
		{func(c *NSAConfig) { c.KVHeads, c.Heads, c.KeyDim = 1<<20, 1<<20, 1<<22 }, "parameter wq.weight of shape (4398046511104, 6)"},
		{func(c *NSAConfig) { c.RoPEBase = math.Inf(1) }, "rope base is +Inf"},
		{func(c *NSAConfig) { c.ValueDim = -2 }, "value dim is -2"},
		{func(c *NSAConfig) { c.KVHeads = 3 }, "heads 4 not a multiple"},
		{func(c *NSAConfig) { c.KeyDim = 5 }, "key dim 5"},
		{func(c *NSAConfig) { c.Stride = 3 }, "stride d = 3"},
		{func(c *NSAConfig) { c.Phi = "max" }, `phi is "max"`},
		{func(c *NSAConfig) { c.Phi = PhiMLP }, "phi hidden is 0"},
		{func(c *NSAConfig) { c.GateActivation = "tanh" }, `gate activation is "tanh"`},
		{func(c *NSAConfig) { c.RoPEBase = 0.5 }, "rope base is 0.5"},
	} {
		config := nsaConfig()
		require.NoError(t, config.Validate())
		c.change(&config)
		require.ErrorContains(t, config.Validate(), "nn: nsa: "+c.message)
		require.ErrorContains(t, testutil.Err(NewNSA(G.NewGraph(), "attn.", config, Random(tensor.Float64, 1))), "nn: nsa: "+c.message)
	}
}

func TestNSARefuses(t *testing.T) {
	g := G.NewGraph()
	require.ErrorContains(t, testutil.Err(NewNSA(nil, "", nsaConfig(), Random(tensor.Float64, 1))), "nil graph")
	require.ErrorContains(t, testutil.Err(NewNSA(g, "a.", nsaConfig(), Values(nil))), "no value for")
	wrong := map[string]*tensor.Dense{"a.wq.weight": tensor.New(tensor.Of(tensor.Float64), tensor.WithShape(6, 16))}
	require.ErrorContains(t, testutil.Err(NewNSA(g, "a.", nsaConfig(), Values(wrong))), "a.wq.weight: value of shape (6, 16)")
	require.ErrorContains(t, testutil.Err(NewNSA(g, "a.", nsaConfig(), Random(tensor.Int32, 1))), "type int32")

	l := testutil.Must(NewNSA(g, "b.", nsaConfig(), Random(tensor.Float64, 1)))(t)
	require.ErrorContains(t, testutil.Err(NewNSA(g, "b.", nsaConfig(), Random(tensor.Float64, 2))), "a node of that name")
	require.ErrorContains(t, testutil.Err(l.Apply(nil)), "x is nil")
	require.ErrorContains(t, testutil.Err(l.Apply(G.NewTensor(g, tensor.Float64, 3, G.WithShape(1, 8, 7), G.WithName("x")))), "(1, 8, 7)")
	require.ErrorContains(t, testutil.Err(l.Apply(G.NewTensor(g, tensor.Float32, 3, G.WithShape(1, 8, 6), G.WithName("x32")))), "nn: nsa b.: linear")
}

func TestParamRefuses(t *testing.T) {
	p := Param{Name: "w", Shape: tensor.Shape{2}}
	for _, b := range []*Builder{NewBuilder(nil, []Param{p}, Random(tensor.Float32, 1)), NewBuilder(G.NewGraph(), []Param{p}, nil)} {
		require.Nil(t, b.Param("w"))
		require.ErrorContains(t, b.Err(), "nil graph")
	}
	require.ErrorContains(t, NewShapeBuilder(G.NewGraph(), []Param{p}, tensor.Int32).Err(), "type int32")
	require.ErrorContains(t, NewShapeBuilder(G.NewGraph(), []Param{p}, tensor.Dtype{}).Err(), "type none")
	negative := NewShapeBuilder(G.NewGraph(), []Param{{Name: "w", Shape: tensor.Shape{-3, 8}}}, tensor.Float32)
	negative.Param("w")
	require.ErrorContains(t, negative.Err(), "w: shape (-3, 8)")
	for _, shape := range []tensor.Shape{{-2}, {0}, {-3, -4}} {
		require.ErrorContains(t, testutil.Err(Param{Name: "w", Shape: shape}.New(tensor.Float32, 1)), "at least 1")
	}
	for _, shape := range []tensor.Shape{{1 << 40, 1 << 40}, {1 << 32, 1 << 32}, {1 << 62, 4}, {math.MaxInt}} {
		require.ErrorContains(t, testutil.Err(Param{Name: "w", Shape: shape}.New(tensor.Float32, 1)), "too large")
	}
	if total, _ := memory.Total(); total > 0 {
		require.ErrorIs(t, testutil.Err(Param{Name: "w", Shape: tensor.Shape{1 << 24, 1 << 24}}.New(tensor.Float64, 1)), memory.ErrTooMuch)
	}
	require.Equal(t, float32(1), testutil.Must(Param{Name: "w", Init: Ones()}.New(tensor.Float32, 1))(t).Data())
}

func TestRandomValues(t *testing.T) {
	config := nsaConfig()
	config.Dim, config.GateHidden, config.Phi, config.PhiHidden = 100, 200, PhiMLP, 50
	g := G.NewGraph()
	l := testutil.Must(NewNSA(g, "attn.", config, Random(tensor.Float64, 3)))(t)
	require.Len(t, l.Learnables(), len(config.LayerParams("")))
	for i, p := range config.LayerParams("attn.") {
		n := l.Learnables()[i]
		require.Equal(t, p.Name, n.Name())
		x := n.Value().Data().([]float64)
		var least, most, squares float64
		for _, v := range x {
			least, most, squares = min(least, v), max(most, v), squares+v*v
		}
		switch name := strings.TrimPrefix(p.Name, "attn."); {
		case p.Init == nil:
			require.Zero(t, squares, p.Name)
		case strings.HasPrefix(name, "gate."):
			a := math.Sqrt(6 / float64(p.Shape[0]+p.Shape[1]))
			require.GreaterOrEqual(t, least, -a)
			require.LessOrEqual(t, most, a)
			require.InEpsilon(t, a*a/3, squares/float64(len(x)), 0.15, p.Name)
		case strings.HasSuffix(name, ".pe"):
			require.InEpsilon(t, 0.02*0.02, squares/float64(len(x)), 0.35, p.Name)
		default:
			require.InEpsilon(t, 1/float64(p.Shape[1]), squares/float64(len(x)), 0.35, p.Name)
		}
	}
}

// TestNSAGradients compares the gradients of all parameters and of the input with central differences. The selection has no
// gradient: it must be the same at all points that are compared.
func TestNSAGradients(t *testing.T) {
	mlp, softmax := nsaConfig(), nsaConfig()
	mlp.Phi, mlp.PhiHidden = PhiMLP, 3
	softmax.GateActivation = GateSoftmax
	without := nsaConfig()
	without.NoSelected = true
	for name, config := range map[string]NSAConfig{"mean": nsaConfig(), "mlp": mlp, "softmax": softmax, "without selected": without} {
		t.Run(name, func(t *testing.T) { checkNSAGradients(t, config) })
	}
}

// layerOn returns a layer of c on x, an input of normal random numbers.
func layerOn(t *testing.T, c NSAConfig, batch, seq int) (x *G.Node, l *NSA, parts NSAParts) {
	t.Helper()
	g := G.NewGraph()
	x = normal(g, "x", 1, batch, seq, c.Dim)
	l = testutil.Must(NewNSA(g, "attn.", c, Random(tensor.Float64, 4)))(t)
	return x, l, testutil.Must(l.ApplyParts(x))(t)
}

func normal(g *G.ExprGraph, name string, seed uint64, shape ...int) *G.Node {
	v := tensor.New(tensor.WithShape(shape...), tensor.WithBacking(testutil.Normal(seed, tensor.Shape(shape).TotalSize())))
	return G.NewTensor(g, tensor.Float64, len(shape), G.WithShape(shape...), G.WithName(name), G.WithValue(v))
}

func checkNSAGradients(t *testing.T, config NSAConfig) {
	x, l, parts := layerOn(t, config, 1, 29)
	g, y := x.Graph(), parts.Output
	require.Equal(t, x.Shape(), y.Shape())
	cost := G.Must(G.Sum(G.Must(G.HadamardProd(y, normal(g, "r", 2, x.Shape()...)))))
	wrt := append(G.Nodes{x}, l.Learnables()...)
	testutil.Must(graph.Grad(cost, wrt...))(t)
	require.NoError(t, graph.CheckGraph(g))

	keep := G.Nodes{cost}
	if !config.NoSelected {
		keep = append(keep, parts.Blocks)
	}
	m := testutil.Closing(graph.NewMachine(g, graph.WithKeep(keep...)))(t)
	run := func() (float64, string) {
		require.NoError(t, m.RunAll())
		m.Reset()
		blocks := ""
		for _, n := range keep[1:] {
			blocks = fmt.Sprint(n.Value().Data())
		}
		return float64(*cost.Value().(*G.F64)), blocks
	}
	_, frozen := run()
	want := map[string][]float64{}
	for _, p := range wrt {
		want[p.Name()] = append([]float64(nil), testutil.Must(p.Grad())(t).Data().([]float64)...)
	}
	for _, p := range wrt {
		data := p.Value().Data().([]float64)
		at := append([]float64(nil), data...)
		numeric := testutil.CentralDifference(func(x []float64) float64 {
			copy(data, x)
			cost, selected := run()
			require.Equal(t, frozen, selected, "the selection has changed: another seed is needed")
			return cost
		}, at, 1e-5)
		copy(data, at)
		testutil.Within(t, "gradient of "+p.Name(), want[p.Name()], numeric, 1e-6)
	}
}

// TestNSAParts computes the layer's output from its gates and branches, with the selected branch and without it.
func TestNSAParts(t *testing.T) {
	const batch, seq = 2, 17
	for _, without := range []bool{false, true} {
		c := nsaConfig()
		c.NoSelected = without
		x, l, p := layerOn(t, c, batch, seq)
		branches := G.Nodes{p.Compressed, p.Selected, p.Window}
		keep := G.Nodes{p.Gates, p.Compressed, p.Selected, p.Window, p.Blocks}
		if without {
			require.Nil(t, p.Selected)
			require.Nil(t, p.Blocks)
			for _, learnable := range l.Learnables() {
				require.NotContains(t, learnable.Name(), "_sel")
			}
			branches, keep = G.Nodes{p.Compressed, p.Window}, G.Nodes{p.Gates, p.Compressed, p.Window}
		}
		m := testutil.Closing(graph.NewMachine(x.Graph(), graph.WithKeep(keep...)))(t)
		require.NoError(t, m.RunAll())

		if !without {
			require.Equal(t, tensor.Shape{batch, seq, c.KVHeads, c.TopN}, p.Blocks.Value().Shape())
			require.Equal(t, []int32{0, -1, -1, -1}, p.Blocks.Value().Data().([]int32)[:c.TopN])
		}
		n := len(branches)
		require.Equal(t, tensor.Shape{batch, seq, c.Heads, n}, p.Gates.Value().Shape())
		gates := p.Gates.Value().Data().([]float64)
		sum := make([]float64, batch*seq*c.Heads*c.ValueDim) // [B,S,Hq,Dv]
		for i, branch := range branches {
			require.Equal(t, tensor.Shape{batch, seq, c.Heads, c.ValueDim}, branch.Value().Shape())
			for j, o := range branch.Value().Data().([]float64) {
				sum[j] += gates[j/c.ValueDim*n+i] * o
			}
		}
		width, wo := c.Heads*c.ValueDim, l.Learnables()[len(l.Learnables())-1].Value().Data().([]float64)
		var want []float64
		for row := range batch * seq {
			for out := range c.Dim {
				y := 0.0
				for j := range width {
					y += sum[row*width+j] * wo[out*width+j]
				}
				want = append(want, y)
			}
		}
		testutil.Within(t, "output", p.Output.Value().Data().([]float64), want, 1e-12)
	}
}

func TestBuilderKeepsTheFirstError(t *testing.T) {
	b := NewBuilder(G.NewGraph(), []Param{{Name: "a.weight", Shape: tensor.Shape{2, 3}}}, Random(tensor.Float32, 1))
	w := b.Param("a.weight")
	require.NotNil(t, w)
	require.Same(t, w, b.Param("a.weight"))
	require.Equal(t, G.Nodes{w}, b.Learnables())
	require.NoError(t, b.Err())
	require.Nil(t, b.Linear(nil, "b"))
	require.ErrorContains(t, b.Err(), "b.weight")
	require.Nil(t, b.Param("a.weight"))
	require.Nil(t, b.NSA("attn.", nsaConfig()))
	require.ErrorContains(t, testutil.Err(b.NSA("attn.", nsaConfig()).Apply(w)), "nil layer")
	require.ErrorContains(t, b.Err(), "b.weight")
}

// TestForeignCache: a layer refuses the cache of another layer, and takes one that cuts what no sequence fills.
func TestForeignCache(t *testing.T) {
	c := nsaConfig()
	for name, change := range map[string]func(*NSAConfig){
		"":                     func(*NSAConfig) {},
		"a shorter window":     func(c *NSAConfig) { c.Window = 4 },
		"n":                    func(c *NSAConfig) { c.TopN++ },
		"d":                    func(c *NSAConfig) { c.Stride = 1 },
		"a longer window":      func(c *NSAConfig) { c.Window++ },
		"no selected branch":   func(c *NSAConfig) { c.NoSelected = true },
		"the width of keys":    func(c *NSAConfig) { c.KeyDim = 2 },
		"longer compression":   func(c *NSAConfig) { c.BlockLen = 8 },
		"longer selection":     func(c *NSAConfig) { c.SelectBlock = 8 },
		"the number of groups": func(c *NSAConfig) { c.KVHeads = 1 },
	} {
		g, other := G.NewGraph(), c
		change(&other)
		l := testutil.Must(NewNSA(g, "a.", c, Random(tensor.Float64, 1)))(t)
		sizes := other.Cache(1, 2, 8)
		cache := Cache{
			KVCache: sizes, Values: G.NewVector(g, tensor.Float64, G.WithShape(sizes.Elements()), G.WithName("cache")),
			PageTable: G.NewMatrix(g, tensor.Int32, G.WithShape(1, 3), G.WithName("pages")),
		}
		_, err := l.Decode(G.NewTensor(g, tensor.Float64, 3, G.WithShape(1, 1, c.Dim), G.WithName("x")), cache)
		parts := testutil.Must(l.ApplyParts(G.NewTensor(g, tensor.Float64, 3, G.WithShape(1, 6, c.Dim), G.WithName("prompt"))))(t)
		_, fillErr := l.Fill(parts, cache)
		if name == "" || name == "a shorter window" {
			require.NoError(t, err, name)
			require.NoError(t, fillErr, name)
			continue
		}
		require.ErrorContains(t, err, "decode: the cache is not of this layer", name)
		require.ErrorContains(t, fillErr, "fill: the cache is not of this layer", name)
		require.NotContains(t, fillErr.Error(), "%!")
	}
}
