package nn

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	G "gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/graph"
	"github.com/gorgonia-nsa/nsa/internal/ref"
	"github.com/gorgonia-nsa/nsa/internal/testutil"
	"github.com/gorgonia-nsa/nsa/ops"
	"github.com/gorgonia-nsa/nsa/ops/spec/decode"
)

func nsaConfig() NSAConfig {
	return NSAConfig{
		Dim: 6, Heads: 4, KVHeads: 2, KeyDim: 4, ValueDim: 3, GateHidden: 5,
		Params: ops.Params{BlockLen: 4, Stride: 2, SelectBlock: 4, TopN: 4, Window: 5},
	}
}

func TestNSAConfigRefuses(t *testing.T) {
	for message, change := range map[string]func(*NSAConfig){
		"dim is 0":                func(c *NSAConfig) { c.Dim = 0 },
		"dim is 1125899906842624": func(c *NSAConfig) { c.Dim = 1 << 50 },
		"parameter wq.weight of shape (4398046511104, 6)": func(c *NSAConfig) {
			c.Heads, c.KVHeads, c.KeyDim = 1<<20, 1<<20, 1<<22
		},
		"rope base is +Inf":         func(c *NSAConfig) { c.RoPEBase = math.Inf(1) },
		"value dim is -2":           func(c *NSAConfig) { c.ValueDim = -2 },
		"heads 4 not a multiple":    func(c *NSAConfig) { c.KVHeads = 3 },
		"key dim 5":                 func(c *NSAConfig) { c.KeyDim = 5 },
		"stride d = 3":              func(c *NSAConfig) { c.Stride = 3 },
		"without is 111":            func(c *NSAConfig) { c.Without = 7 },
		"without is 1000":           func(c *NSAConfig) { c.Without = 8 },
		"without is 001":            func(c *NSAConfig) { c.Without = decode.BranchesOf(decode.Compressed) },
		`phi is "max"`:              func(c *NSAConfig) { c.Phi = "max" },
		"phi hidden is 0":           func(c *NSAConfig) { c.Phi = PhiMLP },
		`gate activation is "tanh"`: func(c *NSAConfig) { c.GateActivation = "tanh" },
		"rope base is 0.5":          func(c *NSAConfig) { c.RoPEBase = 0.5 },
	} {
		config := nsaConfig()
		require.NoError(t, config.Validate())
		change(&config)
		require.ErrorContains(t, config.Validate(), "nn: nsa: "+message)
		require.ErrorContains(t, testutil.Err(NewNSA(G.NewGraph(), "attn.", config, Random(tensor.Float64, 1))),
			"nn: nsa: "+message)
	}
}

func TestNSARefuses(t *testing.T) {
	g := G.NewGraph()
	l := testutil.Must(NewNSA(g, "b.", nsaConfig(), Random(tensor.Float64, 1)))(t)
	x := func(dt tensor.Dtype, dim int) *G.Node {
		return G.NewTensor(g, dt, 3, G.WithShape(1, 8, dim), G.WithName(fmt.Sprint("x", dt, dim)))
	}
	wrong := map[string]*tensor.Dense{"a.wq.weight": tensor.New(tensor.Of(tensor.Float64), tensor.WithShape(6, 16))}
	for _, c := range []struct {
		err  error
		want string
	}{
		{testutil.Err(NewNSA(nil, "", nsaConfig(), Random(tensor.Float64, 1))), "nil graph"},
		{testutil.Err(NewNSA(g, "a.", nsaConfig(), Values(nil))), "no value for"},
		{testutil.Err(NewNSA(g, "a.", nsaConfig(), Values(wrong))), "a.wq.weight: value of shape (6, 16)"},
		{testutil.Err(NewNSA(g, "a.", nsaConfig(), Random(tensor.Int32, 1))), "type int32"},
		{testutil.Err(NewNSA(g, "b.", nsaConfig(), Random(tensor.Float64, 2))), "a node of that name"},
		{testutil.Err(l.Apply(nil)), "x is nil"},
		{testutil.Err(l.Apply(x(tensor.Float64, 7))), "(1, 8, 7)"},
		{testutil.Err(l.Apply(x(tensor.Float32, 6))), "nn: nsa b.: linear"},
		{testutil.Err(l.Apply(x(tensor.Float64, 6), nil)), "b.: nil option"},
		{testutil.Err(l.Apply(x(tensor.Float64, 6),
			WithCuSeqlens(G.NewVector(g, tensor.Int32, G.WithShape(1), G.WithName("few"))))),
			"nsa b.: document table: cu_seqlens has 1"},
	} {
		require.ErrorContains(t, c.err, c.want)
	}
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

// layerOn returns a layer of c on x, an input of normal random numbers.
func layerOn(t *testing.T, c NSAConfig, batch, seq int) (x *G.Node, l *NSA, parts NSAParts) {
	t.Helper()
	x = normal(G.NewGraph(), "x", 1, batch, seq, c.Dim)
	l = testutil.Must(NewNSA(x.Graph(), "attn.", c, Random(tensor.Float64, 4)))(t)
	return x, l, testutil.Must(l.ApplyParts(x))(t)
}

func normal(g *G.ExprGraph, name string, seed uint64, shape ...int) *G.Node {
	v := tensor.New(tensor.WithShape(shape...), tensor.WithBacking(testutil.Normal(seed, tensor.ProdInts(shape))))
	return G.NodeFromAny(g, v, G.WithName(name))
}

// TestNSAGradients compares the gradients of all parameters and of the input with central differences. The selection
// has no gradient: it must be the same at all points that are compared.
func TestNSAGradients(t *testing.T) {
	for name, change := range map[string]func(*NSAConfig){
		"mean": func(*NSAConfig) {}, "mlp": func(c *NSAConfig) { c.Phi, c.PhiHidden = PhiMLP, 3 },
		"softmax":          func(c *NSAConfig) { c.GateActivation = GateSoftmax },
		"without selected": func(c *NSAConfig) { c.Without = decode.BranchesOf(decode.Selected) },
		"compressed": func(c *NSAConfig) {
			c.Phi, c.PhiHidden, c.Without = PhiMLP, 3, decode.BranchesOf(decode.Selected, decode.Window)
		},
		"window": func(c *NSAConfig) {
			c.Phi, c.PhiHidden, c.Without = PhiMLP, 3, decode.BranchesOf(decode.Compressed, decode.Selected)
		},
	} {
		t.Run(name, func(t *testing.T) {
			config := nsaConfig()
			change(&config)
			x, l, parts := layerOn(t, config, 1, 29)
			g, keep := x.Graph(), G.Nodes{parts.Blocks}
			require.Equal(t, x.Shape(), parts.Output.Shape())
			cost := G.Must(G.Sum(G.Must(G.HadamardProd(parts.Output, normal(g, "r", 2, x.Shape()...)))))
			if parts.Blocks == nil {
				keep = nil
			}
			forward := testutil.Closing(graph.NewMachine(g, graph.WithKeep(append(keep, cost)...)))(t)
			wrt := append(G.Nodes{x}, l.Learnables()...)
			testutil.Must(graph.Grad(cost, wrt...))(t)
			require.NoError(t, graph.CheckGraph(g))
			run := func(m *graph.Machine) (blocks string) {
				require.NoError(t, m.RunAll())
				for _, n := range keep {
					blocks = fmt.Sprint(n.Value().Data())
				}
				return blocks
			}
			frozen := run(testutil.Closing(graph.NewMachine(g, graph.WithKeep(append(keep, cost)...)))(t))
			var got [][]float64
			for _, p := range wrt {
				got = append(got, testutil.Floats(t, testutil.Must(p.Grad())(t).Data()))
			}
			for i, p := range wrt {
				data := p.Value().Data().([]float64)
				at := slices.Clone(data)
				numeric := testutil.CentralDifference(func(x []float64) float64 {
					copy(data, x)
					require.Equal(t, frozen, run(forward), "the selection has changed: another seed is needed")
					return cost.Value().Data().(float64)
				}, at, 1e-5)
				copy(data, at)
				testutil.Within(t, "gradient of "+p.Name(), got[i], numeric, 1e-6)
			}
		})
	}
}

// sets are those of the branches that a layer may be without.
func sets() []decode.Branches {
	c, s, w := decode.Compressed, decode.Selected, decode.Window
	return []decode.Branches{0, decode.BranchesOf(s), decode.BranchesOf(w), decode.BranchesOf(s, w), decode.BranchesOf(c, s)}
}

// TestNSAParts computes the layer's output from its gates and branches, with each set of branches.
func TestNSAParts(t *testing.T) {
	const batch, seq = 2, 17
	for _, without := range sets() {
		c := nsaConfig()
		c.Without = without
		x, l, p := layerOn(t, c, batch, seq)
		all := [...]*G.Node{decode.Compressed: p.Compressed, decode.Selected: p.Selected, decode.Window: p.Window}
		var branches G.Nodes
		for b, n := range all {
			require.Equal(t, without.Has(decode.Branch(b)), n == nil)
			if n != nil {
				branches = append(branches, n)
			}
		}
		keep := append(slices.Clone(branches), p.Gates)
		if without.Has(decode.Selected) {
			require.Nil(t, p.Blocks)
			for _, learnable := range l.Learnables() {
				require.NotContains(t, learnable.Name(), "_sel")
			}
		} else {
			keep = append(keep, p.Blocks)
		}
		m := testutil.Closing(graph.NewMachine(x.Graph(), graph.WithKeep(keep...)))(t)
		require.NoError(t, m.RunAll())
		if p.Blocks != nil {
			require.Equal(t, tensor.Shape{batch, seq, c.KVHeads, c.TopN}, p.Blocks.Value().Shape())
			require.Equal(t, []int32{0, -1, -1, -1}, p.Blocks.Value().Data().([]int32)[:c.TopN])
		}
		tensorOf := func(n *G.Node) *ref.Tensor {
			return ref.From(testutil.Floats(t, n.Value().Data()), n.Value().Shape()...)
		}
		var outputs []*ref.Tensor
		for _, branch := range branches {
			require.Equal(t, tensor.Shape{batch, seq, c.Heads, c.ValueDim}, branch.Value().Shape())
			outputs = append(outputs, tensorOf(branch))
		}
		require.Equal(t, tensor.Shape{batch, seq, c.Heads, len(branches)}, p.Gates.Value().Shape())
		heads := ref.GatedSum(tensorOf(p.Gates), outputs...).Reshape(batch, seq, c.Heads*c.ValueDim)
		want := ref.Linear(heads, tensorOf(l.Learnables()[len(l.Learnables())-1]), nil)
		testutil.Within(t, "output", testutil.Floats(t, p.Output.Value().Data()), want.Data, 1e-12)
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
		"no selected branch":   func(c *NSAConfig) { c.Without = decode.BranchesOf(decode.Selected) },
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
		parts := testutil.Must(l.ApplyParts(G.NewTensor(g, tensor.Float64, 3, G.WithShape(1, 6, c.Dim),
			G.WithName("prompt"))))(t)
		_, fillErr := l.Fill(parts, cache)
		_, extendErr := l.Extend(G.NewTensor(g, tensor.Float64, 3, G.WithShape(1, 6, c.Dim), G.WithName("run")),
			Run{Start: G.NewVector(g, tensor.Int32, G.WithShape(1), G.WithName("start")), Tokens: 9}, cache)
		if name == "" || name == "a shorter window" {
			require.NoError(t, err, name)
			require.NoError(t, fillErr, name)
			require.NoError(t, extendErr, name)
			continue
		}
		require.ErrorContains(t, err, "decode: the cache is not of this layer", name)
		require.ErrorContains(t, fillErr, "fill: the cache is not of this layer", name)
		require.ErrorContains(t, extendErr, "extend: the cache is not of this layer", name)
		require.NotContains(t, fillErr.Error(), "%!")
	}
}
