package tinylm

import (
	G "gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/graph"
	"github.com/gorgonia-nsa/nsa/graph/nn"
	"github.com/gorgonia-nsa/nsa/ops/spec"
	"github.com/gorgonia-nsa/nsa/ops/spec/vocab"
)

// maxTopTokens is the number of tokens of a sequence among which a device lets the host choose the next one.
const maxTopTokens = 64

// fewLogits is the number of logits of a step that are copied to the host as fast as the largest of them.
const fewLogits = 1 << 15

// topTokens are the tokens with the largest logits of each slot, in the order of vocab.TopK: what a step on a device
// brings to the host in place of all logits.
type topTokens struct {
	logitsNode, idsNode *G.Node
	logits, ids         *tensor.Dense // [B,1,k]
}

// newTopTokens adds the tokens with the largest of logits [B,1,V] to the graph.
func newTopTokens(b *nn.Builder, logits *G.Node) *topTokens {
	t := &topTokens{logitsNode: b.Node(spec.Apply(vocab.TopK{K: maxTopTokens}, logits))}
	if b.Err() != nil {
		return nil
	}
	t.idsNode = b.Node(spec.Output(t.logitsNode, 1))
	shape := t.logitsNode.Shape()
	t.logits = tensor.New(tensor.Of(tensor.Float32), tensor.WithShape(shape...))
	t.ids = tensor.New(tensor.Of(tensor.Int32), tensor.WithShape(shape...))
	return t
}

// fetch copies what the last run of m has found to the host.
func (t *topTokens) fetch(m *graph.Machine) error {
	if err := m.Fetch(t.logits, t.logitsNode, 0); err != nil {
		return err
	}
	if err := m.Fetch(t.ids, t.idsNode, 0); err != nil {
		return err
	}
	return m.Synchronize()
}

// of returns the tokens of a slot and their logits.
func (t *topTokens) of(slot int) (ids []int32, logits []float32) {
	k := t.ids.Shape()[2]
	return t.ids.Int32s()[slot*k:][:k], t.logits.Float32s()[slot*k:][:k]
}
