package ops_test

import (
	"fmt"
	"math"
	"slices"

	G "gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/graph"
	"github.com/gorgonia-nsa/nsa/ops"
)

// input adds a float32 input of normal random values to g.
func input(g *G.ExprGraph, name string, shape ...int) *G.Node {
	return G.NewTensor(g, tensor.Float32, len(shape), G.WithShape(shape...), G.WithName(name),
		G.WithInit(G.Gaussian(0, 1)))
}

// Two documents of 40 and 24 tokens in one row: neither sees the other, and the machine takes new boundaries as they
// are.
func ExampleDocumentTable() {
	const batch, seq = 1, 64
	g := G.NewGraph()
	q, k, v := input(g, "q", batch, seq, 4, 16), input(g, "k", batch, seq, 2, 16), input(g, "v", batch, seq, 2, 16)
	boundaries := tensor.New(tensor.WithBacking([]int32{0, 40, 64, 64})) // up to three documents; the last one is empty
	cuSeqlens := G.NewVector(g, tensor.Int32, G.WithName("cu_seqlens"), G.WithValue(boundaries))

	// for all ops of the graph; 0, 0: nothing is compressed
	table := G.Must(ops.DocumentTable(cuSeqlens, batch, seq, ops.Params{}))
	o := G.Must(ops.CausalAttention(q, k, v, ops.WithDocuments(table)))
	m, err := graph.NewMachine(g)
	check(err)
	seesItself := func(t int) bool { // and no token before it
		values := o.Value().Data().([]float32)[t*4*16:][:16]
		return slices.EqualFunc(values, v.Value().Data().([]float32)[t*2*16:][:16],
			func(a, b float32) bool { return math.Abs(float64(a-b)) < 1e-5 })
	}
	check(m.RunAll())
	fmt.Println("tokens 0, 30 and 40 see themselves alone:", seesItself(0), seesItself(30), seesItself(40))
	copy(boundaries.Int32s(), []int32{0, 30, 40, 64})
	check(m.RunAll())
	fmt.Println("tokens 0, 30 and 40 see themselves alone:", seesItself(0), seesItself(30), seesItself(40))
	check(m.Close())
	// Output:
	// tokens 0, 30 and 40 see themselves alone: true false true
	// tokens 0, 30 and 40 see themselves alone: true true true
}

// A sequence of 64 tokens whose queries run 16 at a time: only the queries of a chunk are there at once, and the graph,
// plan and memory are the same for each.
func ExampleWithStart() {
	const tokens, chunk = 64, 16
	g := G.NewGraph()
	q, k, v := input(g, "q", 1, tokens, 4, 16), input(g, "k", 1, tokens, 2, 16), input(g, "v", 1, tokens, 2, 16)
	whole := G.Must(ops.SlidingWindow(q, k, v, 32))
	part := input(g, "part", 1, chunk, 4, 16) // [B,S,Hq,D], S < T
	first := tensor.New(tensor.WithShape(1), tensor.WithBacking([]int32{0}))
	start := G.NewVector(g, tensor.Int32, G.WithName("start"), G.WithValue(first)) // [B]
	o := G.Must(ops.SlidingWindow(part, k, v, 32, ops.WithStart(start)))
	m, err := graph.NewMachine(g)
	check(err)
	same := true
	for at := 0; at < tokens; at += chunk {
		first.Int32s()[0] = int32(at)
		copy(part.Value().Data().([]float32), q.Value().Data().([]float32)[at*4*16:])
		check(m.RunAll())
		same = same && slices.Equal(o.Value().Data().([]float32), whole.Value().Data().([]float32)[at*4*16:][:chunk*4*16])
	}
	check(m.Close())
	fmt.Println("the same bits:", same)
	// Output: the same bits: true
}

// The three branches of Native Sparse Attention, and their sum weighted by gates. Package graph/nn has them as a layer.
func ExampleGatedSum() {
	p := ops.Params{BlockLen: 8, Stride: 4, SelectBlock: 8, TopN: 4, Window: 16}
	g := G.NewGraph()
	q, k, v := input(g, "q", 1, 64, 4, 16), input(g, "k", 1, 64, 2, 16), input(g, "v", 1, 64, 2, 16)
	gates := G.Must(ops.Sigmoid(input(g, "gates", 1, 64, 4, 3))) // [B,S,Hq,3]

	kc, vc := G.Must(ops.CompressMean(k, p)), G.Must(ops.CompressMean(v, p)) // [B,Nc,Hkv,D]
	compressed := G.Must(ops.CompressedAttention(q, kc, vc, p))
	blocks := G.Must(ops.SelectBlocks(q, kc, G.Must(ops.LSE(compressed)), p)) // [B,S,Hkv,n], -1 for none
	selected := G.Must(ops.SelectedAttention(q, k, v, blocks, p.SelectBlock))
	window := G.Must(ops.SlidingWindow(q, k, v, p.Window))
	o := G.Must(ops.GatedSum(gates, compressed, selected, window))

	m, err := graph.NewMachine(g, graph.WithKeep(kc, blocks))
	check(err)
	check(m.RunAll())
	fmt.Println("compressed keys", kc.Value().Shape(), "blocks", blocks.Value().Shape(), "output", o.Value().Shape())
	check(m.Close())
	// Output: compressed keys (1, 15, 2, 16) blocks (1, 64, 2, 4) output (1, 64, 4, 16)
}

// The loss of a bigram model: embedding, norm, linear layer, cross entropy.
func ExampleCrossEntropy() {
	g := G.NewGraph()
	tokens := func(name string, data ...int) *G.Node { // [B,S]; int32 or int
		return G.NewMatrix(g, tensor.Int, G.WithName(name), G.WithValue(tensor.New(tensor.WithShape(1, len(data)),
			tensor.WithBacking(data))))
	}
	table := input(g, "table", 5, 8) // [V,D]
	norm := G.NewVector(g, tensor.Float32, G.WithShape(8), G.WithName("norm"), G.WithInit(G.Ones()))
	head := G.NewMatrix(g, tensor.Float32, G.WithShape(5, 8), G.WithName("head"), G.WithInit(G.Zeroes())) // [V,D]

	x := G.Must(ops.Embedding(table, tokens("tokens", 0, 1, 2, 3)))         // [B,S,D]
	logits := G.Must(ops.Linear(G.Must(ops.RMSNorm(x, norm, 1e-6)), head))  // [B,S,V]
	loss := G.Must(ops.CrossEntropy(logits, tokens("targets", 1, 2, 3, 4))) // the mean, in nats
	_, err := graph.Grad(loss, table, norm, head)
	check(err)
	m, err := graph.NewMachine(g)
	check(err)
	check(m.RunAll())
	grad, err := head.Grad()
	check(err)
	fmt.Printf("loss %.4f, that of a guess among 5; gradient of head %v\n", loss.Value().Data(), grad.Shape())
	check(m.Close())
	// Output: loss 1.6094, that of a guess among 5; gradient of head (5, 8)
}
