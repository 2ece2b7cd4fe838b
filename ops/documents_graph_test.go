package ops_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	G "gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/graph"
	"github.com/gorgonia-nsa/nsa/internal/cpu"
	"github.com/gorgonia-nsa/nsa/internal/opcases"
	"github.com/gorgonia-nsa/nsa/internal/testutil"
	"github.com/gorgonia-nsa/nsa/ops"
	"github.com/gorgonia-nsa/nsa/ops/spec"
	"github.com/gorgonia-nsa/nsa/ops/spec/attention"
)

// TestDocumentTable: a table worked out by hand, and tables of random documents checked token by token.
func TestDocumentTable(t *testing.T) {
	x := newPacking(ops.Params{BlockLen: 2, Stride: 1}, 2, 4, []int32{0, 0, 1, 4, 4, 8})
	require.Equal(t, []int32{
		0, 1, 0, 1, // a document of one token; the first block begins in the next document
		1, 4, 0, 2,
		1, 4, 0, -1,
		1, 4, 0, -1,
		0, 4, 0, 0,
		0, 4, 0, 1,
		0, 4, 0, 2,
		0, 4, 0, -1,
	}, x.table(t).Ints)
	packings(t, 200, func(t *testing.T, _ *rand.Rand, x packing, _ dims) {
		table := x.table(t).Ints
		at := func(b, t, i int) int { return int(table[(b*x.S+t)*4+i]) }
		keys := make([]int, x.B)
		for _, d := range x.docs {
			for i := d.first; i < d.end; i++ {
				require.Equal(t, []int{d.first, d.end, d.key}, []int{at(d.b, i, 0), at(d.b, i, 1), at(d.b, i, 2)})
			}
			for i := range d.keys {
				require.Equal(t, d.first+i*x.Stride, at(d.b, d.key+i, 3))
			}
			keys[d.b] = d.key + d.keys
		}
		for b, n := range keys {
			require.LessOrEqual(t, n, ops.NumCompressed(x.S, x.BlockLen, x.Stride)) // they fit
			for ; n < x.S; n++ {
				require.Equal(t, -1, at(b, n, 3))
			}
		}
	})
}

// TestDocumentTableRefusesBoundaries: the error names the first wrong boundary. A later run with right boundaries gives
// the same result as before.
func TestDocumentTableRefusesBoundaries(t *testing.T) {
	const B, S = 2, 10
	good := []int32{0, 0, 7, 10, 20, 20}
	bad := map[string][]int32{
		"cu_seqlens[0] is 1":                 {1, 5, 7, 10, 20, 20},
		"cu_seqlens[3] is 6":                 {0, 5, 7, 6, 20, 20},
		"cu_seqlens[1] is -4":                {0, -4, 7, 10, 20, 20},
		"cu_seqlens[4] is 21":                {0, 5, 7, 10, 21, 21},
		"cu_seqlens[5], the last one, is 19": {0, 5, 7, 10, 19, 19},
		"document 2, tokens [7, 12)":         {0, 5, 7, 12, 20, 20},
		"document 4, tokens [0, 20)":         {0, 0, 0, 0, 0, 20},
	}
	for vm := range vms {
		g := G.NewGraph()
		cu := tensor.New(tensor.WithBacking(slices.Clone(good)))
		boundaries := G.NewVector(g, tensor.Int32, G.WithShape(len(good)), G.WithName("cu_seqlens"), G.WithValue(cu))
		table := testutil.Must(ops.DocumentTable(boundaries, B, S, ops.Params{}))(t)
		x := normal("x", 1, B, S, 1, 4).Node(g, tensor.Float64)
		y := testutil.Must(ops.RoPE(x, 10, 0, ops.WithDocuments(table)))(t)
		m := testutil.Closing(vms[vm](g))(t)
		run := func() []float64 {
			require.NoError(t, m.RunAll())
			m.Reset()
			return slices.Clone(y.Value().Data().([]float64))
		}
		want := run()
		for message, boundaries := range bad {
			copy(cu.Int32s(), boundaries)
			err := m.RunAll()
			m.Reset()
			require.ErrorContains(t, err, message, vm)
			require.ErrorContains(t, err, "document table", vm)
			if vm != "TapeMachine" { // whose errors wrap none
				require.ErrorAs(t, err, new(*ops.ValueError), vm)
			}
			copy(cu.Int32s(), good)
			require.Equal(t, want, run(), vm)
		}
	}
	op := spec.DocumentTable{Batch: B, Seq: S}
	require.Zero(t, op.CheckedInput())
	for message, boundaries := range bad {
		require.ErrorContains(t, op.Check(nil, cpu.NewBuf(slices.Clone(boundaries))), message)
	}
	require.NoError(t, op.Check(nil, cpu.NewBuf(good)))
	op = spec.DocumentTable{Batch: 1, Seq: 1 << 30} // the most tokens that a batch may have
	require.NoError(t, op.Check(nil, cpu.NewBuf([]int32{0, 5, 1 << 30, 1 << 30})))
}

// TestNewDocumentsNeedNoPlan: a graph of all branches, with gradients, runs with new boundaries without a new plan.
// Every document gets the results of a graph of its own.
func TestNewDocumentsNeedNoPlan(t *testing.T) {
	const B, S, most = 2, 60, 100
	c, p := opcases.NewDims(B, S, 4, 2, 6, 3), ops.Params{BlockLen: 4, Stride: 2, SelectBlock: 4, TopN: 4, Window: 9}
	leaves := func() []array {
		return []array{normal("q", 1, B, S, c.Hq, c.D), normal("k", 2, B, S, c.Hkv, c.D),
			normal("v", 3, B, S, c.Hkv, c.Dv), normal("do", 4, B, S, c.Hq, c.Dv)}
	}
	// graphOf returns a graph of the three branches and the gradients of sum(o*do), with its inputs and results.
	graphOf := func(seq int, in []array, dt tensor.Dtype, table func(g *G.ExprGraph) *G.Node) (g *G.ExprGraph,
		results G.Nodes) {
		g = G.NewGraph()
		var x G.Nodes
		for _, a := range in {
			x = append(x, a.Node(g, dt))
		}
		docs := ops.WithDocuments(table(g))
		q, k := G.Must(ops.RoPE(x[0], 100, 0, docs)), G.Must(ops.RoPE(x[1], 100, 0, docs))
		kc, vc := G.Must(ops.CompressMean(k, p, docs)), G.Must(ops.CompressMean(x[2], p, docs))
		o := G.Must(ops.CompressedAttention(q, kc, vc, p, docs))
		idx := G.Must(ops.SelectBlocks(q, kc, G.Must(attention.LSE(o)), p, docs))
		sum := G.Must(ops.Add(o, G.Must(ops.SelectedAttention(q, k, x[2], idx, p.SelectBlock, docs)),
			G.Must(ops.SlidingWindow(q, k, x[2], p.Window, docs)), G.Must(ops.CausalAttention(q, k, x[2], docs))))
		cost := G.Must(G.Sum(G.Must(G.HadamardProd(sum, x[3]))))
		return g, append(G.Nodes{sum}, testutil.Must(G.Grad(cost, x[:3]...))(t)...)
	}
	machines := map[string]func(g *G.ExprGraph, keep G.Nodes) (G.VM, error){
		"TapeMachine": func(g *G.ExprGraph, _ G.Nodes) (G.VM, error) { return G.NewTapeMachine(g), nil },
		"Machine": func(g *G.ExprGraph, keep G.Nodes) (G.VM, error) {
			return graph.NewMachine(g, graph.WithKeep(keep...))
		},
	}
	values := func(vm G.VM, results G.Nodes) (list []array) {
		require.NoError(t, vm.RunAll())
		for _, n := range results {
			list = append(list, array{Shape: n.Shape(), Floats: testutil.Floats(t, n.Value().Data())})
		}
		vm.Reset()
		return list
	}
	for name, machine := range machines {
		for _, dt := range dtypes {
			cu := tensor.New(tensor.Of(tensor.Int32), tensor.WithShape(most+1))
			g, results := graphOf(S, leaves(), dt, func(g *G.ExprGraph) *G.Node {
				boundaries := G.NewVector(g, tensor.Int32, G.WithShape(most+1), G.WithName("cu_seqlens"), G.WithValue(cu))
				return testutil.Must(ops.DocumentTable(boundaries, B, S, p))(t)
			})
			m := testutil.Closing(machine(g, results))(t)
			r := rand.New(rand.NewPCG(3, 4))
			for try := range 5 {
				x := randomPacking(r, p, B, S)
				for len(x.cu) > most+1 {
					x = randomPacking(r, p, B, S)
				}
				for i := copy(cu.Int32s(), x.cu); i <= most; i++ {
					cu.Int32s()[i] = B * S
				}
				got := values(m, results)
				for _, d := range x.docs {
					var in []array
					for _, a := range leaves() {
						in = append(in, cut(a, alongTokens, d))
					}
					alone, own := graphOf(d.end-d.first, in, dt, func(*G.ExprGraph) *G.Node { return nil })
					vm := testutil.Must(machine(alone, own))(t)
					for i, want := range values(vm, own) {
						require.Equal(t, bits(want.Floats), bits(cut(got[i], alongTokens, d).Floats), fmt.Sprint(name, dt, try, i, d))
					}
					require.NoError(t, vm.Close())
				}
			}
		}
	}
}

// TestDocumentTableTakesInts: boundaries of type int give the same table as boundaries of int32.
func TestDocumentTableTakesInts(t *testing.T) {
	g, cu := G.NewGraph(), []int{0, 3, 3, 8}
	ints := G.NewVector(g, tensor.Int, G.WithName("cu"), G.WithValue(tensor.New(tensor.WithBacking(cu))))
	table := testutil.Must(ops.DocumentTable(ints, 1, 8, ops.Params{BlockLen: 2, Stride: 1}))(t)
	require.NoError(t, testutil.Closing(graph.NewMachine(g))(t).RunAll())
	want := newPacking(ops.Params{BlockLen: 2, Stride: 1}, 1, 8, []int32{0, 3, 3, 8}).table(t)
	require.Equal(t, want.Ints, table.Value().Data())
}

// TestApplyChecksDocuments: like a constructor, Apply takes as documents only a result of DocumentTable, and one of the
// op's own compression blocks. The test covers each op that takes documents, and each gradient.
func TestApplyChecksDocuments(t *testing.T) {
	d, p := opcases.NewDims(1, 12, 4, 2, 6, 4), ops.Params{BlockLen: 4, Stride: 2, SelectBlock: 4, TopN: 3, Window: 5}
	ofBlocks := map[bool]int{}
	for _, c := range opcases.CasesOfDocuments(d, p, []int{5, 7}, opcases.Small) {
		plan := testutil.Must(c.Plan())(t)
		operands := make([]spec.Operand, plan.Arrays)
		for i, a := range plan.Inputs {
			operands[i] = spec.Operand{Dtype: tensor.Float64, Shape: a.Shape}
			if a.Ints != nil {
				operands[i].Dtype = tensor.Int32
			}
		}
		for _, call := range plan.Calls {
			var in []spec.Operand
			g, nodes := G.NewGraph(), []*G.Node{}
			for i, a := range call.In {
				in = append(in, operands[a])
				nodes = append(nodes, G.NewTensor(g, in[i].Dtype, in[i].Shape.Dims(), G.WithShape(in[i].Shape...),
					G.WithName(fmt.Sprint("n", i))))
			}
			for i, o := range testutil.Must(call.Spec.Infer(in))(t) {
				operands[call.Out[i]] = o
			}
			if _, makes := call.Spec.(spec.DocumentTable); makes {
				continue
			}
			name := call.Spec.Name()
			at := slices.IndexFunc(in, func(o spec.Operand) bool { return spec.HasDocuments([]spec.Operand{o}) })
			require.ErrorContains(t, testutil.Err(spec.Apply(call.Spec, nodes...)),
				fmt.Sprintf("ops: %s: documents (n%d)", name, at))

			cu := G.NewVector(g, tensor.Int32, G.WithShape(3), G.WithName("cu"))
			nodes[at] = testutil.Must(ops.DocumentTable(cu, d.B, d.S, p))(t)
			require.NoError(t, testutil.Err(spec.Apply(call.Spec, nodes...)))

			nodes[at] = testutil.Must(ops.DocumentTable(cu, d.B, d.S, ops.Params{BlockLen: p.Stride, Stride: p.Stride}))(t)
			compresses := strings.Contains(name, "compress") || name == "select blocks"
			if err := testutil.Err(spec.Apply(call.Spec, nodes...)); compresses {
				require.ErrorContains(t, err, "compression blocks of 2 tokens")
			} else {
				require.NoError(t, err, name)
			}
			ofBlocks[compresses]++
		}
	}
	require.Positive(t, ofBlocks[true])
	require.Positive(t, ofBlocks[false])
}
