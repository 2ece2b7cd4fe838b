package train

import (
	"bytes"
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gorgonia-nsa/nsa/graph/fakedevice"
	"github.com/gorgonia-nsa/nsa/internal/runlog"
	"github.com/gorgonia-nsa/nsa/internal/testutil"
	"github.com/gorgonia-nsa/nsa/models/tinylm"
)

// warned returns a run that writes its warnings to the buffer.
func warned(t testing.TB) (*runner, *bytes.Buffer) {
	said, log := new(bytes.Buffer), testutil.Must(runlog.Create(filepath.Join(t.TempDir(), "run"), runlog.Options{}))(t)
	return &runner{display: newDisplay(said), log: log}, said
}

// TestWarnsOfDivergence: a mean loss that rises by more than half a nat gives one warning. A mean loss that falls, or
// jumps in the first steps, gives none.
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
	require.Contains(t, said.String(),
		"the training loss is 2.500, 0.60 nats above its lowest mean: it diverges. Lower -lr")
}

// TestWarnsOfOverfitting: three rises of the held-out loss with falls of the training loss give a warning. Fewer give
// none.
func TestWarnsOfOverfitting(t *testing.T) {
	r, said := warned(t)
	for i, e := range []evaluation{
		{HeldOut: 3, Train: 3}, {HeldOut: 2, Train: 2.5}, {HeldOut: 2.1, Train: 2.2}, {HeldOut: 2.2, Train: 2},
		{HeldOut: 2.1, Train: 1.9},
		{HeldOut: 2.2, Train: 1.8}, {HeldOut: 2.3, Train: 1.9}, {HeldOut: 2.4, Train: 1.8}, {HeldOut: 2.5, Train: 1.7},
		{HeldOut: 2.6, Train: 1.6},
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
		"-data " + small:       "is too short: want a twentieth of it, which is held out, to have 2 tokens",
		"-data " + t.TempDir(): "has no file to read",
		"-minutes 3":           "-minutes 3 does nothing beside -steps 2",
		"-dim 64 -top-n 4 -init " +
			base: "the weights are of another model: they have " +
			"-dim 32 where the options want 64, -top-n 6 where the options want 4",
		"-init " + filepath.Join(base, "config.yaml"): "-init ",
		"-init " + t.TempDir():                        "neither model.safetensors nor a checkpoint in it",
	} {
		require.ErrorContains(t, refusal(append(args, append(strings.Fields(more), "-out", out)...)...), want, more)
		require.NoDirExists(t, out, more)
	}
}

// TestInitOfAnotherContext: a run with -init has the context of its options; it can be resumed, and its options file
// gives the same run.
func TestInitOfAnotherContext(t *testing.T) {
	run := newRun(t, smallArgs(t, 2, "-init", newRun(t, smallArgs(t, 2)...), "-context", "32")...)
	config := filepath.Join(run, optionsFile)
	require.Equal(t, 32, testutil.Must(ReadOptions(config, ""))(t).Context)
	testutil.Must(runArgs(t, "-resume", run, "-steps", "3"))(t)
	require.Equal(t, 32, testutil.Must(tinylm.LoadWeights(filepath.Join(run, modelFile)))(t).Config.Context)
	require.Equal(t, 32, parse(t, "-config", config, "-out", newFolder(t)).Context)
}

// TestMomentsOfAnotherOptimizer: such a checkpoint is refused before the folder is written, and the right optimizer
// continues the run.
func TestMomentsOfAnotherOptimizer(t *testing.T) {
	folder := newRun(t, smallArgs(t, 2, "-optimizer", "adamw")...)
	wrong := parse(t, "-resume", folder, "-steps", "3")
	wrong.Optimizer = muonOptimizer // as if the file of an older version did not name it
	require.ErrorContains(t, testutil.Err(Run(context.Background(), wrong, io.Discard)),
		"-optimizer muon: the moments of ")
	testutil.Must(runArgs(t, "-resume", folder, "-steps", "3"))(t)
}

// TestInitOfFolder: a new run starts from the model of a run folder. If that run has not ended, the model is the newest
// checkpoint that is whole, with a warning for each damaged one.
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
	require.Contains(t, says(t, "-resume", run, "-steps", "4"),
		"warning: runlog: "+steps+": its last row is of step 0, want 3: the rows between are lost\n")
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

// TestMemoryInUse: each line of a step asks the device's driver once for the memory in use, and shows it. If the driver
// does not answer, one warning says so, and the lines show the planned memory.
func TestMemoryInUse(t *testing.T) {
	args := smallArgs(t, 10, "-eval-every", "2")
	for want, broken := range map[string]error{" MiB in use  held out ": nil,
		" MiB planned  held out ": errors.New("no answer")} {
		var said bytes.Buffer
		f := fakedevice.New()
		f.NoMeter = broken
		o := parse(t, append(args, "-out", newFolder(t))...)
		_, err := runOn(t.Context(), f, nil, o, &said)
		require.NoError(t, err)
		require.Equal(t, 5, strings.Count(said.String(), want), said.String())
		if broken == nil {
			require.Equal(t, 5, f.MemoryAsked)
			continue
		}
		require.Equal(t, 1, f.MemoryAsked)
		require.Equal(t, 1, strings.Count(said.String(), "warning: no answer"))
	}
}

// TestBarOfEachStep: each step changes the bar, but only few of them ask for the memory.
func TestBarOfEachStep(t *testing.T) {
	s, f := &testutil.Screen{Width: 100}, fakedevice.New()
	f.MemoryInUse = 3 << 20
	d := newDisplay(s)
	d.stepText = fields{{0, "not the first step"}}
	r := &runner{Options: Options{Steps: 1000}, backend: f, display: d}
	for r.state.Step = range 1000 {
		d.step(r, 1)
	}
	require.Equal(t, 1, f.MemoryAsked)
	d.lastMemory, d.lastDraw = time.Now().Add(-2*memoryEvery), time.Time{}
	d.step(r, 1)
	require.Equal(t, 2, f.MemoryAsked)
	bar := s.Lines()
	require.Len(t, bar, 1)
	require.Regexp(t, `^ 99% \|█{23} \| step 999  loss 0.000  1 tok/s  .* left  3.0 MiB in use$`, bar[0])
	d.phase("evaluating")
	require.Regexp(t, `evaluating  step 999 `, s.Lines()[0])
	d.end()
	require.Empty(t, s.Lines())
}

// TestRunFitsTerminal: at each width a run breaks no row of the terminal, and its bar leaves nothing behind.
func TestRunFitsTerminal(t *testing.T) {
	args := smallArgs(t, 20, "-eval-every", "5")
	for _, columns := range []int{20, 37, 40, 60, 80, 200} {
		s, f := &testutil.Screen{Width: columns}, fakedevice.New()
		f.MemoryInUse = 123 << 30
		_, err := runOn(t.Context(), f, nil, parse(t, append(args, "-out", newFolder(t))...), s)
		require.NoError(t, err)
		require.Zero(t, s.Broken, "%d columns: %q", columns, s.Lines())
		require.Empty(t, s.Faults)
		text := strings.Join(s.Lines(), "\n")
		require.NotContains(t, text, "%", "a bar that is left")
		require.Equal(t, 4, strings.Count(text, "held out "), text)
		if columns < 30 { // no room for the step
			continue
		}
		require.Equal(t, 4, len(regexp.MustCompile(`(?m)^step (5|10|15|20)  .*held out `).FindAllString(text, -1)), text)
	}
}

// TestBarInPlace: at each width, and when the width changes meanwhile, the bar has one row, and lines stay above it.
func TestBarInPlace(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	for columns := 20; columns <= 200; columns++ {
		s, f := &testutil.Screen{Width: columns}, fakedevice.New()
		f.MemoryInUse = 100 << 30
		d := newDisplay(s)
		r := &runner{Options: Options{Steps: 100}, backend: f, display: d, state: state{MeanLoss: 1.5}}
		d.stepText = fields{{0, "not the first step"}}
		for r.state.Step = range 100 {
			d.lastDraw = time.Time{}
			if d.step(r, 123456); r.state.Step%10 == 0 {
				d.phase("reading 日本語")
			}
			require.Len(t, s.Lines(), 1)
			if random.IntN(5) == 0 {
				s.Resize(20 + random.IntN(181))
			}
		}
		d.line("one")
		d.step(r, 1)
		d.line("two")
		d.end()
		require.Equal(t, []string{"one", "two"}, s.Lines())
		require.Zero(t, s.Broken)
	}
}

// TestStepsBesideAWarning: the watchdog may warn while the run shows a step. -race finds a missing lock.
func TestStepsBesideAWarning(t *testing.T) {
	d := &display{w: io.Discard, stepText: fields{{0, "not the first step"}}}
	r := &runner{Options: Options{Steps: 1000}, backend: fakedevice.New(), display: d}
	var watchdog sync.WaitGroup
	watchdog.Go(func() {
		for range 100 {
			d.warn("no progress")
		}
	})
	for r.state.Step = range 100 {
		d.step(r, 1)
	}
	watchdog.Wait()
}
