package files

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestWhatCannotBeRead: only a path with nothing at it is one that does not exist. To open anything but a regular file
// is an error at once.
func TestWhatCannotBeRead(t *testing.T) {
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	require.NoError(t, os.WriteFile(at("file"), []byte("text"), 0o644))
	require.NoError(t, os.Mkdir(at("folder"), 0o755))
	require.NoError(t, syscall.Mkfifo(at("pipe"), 0o644))
	for name, to := range map[string]string{
		"dangling": "missing/disk", "loop": "loop", "below a file": "file/x", "device": "/dev/zero",
		"link to pipe": "pipe", "good": "file",
	} {
		require.NoError(t, os.Symlink(to, at(name)))
	}
	for name, want := range map[string]error{
		"file": nil, "good": nil, "missing": fs.ErrNotExist, "missing/file": fs.ErrNotExist, "dangling": ErrLink,
		"loop":         syscall.ELOOP,
		"below a file": syscall.ENOTDIR, "file/x": syscall.ENOTDIR, "folder": errNotRegular, "pipe": errNotRegular,
		"device":       errNotRegular,
		"link to pipe": errNotRegular,
	} {
		_, opened := Open(at(name))
		_, appended := Append(at(name))
		_, read := ReadFile(at(name), 4)
		for _, err := range []error{opened, appended, read} {
			require.ErrorIs(t, err, want, name)
			require.Equal(t, want == fs.ErrNotExist, errors.Is(err, fs.ErrNotExist), name)
		}
	}
	_, err := ReadDir(at("dangling"))
	require.ErrorIs(t, err, ErrLink)
	_, err = ReadDir(at("missing"))
	require.ErrorIs(t, err, fs.ErrNotExist)
	_, err = ReadFile(at("file"), 3)
	require.ErrorContains(t, err, "more than 3 bytes")
}
