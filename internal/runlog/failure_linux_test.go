package runlog

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gorgonia-nsa/nsa/internal/testutil"
)

// TestFullDisk limits the size of the files of a process, with several limits. Save and Event fail, the folder has no
// half-written file, and everything is written when there is room again.
func TestFullDisk(t *testing.T) {
	t.Parallel()
	if os.Getenv("RUNLOG_CHILD") == "" { // the limit is for a process of its own
		child := exec.Command(os.Args[0], "-test.run=^"+t.Name()+"$", "-test.v")
		child.Env = append(os.Environ(), "RUNLOG_CHILD="+t.TempDir())
		out, err := child.CombinedOutput()
		require.NoError(t, err, "%s", out)
		return
	}
	var whole syscall.Rlimit
	require.NoError(t, syscall.Getrlimit(syscall.RLIMIT_FSIZE, &whole))
	limit := func(n uint64) {
		require.NoError(t, syscall.Setrlimit(syscall.RLIMIT_FSIZE, &syscall.Rlimit{Cur: n, Max: whole.Max}))
	}
	for _, size := range []uint64{0, 700, 9000, 400000} {
		limit(whole.Cur)
		l := testutil.Must(Create(filepath.Join(os.Getenv("RUNLOG_CHILD"), fmt.Sprint(size)), Options{}))(t)
		take := func(from, to int) (errs int) {
			for i := from; i <= to; i++ {
				l.Step(step(i))
				if i%5 == 0 && l.Event("tick", map[string]any{"i": i, "text": strings.Repeat("x", i)}) != nil {
					errs++
				}
			}
			return errs
		}
		require.Zero(t, take(1, 30))
		require.NoError(t, errors.Join(l.Save(), l.Draw()))

		limit(size)
		failed := take(31, 60)
		saved := errors.Join(l.Save(), l.Draw())
		limit(whole.Cur)
		if size <= 700 { // events.jsonl is already longer
			require.Equal(t, 6, failed, size)
		}
		require.Equal(t, size < 400000, saved != nil, "%d: %v", size, saved)
		if saved != nil {
			require.ErrorIs(t, saved, syscall.EFBIG)
		}
		requireWhole(t, l.dir)
		noTemporaries(t, l.dir)
		for _, line := range read(t, l, EventsFile) {
			require.Regexp(t, `^\{.*\}$`, line, "not even the last line is torn")
		}
		require.Zero(t, take(61, 90))
		require.NoError(t, errors.Join(l.Save(), l.Draw()))
		require.Len(t, read(t, l, StepsFile), 91)
		require.Len(t, readEvents(t, l, "tick"), 18)
		events, torn := records(t, testutil.Must(os.ReadFile(l.tensorboard.path))(t))
		require.False(t, torn)
		require.Len(t, events, 92)
	}
	limit(0)
	dir := filepath.Join(os.Getenv("RUNLOG_CHILD"), "none")
	require.ErrorIs(t, testutil.Err(Create(dir, Options{})), syscall.EFBIG)
	limit(whole.Cur)
	require.NoDirExists(t, dir)
}

// TestHostileFiles puts things in place of each file of a record that cannot be read or have no end. Resume returns an
// error and leaves all as it is, or sets a damaged table aside; it neither waits nor fills the memory.
func TestHostileFiles(t *testing.T) {
	whole := create(t, Options{})
	for i := 1; i <= 9; i++ {
		whole.Step(step(i))
	}
	require.NoError(t, whole.Save())
	sparse := func(path string) error {
		return errors.Join(os.WriteFile(path, nil, 0o644), os.Truncate(path, 1<<40))
	}
	for _, name := range []string{StepsFile, EventsFile, TensorBoardFolder} {
		for what, put := range map[string]func(path string) error{
			"link to a missing disk": func(path string) error { return os.Symlink("/missing/disk", path) },
			"link to itself":         func(path string) error { return os.Symlink(filepath.Base(path), path) },
			"below a file":           func(path string) error { return os.Symlink(whole.path(StepsFile)+"/x", path) },
			"device":                 func(path string) error { return os.Symlink("/dev/zero", path) },
			"pipe":                   func(path string) error { return syscall.Mkfifo(path, 0o644) },
			"folder":                 func(path string) error { return os.Mkdir(path, 0o755) },
			"sparse":                 sparse,
		} {
			dir := filepath.Join(t.TempDir(), "run")
			require.NoError(t, os.CopyFS(dir, os.DirFS(whole.dir)))
			path := filepath.Join(dir, name)
			require.NoError(t, os.RemoveAll(path))
			if err := put(path); err != nil {
				require.Equal(t, "sparse", what)
				t.Skip(err)
			}
			before := testutil.Must(os.Lstat(path))(t)
			var from, to runtime.MemStats
			runtime.ReadMemStats(&from)
			l, err := Resume(dir, 9, Options{})
			runtime.ReadMemStats(&to)
			require.Less(t, to.TotalAlloc-from.TotalAlloc, uint64(8<<20), "%s: %s", name, what)
			if name == StepsFile && what == "sparse" {
				require.NoError(t, err)
				require.ErrorContains(t, l.Damaged(), "line 1 has 1024 bytes or more")
				path += ".damaged"
			} else if name != TensorBoardFolder || what != "folder" {
				require.Error(t, err, "%s: %s", name, what)
			}
			require.True(t, os.SameFile(before, testutil.Must(os.Lstat(path))(t)), "%s: %s", name, what)
		}
	}
}
