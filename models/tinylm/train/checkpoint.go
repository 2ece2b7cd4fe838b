package train

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/gorgonia-nsa/nsa/graph/optim"
	"github.com/gorgonia-nsa/nsa/graph/safetensors"
	"github.com/gorgonia-nsa/nsa/internal/files"
	"github.com/gorgonia-nsa/nsa/internal/quote"
	"github.com/gorgonia-nsa/nsa/models/tinylm"
	"github.com/gorgonia-nsa/nsa/models/tinylm/corpus"
)

// state is the state of a run, except its weights and the moments of its solver.
type state struct {
	Step        int              `json:"step"`            // steps begun
	Elapsed     time.Duration    `json:"elapsed_ns"`      // of the training
	Cursor      corpus.Cursor    `json:"cursor"`          // after the last batch
	Scale       *optim.LossScale `json:"scale,omitempty"` // of the loss, in fp16
	Pending     []*pendingStep   `json:"late,omitempty"`  // begun; the loss scale does not have their results yet
	MeanLoss    float64          `json:"mean_loss"`       // running
	Evaluations []evaluation     `json:"evaluations,omitempty"`
	Best        *evaluation      `json:"best,omitempty"` // best of those whose checkpoint was written
}

// evaluation is a loss on held-out data.
type evaluation struct {
	Step    int     `json:"step"`
	HeldOut float64 `json:"held_out"` // nats per token
	Train   float64 `json:"train"`    // running mean of the batches' losses at that step
}

// best returns the evaluation that a checkpoint written now records as Best: the last one if it is of this step and
// better, else the old Best.
func (s *state) best() *evaluation {
	if n := len(s.Evaluations); n > 0 {
		if last := s.Evaluations[n-1]; last.Step == s.Step && (s.Best == nil || last.HeldOut < s.Best.HeldOut) {
			return &last
		}
	}
	return s.Best
}

func writeModel(folder string, w *tinylm.Weights) error {
	config, err := referenceConfig(w.Config)
	if err != nil {
		return err
	}
	return errors.Join(w.Save(filepath.Join(folder, modelFile)), files.Write(filepath.Join(folder, configFile), config))
}

// referenceConfig returns c as JSON in the names of the reference implementation.
func referenceConfig(c tinylm.Config) ([]byte, error) {
	return json.MarshalIndent(map[string]any{
		"V": c.Vocab, "S": c.Context, "layers": c.Layers, "attention": c.Attention,
		"dim": c.Dim, "Hq": c.Heads, "Hkv": c.KVHeads, "D": c.KeyDim, "Dv": c.ValueDim,
		"l": c.BlockLen, "d": c.Stride, "lp": c.SelectBlock, "n": c.TopN, "w": c.Window,
		"phi": c.Phi, "phi_hidden": c.PhiHidden, "gate_hidden": c.GateHidden, "gate": c.GateActivation,
		"rope_base": c.RoPEBase,
	}, "", "\t")
}

// checkpoint is the content of a checkpoint.
type checkpoint struct {
	weights *tinylm.Weights
	solver  safetensors.File
	state   state
}

// newestCheckpoint returns the newest complete checkpoint of a run, nil for a run without checkpoints, and the errors
// of damaged newer ones: see folder.newest.
func newestCheckpoint(run folder) (c *checkpoint, damaged []error, err error) {
	_, damaged, err = run.newest(func(path string) (err error) {
		c, err = readCheckpoint(path)
		return err
	})
	return c, damaged, err
}

// readCheckpoint reads a checkpoint that verifyCheckpoint accepts.
func readCheckpoint(path string) (*checkpoint, error) {
	text, err := verifyCheckpoint(path)
	if err != nil {
		return nil, err
	}
	c := &checkpoint{}
	if c.state, err = parseState(text); err != nil {
		return nil, fmt.Errorf("%s: %w", stateFile, quote.Error(err))
	}
	if c.weights, err = tinylm.LoadWeights(filepath.Join(path, modelFile)); err == nil {
		c.solver, err = safetensors.Read(filepath.Join(path, solverFile))
	}
	return c, err
}

// verifyCheckpoint returns the text of a checkpoint's state. It is an error if its files do not have the sums that were
// written with them, or if the folder has the name of another step's checkpoint.
func verifyCheckpoint(path string) (stateText []byte, err error) {
	sums, err := readChecksums(path)
	if err == nil {
		err = sums.verify(path, checkpointFiles()...)
	}
	if err != nil {
		return nil, err
	}
	if stateText, err = files.ReadFile(filepath.Join(path, stateFile), maxState); err != nil {
		return nil, err
	}
	if path, err = filepath.Abs(path); err != nil {
		return nil, err
	}
	var s struct{ Step int } // alone: the weights of another version's checkpoint are of use
	if err := json.Unmarshal(stateText, &s); err != nil {
		return nil, fmt.Errorf("%s: %w", stateFile, quote.Error(err))
	}
	if step, ok := checkpointStep(filepath.Base(path)); ok && step != s.Step {
		return nil, fmt.Errorf("%s is of step %d, the folder is named for step %d", stateFile, s.Step, step)
	}
	return stateText, nil
}

func parseState(text []byte) (s state, err error) {
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	if err := d.Decode(&s); err != nil {
		return s, err
	}
	if s.Step < 0 || s.Elapsed < 0 || len(s.Pending) > s.Step || slices.Contains(s.Pending, nil) {
		err = fmt.Errorf("%d steps, %d pending ones, %v: want none below 0", s.Step, len(s.Pending), s.Elapsed)
	}
	return s, err
}

// checkpointFiles returns the names of the files of a checkpoint that have checksums.
func checkpointFiles() []string { return []string{modelFile, configFile, solverFile, stateFile} }

func writeChecksums(folder string, names ...string) error {
	lines, errs := make([]string, len(names)), make([]error, len(names))
	var all sync.WaitGroup
	for i, file := range names {
		all.Go(func() {
			var sum string
			sum, errs[i] = checksumOf(filepath.Join(folder, file))
			lines[i] = fmt.Sprintf("%s  %s\n", sum, file)
		})
	}
	all.Wait()
	if err := errors.Join(errs...); err != nil {
		return err
	}
	sums := []byte(strings.Join(lines, ""))
	return files.Write(filepath.Join(folder, checksumsFile), sums)
}

// checksums are the SHA-256 of files, by file name.
type checksums map[string]string

func readChecksums(folder string) (checksums, error) {
	text, err := files.ReadFile(filepath.Join(folder, checksumsFile), 1<<20)
	if err != nil {
		return nil, err
	}
	sums := checksums{}
	for line := range strings.Lines(string(text)) {
		line = strings.TrimRight(line, "\r\n")
		sum, name, ok := strings.Cut(line, " ")
		if !ok {
			return nil, fmt.Errorf("%s: line %.100q, want a sum and a name", checksumsFile, line)
		}
		sums[strings.TrimLeft(name, " *")] = sum // a star: sha256sum --binary
	}
	return sums, nil
}

// verifyWeights checks a file of weights against the checksums beside it. Without checksums there, nothing is wrong.
// Nor is it if they do not list the file, unless it has the name of a run's model.
func verifyWeights(path string) error {
	dir, name := filepath.Dir(path), filepath.Base(path)
	sums, err := readChecksums(dir)
	if _, listed := sums[name]; errors.Is(err, fs.ErrNotExist) || err == nil && !listed && name != modelFile {
		return nil
	}
	if err == nil {
		err = sums.verify(dir, name)
	}
	if err != nil && name == modelFile {
		err = withCheckpoint(folder(dir), err)
	}
	return err
}

// withCheckpoint adds to err, the damage of a run's final model, what is left of it: the newest checkpoint that is
// whole.
func withCheckpoint(run folder, err error) error {
	if unreadable(err) {
		return err
	}
	if path, _, none := run.newestWhole(); none == nil {
		err = fmt.Errorf("%w: train -resume %s writes it again, or name %s", err, run, path)
	}
	return err
}

// verify checks files of a folder against its checksums.
func (s checksums) verify(folder string, files ...string) error {
	for _, name := range files {
		want, listed := s[name]
		path := filepath.Join(folder, name)
		if !listed && exists(path) {
			return fmt.Errorf("%s: %s does not list it", name, checksumsFile)
		}
		if strings.HasSuffix(name,
			".safetensors") { // first, because to read all of a file of terabytes, as after a fault of the disk, takes hours
			if err := safetensors.CheckSize(path); err != nil {
				return err
			}
		}
		sum, err := checksumOf(path)
		switch {
		case err != nil:
			return err
		case sum != want:
			return fmt.Errorf("%s is damaged: its SHA-256 is %s, want %.64q", name, sum, want)
		}
	}
	return nil
}

// checksumOf returns the SHA-256 of a file.
func checksumOf(path string) (string, error) {
	f, err := files.Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	if info, err := f.Stat(); err != nil {
		return "", err
	} else if filepath.Ext(path) == ".json" && info.Size() > maxState {
		return "", fmt.Errorf("%s: more than %d bytes", path, maxState)
	}
	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil {
		return "", err
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}
