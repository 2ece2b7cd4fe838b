// Package saved opens the saved model that the flags of a program name.
package saved

import (
	"fmt"
	"io"

	"github.com/gorgonia-nsa/nsa/cuda"
	"github.com/gorgonia-nsa/nsa/graph"
	"github.com/gorgonia-nsa/nsa/internal/command"
	"github.com/gorgonia-nsa/nsa/internal/terminal"
	"github.com/gorgonia-nsa/nsa/models/tinylm"
	"github.com/gorgonia-nsa/nsa/models/tinylm/tokenizer"
	"github.com/gorgonia-nsa/nsa/models/tinylm/train"
)

// Model is a model in memory. MoveTo sets Backend and Precision.
type Model struct {
	*train.SavedModel
	Weights   *tinylm.Weights
	Tokenizer *tokenizer.Tokenizer
	Backend   graph.Backend
	Precision graph.Precision
	command.Closers
}

// Open opens the model at path, the value of -model, with the tokenizer of -tokenizer or, if that is empty, its own. It
// writes warnings to status.
func Open(path, tokenizerPath string, status io.Writer) (*Model, error) {
	found, err := train.FindModel(path)
	if err != nil {
		return nil, command.Flag("model", path, err)
	}
	for _, text := range found.Warnings() {
		terminal.Printf(status, "warning: %s\n", text)
	}
	w, t, err := found.Open(tokenizerPath)
	return &Model{SavedModel: found, Weights: w, Tokenizer: t}, command.Flag("model", path, err)
}

// MoveTo moves the model to the device of -device, which must have the precision of -precision. Close frees both, also
// after an error.
func (m *Model) MoveTo(device, precision string) (err error) {
	if m.Backend, err = cuda.Select(device); err != nil {
		return command.UsageError(command.Flag("device", device, err))
	}
	m.Add(m.Backend.Close)
	if m.Precision, err = graph.ParsePrecision(precision); err == nil {
		err = m.Precision.Check(m.Backend.Device())
	}
	if err != nil {
		return err
	}
	m.Add(m.Weights.Free)
	return m.Weights.MoveTo(m.Backend)
}

// String describes the model on its device in a line.
func (m *Model) String() string {
	c := m.Weights.Config.WithDefaults()
	return fmt.Sprintf("%s: %s attention, %.2fM parameters, %s, %v", m.WeightsFile, c.Attention,
		float64(c.Parameters())/1e6, cuda.Describe(m.Backend), m.Precision)
}
