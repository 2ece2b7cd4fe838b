// Package saved opens the saved model that the flags of a program name.
package saved

import (
	"errors"
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

// Model is an open model and the device for it. Close frees both.
type Model struct {
	*train.SavedModel
	Weights   *tinylm.Weights // not yet moved to Backend
	Tokenizer *tokenizer.Tokenizer
	Backend   graph.Backend
	Precision graph.Precision
	command.Closers
}

// Open opens the model at path, the value of -model, with the tokenizer of -tokenizer or, if that is empty, its own,
// and the device of -device, which must have the precision of -precision. It writes warnings to status.
func Open(path, tokenizerPath, device, precision string, status io.Writer) (_ *Model, err error) {
	m := &Model{}
	defer func() {
		if err != nil {
			err = errors.Join(err, m.Close())
		}
	}()
	if m.SavedModel, err = train.FindModel(path); err != nil {
		return nil, command.Flag("model", path, err)
	}
	for _, text := range m.Warnings() {
		terminal.Printf(status, "warning: %s\n", text)
	}
	if m.Backend, err = cuda.Select(device); err != nil {
		return nil, command.UsageError(command.Flag("device", device, err))
	}
	m.Add(m.Backend.Close)
	if m.Precision, err = graph.ParsePrecision(precision); err != nil {
		return nil, err
	}
	if err := m.Precision.Check(m.Backend.Device()); err != nil {
		return nil, err
	}
	if m.Weights, m.Tokenizer, err = m.SavedModel.Open(tokenizerPath); err != nil {
		return nil, command.Flag("model", path, err)
	}
	m.Add(m.Weights.Free)
	return m, nil
}

// String describes the model and its device in a line.
func (m *Model) String() string {
	c := m.Weights.Config.WithDefaults()
	return fmt.Sprintf("%s: %s attention, %.2fM parameters, %s, %v", m.WeightsFile, c.Attention,
		float64(c.Parameters())/1e6, cuda.Describe(m.Backend), m.Precision)
}
