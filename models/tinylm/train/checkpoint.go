package train

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/gorgonia-nsa/nsa/graph/optim"
	"github.com/gorgonia-nsa/nsa/graph/safetensors"
	"github.com/gorgonia-nsa/nsa/internal/files"
	"github.com/gorgonia-nsa/nsa/internal/quote"
	"github.com/gorgonia-nsa/nsa/models/tinylm"
	"github.com/gorgonia-nsa/nsa/models/tinylm/corpus"
)

// Names in a run folder and in a checkpoint.
const (
	checkpointFolder = "checkpoints"
	checkpointPrefix = "step-"  // then the step
	partPrefix       = ".part-" // a checkpoint that is being written or removed: no reader looks at it
	modelFile        = "model.safetensors"
	configFile       = "config.json"
	solverFile       = "optimizer.safetensors"
	stateFile        = "state.json"
	checksumsFile    = "SHA256SUMS" // of the other files, as sha256sum writes and checks them
)

// maxState is the largest state in bytes.
const maxState = 64 << 20

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

// best returns the evaluation that a checkpoint written now records as Best: the last one if it is of this step and better, else the old
// Best.
func (s *state) best() *evaluation {
	if n := len(s.Evaluations); n > 0 {
		if last := s.Evaluations[n-1]; last.Step == s.Step && (s.Best == nil || last.HeldOut < s.Best.HeldOut) {
			return &last
		}
	}
	return s.Best
}

// checkpointName returns the name of the checkpoint of a step.
func checkpointName(step int) string { return fmt.Sprintf("%s%09d", checkpointPrefix, step) }

// checkpointStep returns the step of a checkpoint by its name. Only what checkpointName returns is the name of one: a folder beside it, such as
// a copy, is the user's.
func checkpointStep(name string) (step int, ok bool) {
	step, err := strconv.Atoi(strings.TrimPrefix(name, checkpointPrefix))
	return step, err == nil && step >= 0 && name == checkpointName(step)
}

// writeModel writes weights and their configuration into a folder.
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
		"phi": c.Phi, "phi_hidden": c.PhiHidden, "gate_hidden": c.GateHidden, "gate": c.GateActivation, "rope_base": c.RoPEBase,
	}, "", "\t")
}

// checkpoints returns the names of the checkpoints in a folder, the newest last. A link counts as what it should name, so that one to
// another disk is not overlooked while that disk is missing.
func checkpoints(parent string) ([]string, error) {
	entries, err := files.ReadDir(parent)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	var names []string
	for _, e := range entries {
		if _, ok := checkpointStep(e.Name()); ok && (e.IsDir() || e.Type() == fs.ModeSymlink) {
			names = append(names, e.Name())
		}
	}
	slices.SortFunc(names, func(a, b string) int { return cmp.Or(cmp.Compare(len(a), len(b)), cmp.Compare(a, b)) }) // by step
	return names, nil
}

// removeCheckpoint removes a checkpoint, if it exists. It renames the folder first, so that no incomplete folder has the name of a checkpoint.
func removeCheckpoint(path string) error {
	part := filepath.Join(filepath.Dir(path), partPrefix+"old-"+filepath.Base(path))
	if err := os.Rename(path, part); errors.Is(err, fs.ErrNotExist) {
		return nil
	} else if err != nil {
		return err
	}
	return os.RemoveAll(part)
}

// removeParts removes parts of checkpoints that a kill has left.
func removeParts(parent string) error {
	entries, err := files.ReadDir(parent)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), partPrefix) {
			err = errors.Join(err, os.RemoveAll(filepath.Join(parent, e.Name())))
		}
	}
	return err
}

// checkpoint is the content of a checkpoint.
type checkpoint struct {
	weights *tinylm.Weights
	solver  safetensors.File
	state   state
}

// newestCheckpoint returns the newest complete checkpoint of a run folder, and the errors of damaged newer ones. It returns nil for a run without
// checkpoints, and an error if all are damaged, or if the system cannot read a newer one.
func newestCheckpoint(folder string) (_ *checkpoint, damaged []error, err error) {
	parent := filepath.Join(folder, checkpointFolder)
	names, err := checkpoints(parent)
	if err != nil {
		return nil, nil, fmt.Errorf("checkpoints: %w", err)
	}
	for _, name := range slices.Backward(names) {
		c, err := readCheckpoint(filepath.Join(parent, name))
		if err == nil {
			return c, damaged, nil
		}
		if err = fmt.Errorf("checkpoint %s: %w", name, err); unreadable(err) {
			return nil, nil, err
		}
		damaged = append(damaged, err)
	}
	if damaged == nil {
		return nil, nil, nil
	}
	return nil, nil, fmt.Errorf("%s holds no checkpoint that is whole: %w", parent, errors.Join(damaged...))
}

// unreadable reports whether err is one of the system other than a missing file: no right to read, no file descriptor left, a disk or network
// that fails or is missing behind a link. The file may be whole. To take an older checkpoint would overwrite newer ones.
func unreadable(err error) bool {
	var errno syscall.Errno
	return errors.Is(err, files.ErrLink) || errors.As(err, &errno) && !errors.Is(err, fs.ErrNotExist)
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
	if c.weights, err = tinylm.LoadWeights(filepath.Join(path, modelFile)); err != nil {
		return nil, err
	}
	c.solver, err = safetensors.Read(filepath.Join(path, solverFile))
	return c, err
}

// verifyCheckpoint returns the text of a checkpoint's state. It is an error if its files do not have the sums that were written with them, or if
// the folder has the name of another step's checkpoint.
func verifyCheckpoint(path string) (stateText []byte, err error) {
	if err := verifyChecksums(path, checkpointFiles()...); err != nil {
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

// parseState reads the text of a state.
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

// syncFolder writes the names in a folder to the disk, so that they survive a loss of power.
func syncFolder(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	err = f.Sync()
	if errors.Is(err, errors.ErrUnsupported) || errors.Is(err, fs.ErrInvalid) || isWindows {
		err = nil // not every system can sync a folder
	}
	return errors.Join(err, f.Close())
}

const isWindows = os.PathSeparator == '\\'
