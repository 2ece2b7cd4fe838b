package tinylm

import (
	"fmt"
	"slices"
	"sync"

	G "gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/graph"
	"github.com/gorgonia-nsa/nsa/graph/nn"
)

// decoderGraph is a graph of a Decoder with its machine.
type decoderGraph struct {
	graph   *G.ExprGraph
	tokens  []int32
	pages   []int32 // the page table
	last    []int32 // of a prefill
	start   []int32 // of one that extends a sequence, else nil
	logits  *G.Node
	top     *topTokens // of the graph of steps; nil: all logits are copied to the host
	machine *graph.Machine
	version int // of the weights at the last run
}

// newGraph returns a graph for tokens [batch,seq] and a page table [batch,width]. build adds the model and returns its
// logits.
func (d *Decoder) newGraph(batch, seq, width int, build func(*decoderGraph, *nn.Builder, *G.Node,
	[]nn.Cache) *G.Node) (*decoderGraph, error) {
	g := &decoderGraph{graph: G.NewGraph()}
	b, dt := d.weights.builder(g.graph), d.weights.dtype()
	var tokens, pages *G.Node
	g.tokens, tokens = newInput(g.graph, "tokens", batch, seq)
	g.pages, pages = newInput(g.graph, "page table", batch, width)
	caches := make([]nn.Cache, len(d.caches))
	for i, v := range d.caches {
		values := G.NewVector(g.graph, dt, G.WithShape(d.cacheSizes[i].Elements()), G.WithName(fmt.Sprint("cache ", i)))
		if err := G.UnsafeLet(values, v); err != nil {
			return nil, err
		}
		caches[i] = nn.Cache{KVCache: d.cacheSizes[i], Values: values, PageTable: pages}
	}
	g.logits = build(g, b, tokens, caches)
	if b.Err() != nil {
		return nil, b.Err()
	}
	if d.onDevice {
		if err := d.weights.bind(b.Learnables()); err != nil {
			return nil, err
		}
	}
	keep := G.Nodes{g.logits}
	if g.top != nil {
		keep = append(keep, g.top.logitsNode, g.top.idsNode)
	}
	m, err := graph.NewMachine(g.graph, append(slices.Clone(d.options), graph.WithKeep(keep...),
		graph.WithConstantInputs(b.Learnables()...))...)
	if err != nil {
		return nil, err
	}
	g.machine = m
	return g, nil
}

// copyLogits copies row i of the logits of the last run to row(i), unless that is nil.
func (g *decoderGraph) copyLogits(row func(i int) []float32) error {
	x, err := graph.HostTensor(g.logits)
	if err != nil {
		return err
	}
	if x.Size() < manyLogits {
		for i := range x.Shape()[0] {
			copyRow(row(i), x, i)
		}
		return nil
	}
	var all sync.WaitGroup
	for i := range x.Shape()[0] {
		to := row(i)
		all.Go(func() { copyRow(to, x, i) })
	}
	all.Wait()
	return nil
}

// copyRow copies row i of x to dst, unless dst is nil.
func copyRow(dst []float32, x *tensor.Dense, i int) {
	from := i * (x.Size() / x.Shape()[0])
	if x.Dtype() == tensor.Float32 {
		copy(dst, x.Float32s()[from:])
		return
	}
	for j := range dst {
		dst[j] = float32(x.Float64s()[from+j])
	}
}
