package main

import (
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"slices"
	"strings"

	"gonum.org/v1/gonum/floats"
	G "gorgonia.org/gorgonia"

	"github.com/gorgonia-nsa/nsa/graph"
	"github.com/gorgonia-nsa/nsa/internal/ref"
	"github.com/gorgonia-nsa/nsa/internal/testutil"
	"github.com/gorgonia-nsa/nsa/ops"
)

// accuracyShape is one group of heads. Its method is that of selected attention in "cuda wgmma" for these sizes.
type accuracyShape struct {
	method        string
	s, heads, dim int
}

var accuracyShapes = []accuracyShape{
	{"bits", 1024, 6, 64}, {"pairs", 2112, 6, 64}, {"pairs", 2112, 4, 128}, {"walk", 2112, 8, 128},
}

// benchAccuracy reports relative errors, by the Frobenius norm and in the worst row, of all results of each branch and
// of their gated sum in bf16. Beside them stands a reference: ref.AttentionRounded, which computes in float64, but
// rounds operands of products and stored arrays to bf16. The scale multiplies queries and keys.
func benchAccuracy(r *report) {
	for _, shape := range accuracyShapes {
		r.part(shape.s, func() {
			for _, kind := range []string{"random", "clustered", "peaked"} {
				for _, scale := range []float64{1, 3} {
					size := fmt.Sprintf("%s x%v, S %d, %d heads of %d", kind, scale, shape.s, shape.heads, shape.dim)
					newAccuracyCase(shape, kind, scale).report(r, size)
				}
			}
		})
	}
}

// accuracyCase holds inputs that are numbers of bf16: the arguments of each branch by name.
type accuracyCase struct {
	accuracyShape
	in       map[string]*ref.Tensor
	blocks   []int32
	branches []accuracyBranch
}

type accuracyBranch struct {
	name, k, v string // names of its inputs
	mask       ref.Mask
	op         func(q, k, v *G.Node) *G.Node
}

// newAccuracyCase makes inputs. Random ones are normal. Clustered queries and keys lie about eight centres. A peaked
// query lies near one of the earlier keys.
func newAccuracyCase(shape accuracyShape, kind string, scale float64) *accuracyCase {
	rng := rand.New(rand.NewPCG(7, uint64(shape.dim)))
	p, s := base.Params, shape.s
	nc := ops.NumCompressed(s, p.BlockLen, p.Stride)
	normal := func(shape ...int) *ref.Tensor {
		x := ref.New(shape...)
		for i := range x.Data {
			x.Data[i] = rng.NormFloat64()
		}
		return x
	}
	c := &accuracyCase{accuracyShape: shape, in: map[string]*ref.Tensor{
		"q": normal(1, s, shape.heads, shape.dim), "k": normal(1, s, 1, shape.dim), "kc": normal(1, nc, 1, shape.dim),
		"v": normal(1, s, 1, shape.dim), "vw": normal(1, s, 1, shape.dim), "vc": normal(1, nc, 1, shape.dim),
		"gates": normal(1, s, shape.heads, 3), "do": normal(1, s, shape.heads, shape.dim),
	}}
	q, k, kc, centres := c.in["q"], c.in["k"], c.in["kc"], normal(8, shape.dim)
	near := func(row, centre []float64, f float64) {
		for i := range row {
			row[i] = centre[i] + f*row[i]
		}
	}
	if kind == "clustered" {
		for _, x := range []*ref.Tensor{q, k, kc} {
			for at := 0; at < len(x.Data); at += shape.dim {
				near(x.Data[at:at+shape.dim], centres.Row(rng.IntN(8)), 0.3)
			}
		}
	}
	if kind == "peaked" {
		for i := range nc {
			copy(kc.Row(0, i, 0), k.Row(0, i*p.Stride, 0))
		}
		for t := range s {
			for head := range shape.heads {
				near(q.Row(0, t, head), k.Row(0, rng.IntN(t+1), 0), 0.2)
			}
		}
	}
	for _, name := range []string{"q", "k", "kc"} {
		for i := range c.in[name].Data {
			c.in[name].Data[i] *= scale
		}
	}
	for name, x := range c.in {
		c.in[name] = rounded(x, roundBF16)
	}
	c.in["kw"] = c.in["k"].Clone() // an input of its own, so that its gradient is that of the window alone
	c.blocks, _ = ref.SelectBlocks(c.in["q"], c.in["kc"], p.BlockLen, p.Stride, p.SelectBlock, p.TopN)
	c.branches = []accuracyBranch{
		{"compressed", "kc", "vc", ref.CompressedMask(p.BlockLen, p.Stride), func(q, k, v *G.Node) *G.Node {
			return must(ops.CompressedAttention(q, k, v, p))
		}},
		{"selected by " + shape.method, "k", "v", ref.SelectedMask(c.blocks, 1, s, 1, p.SelectBlock),
			func(q, k, v *G.Node) *G.Node {
				blocks := inputOf(q.Graph(), "idx", c.blocks, 1, s, 1, p.TopN)
				return must(ops.SelectedAttention(q, k, v, blocks, p.SelectBlock))
			}},
		{"window", "kw", "vw", ref.WindowMask(p.Window), func(q, k, v *G.Node) *G.Node {
			return must(ops.SlidingWindow(q, k, v, p.Window))
		}},
	}
	return c
}

// roundBF16 returns the number of bf16 nearest to x, that with an even last bit of two.
func roundBF16(x float64) float64 { return testutil.FromBFloat16(testutil.BFloat16(x)) }

// rounded returns x with all its elements rounded.
func rounded(x *ref.Tensor, round func(float64) float64) *ref.Tensor {
	y := ref.New(x.Shape...)
	for i, v := range x.Data {
		y.Data[i] = round(v)
	}
	return y
}

// node returns an input that holds the array of this name.
func (c *accuracyCase) node(g *G.ExprGraph, name string) *G.Node {
	x := c.in[name]
	return inputOf(g, name, testutil.Convert[float32](x.Data), x.Shape...)
}

// results are arrays by name: a result, or the gradient of an input.
type results map[string]*ref.Tensor

// measured computes build, a result of q and inputs, in bf16 on the device, with the gradients of the named inputs.
func (c *accuracyCase) measured(r *report, build func(in map[string]*G.Node) *G.Node, inputs ...string) results {
	g, in := G.NewGraph(), map[string]*G.Node{}
	var wrt G.Nodes
	for _, name := range inputs {
		in[name] = c.node(g, name)
		wrt = append(wrt, in[name])
	}
	y := build(in)
	addGradients(y, c.node(g, "do"), wrt...)
	m := must(graph.NewMachine(g, graph.WithBackend(r.backend), graph.WithPrecision(graph.BF16), graph.WithKeep(y)))
	defer mustClose(m)
	check(m.RunAll())
	found := results{"o": hostTensor(y.Value())}
	for i, name := range inputs {
		found["d"+name] = hostTensor(must(wrt[i].Grad()))
	}
	return found
}

func hostTensor(v G.Value) *ref.Tensor {
	v = must(graph.HostValue(v))
	return ref.From(testutil.Convert[float64](v.Data().([]float32)), v.Shape()...)
}

// expected computes a branch on the host, with the given gradient of its output.
func (c *accuracyCase) expected(b accuracyBranch, do *ref.Tensor, round func(float64) float64) results {
	o, dq, dk, dv := ref.AttentionRounded(c.in["q"], c.in[b.k], c.in[b.v], do, b.mask, round)
	return results{"o": o, "dq": dq, "d" + b.k: dk, "d" + b.v: dv}
}

// expectedTotal computes the gated sum of all branches on the host.
func (c *accuracyCase) expectedTotal(round func(float64) float64) results {
	do, gates, dq := c.in["do"], ref.Sigmoid(c.in["gates"]), ref.New(c.in["q"].Shape...)
	_, dbranches := ref.GatedSumGrad(gates, do, do, do, do) // they do not depend on the branches
	all := results{}
	var outputs []*ref.Tensor
	for i, b := range c.branches {
		x := c.expected(b, rounded(dbranches[i], round), round)
		outputs, dq = append(outputs, x["o"]), ref.Add(dq, x["dq"])
		maps.Copy(all, x)
	}
	dgates, _ := ref.GatedSumGrad(gates, do, outputs...)
	all["o"], all["dq"] = rounded(ref.GatedSum(gates, outputs...), round), rounded(dq, round)
	all["dgates"] = rounded(ref.SigmoidGrad(gates, dgates), round)
	return all
}

// report adds the errors of all branches and of the gated sum.
func (c *accuracyCase) report(r *report, size string) {
	exactly := func(x float64) float64 { return x }
	for _, b := range c.branches {
		build := func(in map[string]*G.Node) *G.Node { return b.op(in["q"], in[b.k], in[b.v]) }
		got := c.measured(r, build, "q", b.k, b.v)
		addErrors(r, b.name, size, got, c.expected(b, c.in["do"], roundBF16), c.expected(b, c.in["do"], exactly))
	}
	got := c.measured(r, func(in map[string]*G.Node) *G.Node {
		var o G.Nodes
		for _, b := range c.branches {
			o = append(o, b.op(in["q"], in[b.k], in[b.v]))
		}
		return must(ops.GatedSum(must(ops.Sigmoid(in["gates"])), o...))
	}, "q", "gates", "k", "v", "kc", "vc", "kw", "vw")
	addErrors(r, "total with "+c.method, size, got, c.expectedTotal(roundBF16), c.expectedTotal(exactly))
}

func addErrors(r *report, branch, size string, got, rounded, exact results) {
	aim := 1.05                              // multiple of the reference's error
	if strings.HasSuffix(branch, " pairs") { // also in a sum
		aim = 1.10
	}
	for _, name := range slices.Sorted(maps.Keys(exact)) {
		all, worst := relativeErrors(got[name], exact[name])
		refAll, refWorst := relativeErrors(rounded[name], exact[name])
		r.add(branch+", "+name, size, all*1e3, "1e-3", atMost(aim*refAll*1e3), against("operands rounded", refAll*1e3))
		r.add(branch+", "+name+", worst row", size, worst*1e3, "1e-3", against("operands rounded", refWorst*1e3))
	}
}

// relativeErrors returns the Frobenius norm of got-want over that of want, and the largest one of a row. A row whose
// norm is less than a hundredth of the root of the mean square counts as if it had that.
func relativeErrors(got, want *ref.Tensor) (all, worst float64) {
	cols, norm := want.Last(), floats.Norm(want.Data, 2)
	least := 1e-2 * norm / math.Sqrt(float64(len(want.Data)/cols))
	for i := 0; i < len(want.Data); i += cols {
		w := want.Data[i:][:cols]
		worst = max(worst, floats.Distance(got.Data[i:][:cols], w, 2)/max(floats.Norm(w, 2), least))
	}
	return floats.Distance(got.Data, want.Data, 2) / norm, worst
}
