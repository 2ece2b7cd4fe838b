package atomicfile

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

func put(text string, err error) func(io.Writer) error {
	return func(w io.Writer) error {
		io.WriteString(w, text)
		return err
	}
}

func TestWriteReplacesWhole(t *testing.T) {
	path := filepath.Join(t.TempDir(), "f")
	for _, text := range []string{"first, longer", "second"} {
		require.NoError(t, Write(path, put(text, nil)))
		got, err := os.ReadFile(path)
		require.NoError(t, err)
		require.Equal(t, text, string(got))
	}
}

func TestWriteFailureLeavesOldFile(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "f")
	require.NoError(t, Write(path, put("old", nil)))
	broken := errors.New("broken")
	require.ErrorIs(t, Write(path, put("half", broken)), broken)
	got, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, "old", string(got))
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Len(t, entries, 1, "no temporary file is left")
}

func TestWriteErrors(t *testing.T) {
	dir := t.TempDir()
	require.Error(t, Write(filepath.Join(dir, "missing", "f"), put("", nil)))
	require.NoError(t, os.MkdirAll(filepath.Join(dir, "folder", "inside"), 0o755))
	require.Error(t, Write(filepath.Join(dir, "folder"), put("", nil)))
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Len(t, entries, 1, "no temporary file is left")
}
