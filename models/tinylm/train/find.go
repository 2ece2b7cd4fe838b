package train

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/gorgonia-nsa/nsa/internal/fault"
	"github.com/gorgonia-nsa/nsa/internal/quote"
	"github.com/gorgonia-nsa/nsa/models/lm"
	"github.com/gorgonia-nsa/nsa/models/lm/chat"
	"github.com/gorgonia-nsa/nsa/models/tinylm"
	"github.com/gorgonia-nsa/nsa/models/tinylm/tokenizer"
)

// SavedModel is a model on the disk.
type SavedModel struct {
	WeightsFile string   // path of its file, for tinylm.LoadWeights
	RunOptions  *Options // nil: the model is not in a run folder
	Damaged     []error  // errors of newer, damaged checkpoints

	path    string // that FindModel was given
	foreign bool   // of another program, for lm.ReadWeights
}

// FindModel finds the model of path: a run folder, a checkpoint, a safetensors file, or what lm.ReadWeights reads. The
// model of a run folder is the final one if the run has ended, else that of the newest complete checkpoint. It is an
// error if the file of weights does not have the sum that SHA256SUMS beside it says.
func FindModel(path string) (*SavedModel, error) {
	m, err := findModel(path)
	return m, fault.In("train", "", err)
}

// findModel is FindModel without the name of this package in its error.
func findModel(path string) (*SavedModel, error) {
	m := &SavedModel{path: path}
	if lm.IsModel(path) {
		m.WeightsFile, m.foreign = path, true
		return m, nil
	}
	if err := m.retry(m.find); err != nil {
		return nil, fmt.Errorf("model %s: %w", path, err)
	}
	return m, nil
}

// retry calls f again, a few times, if files go away meanwhile: a run that trains removes old checkpoints.
func (m *SavedModel) retry(f func() error) (err error) {
	for range 5 {
		if err = f(); !errors.Is(err, fs.ErrNotExist) || !exists(m.path) {
			break
		}
	}
	return err
}

// find sets all fields but path.
func (m *SavedModel) find() error {
	*m = SavedModel{path: m.path}
	run, err := m.findWeights()
	if err != nil || run == "" {
		return err
	}
	m.RunOptions, _, err = readOptions(run.file(optionsFile), "")
	if errors.Is(err, fs.ErrNotExist) {
		m.RunOptions, err = nil, nil
	}
	return err
}

// findWeights sets WeightsFile and Damaged, and returns the run folder, "" for a file outside of a run.
func (m *SavedModel) findWeights() (run folder, err error) {
	info, err := os.Stat(m.path)
	if err != nil {
		return "", err
	}
	if !info.IsDir() {
		m.WeightsFile = m.path
		if run, err = runAround(filepath.Dir(m.path)); !exists(run.file(runFile)) {
			run = "" // a config.yaml there is of another program
		}
		return run, cmp.Or(verifyWeights(m.path), err)
	}
	run, m.WeightsFile = folder(m.path), filepath.Join(m.path, modelFile)
	sums, err := readChecksums(m.path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return "", withCheckpoint(run, err)
	}
	if _, checkpoint := sums[stateFile]; checkpoint {
		if _, err := verifyCheckpoint(m.path); err != nil {
			return "", err
		}
		return runAround(m.path)
	}
	if exists(m.WeightsFile) {
		return run, verifyWeights(m.WeightsFile)
	}
	newest, damaged, err := run.newestWhole()
	m.WeightsFile, m.Damaged = filepath.Join(newest, modelFile), damaged
	return run, err
}

// newestWhole returns the path of the newest checkpoint that is whole, and the errors of damaged newer ones.
func (f folder) newestWhole() (path string, damaged []error, err error) {
	path, damaged, err = f.newest(func(path string) error {
		_, err := verifyCheckpoint(path)
		return err
	})
	if err == nil && path == "" {
		err = fmt.Errorf("neither %s nor a checkpoint in it", modelFile)
	}
	return path, damaged, err
}

// Open reads the weights, and the tokenizer at the given path or, if that is empty, the run's own. It is an error if
// their vocabularies have different sizes.
func (m *SavedModel) Open(tokenizerPath string) (_ *tinylm.Weights, _ *tokenizer.Tokenizer, err error) {
	defer fault.Name(&err, "train", "")
	w, err := m.load()
	if err == nil && w.Config.Align {
		w, err = w.Aligned()
	}
	if err != nil {
		return nil, nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, w.Free())
		}
	}()
	path, separator := tokenizerPath, ""
	hint := "; the run names it: if it lies elsewhere now, say where with -tokenizer"
	if m.foreign {
		path, hint = cmp.Or(path, m.WeightsFile), ": name the model's tokenizer with -tokenizer"
	} else if m.RunOptions != nil {
		path, separator = cmp.Or(path, m.RunOptions.Tokenizer), m.RunOptions.Separator
	}
	t, err := lm.OpenTokenizer(path, separator)
	if spare := w.Config.Family != (tinylm.Family{}); err == nil && t.Vocab() != w.Config.Vocab && !(spare && t.Vocab() < w.Config.Vocab) {
		what := "a text of bytes"
		if path != "" {
			what = quote.Path(path)
		}
		err, hint = fmt.Errorf("the model has %d tokens, %s has %d", w.Config.Vocab, what, t.Vocab()),
			": name the model's tokenizer with -tokenizer"
	}
	switch {
	case err == nil:
		return w, t, nil
	case tokenizerPath != "":
		return nil, nil, fault.About("Tokenizer", err)
	}
	return nil, nil, fmt.Errorf("%w%s", quote.Error(err), hint)
}

// OpenChat reads the chat template of the model, whose tokenizer is t. The error wraps chat.ErrNone if it has none.
func (m *SavedModel) OpenChat(t *tokenizer.Tokenizer) (*chat.Template, error) {
	if !m.foreign {
		return nil, fault.In("train", m.WeightsFile, chat.ErrNone)
	}
	return lm.OpenChat(m.WeightsFile, t, chat.Options{})
}

// Warnings returns a sentence for each damaged checkpoint that is newer than the model.
func (m *SavedModel) Warnings() (list []string) {
	for _, d := range m.Damaged {
		list = append(list, fmt.Sprintf("%v: an older one is used", d))
	}
	return list
}

// load reads the weights. If their file has gone away, it finds the model again.
func (m *SavedModel) load() (w *tinylm.Weights, err error) {
	if m.foreign {
		return lm.OpenWeights(m.WeightsFile)
	}
	err = m.retry(func() error {
		if w, err = tinylm.LoadWeights(m.WeightsFile); !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		return cmp.Or(m.find(), err)
	})
	return w, err
}

// FindNewestRun returns the folder in parent of the latest run that has a model: the one whose run.json was written
// last. A run whose checkpoints the system cannot read counts: FindModel says why. If there is none, the error wraps
// fs.ErrNotExist.
func FindNewestRun(parent string) (newest string, err error) {
	defer fault.Name(&err, "train", "")
	entries, err := os.ReadDir(parent)
	if err != nil {
		return "", err
	}
	var written time.Time
	for _, e := range entries {
		run := folder(filepath.Join(parent, e.Name()))
		info, err := os.Stat(run.file(runFile))
		if err != nil || !info.ModTime().After(written) {
			continue
		}
		if steps, err := run.checkpoints(); exists(run.file(modelFile)) || err != nil || len(steps) > 0 {
			newest, written = string(run), info.ModTime()
		}
	}
	if newest == "" {
		return "", fmt.Errorf("no run with a model in %s: %w", parent, fs.ErrNotExist)
	}
	return newest, nil
}
