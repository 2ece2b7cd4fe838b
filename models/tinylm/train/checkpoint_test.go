package train

import (
	"bytes"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gorgonia-nsa/nsa/internal/command"
	"github.com/gorgonia-nsa/nsa/internal/testutil"
)

// TestOtherFoldersBesideCheckpoints: only a folder with exactly the name of a checkpoint is one. The others are neither used nor removed. A
// checkpoint with the name of another step is damaged.
func TestOtherFoldersBesideCheckpoints(t *testing.T) {
	folder := filepath.Join(t.TempDir(), "run")
	testutil.Must(runArgs(t, smallArgs(t, 6, "-eval-every", "2", "-keep", "2", "-out", folder)...))(t)
	require.NoError(t, os.Remove(filepath.Join(folder, modelFile)))
	parent := filepath.Join(folder, checkpointFolder)
	names := testutil.Must(checkpoints(parent))(t)
	older := filepath.Join(parent, checkpointName(4))
	others := []string{"step-old", "step-000000004.bak", "step-4", "step-0000000004", "step--00000001", "step-", "000000004"}
	for _, name := range others {
		require.NoError(t, os.CopyFS(filepath.Join(parent, name), os.DirFS(older)))
	}
	require.Equal(t, names, testutil.Must(checkpoints(parent))(t))
	require.Equal(t, 6, wholeCheckpoint(t, folder).state.Step)
	require.Equal(t, filepath.Join(parent, checkpointName(6), modelFile), testutil.Must(FindModel(folder))(t).WeightsFile)
	r := &runner{Options: Options{Keep: 1}}
	r.state.Step = 6
	require.NoError(t, r.prune(parent))
	for _, name := range others {
		testutil.Must(FindModel(filepath.Join(parent, name)))(t)
	}

	require.NoError(t, os.RemoveAll(older))
	require.NoError(t, os.CopyFS(older, os.DirFS(filepath.Join(parent, checkpointName(6)))))
	require.NoError(t, os.CopyFS(filepath.Join(parent, checkpointName(1e9)), os.DirFS(filepath.Join(parent, "step-old")))) // the newest
	const want = "state.json is of step 4, the folder is named for step 1000000000"
	c, damaged, err := newestCheckpoint(folder)
	require.NoError(t, err)
	require.Len(t, damaged, 1)
	require.ErrorContains(t, damaged[0], want)
	require.Equal(t, 6, c.state.Step)
	require.ErrorContains(t, testutil.Must(FindModel(folder))(t).Damaged[0], want)
	require.ErrorContains(t, testutil.Err(FindModel(filepath.Join(parent, checkpointName(1e9)))), want)
	require.ErrorContains(t, testutil.Err(FindModel(older)), "is of step 6")
}

// TestLinkedCheckpoint: a link with the name of a checkpoint is one, as when it lies on another disk. If what it names is missing, a warning
// says so.
func TestLinkedCheckpoint(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("symbolic links need rights")
	}
	folder := filepath.Join(t.TempDir(), "run")
	testutil.Must(runArgs(t, smallArgs(t, 4, "-eval-every", "2", "-out", folder)...))(t)
	require.NoError(t, os.Remove(filepath.Join(folder, modelFile)))
	path, elsewhere := filepath.Join(folder, checkpointFolder, checkpointName(4)), filepath.Join(t.TempDir(), "elsewhere")
	require.NoError(t, os.Rename(path, elsewhere))
	require.NoError(t, os.Symlink(elsewhere, path))
	require.Equal(t, 4, wholeCheckpoint(t, folder).state.Step)
	require.Equal(t, filepath.Join(path, modelFile), testutil.Must(FindModel(folder))(t).WeightsFile)
	require.NoError(t, os.Rename(elsewhere, elsewhere+"2"))
	c, damaged, err := newestCheckpoint(folder)
	require.NoError(t, err)
	require.Equal(t, 2, c.state.Step)
	require.Len(t, damaged, 1)
	require.ErrorContains(t, damaged[0], "checkpoint "+checkpointName(4)+": ")
	require.NoError(t, os.Rename(elsewhere+"2", elsewhere))
	require.NoError(t, removeCheckpoint(path))
	require.NoFileExists(t, path)
	require.FileExists(t, filepath.Join(elsewhere, modelFile)) // only the link is the run's
}

// TestUnreadableCheckpoint: a checkpoint that the system cannot read is not known to be damaged. The error names the file, no older checkpoint is
// used, and nothing is removed. A missing or irregular file is damage.
func TestUnreadableCheckpoint(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("symbolic links need rights")
	}
	folder := filepath.Join(t.TempDir(), "run")
	testutil.Must(runArgs(t, smallArgs(t, 4, "-eval-every", "2", "-out", folder)...))(t)
	require.NoError(t, os.Remove(filepath.Join(folder, modelFile)))
	parent := filepath.Join(folder, checkpointFolder)
	for _, name := range []string{modelFile, configFile, solverFile, stateFile, checksumsFile} {
		path := filepath.Join(parent, checkpointName(4), name)
		require.NoError(t, os.Rename(path, path+".aside"))
		require.NoError(t, os.Symlink(name, path)) // to itself: ELOOP, also for root
		for _, err := range []error{testutil.Err(runArgs(t, "-resume", folder)), testutil.Err(FindModel(folder))} {
			require.ErrorContains(t, err, "checkpoint "+checkpointName(4)+": ")
			require.ErrorContains(t, err, path)
		}
		require.FileExists(t, path+".aside")
		require.NoError(t, os.Remove(path))
		require.NoError(t, os.Mkdir(path, 0o755))
		c, damaged, err := newestCheckpoint(folder)
		require.NoError(t, err)
		require.Len(t, damaged, 1)
		require.Equal(t, 2, c.state.Step)
		require.Len(t, testutil.Must(FindModel(folder))(t).Damaged, 1)
		require.NoError(t, os.Remove(path))
		require.NoError(t, os.Rename(path+".aside", path))
	}
	require.Equal(t, 4, wholeCheckpoint(t, folder).state.Step)
}

// TestDamagedFinalModel: the error names a whole checkpoint and the command that writes the model again.
func TestDamagedFinalModel(t *testing.T) {
	t.Parallel()
	folder := filepath.Join(t.TempDir(), "run")
	testutil.Must(runArgs(t, smallArgs(t, 4, "-eval-every", "2", "-out", folder)...))(t)
	want, file, sums := modelOf(t, folder), filepath.Join(folder, modelFile), filepath.Join(folder, checksumsFile)
	checkpoint := filepath.Join(folder, checkpointFolder, checkpointName(4))
	for _, damage := range []struct{ path, text string }{{file, "cut"}, {sums, ""}, {sums, "cut"}} {
		require.NoError(t, os.WriteFile(damage.path, []byte(damage.text), 0o644))
		for _, path := range []string{folder, file} {
			hint := ": train -resume " + folder + " writes it again, or name " + checkpoint
			require.ErrorContains(t, testutil.Err(FindModel(path)), hint)
			require.ErrorContains(t, testutil.Err(Parse([]string{"-init", path}, io.Discard)), hint)
		}
		var said bytes.Buffer
		testutil.Must(Run(t.Context(), testutil.Must(Parse([]string{"-resume", folder}, io.Discard))(t), &said))(t)
		require.Contains(t, said.String(), "the run already has 4 steps: it trains no further\n")
		require.Equal(t, want, modelOf(t, folder))
		testutil.Must(FindModel(folder))(t)
	}
	require.NoError(t, os.RemoveAll(filepath.Join(folder, checkpointFolder)))
	require.NoError(t, os.WriteFile(file, []byte("cut"), 0o644))
	require.NotContains(t, testutil.Err(FindModel(folder)).Error(), "-resume")
	_, err := Parse([]string{"-resume", checkpoint}, io.Discard)
	require.ErrorContains(t, err, checkpoint+": a checkpoint, want the folder of its run, "+folder)
	require.Equal(t, 2, command.ExitStatus(err, io.Discard))
}
