package files

import (
	"io"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

// testFile makes a file of n bytes and opens it, mapped if the system does, or not.
func testFile(t *testing.T, n int, mapped bool) (m *Mapped, path string, content []byte) {
	path, content = filepath.Join(t.TempDir(), "a"), make([]byte, n)
	for i := range content {
		content[i] = byte(i + i/251)
	}
	require.NoError(t, os.WriteFile(path, content, 0o644))
	m, err := OpenMapped(path)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, m.Close()) })
	require.Equal(t, int64(n), m.Size())
	if !mapped {
		require.NoError(t, unmapFile(m.data))
		m.data = nil
	}
	return m, path, content
}

// TestPieces: the parts are those of the file, hold each byte once, and are multiples of the unit.
func TestPieces(t *testing.T) {
	for _, mapped := range []bool{true, false} {
		m, _, content := testFile(t, 300_000, mapped)
		for _, unit := range []int{1, 18, 210, 100_000} {
			for _, r := range [][2]int{{0, 0}, {300_000, 0}, {7, unit}, {300_000 - unit, unit}, {1, 299_999 / unit * unit}} {
				got, times := make([]byte, r[1]), 0
				var mu sync.Mutex
				require.NoError(t, m.Pieces(int64(r[0]), int64(r[1]), unit, func(at int64, part []byte) {
					mu.Lock()
					defer mu.Unlock()
					require.Zero(t, int(at)%unit+len(part)%unit)
					require.Equal(t, make([]byte, len(part)), got[at:][:len(part)]) // content has few zeros
					copy(got[at:], part)
					times += len(part)
				}))
				require.True(t, slices.Equal(content[r[0]:][:r[1]], got))
				require.Equal(t, r[1], times)
			}
		}
		for _, r := range [][2]int64{{-1, 1}, {0, -1}, {1, 300_000}, {300_001, 0}} {
			require.ErrorIs(t, m.Pieces(r[0], r[1], 1, nil), io.ErrUnexpectedEOF, "%v", r)
		}
		require.NoError(t, m.Close())
		require.NoError(t, m.Close())
		require.ErrorIs(t, m.Pieces(0, 1, 1, nil), os.ErrClosed)
	}
}

// TestPiecesOfShortenedFile: a file that loses its end while it is open is an error.
func TestPiecesOfShortenedFile(t *testing.T) {
	for _, mapped := range []bool{true, false} {
		m, path, _ := testFile(t, 300_000, mapped)
		require.NoError(t, os.Truncate(path, 100))
		sums := make([]byte, 300_000)
		err := m.Pieces(0, 300_000, 1, func(at int64, part []byte) { copy(sums[at:], part) })
		require.ErrorIs(t, err, io.ErrUnexpectedEOF)
	}
}
