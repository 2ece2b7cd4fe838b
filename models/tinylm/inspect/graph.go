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
	Rows  [][]Box // a box reads boxes of earlier rows alone
}

// Box is an op or an input.
type Box struct {
	Number     int    // in its section: 1, 2, ... from row to row
	Op, Weight string // the names of the op and of the first weight that it reads, if any
	Shape      string
	Reads      []int // the numbers of the boxes that it reads
}

// drawGraph returns the drawing of the graph of a model.
func drawGraph(m *tinylm.Model, loss *G.Node) (d Drawing) {
	layers := m.Layers()
	d.Nodes = len(m.Graph().AllNodes())
	s := sections{graph: m.Graph(), weights: m.Learnables(), taken: map[*G.Node]bool{}}
	d.add("embedding", s.cut(layers[0].Stream))
	var last *G.Node // the residual stream behind the last layer: the last sum of the graph
	for _, n := range s.graph.AllNodes() {
		if op, _ := spec.SpecOf(n.Op()); op == spec.Spec(pointwise.Add{}) {
			last = n
		}
	}
	for i, l := range layers {
		end := last
		if i+1 < len(layers) {
			end = layers[i+1].Stream
		}
		s.prefix = l.Prefix
		d.add(fmt.Sprintf("layer %d", i), s.cut(end))
	}
	d.add("head", s.cut(loss))
	return d
}

// add adds a section, or counts it if it is like the last one.
func (d *Drawing) add(title string, rows [][]Box) {
	if n := len(d.Sections); n > 0 && reflect.DeepEqual(d.Sections[n-1].Rows, rows) {
		d.Sections[n-1].Times++
		return
	}
	d.Sections = append(d.Sections, Section{title, 1, rows})
}

// sections cuts a graph into sections.
type sections struct {
	graph   *G.ExprGraph
	weights G.Nodes
	prefix  string           // of the names of the weights
	taken   map[*G.Node]bool // nodes of earlier sections
}

// cut returns the rows of end and all nodes before it that no earlier section has. A node is in the first row below all
// that it reads.
func (s *sections) cut(end *G.Node) (rows [][]Box) {
	var nodes [][]*G.Node // by row
	places := map[*G.Node]int{}
	var visit func(n *G.Node) (row int)
	visit = func(n *G.Node) (row int) {
		if row, ok := places[n]; ok {
			return row
		}
		for _, in := range value.Inputs(s.graph, n) {
			if !s.taken[n] && !s.weights.Contains(in) {
				row = max(row, visit(in)+1)
			}
		}
		if row == len(nodes) {
			nodes = append(nodes, nil)
		}
		nodes[row], places[n] = append(nodes[row], n), row
		return row
	}
	visit(end)
	numbers := map[*G.Node]int{}
	for _, list := range nodes {
		var row []Box
		for _, n := range list {
			row = append(row, s.box(n, numbers))
			numbers[n] = len(numbers) + 1
		}
		rows = append(rows, row)
	}
	for n := range numbers {
		s.taken[n] = true
	}
	return rows
}

// box returns the next box of a section whose boxes so far have numbers.
func (s *sections) box(n *G.Node, numbers map[*G.Node]int) Box {
	b := Box{Number: len(numbers) + 1, Op: n.Name(), Shape: fmt.Sprint(n.Shape())}
	if s.taken[n] {
		b.Op = "residual stream"
		return b
	}
	if n.Op() != nil {
		b.Op, _, _ = strings.Cut(value.OpName(n.Op()), "{") // without the sizes of an op of NSA
	}
	for _, in := range value.Inputs(s.graph, n) {
		number, ok := numbers[in]
		switch {
		case !ok && b.Weight == "":
			b.Weight = strings.TrimSuffix(strings.TrimPrefix(in.Name(), s.prefix), ".weight")
		case ok && !slices.Contains(b.Reads, number):
			b.Reads = append(b.Reads, number)
		}
	}
	slices.Sort(b.Reads)
	return b
}
