package train

import (
	"cmp"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/gorgonia-nsa/nsa/internal/runlog"
	"github.com/gorgonia-nsa/nsa/internal/testutil"
)

// TestFullDisk fills the disk at every point of a run. It uses file systems of each size in pages, from one too small
// for a run to begin up to one that holds everything, roughly 100; in the usual form one size in twelve. Runs with an
// evaluation before the end use fewer. A failed write is an error or a warning, and the files on the disk are complete.
// With room again, the run resumes and ends with the bits of one that always had room.
func TestFullDisk(t *testing.T) {
	t.Parallel()
	disk := t.TempDir()
	if err := unix.Mount("tmpfs", disk, "tmpfs", 0, "size=1m"); err != nil {
		t.Skip("no file system of a given size: mount: ", err)
	}
	t.Cleanup(func() { require.NoError(t, unix.Unmount(disk, 0)) })
	resize := func(pages int) {
		require.NoError(t, unix.Mount("tmpfs", disk, "tmpfs", unix.MS_REMOUNT,
			fmt.Sprintf("size=%d", pages*os.Getpagesize())))
	}
	folder := filepath.Join(disk, "run")
	try := func(args ...string) error {
		o := parse(t, args...)
		o.hooks.retryFor, o.hooks.undrawn = -time.Second, args[0] == "-resume"
		return testutil.Err(Run(t.Context(), o, io.Discard))
	}
	for _, c := range []struct{ evalEvery, apart int }{{2, testutil.Tries(t, 30, 8)}, {4, testutil.Tries(t, 12, 1)}} {
		args := smallArgs(t, 4, "-eval-every", fmt.Sprint(c.evalEvery), "-save-minutes", "1e-5", "-keep", "1", "-final-eval",
			"0", "-sample", "0", "-layers", "1", "-dim", "16")
		whole, failed := newRun(t, args...), 0
		for pages, complete := 2, false; !complete; pages += c.apart {
			resize(pages)
			err := try(append(args, "-out", folder)...)
			complete = err == nil
			if err != nil {
				require.ErrorIs(t, err, unix.ENOSPC, "%d pages", pages)
				failed++
			}
			resize(1 << 12)
			if exists(filepath.Join(folder, optionsFile)) {
				require.NoError(t, try("-resume", folder), "%d pages", pages)
				require.Equal(t, modelOf(t, whole), modelOf(t, folder), "%d pages", pages)
			}
			require.NoError(t, os.RemoveAll(folder))
		}
		require.Greater(t, failed*c.apart, 70)
	}
}

// promptly calls f, which must not wait for the other end of a pipe or read a file of a terabyte.
func promptly(what string, f func()) {
	late := time.AfterFunc(20*time.Second, func() { panic(what + ": a reader waits") })
	defer late.Stop()
	f()
}

// faults are what may stand in place of a file with some content.
func faults(content []byte) map[string]func(path string) error {
	file := func(b []byte) func(string) error {
		return func(path string) error { return os.WriteFile(path, b, 0o644) }
	}
	changed := append([]byte(nil), content...)
	changed[len(changed)/2] ^= 1
	return map[string]func(path string) error{
		"changed": file(changed), "cut": file(content[:len(content)/2]), "empty": file(nil),
		"missing": func(string) error { return nil },
		"folder":  func(path string) error { return os.Mkdir(path, 0o755) },
		"pipe":    func(path string) error { return unix.Mkfifo(path, 0o644) },
		"sparse":  func(path string) error { return cmp.Or(os.WriteFile(path, nil, 0o644), os.Truncate(path, 1<<40)) },

		// ELOOP, also for root
		"link to itself":         func(path string) error { return os.Symlink(filepath.Base(path), path) },
		"link to a missing disk": func(path string) error { return os.Symlink("/missing/disk", path) },
		"link below a file":      func(path string) error { return os.Symlink(lockFile+"/x", path) },
	}
}

// TestDamagedCheckpoints puts faults in place of each file of the newest checkpoint. The run uses the checkpoint before
// it, with a warning. If all are damaged, the error names the fault of each. A file that the system cannot read is not
// known to be damaged: the error names it, no older checkpoint is used, and nothing is removed.
func TestDamagedCheckpoints(t *testing.T) {
	t.Parallel()
	whole := newRun(t, tinyArgs(t)...)
	last := checkpointName(6)
	for _, file := range append(checkpointFiles(), checksumsFile) {
		for name, put := range faults([]byte(read(t, whole, checkpointFolder, last, file))) {
			run := copyOf(t, whole)
			require.NoError(t, os.Remove(filepath.Join(run, modelFile)))
			path := filepath.Join(run, checkpointFolder, last, file)
			require.NoError(t, os.Remove(path))
			require.NoError(t, put(path))
			promptly(name+" of "+file, func() {
				c, damaged, err := newestCheckpoint(folder(run))
				found, findErr := FindModel(run)
				if strings.HasPrefix(name, "link ") {
					before := contents(t, run)
					for _, err := range []error{err, findErr, refusal("-resume", run)} {
						require.ErrorContains(t, err, "checkpoint "+last+": ")
						require.ErrorContains(t, err, path)
					}
					require.Equal(t, before, contents(t, run))
					return
				}
				require.NoError(t, err, "%s %s", file, name)
				require.NoError(t, findErr)
				require.Equal(t, 3, c.state.Step, "%s %s", file, name)
				require.Len(t, damaged, 1)
				require.ErrorContains(t, damaged[0], "checkpoint "+last+": ")
				require.Len(t, found.Damaged, 1)
				if name == "changed" {
					require.Contains(t, says(t, "-resume", run), "warning: checkpoint "+last)
					require.Equal(t, modelOf(t, whole), modelOf(t, run))
				}
			})
		}
	}
	for _, step := range stepsOf(t, whole) {
		require.NoError(t, os.Remove(filepath.Join(folder(whole).checkpoint(step), checksumsFile)))
	}
	err := refusal("-resume", whole)
	for _, step := range stepsOf(t, whole) {
		require.ErrorContains(t, err, checkpointName(step))
	}
}

// TestResumeOfUnreadableRun: a file or folder of a run that is a link to a missing disk, or that the system cannot
// read, is not one that the run never had: -resume is an error, and changes nothing. Nor does a run with checkpoints
// begin again if they are gone, as from the empty folder where a disk is not mounted. The same holds for pipes.
func TestResumeOfUnreadableRun(t *testing.T) {
	t.Parallel()
	ended := newRun(t, tinyArgs(t)...)
	stopped := copyOf(t, ended)
	for _, name := range []string{modelFile, configFile, checksumsFile} {
		require.NoError(t, os.Remove(filepath.Join(stopped, name)))
	}
	all := faults([]byte("xx"))
	refuses := func(whole, name, fault string) {
		run := copyOf(t, whole)
		path := filepath.Join(run, name)
		require.NoError(t, os.RemoveAll(path))
		require.NoError(t, all[fault](path))
		before := contents(t, run)
		promptly(name+": "+fault, func() { require.Error(t, refusal("-resume", run, "-steps", "7"), "%s: %s", name, fault) })
		require.Equal(t, before, contents(t, run), "%s: %s", name, fault)
		if name == checkpointFolder || name == modelFile {
			found, err := FindModel(run)
			if err == nil {
				_, _, err = found.Open("")
			}
			require.Error(t, err, "%s: %s", name, fault)
		}
	}
	for _, whole := range []string{ended, stopped} {
		for _, name := range []string{checkpointFolder, optionsFile, runFile, runlog.StepsFile, runlog.EventsFile,
			runlog.TensorBoardFolder, modelFile, configFile, checksumsFile} {
			if whole == ended && (name == checkpointFolder || name == modelFile) {
				continue // it has both, and FindModel needs one
			}
			refuses(whole, name, "link to a missing disk")
			if testutil.Full(t) || whole == stopped && name == checkpointFolder {
				refuses(whole, name, "link to itself")
				refuses(whole, name, "link below a file")
			}
			if name == optionsFile || name == runlog.StepsFile {
				refuses(whole, name, "pipe")
			}
		}
	}
	for _, fault := range []string{"missing", "folder", "empty"} {
		refuses(stopped, checkpointFolder, fault)
	}
	pipe := filepath.Join(t.TempDir(), "tokenizer.json")
	require.NoError(t, all["pipe"](pipe))
	promptly(pipe, func() {
		require.ErrorContains(t, refusal(tinyArgs(t, "-out", newFolder(t), "-tokenizer", pipe)...),
			pipe+": not a regular file")
	})
}

// TestSparseFiles: a file of a run of a terabyte that takes no room is damage that is seen without reading all of it.
func TestSparseFiles(t *testing.T) {
	t.Parallel()
	whole := newRun(t, tinyArgs(t)...)
	for _, file := range []string{modelFile, configFile, checksumsFile, optionsFile, runFile} {
		run := copyOf(t, whole)
		require.NoError(t, os.Truncate(filepath.Join(run, file), 1<<40))
		promptly(file, func() {
			require.Equal(t, 6, wholeCheckpoint(t, run).state.Step)
			err := testutil.Err(FindModel(run))
			switch file {
			case modelFile, checksumsFile:
				require.ErrorContains(t, err, checkpointName(6), "what is left")
			case runFile:
				require.NoError(t, err)
				require.Contains(t, says(t, "-resume", run, "-steps", "7"), "keeping the old one as run.json.damaged")
			}
		})
	}
}
