package train

import (
	"encoding/json"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/internal/command"
	"github.com/gorgonia-nsa/nsa/internal/testutil"
	"github.com/gorgonia-nsa/nsa/models/tinylm"
)

// TestOtherFoldersBesideCheckpoints: only a folder with exactly the name of a checkpoint is one. The others are neither
// used nor removed. A checkpoint with the name of another step is damaged.
func TestOtherFoldersBesideCheckpoints(t *testing.T) {
	run := newRun(t, smallArgs(t, 6, "-eval-every", "2", "-keep", "2")...)
	require.NoError(t, os.Remove(filepath.Join(run, modelFile)))
	parent, older := filepath.Join(run, checkpointFolder), folder(run).checkpoint(4)
	others := []string{"step-old", "step-000000004.bak", "step-4", "step-0000000004", "step--00000001", "step-",
		"000000004"}
	for _, name := range others {
		require.NoError(t, os.CopyFS(filepath.Join(parent, name), os.DirFS(older)))
	}
	require.Equal(t, []int{4, 6}, stepsOf(t, run))
	require.Equal(t, 6, wholeCheckpoint(t, run).state.Step)
	require.Equal(t, filepath.Join(parent, checkpointName(6), modelFile), testutil.Must(FindModel(run))(t).WeightsFile)
	require.NoError(t, pruner(run, 6).prune())
	for _, name := range others {
		testutil.Must(FindModel(filepath.Join(parent, name)))(t)
	}

	require.NoError(t, os.RemoveAll(older))
	require.NoError(t, os.CopyFS(older, os.DirFS(folder(run).checkpoint(6))))
	require.NoError(t, os.CopyFS(folder(run).checkpoint(1e9), os.DirFS(filepath.Join(parent, "step-old")))) // the newest
	const want = "state.json is of step 4, the folder is named for step 1000000000"
	c, damaged, err := newestCheckpoint(folder(run))
	require.NoError(t, err)
	require.Len(t, damaged, 1)
	require.ErrorContains(t, damaged[0], want)
	require.Equal(t, 6, c.state.Step)
	require.ErrorContains(t, testutil.Must(FindModel(run))(t).Damaged[0], want)
	require.ErrorContains(t, testutil.Err(FindModel(folder(run).checkpoint(1e9))), want)
	require.ErrorContains(t, testutil.Err(FindModel(older)), "is of step 6")
}

// pruner returns a run at a step that keeps one checkpoint.
func pruner(run string, step int) *runner {
	return &runner{Options: Options{Keep: 1}, folder: folder(run), state: state{Step: step}}
}

// TestPrune: damaged checkpoints of later steps do not count among the newest. A checkpoint that cannot be removed does
// not keep the others.
func TestPrune(t *testing.T) {
	run := newFolder(t)
	for _, step := range []int{2, 3, 4, 1860, 1870} {
		require.NoError(t, os.MkdirAll(folder(run).checkpoint(step), 0o755))
	}
	require.NoError(t, os.MkdirAll(filepath.Join(run, checkpointFolder, partPrefix+"old-"+checkpointName(2), "full"),
		0o755)) // so it cannot be renamed
	require.ErrorContains(t, pruner(run, 4).prune(), checkpointName(2))
	require.Equal(t, []int{2, 4, 1860, 1870}, stepsOf(t, run))
}

// TestLinkedCheckpoint: a link with the name of a checkpoint is one, as when it lies on another disk. If what it names
// is missing, a warning says so.
func TestLinkedCheckpoint(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("symbolic links need rights")
	}
	run := newRun(t, smallArgs(t, 4, "-eval-every", "2")...)
	require.NoError(t, os.Remove(filepath.Join(run, modelFile)))
	path, elsewhere := folder(run).checkpoint(4), filepath.Join(t.TempDir(), "elsewhere")
	require.NoError(t, os.Rename(path, elsewhere))
	require.NoError(t, os.Symlink(elsewhere, path))
	require.Equal(t, 4, wholeCheckpoint(t, run).state.Step)
	require.Equal(t, filepath.Join(path, modelFile), testutil.Must(FindModel(run))(t).WeightsFile)
	require.NoError(t, os.Rename(elsewhere, elsewhere+"2"))
	c, damaged, err := newestCheckpoint(folder(run))
	require.NoError(t, err)
	require.Equal(t, 2, c.state.Step)
	require.Len(t, damaged, 1)
	require.ErrorContains(t, damaged[0], "checkpoint "+checkpointName(4)+": ")
	require.NoError(t, os.Rename(elsewhere+"2", elsewhere))
	require.NoError(t, removeCheckpoint(path))
	require.NoFileExists(t, path)
	require.FileExists(t, filepath.Join(elsewhere, modelFile)) // only the link is the run's
}

// TestDamagedFinalModel: the error names a whole checkpoint and the command that writes the model again.
func TestDamagedFinalModel(t *testing.T) {
	t.Parallel()
	run := newRun(t, tinyArgs(t)...)
	want, file, sums := modelOf(t, run), filepath.Join(run, modelFile), filepath.Join(run, checksumsFile)
	checkpoint := folder(run).checkpoint(6)
	for _, damage := range []struct{ path, text string }{{file, "cut"}, {sums, ""}, {sums, "cut"}} {
		write(t, damage.path, damage.text)
		for _, path := range []string{run, file} {
			hint := ": train -resume " + run + " writes it again, or name " + checkpoint
			require.ErrorContains(t, testutil.Err(FindModel(path)), hint)
			require.ErrorContains(t, testutil.Err(Parse([]string{"-init", path}, io.Discard)), hint)
		}
		require.Contains(t, says(t, "-resume", run), "the run already has 6 steps: it trains no further\n")
		require.Equal(t, want, modelOf(t, run))
		testutil.Must(FindModel(run))(t)
	}
	require.NoError(t, os.RemoveAll(filepath.Join(run, checkpointFolder)))
	write(t, file, "cut")
	require.NotContains(t, testutil.Err(FindModel(run)).Error(), "-resume")
	_, err := Parse([]string{"-resume", checkpoint}, io.Discard)
	require.ErrorContains(t, err, checkpoint+": a checkpoint, want the folder of its run, "+run)
	require.Equal(t, 2, command.ExitStatus(err, io.Discard))
}

// TestDamagedWeights: weights that do not have the sum beside them are an error, whether the path is the file's or a
// folder's. Without a sum nothing is checked.
func TestDamagedWeights(t *testing.T) {
	run := newRun(t, tinyArgs(t)...)
	open := func(path string) error {
		_, err := FindModel(path)
		_, initErr := Parse([]string{"-init", path}, io.Discard)
		require.Equal(t, err == nil, initErr == nil, "%s: %v, %v", path, err, initErr)
		return err
	}
	for _, dir := range []string{run, folder(run).checkpoint(6)} {
		file, sums, alone := filepath.Join(dir, modelFile), filepath.Join(dir, checksumsFile),
			filepath.Join(dir, "alone.safetensors")
		require.NoError(t, open(dir))
		require.NoError(t, open(file))
		content := []byte(read(t, file))
		content[len(content)-1] ^= 1 // of a weight
		write(t, file, string(content))
		require.ErrorContains(t, open(dir), modelFile+" is damaged: its SHA-256 is ")
		require.ErrorContains(t, open(file), file+": "+modelFile+" is damaged: its SHA-256 is ")
		require.NoError(t, os.Link(file, alone))
		require.NoError(t, open(alone), "no sum")
		listed := read(t, sums)
		write(t, sums, "sum  "+strings.Repeat("x", 1<<17)+"\nsum  alone.safetensors\n"+listed)
		require.ErrorContains(t, open(alone), "alone.safetensors is damaged", "behind a long line")
		for _, text := range []string{strings.ReplaceAll(listed, modelFile, "other"), ""} {
			write(t, sums, text)
			require.ErrorContains(t, open(file), modelFile+": SHA256SUMS does not list it")
		}
		require.NoError(t, os.Remove(sums))
		require.NoError(t, open(file))
	}
}

// TestFinalWeightsOverOlder: a write of the final weights over those of an earlier end that stops before their sums
// leaves them without sums.
func TestFinalWeightsOverOlder(t *testing.T) {
	o, dir := parse(t, smallArgs(t, 1)...), t.TempDir()
	config := filepath.Join(dir, configFile)
	weights := func(seed uint64) *tinylm.Weights {
		return testutil.Must(tinylm.NewWeights(o.Model(256), tensor.Float32, seed))(t)
	}
	for seed := range uint64(2) {
		require.NoError(t, writeFinal(dir, weights(seed)))
		require.NoError(t, testutil.Must(readChecksums(dir))(t).verify(dir, modelFile, configFile))
	}
	require.NoError(t, os.Remove(config))
	require.NoError(t, os.MkdirAll(filepath.Join(config, "full"), 0o755))
	require.Error(t, writeFinal(dir, weights(2)))
	require.NoFileExists(t, filepath.Join(dir, checksumsFile))
	testutil.Must(FindModel(filepath.Join(dir, modelFile)))(t)
}

// TestModelHasBestWeights: the model of a run has the weights of its best checkpoint or, if that is damaged, of its
// last one.
func TestModelHasBestWeights(t *testing.T) {
	t.Parallel()
	run := newFolder(t)
	stopAfter(t, 10, smallArgs(t, 12, "-eval-every", "4", "-keep", "1", "-out", run)...)
	path := folder(run).checkpoint(10) // it is changed to say that an earlier one was better
	s := testutil.Must(parseState([]byte(read(t, path, stateFile))))(t)
	s.Best.HeldOut = 0.01
	write(t, filepath.Join(path, stateFile), string(testutil.Must(json.Marshal(s))(t)))
	require.NoError(t, writeChecksums(path, checkpointFiles()...))
	best, whole := read(t, folder(run).checkpoint(8), modelFile), copyOf(t, run)
	require.Equal(t, 8, testutil.Must(runArgs(t, "-resume", run))(t).BestStep)
	require.Equal(t, best, modelOf(t, run))

	require.NoError(t, os.Truncate(filepath.Join(folder(whole).checkpoint(8), modelFile), 100))
	require.Equal(t, 12, testutil.Must(runArgs(t, "-resume", whole))(t).BestStep)
	require.Equal(t, read(t, folder(run).checkpoint(12), modelFile), modelOf(t, whole))
}

// TestFoundWeightsThatGoAway: a run that trains may remove a checkpoint between Find and Open.
func TestFoundWeightsThatGoAway(t *testing.T) {
	run := newRun(t, smallArgs(t, 2)...)
	found := testutil.Must(FindModel(run))(t)
	want := found.WeightsFile
	found.WeightsFile = filepath.Join(folder(run).checkpoint(9), modelFile)
	_, _, err := found.Open("")
	require.NoError(t, err)
	require.Equal(t, want, found.WeightsFile)
}

// blockCheckpoints makes every write of a checkpoint to a run folder fail, until free is called.
func blockCheckpoints(t testing.TB, run string) (free func()) {
	path := filepath.Join(run, checkpointFolder)
	require.NoError(t, os.Rename(path, path+".aside"))
	write(t, path, "")
	return func() {
		require.NoError(t, os.Remove(path))
		require.NoError(t, os.Rename(path+".aside", path))
	}
}

// TestBestAfterFailedSave: if the checkpoint of the last evaluation is written only at a later try, the evaluation
// still counts.
func TestBestAfterFailedSave(t *testing.T) {
	run := newFolder(t)
	o := parse(t, smallArgs(t, 60, "-eval-every", "30", "-save-minutes", "0", "-lr", "1e-3", "-out", run)...)
	o.hooks.retryEvery = time.Millisecond
	var free func()
	o.hooks.stepped = func(step int) {
		if step == 60 {
			free = blockCheckpoints(t, run)
		}
	}
	said := &testutil.Listener{Phrase: "trying again every", Heard: func() { free() }}
	res := testutil.Must(Run(t.Context(), o, said))(t)
	require.Contains(t, said.String(), "the run continues and tries again in a minute")
	last := wholeCheckpoint(t, run)
	require.Len(t, last.state.Evaluations, 2)
	require.Less(t, last.state.Evaluations[1].HeldOut, last.state.Evaluations[0].HeldOut)
	require.Equal(t, 60, res.BestStep)
	require.Equal(t, 60, last.state.Best.Step)
}

// TestFailedSaveIsTriedAgain: a failed checkpoint is tried again, also if no checkpoints are written by time.
func TestFailedSaveIsTriedAgain(t *testing.T) {
	r := &runner{savedStep: 3, saveFailed: true, saveAt: time.Now().Add(-time.Second), state: state{Step: 4}}
	require.True(t, r.saveDue())
	r.saveFailed = false
	require.False(t, r.saveDue())
}

// checkState: the state of a checkpoint is an error, or is the same when it is written and read again.
func checkState(t *testing.T, text []byte) {
	s, err := parseState(text)
	if err != nil {
		return
	}
	_ = s.best()
	written := testutil.Must(json.Marshal(s))(t)
	again, err := parseState(written)
	require.NoError(t, err)
	require.Equal(t, string(written), string(testutil.Must(json.Marshal(again))(t)))
}

// someState is a state as a run writes it.
const someState = `{"step":6,"elapsed_ns":7,"cursor":{"data":"00","seed":1,"seq":64,"window":12,"sum":3},` +
	`"scale":{"value":1024,"good":3},"late":[{"number":6,"read":true}],` +
	`"mean_loss":5.5,"evaluations":[{"step":2,"held_out":5.5,"train":5}],"best":null}`

// TestMutatedState changes a state at random.
func TestMutatedState(t *testing.T) {
	testutil.Must(parseState([]byte(someState)))(t)
	r := rand.New(rand.NewPCG(1, 2))
	for range testutil.Mutations(t) {
		checkState(t, testutil.Mutate(r, []byte(someState)))
	}
}

func FuzzState(f *testing.F) {
	f.Add([]byte(someState))
	f.Add([]byte(`{"step":2,"late":[{}],"scale":{}}`))
	f.Fuzz(checkState)
}
