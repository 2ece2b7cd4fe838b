package lm

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/internal/fault"
	"github.com/gorgonia-nsa/nsa/internal/files"
	"github.com/gorgonia-nsa/nsa/internal/quote"
	"github.com/gorgonia-nsa/nsa/models/lm/gguf"
	"github.com/gorgonia-nsa/nsa/models/lm/pretrained"
	"github.com/gorgonia-nsa/nsa/models/tinylm"
)

const configFile = "config.json"

var errNoWeights = errors.New("no weights")

// IsModel reports whether path looks like something that ReadWeights reads: a GGUF file or a name that
// ends in .gguf, or a folder whose config.json has a model_type.
func IsModel(path string) bool {
	if isGGUF(path) {
		return true
	}
	text, err := readFile(filepath.Join(path, configFile))
	var c struct {
		Type *string `json:"model_type"`
	}
	return err == nil && json.Unmarshal(text, &c) == nil && c.Type != nil
}

// ReadWeights reads the model of a folder of transformers or of a GGUF file into float32. A tensor that the file has and
// the model lacks, or the other way round, is an error that lists all such tensors.
func ReadWeights(path string) (_ *tinylm.Weights, err error) {
	w, err := OpenWeights(path)
	if err != nil {
		return nil, err
	}
	if err := w.Load(); err != nil {
		return nil, fault.In("lm", path, quote.Error(errors.Join(err, w.Free())))
	}
	return w, nil
}

// OpenWeights is ReadWeights of weights that stay in the file, and in its type, until they are needed: see
// tinylm.ReadWeights. A model of which the host's memory could not hold all in float32 so runs on a device. Free closes
// the file if nothing has needed the weights.
func OpenWeights(path string) (_ *tinylm.Weights, err error) {
	defer func() { err = fault.In("lm", path, quote.Error(err)) }()
	if isGGUF(path) {
		return openGGUF(path)
	}
	text, err := readFile(filepath.Join(path, configFile))
	if err != nil {
		return nil, err
	}
	c, err := parseConfig(text)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", configFile, err)
	}
	f, err := pretrained.Open(path)
	if err != nil {
		return nil, err
	}
	return openWeights(c, f, transformers, true, func(name string) bool {
		// Some files of tied models have the head, too, and older ones the frequencies of the rotary embedding.
		return c.TiedHead && name == "lm_head.weight" || strings.HasSuffix(name, "rotary_emb.inv_freq")
	})
}

func openGGUF(path string) (*tinylm.Weights, error) {
	f, err := gguf.Open(path)
	if err != nil {
		return nil, err
	}
	c, halves, err := ggufConfig(f)
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return openWeights(c, f, ggml, halves, func(name string) bool { return name == ropeFactors })
}

// maxConfig bounds the bytes of a file of JSON beside weights.
const maxConfig = 1 << 20

func readFile(path string) ([]byte, error) { return files.ReadFile(path, maxConfig) }

// CheckSave returns an error if Save does not write models of a configuration.
func CheckSave(c tinylm.Config) error {
	_, err := hubConfigOf(c.WithDefaults())
	return fault.In("lm", "", err)
}

// Save writes a model of the Llama family to a folder in the form of transformers, which reads it if its layers are
// dense. A model with sparse ones has a model_type of its own, and a README.md that says so, unless the folder has one.
// The folder must not have a model. CopyTokenizer adds the tokenizer.
func Save(w *tinylm.Weights, folder string, layout pretrained.Layout) (err error) {
	defer func() { err = fault.In("lm", folder, quote.Error(err)) }()
	if w == nil {
		return errNoWeights
	}
	c := w.Config.WithDefaults()
	h, err := hubConfigOf(c)
	if err != nil {
		return err
	}
	if c.Align {
		return errors.New("the model has the dense layers of an alignment: save that of Aligned")
	}
	if err := errors.Join(w.Load(), w.Download()); err != nil {
		return err
	}
	if v := w.Tensors["embed.weight"]; v == nil || v.Dtype() != tensor.Float32 {
		return errors.New("the weights are not in float32")
	}
	if c.LoRA > 0 {
		return errors.New("the model has low-rank updates: save those of Merged, or the updates by SaveAdapter")
	}
	if _, err := os.Stat(filepath.Join(folder, configFile)); !errors.Is(err, fs.ErrNotExist) {
		return errors.Join(err, fmt.Errorf("%s is there already", configFile))
	}
	if err := os.MkdirAll(folder, 0o777); err != nil {
		return err
	}
	if err := pretrained.Write(folder, transformersTensors(w), layout); err != nil {
		return err
	}
	if card := filepath.Join(folder, cardFile); h.NSA != nil && !files.Exists(card) {
		if err := files.Write(card, []byte(modelCard(c))); err != nil {
			return err
		}
	}
	text, err := json.MarshalIndent(h, "", "  ")
	if err != nil {
		return err
	}
	return files.Write(filepath.Join(folder, configFile), append(text, '\n'))
}
