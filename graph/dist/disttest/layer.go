package disttest

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	G "gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/graph"
	"github.com/gorgonia-nsa/nsa/graph/nn"
	"github.com/gorgonia-nsa/nsa/internal/ref"
	"github.com/gorgonia-nsa/nsa/internal/testutil"
	"github.com/gorgonia-nsa/nsa/ops"
)

// Layer is a layer of NSA, or a dense one, and the shape of its input. Input, weights and the gradient of the output
// are random, and the same on all ranks.
type Layer struct {
	nn.NSAConfig
	Dense      bool
	Batch, Seq int
}

func (l Layer) String() string {
	return fmt.Sprintf("%d x %d tokens, dense %v, %+v", l.Batch, l.Seq, l.Dense, l.NSAConfig)
}

// LayerResult is what a layer computes, and gradients: of its input, and of its parameters.
type LayerResult struct {
	Output, DX []float64 // [B,S,Dim]
	Blocks     []int32   // [B,S,Hkv,n]; nil without selected blocks
	DW         [][]float64
}

// Placement says where a layer runs.
type Placement struct {
	Dtype     tensor.Dtype
	Precision graph.Precision
	Ranks     int // that share each sequence
	Parts     int // of the group, each with the same sequences
	Open      Open
}

const prefix = "attn." // of the names of the parameters, whose values depend on their names

const (
	inputSeed = 1 + iota
	gradientSeed
	weightSeed
)

// Run runs the layer and returns the result of each part. Tokens that are silent [B,S] have no gradient of their
// output; nil are none.
func (l Layer) Run(p Placement, silent []bool) ([]LayerResult, error) {
	if p.Ranks*p.Parts == 1 {
		r, err := l.runRank(p, nil, silent)
		return []LayerResult{r}, err
	}
	results := make([]LayerResult, p.Parts*p.Ranks)
	err := OnRanks(len(results), func(g graph.Group) (err error) {
		results[g.Rank()], err = l.runRank(p, g, silent)
		return err
	})
	if err != nil {
		return nil, err
	}
	var parts []LayerResult
	for part := range slices.Chunk(results, p.Ranks) {
		whole, err := l.join(part)
		if err != nil {
			return nil, err
		}
		parts = append(parts, whole)
	}
	return parts, nil
}

// join returns the result of whole sequences of those of the ranks that share them.
func (l Layer) join(ranks []LayerResult) (r LayerResult, err error) {
	n := l.Batch * l.Seq
	r = LayerResult{Output: make([]float64, n*l.Dim), DX: make([]float64, n*l.Dim), DW: ranks[0].DW}
	if ranks[0].Blocks != nil {
		r.Blocks = make([]int32, n*l.KVHeads*l.TopN)
	}
	for rank, part := range ranks {
		tokens, err := nn.ContextTokens(rank, len(ranks), l.Seq)
		if err != nil {
			return r, err
		}
		paste(r.Output, part.Output, l.Batch, tokens)
		paste(r.DX, part.DX, l.Batch, tokens)
		paste(r.Blocks, part.Blocks, l.Batch, tokens)
		for i, dw := range part.DW {
			if !slices.Equal(dw, r.DW[i]) {
				return r, fmt.Errorf("rank %d has another gradient of parameter %d than rank 0", rank, i)
			}
		}
	}
	for _, dw := range r.DW { // the mean over the ranks
		for i := range dw {
			dw[i] *= float64(len(ranks))
		}
	}
	return r, nil
}

// paste copies the rows of part to those of all [B,S,...] that belong to the tokens of each sequence.
func paste[T any](all, part []T, batch int, tokens []int) {
	width := len(part) / batch / len(tokens)
	for b := range batch {
		for i, t := range tokens {
			copy(all[b*len(all)/batch+t*width:][:width], part[(b*len(tokens)+i)*width:])
		}
	}
}

// cut returns those rows of all [B,S,...] that belong to the tokens of each sequence.
func cut(all []float64, batch int, tokens []int, width int) (part []float64) {
	part = make([]float64, 0, batch*len(tokens)*width)
	for b := range batch {
		for _, t := range tokens {
			part = append(part, all[b*len(all)/batch+t*width:][:width]...)
		}
	}
	return part
}

// net is the graph of a layer.
type net struct {
	output, blocks *G.Node // without selected blocks nil
	dx             *G.Node // the gradient of the input, before the ranks average it
	weights        G.Nodes
}

// build returns the graph of the layer for a rank's part x and r, the gradient of the output.
func (l Layer) build(dt tensor.Dtype, x, r []float64, rank, ranks int) (n net, err error) {
	Building.Lock()
	defer Building.Unlock()
	rows, g := l.Batch*min(2, ranks), G.NewGraph()
	part := func(name string, data []float64) *G.Node {
		return input(g, name, dt, data, len(data)/rows/l.Dim, l.Dim)
	}
	in, source := part("x", x), nn.Random(dt, weightSeed)
	y, opts := G.Must(G.Neg(in)), []nn.ApplyOption{nn.WithContext(rank, ranks)}
	if l.Dense {
		c := nn.AttentionConfig{Dim: l.Dim, Heads: l.Heads, KVHeads: l.KVHeads, KeyDim: l.KeyDim, ValueDim: l.ValueDim}
		b := nn.NewBuilder(g, c.LayerParams(prefix), source)
		n.output, err = b.Attention(prefix, c).Apply(y, opts...)
		n.weights = b.Learnables()
	} else {
		var layer *nn.NSA
		var p nn.NSAParts
		if layer, err = nn.NewNSA(g, prefix, l.NSAConfig, source); err == nil {
			p, err = layer.ApplyParts(y, opts...)
		}
		n.output, n.blocks, n.weights = p.Output, p.Blocks, layer.Learnables()
	}
	if err != nil {
		return n, err
	}
	cost := G.Must(G.Sum(G.Must(G.HadamardProd(n.output, part("r", r)))))
	grads, err := graph.Grad(cost, append(G.Nodes{in}, n.weights...)...)
	if err == nil {
		n.dx = G.Must(G.Neg(grads[0]))
	}
	return n, err
}

// runRank runs the layer for the tokens of a rank. Without a group these are all.
func (l Layer) runRank(p Placement, g graph.Group, silent []bool) (r LayerResult, err error) {
	rank, opts := 0, []graph.Option{graph.WithPrecision(p.Precision)}
	if g != nil {
		rank, opts = g.Rank()%p.Ranks, append(opts, graph.WithGroup(g))
	}
	tokens, err := nn.ContextTokens(rank, p.Ranks, l.Seq)
	if err != nil {
		return r, err
	}
	dy := testutil.Normal(gradientSeed, l.Batch*l.Seq*l.Dim)
	for i, is := range silent {
		if is {
			clear(dy[i*l.Dim:][:l.Dim])
		}
	}
	x := testutil.Normal(inputSeed, len(dy))
	n, err := l.build(p.Dtype, cut(x, l.Batch, tokens, l.Dim), cut(dy, l.Batch, tokens, l.Dim), rank, p.Ranks)
	if err != nil {
		return r, err
	}
	keep := slices.DeleteFunc(G.Nodes{n.output, n.dx, n.blocks}, func(n *G.Node) bool { return n == nil })
	b, err := p.Open(rank)
	if err != nil {
		return r, err
	}
	m, err := graph.NewMachine(n.output.Graph(), append(opts, graph.WithBackend(b), graph.WithKeep(keep...))...)
	if err != nil {
		return r, errors.Join(err, b.Close())
	}
	if err = m.RunAll(); err == nil {
		r, err = n.result()
	}
	return r, errors.Join(err, m.Close(), b.Close())
}

// result returns the values after a run.
func (n net) result() (r LayerResult, err error) {
	if r.Output, err = floats(n.output.Value()); err != nil {
		return r, err
	}
	if r.DX, err = floats(n.dx.Value()); err != nil {
		return r, err
	}
	if n.blocks != nil {
		blocks, err := graph.HostTensor(n.blocks)
		if err != nil {
			return r, err
		}
		r.Blocks = slices.Clone(blocks.Int32s())
	}
	for _, w := range n.weights {
		dw, err := w.Grad()
		if err != nil {
			return r, err
		}
		list, err := floats(dw)
		if err != nil {
			return r, err
		}
		r.DW = append(r.DW, list)
	}
	return r, nil
}

// ContextParallel tests that a layer of NSA whose sequences lie over ranks has the outputs and gradients of one rank:
// in float32, and in bf16 if the device has it, from one rank's in float32 at most twice as far as one rank's are, and
// a unit roundoff. Queries select the same blocks as on one rank. In float32 they may differ where their scores tie
// within 1e-5, in bf16 for fewer queries than those that select other blocks than in float32. Outputs of such queries
// are not compared, and have no gradient.
func ContextParallel(t *testing.T, ranks int, l Layer, open Open) {
	run := func(p graph.Precision, ranks int, silent []bool) LayerResult {
		return testutil.Must(l.Run(Placement{tensor.Float32, p, ranks, 1, open}, silent))(t)[0]
	}
	b := testutil.Must(open(0))(t)
	device := b.Device()
	require.NoError(t, b.Close())
	first := run(graph.F32, 1, nil)
	for p, unit := range map[graph.Precision]float64{graph.F32: 1e-5, graph.BF16: 0x1p-8} {
		if p.Check(device) != nil {
			continue
		}
		exact, one, all, silent := first, first, run(p, ranks, nil), make([]bool, l.Batch*l.Seq)
		differ := func(a, b LayerResult) (n int) {
			for i := 0; i < len(a.Blocks); i += l.TopN {
				if !slices.Equal(a.Blocks[i:][:l.TopN], b.Blocks[i:][:l.TopN]) {
					silent[i/l.TopN/l.KVHeads] = true
					n++
				}
			}
			return n
		}
		if p == graph.F32 {
			n := differ(all, one)
			t.Logf("%v: %d selections differ from one rank's", p, n)
			if n > 0 {
				l.requireTies(t, all.Blocks, one.Blocks, unit)
			}
		} else {
			one = run(p, 1, nil)
			n, most := differ(all, one), differ(one, exact)
			t.Logf("%v: %d selections differ from one rank's, %d of these from float32", p, n, most)
			require.LessOrEqual(t, n, most)
		}
		if slices.Contains(silent, true) {
			exact, one, all = run(graph.F32, 1, silent), run(p, 1, silent), run(p, ranks, silent)
		}
		for i := range silent {
			for _, r := range []LayerResult{exact, one, all} {
				if silent[i] {
					clear(r.Output[i*l.Dim:][:l.Dim])
				}
			}
		}
		within := func(what string, all, one, exact []float64) {
			e := testutil.RelErr(one, exact)
			testutil.Within(t, fmt.Sprintf("%v, %s (one rank's error %.3g)", p, what, e), all, exact, 2*e+unit)
		}
		within("output", all.Output, one.Output, exact.Output)
		within("gradient of the input", all.DX, one.DX, exact.DX)
		for i, w := range l.LayerParams(prefix) {
			within("gradient of "+w.Name, all.DW[i], one.DW[i], exact.DW[i])
		}
	}
}

// requireTies requires that where selections differ, the oracle's scores of the blocks that only one has differ by at
// most tolerance times the sum of a row of scores.
func (l Layer) requireTies(t *testing.T, a, b []int32, tolerance float64) {
	t.Helper()
	q, kc := l.compressed(t)
	rounding := tolerance * float64(l.Heads/l.KVHeads*l.BlockLen/l.Stride)
	for i := 0; i < len(a); i += l.TopN {
		at, own, other := i/l.TopN, a[i:][:l.TopN], b[i:][:l.TopN]
		if slices.Equal(own, other) {
			continue
		}
		row, g := at/l.KVHeads, at%l.KVHeads
		score, low, high := l.scores(q, kc, row/l.Seq, row%l.Seq, g), math.Inf(1), math.Inf(-1)
		for _, lists := range [][2][]int32{{own, other}, {other, own}} {
			for _, block := range lists[0] {
				if !slices.Contains(lists[1], block) {
					require.GreaterOrEqual(t, block, int32(0), "query %d: %v and %v", row, own, other)
					low, high = min(low, score[block]), max(high, score[block])
				}
			}
		}
		require.LessOrEqual(t, high-low, rounding, "query %d, group %d: %v and %v", row, g, own, other)
	}
}

// compressed returns the layer's queries [B,S,Hq,D] and compressed keys [B,Nc,Hkv,D] in float64.
func (l Layer) compressed(t *testing.T) (q, kc *ref.Tensor) {
	x := testutil.Normal(inputSeed, l.Batch*l.Seq*l.Dim)
	for i := range x {
		x[i] = -float64(float32(x[i]))
	}
	g := G.NewGraph()
	in := G.NewTensor(g, tensor.Float64, 3, G.WithName("x"),
		G.WithValue(tensor.New(tensor.WithShape(l.Batch, l.Seq, l.Dim), tensor.WithBacking(x))))
	layer := testutil.Must(nn.NewNSA(g, prefix, l.NSAConfig, nn.Random(tensor.Float64, weightSeed)))(t)
	project := func(name string, heads int) *G.Node {
		i := slices.IndexFunc(layer.Learnables(), func(n *G.Node) bool { return n.Name() == prefix+name+".weight" })
		return G.Must(ops.RoPE(G.Must(ops.Linear(in, layer.Learnables()[i], ops.WithHeads(heads))), nn.DefaultRoPEBase, 0))
	}
	nodes := G.Nodes{project("wq", l.Heads), G.Must(ops.CompressMean(project("wk_cmp", l.KVHeads), l.Params))}
	m := testutil.Closing(graph.NewMachine(g, graph.WithKeep(nodes...)))(t)
	require.NoError(t, m.RunAll())
	tensorOf := func(n *G.Node) *ref.Tensor { return ref.From(testutil.Must(floats(n.Value()))(t), n.Shape()...) }
	return tensorOf(nodes[0]), tensorOf(nodes[1])
}

// scores returns the scores of the blocks of a query in a group: see ref.SelectBlocks.
func (l Layer) scores(q, kc *ref.Tensor, b, t, g int) []float64 {
	score, heads := make([]float64, ref.NumSelection(l.Seq, l.SelectBlock)), l.Heads/l.KVHeads
	visible := ref.NumVisible(t, l.BlockLen, l.Stride)
	for head := g * heads; head < (g+1)*heads; head++ {
		p, sum := make([]float64, visible), 0.0
		for i := range p {
			for j, x := range q.Row(b, t, head) {
				p[i] += x * kc.Row(b, i, g)[j] / math.Sqrt(float64(l.KeyDim))
			}
		}
		top := slices.Max(p)
		for i := range p {
			p[i] = math.Exp(p[i] - top)
			sum += p[i]
		}
		for i := range p {
			first, end := i*l.Stride, i*l.Stride+l.BlockLen
			for j := first / l.SelectBlock; j*l.SelectBlock < end; j++ {
				shared := min(end, (j+1)*l.SelectBlock) - max(first, j*l.SelectBlock)
				score[j] += p[i] / sum * float64(shared) / float64(l.Stride)
			}
		}
	}
	return score
}
