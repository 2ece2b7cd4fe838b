package train

import (
	"context"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"strings"
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

// TestLockThatIsNoFile: opening a pipe would wait for its other end.
func TestLockThatIsNoFile(t *testing.T) {
	run := newRun(t, smallArgs(t, 2)...)
	lock := filepath.Join(run, lockFile)
	require.NoError(t, os.Remove(lock))
	require.NoError(t, os.Mkdir(lock, 0o755))
	require.ErrorContains(t, refusal("-resume", run), lock+" is not a regular file")
}

// TestFolderMovedAway: if the folder of a run is moved away or deleted, the run makes it again, with a lock.
func TestFolderMovedAway(t *testing.T) {
	t.Parallel()
	if runtime.GOOS == "windows" {
		t.Skip("a folder with open files cannot be moved")
	}
	run := newFolder(t)
	o := parse(t, smallArgs(t, 6, "-eval-every", "1", "-out", run)...)
	o.hooks.stepped = func(step int) {
		switch step {
		case 2:
			require.NoError(t, os.Rename(run, run+".moved"))
		case 4:
			require.ErrorContains(t, refusal("-resume", run), run+": another process works on it")
			require.NoError(t, os.Remove(filepath.Join(run, lockFile)))
		case 5:
			require.ErrorContains(t, refusal("-resume", run), run+": another process works on it")
			testutil.Must(runArgs(t, "-resume", run+".moved"))(t)
		}
	}
	testutil.Must(Run(t.Context(), o, io.Discard))(t)
	require.Equal(t, modelOf(t, run+".moved"), modelOf(t, run))
	testutil.Must(runArgs(t, "-resume", run, "-steps", "7"))(t)
}

// TestReplacedFolder: while a run trains, evaluates or samples, its folder is replaced by another run's, by one that
// trains, by one with the same options, by a copy of its own that another process has resumed, or by one without a lock
// or options. The run ends with an error, and no file there changes.
func TestReplacedFolder(t *testing.T) {
	t.Parallel()
	if runtime.GOOS == "windows" {
		t.Skip("a folder with open files cannot be moved")
	}
	args := tinyArgs(t)
	other, same := newRun(t, append(args, "-seed", "2")...), newRun(t, args...)
	for _, c := range []struct{ what, by, without, phrase string }{
		{"in a step", other, "", "step 4"}, {"by one with the same options", same, "", "final evaluation"},
		{"by one without a description", same, runFile, "step 2"}, {"by one without a lock", other, lockFile, "sampling"},
		{"by one that trains", other, "", "step 2"},
		{"by one without options", other, optionsFile, "step 4"}, {"same options and no lock", same, lockFile, "step 2"},
		{"same options in a step", same, "", "step 4"},
	}[:testutil.Tries(t, 5, 8)] {
		run, want := newFolder(t), " is another run now"
		o := parse(t, append(args, "-out", run)...)
		o.hooks.retryFor, o.hooks.retryEvery = 1, 1
		var before map[string]string
		replace := func() {
			require.NoError(t, os.Rename(run, run+".moved"))
			require.NoError(t, os.CopyFS(run, os.DirFS(c.by)))
			if c.without != "" {
				require.NoError(t, os.Remove(filepath.Join(run, c.without)))
			}
			if c.what == "by one that trains" {
				l := flock.New(filepath.Join(run, lockFile))
				require.True(t, testutil.Must(l.TryLock())(t))
				t.Cleanup(func() { require.NoError(t, l.Close()) })
				want = ": another process works on it"
			}
			before = contents(t, run)
		}
		o.hooks.stepped = func(step int) {
			if c.phrase == fmt.Sprintf("step %d", step) {
				replace()
			}
		}
		said := &testutil.Listener{Phrase: c.phrase, Heard: replace}
		if strings.HasPrefix(c.phrase, "step ") {
			said = &testutil.Listener{Phrase: "never"}
		}
		_, err := Run(t.Context(), o, said)
		require.ErrorContains(t, err, run+want, c.what)
		require.Equal(t, before, contents(t, run), c.what)
		testutil.Must(runArgs(t, "-resume", run+".moved"))(t)
		require.Equal(t, modelOf(t, same), modelOf(t, run+".moved"), c.what)
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
		run := newFolder(t)
		o := parse(t, smallArgs(t, 3, append(c.more, "-out", run)...)...)
		ctx, cancel := context.WithCancelCause(t.Context())
		_, err := Run(ctx, o, &testutil.Listener{Phrase: c.phrase,
			Heard: func() { cancel(command.Stop{Signal: syscall.SIGINT}) }})
		var stopped *Interrupted
		require.ErrorAs(t, err, &stopped, c.phrase)
		require.NoError(t, stopped.Err)
		require.Equal(t, 130, stopped.ExitCode())
		if c.step >= 0 {
			require.Equal(t, c.step, stopped.Step)
			require.Equal(t, run, stopped.Folder)
			require.Contains(t, err.Error(), "continue with -resume "+run)
		}
	}

	run := newFolder(t) // a checkpoint that cannot be written
	o := parse(t, smallArgs(t, 30, "-eval-every", "2", "-out", run)...)
	o.hooks.retryFor = -time.Second
	ctx, cancel := context.WithCancelCause(t.Context())
	o.hooks.stepped = func(step int) {
		if step == 3 {
			blockCheckpoints(t, run)
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

// TestDataError: if the data change during a run, the run ends with a checkpoint of all steps so far, and the record
// says why.
func TestDataError(t *testing.T) {
	run := newFolder(t)
	o := parse(t, withOwnText(t, tinyArgs(t, "-steps", "100000", "-batch", "8", "-eval-every", "100000", "-save-minutes", "0",
		"-out", run))...)
	o.hooks.stepped = func(step int) {
		if step == 3 {
			for i := range 60 {
				path := filepath.Join(o.Data, fmt.Sprintf("%02d.txt", i))
				write(t, path, read(t, path)+"x")
			}
		}
	}
	_, err := Run(t.Context(), o, io.Discard)
	last := wholeCheckpoint(t, run)
	require.Greater(t, last.state.Step, 3)
	require.ErrorContains(t, err, fmt.Sprintf("-resume %s continues from step %d", run, last.state.Step))
	require.NotContains(t, err.Error(), "\n")
	require.Contains(t, read(t, run, runlog.EventsFile), `"kind":"error"`)
}

// TestResumeInOtherPrecision: a run in fp16 is resumed in another precision, and then in fp16 again.
func TestResumeInOtherPrecision(t *testing.T) {
	t.Parallel()
	run := newFolder(t)
	args := smallArgs(t, 9, "-precision", "fp16", "-out", run)
	for _, precision := range []string{"fp16", "bf16", "fp16"} {
		o := parse(t, args...)
		require.Equal(t, precision, o.Precision)
		ctx, cancel := context.WithCancelCause(t.Context())
		taken := 0
		o.hooks.stepped = func(int) {
			if taken++; taken == 2 {
				cancel(errStop)
			}
		}
		_, err := runOn(ctx, fakedevice.NewHalf(), nil, o, io.Discard)
		require.ErrorIs(t, err, errStop)
		args = []string{"-resume", run, "-precision", map[string]string{"fp16": "bf16", "bf16": "fp16"}[precision]}
	}
}

// TestRunRecordsItsProcesses: run.json has the command of each process. A run restores the limit of the heap at its
// end.
func TestRunRecordsItsProcesses(t *testing.T) {
	run := newFolder(t)
	o := parse(t, smallArgs(t, 4, "-out", run)...)
	ctx, cancel := context.WithCancelCause(t.Context())
	o.hooks.stepped = func(int) {
		require.Less(t, debug.SetMemoryLimit(-1), int64(math.MaxInt64))
		cancel(errStop)
	}
	_, err := Run(ctx, o, io.Discard)
	require.ErrorIs(t, err, errStop)
	require.Equal(t, int64(math.MaxInt64), debug.SetMemoryLimit(-1))
	for _, name := range []string{runFile, optionsFile, modelFile, checksumsFile} { // temporary files that a kill leaves
		write(t, filepath.Join(run, ".tmp-"+name+"123"), "")
	}
	testutil.Must(runArgs(t, "-resume", run))(t)
	d := descriptionOf(t, run)
	require.Len(t, d.Processes, 2)
	require.Equal(t, []int{0, 1}, []int{d.Processes[0].Step, d.Processes[1].Step})
	require.NotEmpty(t, d.Processes[0].Command)
	require.NotEmpty(t, d.Revision)
	require.Empty(t, testutil.Must(filepath.Glob(filepath.Join(run, ".tmp-*")))(t))
}

// TestStopsWithItsContext: if a context ends without a signal, the error is its cause.
func TestStopsWithItsContext(t *testing.T) {
	run := newFolder(t)
	stopAfter(t, 3, smallArgs(t, 1<<30, "-out", run)...)
	require.Equal(t, []int{3}, stepsOf(t, run))
}
