package train

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"syscall"
	"testing"
	"time"

	"github.com/gofrs/flock"
	"github.com/stretchr/testify/require"

	"github.com/gorgonia-nsa/nsa/graph/fakedevice"
	"github.com/gorgonia-nsa/nsa/internal/command"
	"github.com/gorgonia-nsa/nsa/internal/runlog"
	"github.com/gorgonia-nsa/nsa/internal/testutil"
)

// blockCheckpoints makes every write of a checkpoint to a run folder fail, until free is called.
func blockCheckpoints(t testing.TB, folder string) (free func()) {
	path := filepath.Join(folder, checkpointFolder)
	require.NoError(t, os.Rename(path, path+".aside"))
	require.NoError(t, os.WriteFile(path, nil, 0o644))
	return func() {
		require.NoError(t, os.Remove(path))
		require.NoError(t, os.Rename(path+".aside", path))
	}
}

// TestBestAfterFailedSave: if the checkpoint of the last evaluation is written only at a later try, the evaluation still counts.
func TestBestAfterFailedSave(t *testing.T) {
	folder := filepath.Join(t.TempDir(), "run")
	o := testutil.Must(Parse(smallArgs(t, 60, "-eval-every", "30", "-save-minutes", "0", "-lr", "1e-3", "-out", folder), io.Discard))(t)
	o.hooks.retryEvery = time.Millisecond
	var free func()
	o.hooks.stepped = func(step int) {
		if step == 60 {
			free = blockCheckpoints(t, folder)
		}
	}
	said := &testutil.Listener{Phrase: "trying again every", Heard: func() { free() }}
	res := testutil.Must(Run(t.Context(), o, said))(t)
	require.Contains(t, said.String(), "the run continues and tries again in a minute")
	last := wholeCheckpoint(t, folder)
	require.Len(t, last.state.Evaluations, 2)
	require.Less(t, last.state.Evaluations[1].HeldOut, last.state.Evaluations[0].HeldOut)
	require.Equal(t, 60, res.BestStep)
	require.Equal(t, 60, last.state.Best.Step)
}

// TestFailedSaveIsTriedAgain: a failed checkpoint is tried again, also if no checkpoints are written by time.
func TestFailedSaveIsTriedAgain(t *testing.T) {
	r := &runner{Options: Options{SaveMinutes: 0}, savedStep: 3, saveFailed: true, saveAt: time.Now().Add(-time.Second)}
	r.state.Step = 4
	require.True(t, r.saveDue())
	r.saveFailed = false
	require.False(t, r.saveDue())
}

// TestPruneCountsNoLaterSteps: damaged checkpoints of later steps do not count among the newest.
func TestPruneCountsNoLaterSteps(t *testing.T) {
	parent := filepath.Join(t.TempDir(), checkpointFolder)
	for _, step := range []int{2, 4, 1860, 1870} {
		require.NoError(t, os.MkdirAll(filepath.Join(parent, checkpointName(step)), 0o755))
	}
	r := &runner{Options: Options{Keep: 1}}
	r.state.Step = 4
	require.NoError(t, r.prune(parent))
	require.Equal(t, []string{checkpointName(4), checkpointName(1860), checkpointName(1870)}, testutil.Must(checkpoints(parent))(t))
}

// TestPruneGoesOnAfterAFailure: a checkpoint that cannot be removed does not keep the others.
func TestPruneGoesOnAfterAFailure(t *testing.T) {
	parent := filepath.Join(t.TempDir(), checkpointFolder)
	for _, step := range []int{2, 3, 4} {
		require.NoError(t, os.MkdirAll(filepath.Join(parent, checkpointName(step)), 0o755))
	}
	require.NoError(t, os.MkdirAll(filepath.Join(parent, partPrefix+"old-"+checkpointName(2), "full"), 0o755)) // so it cannot be renamed
	r := &runner{Options: Options{Keep: 1}}
	r.state.Step = 4
	require.ErrorContains(t, r.prune(parent), checkpointName(2))
	require.Equal(t, []string{checkpointName(2), checkpointName(4)}, testutil.Must(checkpoints(parent))(t))
}

// TestFoundWeightsThatGoAway: a run that trains may remove a checkpoint between Find and Open.
func TestFoundWeightsThatGoAway(t *testing.T) {
	folder := filepath.Join(t.TempDir(), "run")
	testutil.Must(runArgs(t, smallArgs(t, 2, "-out", folder)...))(t)
	found := testutil.Must(FindModel(folder))(t)
	want := found.WeightsFile
	found.WeightsFile = filepath.Join(folder, checkpointFolder, checkpointName(9), modelFile)
	_, _, err := found.Open("")
	require.NoError(t, err)
	require.Equal(t, want, found.WeightsFile)
}

// TestLockThatIsNoFile: opening a pipe would wait for its other end.
func TestLockThatIsNoFile(t *testing.T) {
	folder := filepath.Join(t.TempDir(), "run")
	testutil.Must(runArgs(t, smallArgs(t, 2, "-out", folder)...))(t)
	lock := filepath.Join(folder, lockFile)
	require.NoError(t, os.Remove(lock))
	require.NoError(t, os.Mkdir(lock, 0o755))
	require.ErrorContains(t, testutil.Err(runArgs(t, "-resume", folder)), lock+" is not a regular file")
}

// TestFolderMovedAway: if the folder of a run is moved away or deleted, the run makes it again, with a lock.
func TestFolderMovedAway(t *testing.T) {
	t.Parallel()
	if runtime.GOOS == "windows" {
		t.Skip("a folder with open files cannot be moved")
	}
	folder := filepath.Join(t.TempDir(), "run")
	o := testutil.Must(Parse(smallArgs(t, 6, "-eval-every", "1", "-out", folder), io.Discard))(t)
	o.hooks.stepped = func(step int) {
		switch step {
		case 2:
			require.NoError(t, os.Rename(folder, folder+".moved"))
		case 4:
			require.ErrorContains(t, testutil.Err(runArgs(t, "-resume", folder)), folder+": another process works on it")
			require.NoError(t, os.Remove(filepath.Join(folder, lockFile)))
		case 5:
			require.ErrorContains(t, testutil.Err(runArgs(t, "-resume", folder)), folder+": another process works on it")
			testutil.Must(runArgs(t, "-resume", folder+".moved"))(t)
		}
	}
	testutil.Must(Run(t.Context(), o, io.Discard))(t)
	require.Equal(t, modelOf(t, folder+".moved"), modelOf(t, folder))
	testutil.Must(runArgs(t, "-resume", folder, "-steps", "7"))(t)
}

// TestFolderOfAnotherRun: a run whose folder has been moved away writes neither into the folder of a run that trains at its path now, nor into
// that of a run that has ended.
func TestFolderOfAnotherRun(t *testing.T) {
	t.Parallel()
	if runtime.GOOS == "windows" {
		t.Skip("a folder with open files cannot be moved")
	}
	for _, want := range []string{"another process works on it", "is another run now"} {
		folder := filepath.Join(t.TempDir(), "run")
		o := testutil.Must(Parse(smallArgs(t, 4, "-eval-every", "100", "-out", folder), io.Discard))(t)
		o.hooks.retryFor = -time.Second
		o.hooks.stepped = func(step int) {
			if step != 2 {
				return
			}
			require.NoError(t, os.Rename(folder, folder+".moved"))
			require.NoError(t, os.Mkdir(folder, 0o755))
			require.NoError(t, os.WriteFile(filepath.Join(folder, optionsFile), []byte("batch: 7\n"), 0o644))
			if want == "another process works on it" {
				l := flock.New(filepath.Join(folder, lockFile))
				require.True(t, testutil.Must(l.TryLock())(t))
				t.Cleanup(func() { require.NoError(t, l.Close()) })
			}
		}
		require.ErrorContains(t, testutil.Err(Run(t.Context(), o, io.Discard)), want)
		require.NoFileExists(t, filepath.Join(folder, runlog.StepsFile))
		require.NoFileExists(t, filepath.Join(folder, modelFile))
		require.NoDirExists(t, filepath.Join(folder, checkpointFolder, checkpointName(4)))
		require.Equal(t, "batch: 7\n", string(testutil.Must(os.ReadFile(filepath.Join(folder, optionsFile)))(t)))
	}
}

// TestSignalInEveryPhase: after a signal in any phase, a run says how to resume it and exits with 128 + n.
func TestSignalInEveryPhase(t *testing.T) {
	for _, c := range []struct {
		phrase string
		more   []string
		step   int
	}{
		{"model: nsa", nil, -1}, // before there are models
		{"final evaluation", nil, 3},
		{"sampling", []string{"-sample", "60000000"}, 3},
	} {
		folder := filepath.Join(t.TempDir(), "run")
		o := testutil.Must(Parse(smallArgs(t, 3, append(c.more, "-out", folder)...), io.Discard))(t)
		ctx, cancel := context.WithCancelCause(t.Context())
		_, err := Run(ctx, o, &testutil.Listener{Phrase: c.phrase, Heard: func() { cancel(command.Stop{Signal: syscall.SIGINT}) }})
		var stopped *Interrupted
		require.ErrorAs(t, err, &stopped, c.phrase)
		require.NoError(t, stopped.Err)
		require.Equal(t, 130, stopped.ExitCode())
		if c.step < 0 {
			continue
		}
		require.Equal(t, c.step, stopped.Step)
		require.Equal(t, folder, stopped.Folder)
		require.Contains(t, err.Error(), "continue with -resume "+folder)
	}

	folder := filepath.Join(t.TempDir(), "run") // a checkpoint that cannot be written
	o := testutil.Must(Parse(smallArgs(t, 30, "-eval-every", "2", "-out", folder), io.Discard))(t)
	o.hooks.retryFor = -time.Second
	ctx, cancel := context.WithCancelCause(t.Context())
	o.hooks.stepped = func(step int) {
		if step == 3 {
			blockCheckpoints(t, folder)
			cancel(command.Stop{Signal: syscall.SIGTERM})
		}
	}
	_, err := Run(ctx, o, io.Discard)
	var stopped *Interrupted
	require.ErrorAs(t, err, &stopped)
	require.Equal(t, 143, stopped.ExitCode())
	require.Equal(t, 2, stopped.Step)
	require.ErrorContains(t, stopped.Err, "checkpoint of step 3")
}

// TestDataError: if the data change during a run, the run ends with a checkpoint of all steps so far, and the record says why.
func TestDataError(t *testing.T) {
	args, folder := smallArgs(t, 100000, "-eval-every", "100000", "-save-minutes", "0"), filepath.Join(t.TempDir(), "run")
	o := testutil.Must(Parse(append(args, "-out", folder), io.Discard))(t)
	o.hooks.stepped = func(step int) {
		if step == 3 {
			for i := range 60 {
				path := filepath.Join(o.Data, fmt.Sprintf("%02d.txt", i))
				require.NoError(t, os.WriteFile(path, append(testutil.Must(os.ReadFile(path))(t), 'x'), 0o644))
			}
		}
	}
	_, err := Run(t.Context(), o, io.Discard)
	last := wholeCheckpoint(t, folder)
	require.Greater(t, last.state.Step, 3)
	require.ErrorContains(t, err, fmt.Sprintf("-resume %s continues from step %d", folder, last.state.Step))
	require.NotContains(t, err.Error(), "\n")
	events := string(testutil.Must(os.ReadFile(filepath.Join(folder, runlog.EventsFile)))(t))
	require.Contains(t, events, `"kind":"error"`)
}

// TestResumeInOtherPrecision: a run in fp16 is resumed in another precision, and then in fp16 again.
func TestResumeInOtherPrecision(t *testing.T) {
	t.Parallel()
	folder := filepath.Join(t.TempDir(), "run")
	args := smallArgs(t, 9, "-precision", "fp16", "-out", folder)
	for _, precision := range []string{"fp16", "bf16", "fp16"} {
		o := testutil.Must(Parse(args, io.Discard))(t)
		require.Equal(t, precision, o.Precision)
		ctx, cancel := context.WithCancelCause(t.Context())
		taken := 0
		o.hooks.stepped = func(int) {
			if taken++; taken == 2 {
				cancel(errStop)
			}
		}
		_, err := runOn(ctx, fakedevice.NewHalf(), o, io.Discard)
		require.ErrorIs(t, err, errStop)
		args = []string{"-resume", folder, "-precision", map[string]string{"fp16": "bf16", "bf16": "fp16"}[precision]}
	}
}

// TestRunRecordsItsProcesses: run.json has the command of each process. A run restores the limit of the heap at its end.
func TestRunRecordsItsProcesses(t *testing.T) {
	folder := filepath.Join(t.TempDir(), "run")
	o := testutil.Must(Parse(smallArgs(t, 4, "-out", folder), io.Discard))(t)
	ctx, cancel := context.WithCancelCause(t.Context())
	o.hooks.stepped = func(int) {
		require.Less(t, debug.SetMemoryLimit(-1), int64(math.MaxInt64))
		cancel(errStop)
	}
	_, err := Run(ctx, o, io.Discard)
	require.ErrorIs(t, err, errStop)
	require.Equal(t, int64(math.MaxInt64), debug.SetMemoryLimit(-1))
	for _, name := range []string{runFile, optionsFile, modelFile, checksumsFile} { // temporary files that a kill leaves
		require.NoError(t, os.WriteFile(filepath.Join(folder, ".tmp-"+name+"123"), nil, 0o644))
	}
	testutil.Must(runArgs(t, "-resume", folder))(t)
	var d description
	require.NoError(t, json.Unmarshal(testutil.Must(os.ReadFile(filepath.Join(folder, runFile)))(t), &d))
	require.Len(t, d.Processes, 2)
	require.Equal(t, []int{0, 1}, []int{d.Processes[0].Step, d.Processes[1].Step})
	require.NotEmpty(t, d.Processes[0].Command)
	require.NotEmpty(t, d.Revision)
	require.Empty(t, testutil.Must(filepath.Glob(filepath.Join(folder, ".tmp-*")))(t))
}

// wholeCheckpoint returns the newest checkpoint of a run.
func wholeCheckpoint(t testing.TB, folder string) *checkpoint {
	c, damaged, err := newestCheckpoint(folder)
	require.NoError(t, err)
	require.Empty(t, damaged)
	require.NotNil(t, c)
	return c
}
