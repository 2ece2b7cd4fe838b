package inspect

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/gorgonia-nsa/nsa/models/tinylm"
	"github.com/gorgonia-nsa/nsa/models/tinylm/corpus"
	"github.com/gorgonia-nsa/nsa/models/tinylm/train"
)

// Opened is a trained model with the vocabulary of its data.
type Opened struct {
	Path      string // of the weights
	Weights   *tinylm.Weights
	Tokenizer *corpus.Tokenizer
}

// Open reads the weights at path: a file of weights, a checkpoint, or a run folder, of which it takes the weights that the run ended
// with, or else those of the newest checkpoint. The tokenizer is the given one, or if that is empty the run's own.
func Open(path, tokenizer string) (_ *Opened, err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("inspect: open: %w", err)
		}
	}()
	o := &Opened{}
	if o.Path, err = weightsAt(path); err != nil {
		return nil, err
	}
	if o.Weights, err = tinylm.LoadWeights(o.Path); err != nil {
		return nil, err
	}
	if tokenizer == "" {
		if tokenizer, err = tokenizerOf(o.Path); err != nil {
			return nil, err
		}
	}
	if o.Tokenizer, err = corpus.NewTokenizer(tokenizer); err != nil {
		return nil, err
	}
	if got, want := o.Tokenizer.Vocab(), o.Weights.Config.Vocab; got != want {
		what := "bytes are"
		if tokenizer != "" {
			what = "the tokenizer " + tokenizer + " has"
		}
		return nil, fmt.Errorf("%s %d tokens, the model in %s has %d: name its tokenizer.json", what, got, o.Path, want)
	}
	return o, nil
}

// weightsAt returns the file of weights that path means.
func weightsAt(path string) (string, error) {
	const weights = "model.safetensors"
	info, err := os.Stat(path)
	if err != nil || !info.IsDir() {
		return path, err
	}
	whole := filepath.Join(path, weights)
	if _, err := os.Stat(whole); !errors.Is(err, fs.ErrNotExist) {
		return whole, err
	}
	list, err := filepath.Glob(filepath.Join(path, "checkpoints", "step-*", weights)) // sorted
	if err == nil && len(list) == 0 {
		err = fmt.Errorf("%s holds neither %s nor a checkpoint: want a run folder, a checkpoint or a file of weights", path, weights)
	}
	if err != nil {
		return "", err
	}
	return list[len(list)-1], nil
}

// tokenizerOf returns the tokenizer of the run that has written the weights at path, "" if it was trained on bytes or there is no run.
func tokenizerOf(path string) (string, error) {
	run := filepath.Dir(path)
	if checkpoints := filepath.Dir(run); filepath.Base(checkpoints) == "checkpoints" {
		run = filepath.Dir(checkpoints)
	}
	o, err := train.ReadOptions(filepath.Join(run, "config.yaml"), "")
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	if err != nil {
		return "", err
	}
	return o.Tokenizer, nil
}
