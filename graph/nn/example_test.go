package nn_test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"

	G "gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/graph"
	"github.com/gorgonia-nsa/nsa/graph/nn"
	"github.com/gorgonia-nsa/nsa/graph/safetensors"
	"github.com/gorgonia-nsa/nsa/internal/testutil"
	"github.com/gorgonia-nsa/nsa/ops"
)

var check = testutil.Check

// A layer of sparse attention over 64 tokens.
func ExampleNewNSA() {
	g := G.NewGraph()
	x := G.NewTensor(g, tensor.Float32, 3, G.WithShape(1, 64, 32), G.WithName("x"), G.WithInit(G.GlorotN(1))) // [B,S,Dim]

	config := nn.NSAConfig{
		Dim: 32, Heads: 4, KVHeads: 2, KeyDim: 8, ValueDim: 8, GateHidden: 16,
		Params: ops.Params{BlockLen: 8, Stride: 4, SelectBlock: 8, TopN: 4, Window: 16},
	}
	layer, err := nn.NewNSA(g, "attn.", config, nn.Random(tensor.Float32, 1))
	check(err)
	y, err := layer.Apply(x) // [B,S,Dim]
	check(err)

	m, err := graph.NewMachine(g)
	check(err)
	check(m.RunAll())
	fmt.Println("output", y.Value().Shape(), "parameters", len(layer.Learnables()))
	check(m.Close())
	// Output: output (1, 64, 32) parameters 12
}

// What a layer looks at: its gates and the blocks that each query selects.
func ExampleNSA_ApplyParts() {
	config := nn.NSAConfig{
		Dim: 32, Heads: 4, KVHeads: 2, KeyDim: 8, ValueDim: 8, GateHidden: 16,
		Params: ops.Params{BlockLen: 8, Stride: 4, SelectBlock: 8, TopN: 4, Window: 16},
	}
	g := G.NewGraph()
	x := G.NewTensor(g, tensor.Float32, 3, G.WithShape(1, 64, 32), G.WithName("x"), G.WithInit(G.GlorotN(1)))
	layer, err := nn.NewNSA(g, "attn.", config, nn.Random(tensor.Float32, 1))
	check(err)
	parts, err := layer.ApplyParts(x)
	check(err)
	m, err := graph.NewMachine(g, graph.WithKeep(parts.Gates, parts.Blocks))
	check(err)
	check(m.RunAll())
	fmt.Println("output", parts.Output.Value().Shape(), "gates", parts.Gates.Value().Shape())
	fmt.Println("blocks of the first token", parts.Blocks.Value().Data().([]int32)[:4])
	check(m.Close())
	// Output:
	// output (1, 64, 32) gates (1, 64, 4, 3)
	// blocks of the first token [0 -1 -1 -1]
}

// The parameters of a layer, kept in a file.
func ExampleAssign() {
	weights := func(seed uint64) G.Nodes {
		b := nn.NewBuilder(G.NewGraph(), []nn.Param{{Name: "w", Shape: tensor.Shape{2, 3}, Init: nn.Normal(1)}},
			nn.Random(tensor.Float32, seed))
		b.Param("w")
		return b.Learnables()
	}
	dir, err := os.MkdirTemp("", "weights")
	check(err)
	defer os.RemoveAll(dir)
	path := filepath.Join(dir, "weights.safetensors")
	first, second := weights(1), weights(2)
	out := safetensors.File{Tensors: map[string]*tensor.Dense{}}
	for _, n := range first {
		out.Tensors[n.Name()], err = graph.HostTensor(n) // also from a device
		check(err)
	}
	check(out.Write(path))
	in, err := safetensors.Read(path)
	check(err)
	for _, n := range second {
		check(nn.Assign(n.Value(), in.Tensors[n.Name()]))
	}
	fmt.Println(G.ValueEq(first[0].Value(), second[0].Value()))
	// Output: true
}

// Two documents in one row, each as if it ran alone: the second has the output that it has as the first.
func ExampleWithCuSeqlens() {
	config := nn.NSAConfig{
		Dim: 32, Heads: 4, KVHeads: 2, KeyDim: 8, ValueDim: 8, GateHidden: 16,
		Params: ops.Params{BlockLen: 8, Stride: 4, SelectBlock: 8, TopN: 4, Window: 16},
	}
	g := G.NewGraph()
	same := make([]float32, 2*32*32)
	for i := range same {
		same[i] = float32(i % (32 * 32) % 7)
	}
	x := G.NewTensor(g, tensor.Float32, 3, G.WithName("x"), G.WithValue(tensor.New(tensor.WithShape(1, 64, 32),
		tensor.WithBacking(same))))
	// up to four documents; the last two are empty
	boundaries := tensor.New(tensor.WithBacking([]int32{0, 32, 64, 64, 64}))
	cuSeqlens := G.NewVector(g, tensor.Int32, G.WithName("cu_seqlens"), G.WithValue(boundaries))
	layer, err := nn.NewNSA(g, "attn.", config, nn.Random(tensor.Float32, 1))
	check(err)
	y, err := layer.Apply(x, nn.WithCuSeqlens(cuSeqlens))
	check(err)
	m, err := graph.NewMachine(g)
	check(err)
	run := func() (alike bool) {
		check(m.RunAll())
		out := y.Value().Data().([]float32)
		return slices.Equal(out[:32*32], out[32*32:])
	}
	fmt.Println("two documents:", run())
	copy(boundaries.Int32s(), []int32{0, 64, 64, 64, 64}) // new boundaries for the same machine
	fmt.Println("one document:", run())
	check(m.Close())
	// Output:
	// two documents: true
	// one document: false
}
