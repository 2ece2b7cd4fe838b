package train

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
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

// checkpoint is the content of a checkpoint.
type checkpoint struct {
	weights *tinylm.Weights
	solver  safetensors.File
	state   state
}

// newestCheckpoint returns the newest complete checkpoint of a run, nil for a run without checkpoints, and the errors of damaged newer ones: see
// folder.newest.
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

// verifyCheckpoint returns the text of a checkpoint's state. It is an error if its files do not have the sums that were written with them, or if
// the folder has the name of another step's checkpoint.
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
