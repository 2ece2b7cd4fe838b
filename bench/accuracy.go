package main

import (
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"slices"

	G "gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

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

var accuracyShapes = []accuracyShape{{"bits", 1024, 6, 64}, {"pairs", 2112, 6, 64}, {"pairs", 2112, 4, 128}, {"walk", 2112, 8, 128}}

// The aims of the errors, as multiples of the reference's.
const (
	accuracyAim      = 1.05
	accuracyAimPairs = 1.10 // selected attention by pairs
)

// benchAccuracy reports relative errors, by the Frobenius norm and in the worst row, of all results of each branch and of their gated sum
// in bf16. Beside them stands a reference: ref.AttentionRounded, which computes in float64, but rounds operands of products and stored
// arrays to bf16. The scale multiplies queries and keys.
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

// newAccuracyCase makes inputs. Random ones are normal. Clustered queries and keys lie about eight centres. A peaked query lies near one of
// the earlier keys.
func newAccuracyCase(shape accuracyShape, kind string, scale float64) *accuracyCase {
	rng := rand.New(rand.NewPCG(7, uint64(shape.dim)))
	p, s := base.Params, shape.s
	nc := ops.NumCompressed(s, p.BlockLen, p.Stride)
	normal := func(f float64, shape ...int) *ref.Tensor {
		x := ref.New(shape...)
		for i := range x.Data {
			x.Data[i] = f * rng.NormFloat64()
		}
		return x
	}
	c := &accuracyCase{accuracyShape: shape, in: map[string]*ref.Tensor{
		"q": normal(1, 1, s, shape.heads, shape.dim), "k": normal(1, 1, s, 1, shape.dim), "kc": normal(1, 1, nc, 1, shape.dim),
		"v": normal(1, 1, s, 1, shape.dim), "vw": normal(1, 1, s, 1, shape.dim), "vc": normal(1, 1, nc, 1, shape.dim),
		"gates": normal(1, 1, s, shape.heads, 3), "do": normal(1, 1, s, shape.heads, shape.dim),
	}}
	q, k, kc, centres := c.in["q"], c.in["k"], c.in["kc"], normal(1, 8, shape.dim)
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
	for _, x := range c.in {
		for i, v := range x.Data {
			x.Data[i] = roundBF16(v)
		}
	}
	c.in["kw"] = k.Clone() // an input of its own, so that its gradient is that of the window alone
	c.blocks = c.selectBlocks()
	c.branches = []accuracyBranch{
		{"compressed", "kc", "vc", ref.CompressedMask(p.BlockLen, p.Stride), func(q, k, v *G.Node) *G.Node {
			return must(ops.CompressedAttention(q, k, v, p.BlockLen, p.Stride))
		}},
		{"selected by " + shape.method, "k", "v", ref.SelectedMask(c.blocks, 1, s, 1, p.SelectBlock), func(q, k, v *G.Node) *G.Node {
			idx := tensor.New(tensor.WithShape(1, s, 1, p.TopN), tensor.WithBacking(c.blocks))
			blocks := G.NewTensor(q.Graph(), tensor.Int32, 4, G.WithShape(idx.Shape()...), G.WithName("idx"), G.WithValue(idx))
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

// node returns an input that holds the array of this name.
func (c *accuracyCase) node(g *G.ExprGraph, name string) *G.Node {
	x := c.in[name]
	data := make([]float32, len(x.Data))
	for i, v := range x.Data {
		data[i] = float32(v)
	}
	return inputOf(g, name, data, x.Shape...)
}

// selectBlocks returns the blocks that the CPU selects in float32.
func (c *accuracyCase) selectBlocks() []int32 {
	g, p := G.NewGraph(), base.Params
	q, kc := c.node(g, "q"), c.node(g, "kc")
	compressed := must(ops.CompressedAttention(q, kc, c.node(g, "vc"), p.BlockLen, p.Stride))
	blocks := must(ops.SelectBlocks(q, kc, must(ops.LSE(compressed)), p))
	m := must(graph.NewMachine(g, graph.WithKeep(blocks)))
	defer mustClose(m)
	check(m.RunAll())
	return slices.Clone(blocks.Value().Data().([]int32))
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
	cost := must(G.Sum(must(G.HadamardProd(y, c.node(g, "do")))))
	must(graph.Grad(cost, wrt...))
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
	x := ref.New(v.Shape()...)
	for i, f := range v.Data().([]float32) {
		x.Data[i] = float64(f)
	}
	return x
}

// expected computes a branch on the host, with the given gradient of its output.
func (c *accuracyCase) expected(b accuracyBranch, do *ref.Tensor, round func(float64) float64) results {
	o, dq, dk, dv := ref.AttentionRounded(c.in["q"], c.in[b.k], c.in[b.v], do, b.mask, round)
	return results{"o": o, "dq": dq, "d" + b.k: dk, "d" + b.v: dv}
}

// expectedTotal computes the gated sum of all branches on the host.
func (c *accuracyCase) expectedTotal(round func(float64) float64) results {
	do, logits := c.in["do"], c.in["gates"]
	y, dgates := ref.New(do.Shape...), ref.New(logits.Shape...)
	all := results{"o": y, "dgates": dgates, "dq": ref.New(c.in["q"].Shape...)}
	n := len(c.branches)
	for k, b := range c.branches {
		dbranch := ref.New(do.Shape...)
		gate := func(row int) float64 { return 1 / (1 + math.Exp(-logits.Data[row*n+k])) }
		for i := range dbranch.Data {
			dbranch.Data[i] = round(gate(i/c.dim) * do.Data[i])
		}
		for name, x := range c.expected(b, dbranch, round) {
			switch name {
			case "o":
				for i, o := range x.Data {
					row := i / c.dim
					y.Data[i] += gate(row) * o
					dgates.Data[row*n+k] += do.Data[i] * o * gate(row) * (1 - gate(row))
				}
			case "dq":
				for i, d := range x.Data {
					all["dq"].Data[i] += d
				}
			default:
				all[name] = x
			}
		}
	}
	for _, x := range []*ref.Tensor{y, dgates, all["dq"]} {
		for i, v := range x.Data {
			x.Data[i] = round(v)
		}
	}
	return all
}

// report adds the errors of all branches and of the gated sum.
func (c *accuracyCase) report(r *report, size string) {
	exactly := func(x float64) float64 { return x }
	for _, b := range c.branches {
		got := c.measured(r, func(in map[string]*G.Node) *G.Node { return b.op(in["q"], in[b.k], in[b.v]) }, "q", b.k, b.v)
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
	aim := accuracyAim
	if branch == "selected by pairs" {
		aim = accuracyAimPairs
	}
	for _, name := range slices.Sorted(maps.Keys(exact)) {
		all, worst := relativeErrors(got[name], exact[name])
		refAll, refWorst := relativeErrors(rounded[name], exact[name])
		r.add(branch+", "+name, size, all*1e3, "1e-3", atMost(aim*refAll*1e3), against("operands rounded", refAll*1e3))
		r.add(branch+", "+name+", worst row", size, worst*1e3, "1e-3", against("operands rounded", refWorst*1e3))
	}
}

// relativeErrors returns the Frobenius norm of got-want over that of want, and the largest one of a row. A row whose norm is less than a
// hundredth of the mean square counts as if it had that.
func relativeErrors(got, want *ref.Tensor) (all, worst float64) {
	cols := want.Shape[len(want.Shape)-1]
	rows := len(want.Data) / cols
	squares := func(x []float64) (sum float64) {
		for _, v := range x {
			sum += v * v
		}
		return sum
	}
	total := squares(want.Data)
	least := 1e-4 * total / float64(rows)
	for i := range rows {
		w := want.Data[i*cols:][:cols]
		var diff float64
		for j, v := range got.Data[i*cols:][:cols] {
			diff += (v - w[j]) * (v - w[j])
		}
		all += diff
		worst = max(worst, diff/max(squares(w), least))
	}
	return math.Sqrt(all / total), math.Sqrt(worst)
}
