package evaluate

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gorgonia-nsa/nsa/internal/testutil"
)

// TestReadText: of a folder the files of text are read in the order of their names, a separator between them, as many
// as the tokens need.
func TestReadText(t *testing.T) {
	folder := t.TempDir()
	for name, content := range map[string]string{"b/x.md": "third", "a.md": "first", "b.txt": "other",
		"a/z.md":       "second",
		".hidden/a.md": "no", "b/.a.md": "no", "b/w.md": "\xff"} {
		path := filepath.Join(folder, name)
		require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
		require.NoError(t, os.WriteFile(path, []byte(content), 0o644))
	}
	sum := func(text string) string { s := sha256.Sum256([]byte(text)); return hex.EncodeToString(s[:]) }
	tok := byteTokens(t)
	for _, c := range []struct {
		path, ext   string
		tokens      int
		want, bytes string
		files       int
	}{
		{folder, ".md", 100, "second\x00first\x00third", "secondfirstthird", 3},
		{folder, ".md", 12, "second\x00first", "secondfirst", 2},
		{folder, ".md", 1, "second", "second", 1},
		{folder, "", 100, "second\x00first\x00third\x00other", "secondfirstthirdother", 4},
		{filepath.Join(folder, "b/w.md"), ".txt", 0, "\xff", "\xff", 1},
		{filepath.Join(folder, ".hidden"), "", 9, "no", "no", 1},
	} {
		text := testutil.Must(readText(t.Context(), c.path, c.ext, tok, c.tokens))(t)
		ids := text.ids
		text.ids = nil
		require.Equal(t, c.want, testutil.Must(tok.Decode(ids))(t))
		require.Equal(t, &Text{Path: c.path, Files: c.files, Bytes: len(c.bytes), Tokens: len(ids),
			SHA256: sum(c.bytes)}, text)
	}

	large := filepath.Join(folder, "large")
	require.NoError(t, os.WriteFile(large, nil, 0o644))
	_, err := readText(t.Context(), large, "", tok, 1)
	require.ErrorContains(t, err, "no text")
	require.NoError(t, os.Truncate(large, maxTextBytes+1))
	for _, path := range []string{large, folder} {
		_, err := readText(t.Context(), path, "", tok, 100)
		require.ErrorContains(t, err, "large: more than 64.0 MiB")
	}
	_, err = readText(t.Context(), filepath.Join(folder, "b/w.md"), "", subwords(t, false), 1)
	require.ErrorContains(t, err, "w.md: ")
	stop := errors.New("stop")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(stop)
	_, err = readText(ctx, folder, "", tok, 1)
	require.ErrorIs(t, err, stop)
}
