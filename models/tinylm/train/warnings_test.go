package train

import (
	"bytes"
	"context"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gorgonia-nsa/nsa/internal/runlog"
	"github.com/gorgonia-nsa/nsa/internal/testutil"
	"github.com/gorgonia-nsa/nsa/models/tinylm"
)

// warned returns a run that writes its warnings to the buffer.
func warned(t testing.TB) (*runner, *bytes.Buffer) {
	said, log := new(bytes.Buffer), testutil.Must(runlog.Create(filepath.Join(t.TempDir(), "run"), runlog.Options{}))(t)
	return &runner{display: newDisplay(said), log: log}, said
}

// TestWarnsOfDivergence: a mean loss that rises by more than half a nat gives one warning. A mean loss that falls, or jumps in the first
// steps, gives none.
func TestWarnsOfDivergence(t *testing.T) {
	r, said := warned(t)
	for step, loss := range []float64{5, 9, 4, 3, 2, 2.4, 2.1, 1.9} {
		r.state.Step, r.state.MeanLoss = []int{18, 19, 20, 21, 22, 23, 24, 25}[step], loss
		r.warnOfDivergence()
	}
	require.Empty(t, said.String())
	for range 3 {
		r.state.Step++
		r.state.MeanLoss += 0.6
		r.warnOfDivergence()
	}
	require.Equal(t, 1, strings.Count(said.String(), "warning: "), said)
	require.Contains(t, said.String(), "the training loss is 2.500, 0.60 nats above its lowest mean: it diverges. Lower -lr")
}

// TestWarnsOfOverfitting: three rises of the held-out loss with falls of the training loss give a warning. Fewer give none.
func TestWarnsOfOverfitting(t *testing.T) {
	r, said := warned(t)
	for i, e := range []evaluation{
		{HeldOut: 3, Train: 3}, {HeldOut: 2, Train: 2.5}, {HeldOut: 2.1, Train: 2.2}, {HeldOut: 2.2, Train: 2}, {HeldOut: 2.1, Train: 1.9},
		{HeldOut: 2.2, Train: 1.8}, {HeldOut: 2.3, Train: 1.9}, {HeldOut: 2.4, Train: 1.8}, {HeldOut: 2.5, Train: 1.7}, {HeldOut: 2.6, Train: 1.6},
	} {
		require.Empty(t, said.String(), "evaluation %d", i)
		r.state.Evaluations = append(r.state.Evaluations, e)
		r.warnOfOverfitting()
	}
	require.Contains(t, said.String(), "the held-out loss has risen 3 times in a row while the training loss fell")
}

// TestRunRefuses: a run that cannot begin says why before the first step and makes no folder.
func TestRunRefuses(t *testing.T) {
	args, small := smallArgs(t, 2), filepath.Join(t.TempDir(), "small.txt")
	base := newRun(t, args...)
	write(t, small, "hi")
	out := filepath.Join(t.TempDir(), "out")
	for more, want := range map[string]string{
		"-data " + small:                              "is too short: want a twentieth of it, which is held out, to have 2 tokens",
		"-data " + t.TempDir():                        "has no file to read",
		"-minutes 3":                                  "-minutes 3 does nothing beside -steps 2",
		"-dim 64 -top-n 4 -init " + base:              "the weights are of another model: they have -dim 32 where the options want 64, -top-n 6 where the options want 4",
		"-init " + filepath.Join(base, "config.yaml"): "-init ",
		"-init " + t.TempDir():                        "neither model.safetensors nor a checkpoint in it",
	} {
		require.ErrorContains(t, refusal(append(args, append(strings.Fields(more), "-out", out)...)...), want, more)
		require.NoDirExists(t, out, more)
	}
}

// TestInitOfAnotherContext: a run with -init has the context of its options; it can be resumed, and its options file gives the same run.
func TestInitOfAnotherContext(t *testing.T) {
	run := newRun(t, smallArgs(t, 2, "-init", newRun(t, smallArgs(t, 2)...), "-context", "32")...)
	config := filepath.Join(run, optionsFile)
	require.Equal(t, 32, testutil.Must(ReadOptions(config, ""))(t).Context)
	testutil.Must(runArgs(t, "-resume", run, "-steps", "3"))(t)
	require.Equal(t, 32, testutil.Must(tinylm.LoadWeights(filepath.Join(run, modelFile)))(t).Config.Context)
	require.Equal(t, 32, parse(t, "-config", config, "-out", newFolder(t)).Context)
}

// TestMomentsOfAnotherOptimizer: such a checkpoint is refused before the folder is written, and the right optimizer continues the run.
func TestMomentsOfAnotherOptimizer(t *testing.T) {
	folder := newRun(t, smallArgs(t, 2, "-optimizer", "adamw")...)
	wrong := parse(t, "-resume", folder, "-steps", "3")
	wrong.Optimizer = muonOptimizer // as if the file of an older version did not name it
	require.ErrorContains(t, testutil.Err(Run(context.Background(), wrong, io.Discard)), "-optimizer muon: the moments of ")
	testutil.Must(runArgs(t, "-resume", folder, "-steps", "3"))(t)
}

// TestInitOfFolder: a new run starts from the model of a run folder. If that run has not ended, the model is the newest checkpoint that is
// whole, with a warning for each damaged one.
func TestInitOfFolder(t *testing.T) {
	t.Parallel()
	args := smallArgs(t, 2, "-eval-every", "1")
	base := newRun(t, args...)
	heldOut := func(init string) float64 { return heldOutOf(t, newRun(t, append(args, "-init", init)...)) }
	require.Equal(t, heldOut(filepath.Join(base, modelFile)), heldOut(base))
	require.NoError(t, os.Remove(filepath.Join(base, modelFile)))
	require.NoError(t, os.Truncate(filepath.Join(folder(base).checkpoint(2), modelFile), 100))
	said := says(t, append(args, "-init", base, "-out", newFolder(t))...)
	require.Regexp(t, "(?m)^warning: checkpoint "+checkpointName(2)+": .*: an older one is used$", said)
}

// TestWarnsOfMissingRows: a run whose table has lost rows up to its checkpoint goes on, with a warning, the first time.
func TestWarnsOfMissingRows(t *testing.T) {
	t.Parallel()
	run := newRun(t, smallArgs(t, 2)...)
	steps := filepath.Join(run, runlog.StepsFile)
	require.NotContains(t, says(t, "-resume", run, "-steps", "3"), "warning: ")
	require.NoError(t, os.Remove(steps))
	require.Contains(t, says(t, "-resume", run, "-steps", "4"), "warning: runlog: "+steps+": its last row is of step 0, want 3: the rows between are lost\n")
	require.NotContains(t, says(t, "-resume", run, "-steps", "5"), "warning: ")
}

// TestRunsOfTheSameSecond: runs that begin in the same second have different folders.
func TestRunsOfTheSameSecond(t *testing.T) {
	t.Chdir(t.TempDir())
	for range 3 {
		r := &runner{}
		testutil.Must(r.createFolder(runlog.Options{}))(t)
		require.DirExists(t, string(r.folder))
	}
	require.Len(t, testutil.Must(os.ReadDir("runs"))(t), 3)
}
