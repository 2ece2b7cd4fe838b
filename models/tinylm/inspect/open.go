package inspect

import (
	"fmt"

	"github.com/gorgonia-nsa/nsa/models/tinylm"
	"github.com/gorgonia-nsa/nsa/models/tinylm/corpus"
	"github.com/gorgonia-nsa/nsa/models/tinylm/train"
)

// Opened is a trained model with the vocabulary of its data.
type Opened struct {
	Path      string // of the weights
	Weights   *tinylm.Weights
	Tokenizer *corpus.Tokenizer
	Damaged   []error // errors of newer, damaged checkpoints
}

// Open reads the model at path: see train.Find. The tokenizer is the given one or, if that is empty, the run's own.
func Open(path, tokenizer string) (*Opened, error) {
	f, err := train.Find(path)
	if err != nil {
		return nil, fmt.Errorf("inspect: open: %w", err)
	}
	o := &Opened{Path: f.Weights, Damaged: f.Damaged}
	if o.Weights, o.Tokenizer, err = f.Open(tokenizer); err != nil {
		return nil, fmt.Errorf("inspect: open: %w", err)
	}
	return o, nil
}
