package runlog

import (
	"bytes"
	"encoding/json"
	"errors"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gorgonia-nsa/nsa/internal/testutil"
)

// requireWhole checks what must be true of the files of a run folder at any moment: the table and the curves are whole,
// and at most the last line or record is torn.
func requireWhole(t testing.TB, dir string) {
	t.Helper()
	for _, path := range testutil.Must(filepath.Glob(filepath.Join(dir, "[^.]*")))(t) {
		if filepath.Base(path) == TensorBoardFolder {
			for _, path := range testutil.Must(filepath.Glob(filepath.Join(path, "*")))(t) {
				records(t, testutil.Must(os.ReadFile(path))(t))
			}
			continue
		}
		text := testutil.Must(os.ReadFile(path))(t)
		switch filepath.Ext(path) {
		case ".csv":
			require.NotEmpty(t, text)
			testutil.Must(parseTable(text))(t)
		case ".png":
			pixels(t, text)
		case ".jsonl":
			lines := strings.Split(string(text), "\n")
			for _, line := range lines[:len(lines)-1] {
				require.True(t, json.Valid([]byte(line)), line)
			}
		default:
			t.Fatalf("%s is not expected", path)
		}
	}
}

// noTemporaries checks that a run folder has only the final files.
func noTemporaries(t testing.TB, dir string) {
	t.Helper()
	for _, e := range testutil.Must(os.ReadDir(dir))(t) {
		require.NotContains(t, e.Name(), "tmp")
	}
}

// TestVanishedFolder: without its folder, the record returns errors and keeps the data. When the folder is back, or a
// new one is made, it writes all data.
func TestVanishedFolder(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name     string
		comeBack func(dir string) error
		lost     int // lines and records of step 1, in the vanished folder
	}{
		{"back", func(dir string) error { return os.Rename(dir+"-away", dir) }, 0},
		{"new", func(dir string) error { return os.Mkdir(dir, 0o755) }, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			l := create(t, Options{})
			l.Step(step(1))
			require.NoError(t, l.Event("before", nil))
			require.NoError(t, os.Rename(l.dir, l.dir+"-away"))
			require.ErrorIs(t, l.Event("during", nil), fs.ErrNotExist)
			require.ErrorIs(t, l.Event("during", nil), fs.ErrNotExist)
			require.ErrorIs(t, errors.Join(l.Save(), l.Draw()), fs.ErrNotExist)
			for i := 2; i <= 50; i++ {
				l.Step(step(i))
			}
			l.Scalars(50, map[string]float64{"a": 1})
			require.ErrorIs(t, l.HeldOut(50, 2), fs.ErrNotExist)
			require.NoDirExists(t, l.dir, "it is not made again: its place may be gone, as on a disk that is not mounted")

			require.NoError(t, c.comeBack(l.dir))
			require.NoError(t, l.Save())
			require.Len(t, read(t, l, StepsFile), 51)
			require.Len(t, readEvents(t, l, "during"), 2)
			require.Len(t, readEvents(t, l, "evaluation"), 1)
			require.Len(t, readEvents(t, l, "step"), 5-c.lost)
			events, torn := records(t, testutil.Must(os.ReadFile(l.tensorboard.path))(t))
			require.False(t, torn)
			require.Len(t, events, 2+50+2-c.lost, "with one head")
			requireWhole(t, l.dir)
			noTemporaries(t, l.dir)
		})
	}
}

func parseTable(text []byte) ([]row, error) {
	rows, _, err := readTable(bytes.NewReader(text), math.MaxInt)
	return rows, err
}
