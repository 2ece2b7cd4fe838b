package train

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gorgonia-nsa/nsa/internal/cpu"
	"github.com/gorgonia-nsa/nsa/internal/runlog"
	"github.com/gorgonia-nsa/nsa/internal/testutil"
)

// tinyArgs are the arguments of a run that takes milliseconds.
func tinyArgs(t testing.TB, more string) []string {
	return append(smallArgs(t, 6), strings.Fields("-batch 1 -context 32 -dim 16 -key-dim 8 -value-dim 8 -layers 1 -gate-hidden 4 -eval-every 3 "+
		"-eval-tokens 64 -final-eval 64 -sample 4 "+more)...)
}

// contents returns what the files and links of a folder hold, by path.
func contents(t testing.TB, folder string) map[string]string {
	all := map[string]string{}
	require.NoError(t, filepath.WalkDir(folder, func(path string, e fs.DirEntry, err error) error {
		require.NoError(t, err)
		name := testutil.Must(filepath.Rel(folder, path))(t)
		switch {
		case e.Type() == fs.ModeSymlink:
			all[name] = "to " + testutil.Must(os.Readlink(path))(t)
		case e.Type().IsRegular():
			all[name] = string(testutil.Must(os.ReadFile(path))(t))
		}
		return nil
	}))
	return all
}

// TestResumeOfUnreadableRun: a file or folder of a run that is a link to a missing disk, or that the system cannot read, is not one that the run
// never had: -resume is an error, and changes nothing. Nor does a run with checkpoints begin again if they are gone, as from the empty folder
// where a disk is not mounted.
func TestResumeOfUnreadableRun(t *testing.T) {
	t.Parallel()
	if runtime.GOOS == "windows" {
		t.Skip("symbolic links need rights")
	}
	ended, stopped := filepath.Join(t.TempDir(), "ended"), filepath.Join(t.TempDir(), "stopped")
	testutil.Must(runArgs(t, tinyArgs(t, "-out "+ended)...))(t)
	require.NoError(t, os.CopyFS(stopped, os.DirFS(ended)))
	for _, name := range []string{modelFile, configFile, checksumsFile} {
		require.NoError(t, os.Remove(filepath.Join(stopped, name)))
	}
	link := func(to string) func(string) error {
		return func(path string) error { return os.Symlink(to, path) }
	}
	refuses := func(whole, name, what string, put func(path string) error) {
		folder := filepath.Join(t.TempDir(), "run")
		require.NoError(t, os.CopyFS(folder, os.DirFS(whole)))
		path := filepath.Join(folder, name)
		require.NoError(t, os.RemoveAll(path))
		require.NoError(t, put(path))
		before := contents(t, folder)
		var said bytes.Buffer
		o, err := Parse([]string{"-resume", folder, "-steps", "7"}, io.Discard)
		if err == nil {
			_, err = Run(t.Context(), o, &said)
		}
		require.Error(t, err, "%s: %s", name, what)
		require.Equal(t, before, contents(t, folder), "%s: %s", name, what)
		require.NotContains(t, said.String(), "starting from step 0", "%s: %s", name, what)
		if name == checkpointFolder || name == modelFile {
			found, err := FindModel(folder)
			if err == nil {
				_, _, err = found.Open("")
			}
			require.Error(t, err, "%s: %s", name, what)
		}
	}
	for _, whole := range []string{ended, stopped} {
		names := []string{checkpointFolder, optionsFile, runFile, runlog.StepsFile, runlog.EventsFile, runlog.TensorBoardFolder, modelFile, configFile, checksumsFile}
		for _, name := range names {
			if whole == ended && (name == checkpointFolder || name == modelFile) {
				continue // it has both, and FindModel needs one
			}
			refuses(whole, name, "link to a missing disk", link("/missing/disk/"+name))
			if testutil.Full(t) || whole == stopped && name == checkpointFolder {
				refuses(whole, name, "link to itself", link(name))
				refuses(whole, name, "link below a file", link(lockFile+"/"+name))
			}
		}
	}
	refuses(stopped, checkpointFolder, "missing", func(string) error { return nil })
	refuses(stopped, checkpointFolder, "empty folder", func(path string) error { return os.Mkdir(path, 0o755) })
	refuses(stopped, checkpointFolder, "file", func(path string) error { return os.WriteFile(path, nil, 0o644) })
}

// TestReplacedFolder: while a run trains, evaluates or samples, its folder is replaced by another run's, by one with the same options, by a copy
// of its own that another process has resumed, or by one without a lock or options. The run ends with an error, and no file there changes.
func TestReplacedFolder(t *testing.T) {
	t.Parallel()
	if runtime.GOOS == "windows" {
		t.Skip("a folder with open files cannot be moved")
	}
	args := tinyArgs(t, "")
	other, same := filepath.Join(t.TempDir(), "other"), filepath.Join(t.TempDir(), "same")
	testutil.Must(runArgs(t, append(args, "-seed", "2", "-out", other)...))(t)
	testutil.Must(runArgs(t, append(args, "-out", same)...))(t)
	for _, c := range []struct{ what, by, without, phrase string }{
		{"in a step", other, "", "step 4"}, {"by one with the same options", same, "", "final evaluation"},
		{"by one without a description", same, runFile, "step 2"}, {"by one without a lock", other, lockFile, "sampling"},
		{"by one without options", other, optionsFile, "step 4"}, {"same options and no lock", same, lockFile, "step 2"},
		{"same options in a step", same, "", "step 4"},
	}[:testutil.Tries(t, 4, 7)] {
		folder := filepath.Join(t.TempDir(), "run")
		o := testutil.Must(Parse(append(args, "-out", folder), io.Discard))(t)
		o.hooks.retryFor, o.hooks.retryEvery = 1, 1
		var before map[string]string
		replace := func() {
			require.NoError(t, os.Rename(folder, folder+".moved"))
			require.NoError(t, os.CopyFS(folder, os.DirFS(c.by)))
			if c.without != "" {
				require.NoError(t, os.Remove(filepath.Join(folder, c.without)))
			}
			before = contents(t, folder)
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
		require.ErrorContains(t, err, folder+" is another run now", c.what)
		require.Equal(t, before, contents(t, folder), c.what)
		testutil.Must(runArgs(t, "-resume", folder+".moved"))(t)
		require.Equal(t, modelOf(t, same), modelOf(t, folder+".moved"), c.what)
	}
}

// TestOtherKernels: a run that is resumed on another SIMD level or device says so, once.
func TestOtherKernels(t *testing.T) {
	t.Parallel()
	folder := filepath.Join(t.TempDir(), "run")
	testutil.Must(runArgs(t, tinyArgs(t, "-out "+folder)...))(t)
	resume := func(steps string) string {
		var said bytes.Buffer
		o := testutil.Must(Parse([]string{"-resume", folder, "-steps", steps}, io.Discard))(t)
		testutil.Must(Run(t.Context(), o, &said))(t)
		return said.String()
	}
	require.NotContains(t, resume("7"), "warning: ")
	d := testutil.Must(readDescription(folder))(t)
	require.Contains(t, d.Processes[1].Kernels, cpu.Level())
	d.Processes[1].Kernels = "cpu (other, \x1b[2J)"
	require.NoError(t, os.WriteFile(filepath.Join(folder, runFile), testutil.Must(json.Marshal(d))(t), 0o644))
	said := resume("8")
	require.Contains(t, said, `warning: the run was on cpu (other, \x1b[2J), now it is on cpu (`)
	require.Contains(t, said, "it continues, but not with the same bits")
	require.NotContains(t, resume("9"), "warning: ")
}
