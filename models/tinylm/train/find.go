package train

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/gorgonia-nsa/nsa/internal/fault"
	"github.com/gorgonia-nsa/nsa/internal/quote"
	"github.com/gorgonia-nsa/nsa/models/tinylm"
	"github.com/gorgonia-nsa/nsa/models/tinylm/tokenizer"
)

// SavedModel is a model on the disk.
type SavedModel struct {
	WeightsFile string   // path of its file, for tinylm.LoadWeights
	RunOptions  *Options // nil: the model is not in a run folder
	Damaged     []error  // errors of newer, damaged checkpoints

	path string // that FindModel was given
}

// findTries is how often a model is looked for again if its files go away meanwhile: a run that trains removes old checkpoints.
const findTries = 5

// FindModel finds the model of path: a run folder, a checkpoint or a safetensors file. The model of a run folder is the final one if the
// run has ended, else that of the newest complete checkpoint. It is an error if the file of weights does not have the sum that SHA256SUMS
// beside it says.
func FindModel(path string) (*SavedModel, error) {
	m, err := findModel(path)
	return m, fault.In("train", "", err)
}

// findModel is FindModel without the name of this package in its error.
func findModel(path string) (*SavedModel, error) {
	m := &SavedModel{WeightsFile: path, path: path}
	folder, err := m.find(path)
	for try := 1; try < findTries && errors.Is(err, fs.ErrNotExist) && exists(path); try++ {
		m.Damaged = nil
		folder, err = m.find(path)
	}
	if err == nil && folder != "" {
		m.RunOptions, _, err = readOptions(filepath.Join(folder, optionsFile), "")
		if errors.Is(err, fs.ErrNotExist) {
			m.RunOptions, err = nil, nil
		}
	}
	if err != nil {
		return nil, fmt.Errorf("model %s: %w", path, err)
	}
	return m, nil
}

// Open reads the weights, and the tokenizer at the given path or, if that is empty, the run's own. It is an error if their vocabularies
// have different sizes.
func (m *SavedModel) Open(tokenizerPath string) (*tinylm.Weights, *tokenizer.Tokenizer, error) {
	w, err := m.load()
	if err != nil {
		return nil, nil, fault.In("train", "", err)
	}
	path, separator := tokenizerPath, ""
	if m.RunOptions != nil {
		path, separator = cmp.Or(path, m.RunOptions.Tokenizer), m.RunOptions.Separator
	}
	t, err := tokenizer.Open(path, separator)
	if err != nil {
		if tokenizerPath == "" {
			err = fmt.Errorf("%w; the run names it: if it lies elsewhere now, say where with -tokenizer", quote.Error(err))
		} else {
			err = fault.About("Tokenizer", err)
		}
		return nil, nil, fault.In("train", "", err)
	}
	if n, want := t.Vocab(), w.Config.Vocab; n != want {
		what := "a text of bytes"
		if path != "" {
			what = quote.Path(path)
		}
		err := fmt.Errorf("the model has %d tokens, %s has %d", want, what, n)
		if tokenizerPath == "" {
			err = fmt.Errorf("%w: name the model's tokenizer with -tokenizer", err)
		} else {
			err = fault.About("Tokenizer", err)
		}
		return nil, nil, fault.In("train", "", err)
	}
	return w, t, nil
}

// Warnings returns a sentence for each damaged checkpoint that is newer than the model.
func (m *SavedModel) Warnings() (list []string) {
	for _, d := range m.Damaged {
		list = append(list, fmt.Sprintf("%v: an older one is used", d))
	}
	return list
}

// load reads the weights. If their file has gone away, it finds the model again.
func (m *SavedModel) load() (*tinylm.Weights, error) {
	w, err := tinylm.LoadWeights(m.WeightsFile)
	for try := 1; try < findTries && errors.Is(err, fs.ErrNotExist); try++ {
		again, findErr := findModel(m.path)
		if findErr != nil {
			return nil, findErr
		}
		*m = *again
		w, err = tinylm.LoadWeights(m.WeightsFile)
	}
	return w, err
}

// find sets WeightsFile and Damaged, and returns the run folder, "" for a file outside of a run.
func (m *SavedModel) find(path string) (folder string, err error) {
	info, err := os.Stat(path)
	switch {
	case err != nil:
		return "", err
	case !info.IsDir():
		if err := verifyWeights(path); err != nil {
			return "", err
		}
		folder, err := runAround(filepath.Dir(path))
		if !exists(filepath.Join(folder, runFile)) { // a config.yaml there is of another program
			folder = ""
		}
		return folder, err
	}
	m.WeightsFile = filepath.Join(path, modelFile)
	sums, err := readChecksums(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return "", withCheckpoint(path, err)
	}
	if _, checkpoint := sums[stateFile]; checkpoint {
		if _, err := verifyCheckpoint(path); err != nil {
			return "", err
		}
		return runAround(path)
	}
	if exists(m.WeightsFile) {
		return path, verifyWeights(m.WeightsFile)
	}
	newest, err := m.findCheckpoint(path)
	m.WeightsFile = filepath.Join(newest, modelFile)
	return path, err
}

// findCheckpoint returns the path of a run's newest checkpoint that is whole. It sets Damaged.
func (m *SavedModel) findCheckpoint(run string) (path string, err error) {
	parent := filepath.Join(run, checkpointFolder)
	names, err := checkpoints(parent)
	if err != nil {
		return "", err
	}
	for _, name := range slices.Backward(names) {
		path := filepath.Join(parent, name)
		if _, err := verifyCheckpoint(path); err != nil {
			if err = fmt.Errorf("checkpoint %s: %w", name, err); unreadable(err) {
				return "", err
			}
			m.Damaged = append(m.Damaged, err)
			continue
		}
		return path, nil
	}
	if m.Damaged != nil {
		return "", fmt.Errorf("no checkpoint is whole: %w", errors.Join(m.Damaged...))
	}
	return "", fmt.Errorf("neither %s nor a checkpoint in it", modelFile)
}

// runAround returns the run folder of a folder of weights: two levels up from a checkpoint, else the folder itself.
func runAround(folder string) (string, error) {
	folder, err := filepath.Abs(folder)
	if parent := filepath.Dir(folder); filepath.Base(parent) == checkpointFolder {
		folder = filepath.Dir(parent)
	}
	return folder, err
}

// exists reports whether something is at path, also if the system cannot read it or it is a link to a disk that is missing.
func exists(path string) bool {
	_, err := os.Lstat(path)
	return !errors.Is(err, fs.ErrNotExist)
}

// FindNewestRun returns the folder in parent of the latest run that has a model: the one whose run.json was written last. A run whose
// checkpoints the system cannot read counts: FindModel says why. If there is none, the error wraps fs.ErrNotExist.
func FindNewestRun(parent string) (folder string, err error) {
	entries, err := os.ReadDir(parent)
	if err != nil {
		return "", fault.In("train", "", err)
	}
	var newest time.Time
	for _, e := range entries {
		path := filepath.Join(parent, e.Name())
		info, err := os.Stat(filepath.Join(path, runFile))
		if err != nil || !info.ModTime().After(newest) {
			continue
		}
		if names, err := checkpoints(filepath.Join(path, checkpointFolder)); exists(filepath.Join(path, modelFile)) || err != nil || len(names) > 0 {
			newest, folder = info.ModTime(), path
		}
	}
	if folder == "" {
		return "", fault.In("train", "", fmt.Errorf("no run with a model in %s: %w", parent, fs.ErrNotExist))
	}
	return folder, nil
}
