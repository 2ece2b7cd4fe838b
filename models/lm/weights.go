package lm

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/graph/nn"
	"github.com/gorgonia-nsa/nsa/internal/quote"
	"github.com/gorgonia-nsa/nsa/models/tinylm"
)

// openWeights returns the weights of a model whose tensors have the names of n in a file. It closes the file after an
// error, else the weights do. halves says that the file pairs dimension i with i+D/2. Tensors of ignored are not read.
func openWeights(c tinylm.Config, from Tensors, n naming, halves bool,
	ignored func(name string) bool) (*tinylm.Weights, error) {
	if err := checkTensors(c, from, n, ignored); err != nil {
		return nil, errors.Join(err, from.Close())
	}
	return tinylm.ReadWeights(c, &source{from, c, n, halves})
}

// source is the tensors of a file as tinylm.Source.
type source struct {
	Tensors
	config tinylm.Config
	names  naming
	halves bool
}

func (s *source) Read(p nn.Param) (*tensor.Dense, error) {
	v := tensor.New(tensor.Of(tensor.Float32), tensor.WithShape(p.Shape...))
	if err := s.Tensors.Read(s.names.of(p.Name), v.Float32s()); err != nil || !s.halves {
		return v, err
	}
	return fromTransformers(p.Name, v, s.config), nil
}

// checkTensors returns an error that lists the tensors that only one side has, or names one of another shape.
func checkTensors(c tinylm.Config, from Tensors, n naming, ignored func(name string) bool) error {
	params, known := c.LearnableParams(), map[string]bool{}
	var missing, unknown []string
	for _, p := range params {
		name := n.of(p.Name)
		known[name] = true
		shape, ok := from.Shape(name)
		switch {
		case !ok:
			missing = append(missing, name)
		case !slices.Equal(shape, p.Shape):
			return fmt.Errorf("tensor %s has shape %v, want %v", quote.Text(name), shape, p.Shape)
		}
	}
	for _, name := range from.Names() {
		if !known[name] && !ignored(name) {
			unknown = append(unknown, name)
		}
	}
	if len(missing)+len(unknown) > 0 {
		return fmt.Errorf("tensors do not fit the configuration: missing %s; not of the model %s", list(missing), list(unknown))
	}
	return nil
}

// list returns the first of many names for an error.
func list(names []string) string {
	const most = 8
	slices.Sort(names)
	text := make([]string, 0, most+1)
	for _, n := range names[:min(len(names), most)] {
		text = append(text, quote.Text(n))
	}
	if n := len(names) - most; n > 0 {
		text = append(text, fmt.Sprintf("and %d more", n))
	}
	if len(text) == 0 {
		return "none"
	}
	return strings.Join(text, ", ")
}

// transformersTensors returns the weights with the names and the order of rows of transformers. Tensors whose rows stay
// are those of w.
func transformersTensors(w *tinylm.Weights) map[string]*tensor.Dense {
	out := make(map[string]*tensor.Dense, len(w.Tensors))
	for _, p := range w.Config.LearnableParams() {
		out[transformers.of(p.Name)] = toTransformers(p.Name, w.Tensors[p.Name], w.Config)
	}
	return out
}

// toTransformers returns v, whose rows are those of a parameter, with rows or columns in the order of transformers.
// fromTransformers is its inverse.
func toTransformers(param string, v *tensor.Dense, c tinylm.Config) *tensor.Dense {
	return moveRows(param, v, c, true)
}

func fromTransformers(param string, v *tensor.Dense, c tinylm.Config) *tensor.Dense {
	return moveRows(param, v, c, false)
}

func moveRows(param string, v *tensor.Dense, c tinylm.Config, toHalves bool) *tensor.Dense {
	rows, columns := isRotated(param)
	if !rows && !columns {
		return v
	}
	width := v.Size() / v.Shape()[0]
	if columns { // a column is a row of one number
		width = 1
	}
	moved := tensor.New(tensor.Of(tensor.Float32), tensor.WithShape(v.Shape()...))
	moveHeads(moved.Float32s(), v.Float32s(), width, c.KeyDim, toHalves)
	return moved
}
