package train

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/gorgonia-nsa/nsa/graph/safetensors"
	"github.com/gorgonia-nsa/nsa/internal/files"
	"github.com/gorgonia-nsa/nsa/models/tinylm"
)

// moments returns the state of the solver for a checkpoint. All ranks call it.
func (r *runner) moments() (safetensors.File, error) {
	if !r.Shard && !r.leads() {
		return safetensors.File{}, nil
	}
	return r.solver.State()
}

// save writes a checkpoint, then removes the old ones that are not kept. A folder with the name of a checkpoint is
// always complete, whatever happens to the program or the disk meanwhile. After an error the state is as it was.
func (r *runner) save(solver safetensors.File) error {
	s := r.state
	s.Best, s.Elapsed = s.best(), time.Since(r.start)
	if err := r.ownFolder(); err != nil {
		return fmt.Errorf("checkpoint of step %d: %w", s.Step, err)
	}
	r.warnIf(r.log.Save()) // first, so that the record of a run resumed from here has all steps
	path := r.folder.checkpoint(s.Step)
	part := filepath.Join(filepath.Dir(path), partPrefix+filepath.Base(path))
	err := r.writePart(part, &s, solver)
	if err == nil {
		err = r.ownFolder() // meanwhile it may have been replaced
	}
	if err == nil {
		err = publishPart(part, path)
	}
	if err != nil {
		err = fmt.Errorf("checkpoint of step %d: %w", s.Step, err)
		if r.ownFolder() == nil {
			err = errors.Join(err, os.RemoveAll(part))
		}
		return err
	}
	first := r.savedStep < 0
	r.state, r.savedStep = s, s.Step
	if first {
		r.warnIf(r.describe(nil)) // that there is one
	}
	r.warnIf(r.prune()) // the checkpoint is written all the same
	return nil
}

// writePart writes the files of a checkpoint with state s into a new folder, and to the disk.
func (r *runner) writePart(part string, s *state, solver safetensors.File) error {
	if err := errors.Join(os.MkdirAll(filepath.Dir(part), 0o755), os.RemoveAll(part)); err != nil {
		return err
	}
	r.warnIf(r.restoreFolder())
	if err := os.Mkdir(part, 0o755); err != nil {
		return err
	}
	text, err := json.MarshalIndent(s, "", "\t")
	if err != nil {
		return err
	}
	// Beside each other: a search for NaN and a copy to the disk take each as long as many steps.
	var writers sync.WaitGroup
	var modelErr, solverErr error
	writers.Go(func() { modelErr = writeModel(part, r.weights) })
	writers.Go(func() {
		if solverErr = solver.CheckFinite(); solverErr == nil {
			solverErr = solver.Write(filepath.Join(part, solverFile))
		} else {
			solverErr = fmt.Errorf("solver: %w", solverErr)
		}
	})
	writers.Wait()
	if err := errors.Join(modelErr, solverErr, files.Write(filepath.Join(part, stateFile), text)); err != nil {
		return err
	}
	if err := writeChecksums(part, checkpointFiles()...); err != nil {
		return err
	}
	return syncFolder(part)
}

// publishPart gives the folder of writePart the name of its checkpoint.
func publishPart(part, checkpoint string) error {
	if err := removeCheckpoint(checkpoint); err != nil { // a damaged one of the same step
		return err
	}
	if err := os.Rename(part, checkpoint); err != nil {
		return err
	}
	return syncFolder(filepath.Dir(checkpoint))
}

// saveDue reports whether it is time for a checkpoint that no evaluation writes.
func (r *runner) saveDue() bool {
	return (r.SaveMinutes > 0 || r.saveFailed) && r.savedStep != r.state.Step && time.Now().After(r.saveAt)
}

// trySave has rank 0 write a checkpoint. If that fails, it warns, and the run tries again in a minute: a full disk may
// have room again. Weights that are not finite end the run.
func (r *runner) trySave(ctx context.Context) error {
	return r.writeCheckpoint(ctx, func(_ context.Context, solver safetensors.File) error {
		r.saveAt = time.Now().Add(r.saveEvery())
		err := r.save(solver)
		if errors.Is(err, safetensors.ErrNotFinite) {
			return fmt.Errorf("%w (%s)", err, r.resumeHint())
		}
		if r.saveFailed = err != nil; r.saveFailed {
			r.saveAt = time.Now().Add(time.Minute)
			r.warn("%v; the run continues and tries again in a minute", err)
		}
		return nil
	})
}

// writeCheckpoint has rank 0 call write with the state of the solver.
func (r *runner) writeCheckpoint(ctx context.Context, write func(context.Context, safetensors.File) error) error {
	if err := r.awaitAll(); err != nil {
		return err
	}
	r.phase("saving")
	solver, err := r.moments()
	if err == nil {
		err = r.lead(ctx, "a checkpoint", func(ctx context.Context) error { return write(ctx, solver) })
	}
	if err == nil {
		r.savedStep, err = decide(&r.ranks, "the step of the checkpoint", r.savedStep)
	}
	r.rateSince = time.Now()
	return err
}

// How often, and for how long, a run that has ended tries to write its last checkpoint.
const (
	retryEvery = 10 * time.Second
	retryFor   = time.Hour
)

// saveOrWait has rank 0 write the last checkpoint, if there is none of this step. If that fails, it waits for room on
// the disk and tries again, so that the run is not lost.
func (r *runner) saveOrWait(ctx context.Context) error {
	if r.savedStep == r.state.Step {
		return r.awaitAll()
	}
	return r.writeCheckpoint(ctx, func(ctx context.Context, solver safetensors.File) error {
		every := cmp.Or(r.hooks.retryEvery, retryEvery)
		for end := time.Now().Add(cmp.Or(r.hooks.retryFor, retryFor)); ; {
			err := r.save(solver)
			if err == nil || time.Now().After(end) || errors.Is(err, safetensors.ErrNotFinite) {
				return err
			}
			r.display.warn("%v; trying again every %v until %v", err, every, end.Format(time.TimeOnly))
			select {
			case <-ctx.Done():
				return err
			case <-time.After(every):
				r.watchdog.alive()
			}
		}
	})
}

// saveEvery returns the time between checkpoints that no evaluation writes.
func (r *runner) saveEvery() time.Duration {
	return time.Duration(r.SaveMinutes * float64(time.Minute))
}

// prune removes the checkpoints that are neither the best nor among the newest. Checkpoints of later steps are damaged,
// because the run was resumed from one before them. They do not count among the newest.
func (r *runner) prune() error {
	steps, err := r.folder.checkpoints()
	if err != nil {
		return err
	}
	later, found := slices.BinarySearch(steps, r.state.Step)
	if found {
		later++
	}
	for _, step := range steps[:max(0, later-r.Keep)] {
		if best := r.state.Best; best == nil || step != best.Step {
			err = errors.Join(err, removeCheckpoint(r.folder.checkpoint(step)))
		}
	}
	return err
}

// writeFinal writes the model of a run and its sums into its folder. It removes older sums first: a kill leaves a model
// without sums, not one that looks damaged.
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
