package train

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/gorgonia-nsa/nsa/internal/files"

	"github.com/gorgonia-nsa/nsa/graph/optim"
	"github.com/gorgonia-nsa/nsa/graph/safetensors"
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

// save writes a checkpoint, then removes the old ones that are not kept. A folder with the name of a checkpoint is always complete,
// whatever happens to the program or the disk meanwhile.
func (r *runner) save() (err error) {
	parent := filepath.Join(r.folder, checkpointFolder)
	name := checkpointName(r.state.Step)
	part := filepath.Join(parent, partPrefix+name)
	r.warnIf(r.log.Save()) // first, so that the record of a run resumed from here has all steps
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("checkpoint of step %d: %w", r.state.Step, err), os.RemoveAll(part))
		}
	}()
	if err := errors.Join(os.MkdirAll(parent, 0o755), os.RemoveAll(part)); err != nil {
		return err
	}
	r.warnIf(r.restoreFolder())
	if err := os.Mkdir(part, 0o755); err != nil {
		return err
	}
	solver, err := r.solver.State()
	if err != nil {
		return err
	}
	best := r.state.Best
	r.state.Best = r.state.best()
	defer func() {
		if err != nil {
			r.state.Best = best
		}
	}()
	r.state.Elapsed = time.Since(r.start)
	text, err := json.MarshalIndent(r.state, "", "\t")
	if err != nil {
		return err
	}
	err = errors.Join(writeModel(part, r.weights), solver.Write(filepath.Join(part, solverFile)),
		files.Write(filepath.Join(part, stateFile), text))
	if err != nil {
		return err
	}
	if err := writeChecksums(part, checkpointFiles()...); err != nil {
		return err
	}
	if err := syncFolder(part); err != nil {
		return err
	}
	if err := removeCheckpoint(filepath.Join(parent, name)); err != nil { // a damaged one of the same step
		return err
	}
	if err := os.Rename(part, filepath.Join(parent, name)); err != nil {
		return err
	}
	if err := syncFolder(parent); err != nil {
		return err
	}
	r.savedStep = r.state.Step
	r.warnIf(r.prune(parent)) // the checkpoint is written all the same
	return nil
}

// restoreFolder writes the options and the description of the run again if they have gone away, since -resume needs them.
func (r *runner) restoreFolder() (err error) {
	if path := filepath.Join(r.folder, optionsFile); !exists(path) {
		err = files.Write(path, r.YAML())
	}
	if !exists(filepath.Join(r.folder, runFile)) {
		err = errors.Join(err, r.describe(nil))
	}
	return err
}

// writeFinal writes the model of a run and its sums into the run folder. It removes older sums first: a kill leaves a model without sums,
// not one that looks damaged.
func writeFinal(folder string, w *tinylm.Weights) error {
	if err := os.Remove(filepath.Join(folder, checksumsFile)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := syncFolder(folder); err != nil {
		return err
	}
	if err := writeModel(folder, w); err != nil {
		return err
	}
	return writeChecksums(folder, modelFile, configFile)
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

// prune removes the checkpoints that are neither the best nor among the newest. Checkpoints of later steps are damaged, because the run was
// resumed from one before them. They do not count among the newest.
func (r *runner) prune(parent string) error {
	names, err := checkpoints(parent)
	if err != nil {
		return err
	}
	names = slices.DeleteFunc(names, func(name string) bool { return name > checkpointName(r.state.Step) })
	for _, name := range names[:max(0, len(names)-r.Keep)] {
		if best := r.state.Best; best != nil && name == checkpointName(best.Step) {
			continue
		}
		err = errors.Join(err, removeCheckpoint(filepath.Join(parent, name)))
	}
	return err
}

// checkpoints returns the names of the checkpoints in a folder, the newest last.
func checkpoints(parent string) ([]string, error) {
	entries, err := os.ReadDir(parent) // sorted
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	var names []string
	for _, e := range entries {
		if e.IsDir() && strings.HasPrefix(e.Name(), checkpointPrefix) {
			names = append(names, e.Name())
		}
	}
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
	entries, err := os.ReadDir(parent)
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
// checkpoints, and an error if all are damaged.
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
		damaged = append(damaged, fmt.Errorf("checkpoint %s: %w", name, err))
	}
	if damaged == nil {
		return nil, nil, nil
	}
	return nil, nil, fmt.Errorf("%s holds no checkpoint that is whole: %w", parent, errors.Join(damaged...))
}

// readCheckpoint reads a checkpoint. It is an error if its files do not have the sums that were written with them.
func readCheckpoint(path string) (*checkpoint, error) {
	if err := verifyChecksums(path, checkpointFiles()...); err != nil {
		return nil, err
	}
	c := &checkpoint{}
	text, err := files.ReadFile(filepath.Join(path, stateFile), maxState)
	if err != nil {
		return nil, err
	}
	if c.state, err = parseState(text); err != nil {
		return nil, fmt.Errorf("%s: %w", stateFile, err)
	}
	if c.weights, err = tinylm.LoadWeights(filepath.Join(path, modelFile)); err != nil {
		return nil, err
	}
	c.solver, err = safetensors.Read(filepath.Join(path, solverFile))
	return c, err
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
