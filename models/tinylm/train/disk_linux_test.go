package train

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/gorgonia-nsa/nsa/internal/runlog"
	"github.com/gorgonia-nsa/nsa/internal/testutil"
)

// TestFullDisk fills the disk at every point of a run. It uses file systems of each size in pages, from one too small for a run to begin
// up to one that holds everything, roughly 100; in the usual form one size in seven. Runs with an evaluation before the end use fewer. A failed write is an error
// or a warning, and the files on the disk are complete. With room again, the run resumes and ends with the bits of one that always had room.
func TestFullDisk(t *testing.T) {
	t.Parallel()
	disk := t.TempDir()
	if err := unix.Mount("tmpfs", disk, "tmpfs", 0, "size=1m"); err != nil {
		t.Skip("no file system of a given size: mount: ", err)
	}
	t.Cleanup(func() { require.NoError(t, unix.Unmount(disk, 0)) })
	resize := func(pages int) {
		require.NoError(t, unix.Mount("tmpfs", disk, "tmpfs", unix.MS_REMOUNT, fmt.Sprintf("size=%d", pages*os.Getpagesize())))
	}
	folder := filepath.Join(disk, "run")
	try := func(args ...string) error {
		o := testutil.Must(Parse(args, io.Discard))(t)
		o.hooks.retryFor = -time.Second
		_, err := Run(t.Context(), o, io.Discard)
		return err
	}
	for _, c := range []struct{ evalEvery, apart int }{{2, testutil.Tries(t, 24, 8)}, {4, testutil.Tries(t, 7, 1)}} {
		args := smallArgs(t, 4, "-eval-every", fmt.Sprint(c.evalEvery), "-save-minutes", "1e-5", "-keep", "1", "-final-eval", "0", "-sample", "0", "-layers", "1", "-dim", "16")
		whole := filepath.Join(t.TempDir(), "whole")
		testutil.Must(runArgs(t, append(args, "-out", whole)...))(t)
		failed := 0
		for pages, complete := 2, false; !complete; pages += c.apart {
			resize(pages)
			err := try(append(args, "-out", folder)...)
			complete = err == nil
			if err != nil {
				require.ErrorIs(t, err, unix.ENOSPC, "%d pages", pages)
				failed++
			}
			resize(1 << 12)
			if _, err := os.Stat(filepath.Join(folder, optionsFile)); err == nil {
				require.NoError(t, try("-resume", folder), "%d pages", pages)
				require.Equal(t, modelOf(t, whole), modelOf(t, folder), "%d pages", pages)
			}
			require.NoError(t, os.RemoveAll(folder))
		}
		require.Greater(t, failed*c.apart, 70)
	}
}

// TestPipeInCheckpoint: a checkpoint with a pipe in place of a file is damaged. To open the pipe would wait for a writer.
func TestPipeInCheckpoint(t *testing.T) {
	folder := filepath.Join(t.TempDir(), "run")
	testutil.Must(runArgs(t, smallArgs(t, 2, "-eval-every", "1", "-out", folder)...))(t)
	for _, file := range []string{modelFile, configFile, solverFile, stateFile, checksumsFile} {
		copied := filepath.Join(t.TempDir(), "run")
		require.NoError(t, os.CopyFS(copied, os.DirFS(folder)))
		path := filepath.Join(copied, checkpointFolder, checkpointName(2), file)
		require.NoError(t, os.Remove(path))
		require.NoError(t, unix.Mkfifo(path, 0o644))
		late := time.AfterFunc(5*time.Second, func() { panic(file + ": a reader waits for a writer") })
		c, damaged, err := newestCheckpoint(copied)
		late.Stop()
		require.NoError(t, err)
		require.Equal(t, 1, c.state.Step)
		require.ErrorContains(t, damaged[0], path+": not a regular file")
	}
}

// TestPipeInRun: a pipe in place of a file of a run, or of a tokenizer, is an error that names it.
func TestPipeInRun(t *testing.T) {
	folder := filepath.Join(t.TempDir(), "run")
	testutil.Must(runArgs(t, smallArgs(t, 2, "-eval-every", "1", "-out", folder)...))(t)
	pipe := func(path string) string {
		require.NoError(t, os.RemoveAll(path))
		require.NoError(t, unix.Mkfifo(path, 0o644))
		return path
	}
	refuses := func(path string, args ...string) {
		late := time.AfterFunc(20*time.Second, func() { panic(path + ": a reader waits for a writer") })
		defer late.Stop()
		o, err := Parse(args, io.Discard)
		if err == nil {
			_, err = Run(t.Context(), o, io.Discard)
		}
		require.ErrorContains(t, err, path+": not a regular file")
	}
	for _, file := range []string{optionsFile, runlog.StepsFile} {
		copied := filepath.Join(t.TempDir(), "run")
		require.NoError(t, os.CopyFS(copied, os.DirFS(folder)))
		refuses(pipe(filepath.Join(copied, file)), "-resume", copied, "-steps", "3")
	}
	tokenizer := pipe(filepath.Join(t.TempDir(), "tokenizer.json"))
	refuses(tokenizer, smallArgs(t, 2, "-out", filepath.Join(t.TempDir(), "run"), "-tokenizer", tokenizer)...)
}

// TestSparseFiles: a file of a terabyte that takes no room is damage that is seen without reading all of it.
func TestSparseFiles(t *testing.T) {
	t.Parallel()
	whole := filepath.Join(t.TempDir(), "whole")
	testutil.Must(runArgs(t, tinyArgs(t, "-out "+whole)...))(t)
	for _, file := range []string{modelFile, configFile, solverFile, stateFile, checksumsFile, optionsFile, runFile} {
		folder := filepath.Join(t.TempDir(), "run")
		require.NoError(t, os.CopyFS(folder, os.DirFS(whole)))
		for _, place := range []string{folder, filepath.Join(folder, checkpointFolder, checkpointName(6))} {
			path := filepath.Join(place, file)
			if !exists(path) {
				continue
			}
			if err := os.Truncate(path, 1<<40); err != nil {
				t.Skip(err)
			}
		}
		c, damaged, err := newestCheckpoint(folder)
		require.NoError(t, err)
		_, err = FindModel(folder)
		switch file {
		case optionsFile, runFile:
			require.Equal(t, 6, c.state.Step)
		case stateFile, solverFile:
			require.NoError(t, err)
			fallthrough
		default:
			require.Len(t, damaged, 1, file)
			require.Equal(t, 3, c.state.Step)
		}
		if file == modelFile || file == checksumsFile {
			require.ErrorContains(t, err, checkpointName(3), "what is left")
		}
		if file == runFile {
			var said bytes.Buffer
			o := testutil.Must(Parse([]string{"-resume", folder, "-steps", "7"}, io.Discard))(t)
			testutil.Must(Run(t.Context(), o, &said))(t)
			require.Contains(t, said.String(), "keeping the old one as run.json.damaged")
		}
	}
}
