package inspect

import (
	"fmt"
	"reflect"
	"slices"
	"strings"

	G "gorgonia.org/gorgonia"

	"github.com/gorgonia-nsa/nsa/internal/value"
	"github.com/gorgonia-nsa/nsa/models/tinylm"
	"github.com/gorgonia-nsa/nsa/ops/spec"
	"github.com/gorgonia-nsa/nsa/ops/spec/pointwise"
)

// Drawing is a model's graph in sections: the embedding, the layers, and the head with the loss. Consecutive layers of
// the same structure are one section.
type Drawing struct {
	Sections []Section
	Nodes    int // of the whole graph, weights included
}

// Section is a part of the graph. Times is how many equal parts follow one another.
type Section struct {
	Title string
	Times int
	Boxes []Box // numbered 1, 2, ...; a box reads boxes before it alone
}

// Box is an op or an input.
type Box struct {
	Op, Weight string // the names of the op and of the first weight that it reads, if any
	Shape      string
	Reads      []int // the numbers of the boxes that it reads, ascending
}

func drawGraph(m *tinylm.Model, loss *G.Node) (d Drawing) {
	nodes, layers, taken := m.Graph().AllNodes(), m.Layers(), map[*G.Node]bool{}
	d.Nodes = len(nodes)
	// add adds end and all nodes before it that no earlier section has, or counts a section that is like the last one.
	add := func(title, prefix string, end *G.Node) {
		boxes := cut(m, end, prefix, taken)
		if n := len(d.Sections); n > 0 && reflect.DeepEqual(d.Sections[n-1].Boxes, boxes) {
			d.Sections[n-1].Times++
		} else {
			d.Sections = append(d.Sections, Section{title, 1, boxes})
		}
	}
	add("embedding", "", layers[0].Stream)
	for i, l := range layers {
		var end *G.Node // the residual stream behind the layer; behind the last one, the last sum of the graph
		if i+1 < len(layers) {
			end = layers[i+1].Stream
		} else {
			for _, n := range nodes {
				if op, _ := spec.SpecOf(n.Op()); op == spec.Spec(pointwise.Add{}) {
					end = n
				}
			}
		}
		add(fmt.Sprintf("layer %d", i), l.Prefix, end)
	}
	add("head", "", loss)
	return d
}

// cut returns the boxes of end and of all nodes before it that are not taken, and takes them. A taken node that they
// read is a box without inputs. Weights are no boxes; prefix is that of their names.
func cut(m *tinylm.Model, end *G.Node, prefix string, taken map[*G.Node]bool) (boxes []Box) {
	numbers := map[*G.Node]int{}
	var visit func(n *G.Node) (number int)
	visit = func(n *G.Node) int {
		if numbers[n] > 0 {
			return numbers[n]
		}
		b := Box{Op: n.Name(), Shape: fmt.Sprint(n.Shape())}
		if n.Op() != nil {
			b.Op, _, _ = strings.Cut(value.OpName(n.Op()), "{") // without the sizes of an op of NSA
		}
		if taken[n] {
			b.Op = "residual stream"
		} else {
			for _, in := range value.Inputs(m.Graph(), n) {
				if !m.Learnables().Contains(in) {
					b.Reads = append(b.Reads, visit(in))
				} else if b.Weight == "" {
					b.Weight = strings.TrimSuffix(strings.TrimPrefix(in.Name(), prefix), ".weight")
				}
			}
		}
		slices.Sort(b.Reads)
		b.Reads = slices.Compact(b.Reads)
		boxes = append(boxes, b)
		numbers[n] = len(boxes)
		return len(boxes)
	}
	visit(end)
	for n := range numbers {
		taken[n] = true
	}
	return boxes
}
