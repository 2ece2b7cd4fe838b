package inspect

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	G "gorgonia.org/gorgonia"

	"github.com/gorgonia-nsa/nsa/internal/value"
	"github.com/gorgonia-nsa/nsa/models/tinylm"
	"github.com/gorgonia-nsa/nsa/ops"
)

// Drawing is a model's graph in sections: the embedding, the layers, and the head with the loss. Consecutive layers of the same structure
// are one section.
type Drawing struct {
	Sections []Section
	Nodes    int // of the whole graph, weights included
}

// Section is a part of the graph. Times is how many equal parts follow one another.
type Section struct {
	Title string
	Times int
	Boxes []Box // inputs before their readers
}

// Box is an op or an input.
type Box struct {
	Op, Weight string // the names of the op and of the first weight that it reads, if any
	Shape      string
	From       []int // the boxes of the section that it reads
}

// drawGraph returns the drawing of the graph of a model with the given layers.
func drawGraph(g *G.ExprGraph, layers []tinylm.Layer) (d Drawing, err error) {
	logits, err := logitsOf(g)
	if err != nil {
		return d, err
	}
	s := sections{graph: g, taken: map[*G.Node]bool{}}
	d.Nodes = len(g.AllNodes())
	d.add(s.cut("embedding", layers[0].Stream))
	last := layers[len(layers)-1].Stream
	for n := logits[1]; last != n; { // the stream after the last layer is the first sum above the logits
		if spec, ok := ops.SpecOf(n.Op()); ok && spec == (ops.AddOp{}) {
			last = n
			break
		}
		in := value.Inputs(g, n)
		if len(in) == 0 {
			return d, errors.New("the residual stream behind the last layer is not found")
		}
		n = in[0]
	}
	for i := range layers {
		end := last
		if i+1 < len(layers) {
			end = layers[i+1].Stream
		}
		s.prefix = layers[i].Prefix
		d.add(s.cut("layer", end))
	}
	d.add(s.cut("head", logits[0]))
	return d, nil
}

// add adds a section, or counts it if it is like the last one.
func (d *Drawing) add(s Section) {
	if n := len(d.Sections); n > 0 {
		last := &d.Sections[n-1]
		if last.Title == s.Title && slices.EqualFunc(last.Boxes, s.Boxes, Box.equal) {
			last.Times++
			return
		}
	}
	d.Sections = append(d.Sections, s)
}

func (b Box) equal(o Box) bool {
	return b.Op == o.Op && b.Weight == o.Weight && b.Shape == o.Shape && slices.Equal(b.From, o.From)
}

// sections cuts a graph into sections.
type sections struct {
	graph  *G.ExprGraph
	prefix string           // of the names of the weights
	taken  map[*G.Node]bool // nodes of earlier sections
}

// cut returns the section of end and all nodes before it that no earlier section has.
func (s *sections) cut(title string, end *G.Node) Section {
	c := Section{Title: title, Times: 1}
	places := map[*G.Node]int{}
	var visit func(n *G.Node)
	visit = func(n *G.Node) {
		if _, ok := places[n]; ok {
			return
		}
		b := Box{Op: n.Name(), Shape: fmt.Sprint(n.Shape())}
		if s.taken[n] {
			b.Op = "residual stream"
		} else if n.Op() != nil {
			b.Op = value.OpName(n.Op())
			if i, ok := ops.OutputIndex(n.Op()); ok {
				b.Op = fmt.Sprintf("output %d", i)
				spec, _ := ops.SpecOf(value.Inputs(s.graph, n)[0].Op())
				if _, ok := spec.(ops.AttentionSpec); ok && i == 1 {
					b.Op = "log-sum-exp"
				}
			} else if spec, ok := ops.SpecOf(n.Op()); ok {
				b.Op = spec.Name()
			}
		}
		for _, in := range s.inputs(n) {
			if in.Op() == nil && isWeight(in) {
				if b.Weight == "" {
					b.Weight = strings.TrimSuffix(strings.TrimPrefix(in.Name(), s.prefix), ".weight")
				}
				continue
			}
			visit(in)
			if p := places[in]; !slices.Contains(b.From, p) {
				b.From = append(b.From, p)
			}
		}
		places[n] = len(c.Boxes)
		c.Boxes = append(c.Boxes, b)
	}
	visit(end)
	for n := range places {
		s.taken[n] = true
	}
	return c
}

// inputs returns the inputs of a node, or none if an earlier section has the node.
func (s *sections) inputs(n *G.Node) G.Nodes {
	if s.taken[n] {
		return nil
	}
	return value.Inputs(s.graph, n)
}

// isWeight reports whether an input is a learnable.
func isWeight(n *G.Node) bool {
	return strings.HasSuffix(n.Name(), ".weight") || strings.HasSuffix(n.Name(), ".bias") || strings.HasSuffix(n.Name(), ".pe")
}
