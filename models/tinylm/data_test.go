package tinylm

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gorgonia-nsa/nsa/internal/testutil"
)

// writeFiles writes files by their paths below dir.
func writeFiles(t testing.TB, dir string, files map[string]string) {
	t.Helper()
	for name, text := range files {
		path := filepath.Join(dir, name)
		require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
		require.NoError(t, os.WriteFile(path, []byte(text), 0o644))
	}
}

// TestReadDataFolder leaves out links, folders, binary files and other names, and reads through a link to the folder.
func TestReadDataFolder(t *testing.T) {
	dir := t.TempDir()
	files, want := map[string]string{}, 0
	for i := range 60 {
		name := "f" + strings.Repeat("x", i) + ".go"
		files["sub/"+name] = name
		want += len(name + "\n")
	}
	writeFiles(t, dir, files)
	writeFiles(t, dir, map[string]string{"other.txt": "OTHER", "binary.go": "BIN\x00ARY"})
	require.NoError(t, os.MkdirAll(filepath.Join(dir, "folder.go"), 0o755))
	if err := os.Symlink(filepath.Join(dir, "other.txt"), filepath.Join(dir, "link.go")); err != nil {
		t.Skip("no symbolic links here: ", err)
	}

	d := testutil.Must(ReadData(dir, ".go"))(t)
	text := string(d.Train) + string(d.HeldOut)
	require.Len(t, text, want)
	require.NotContains(t, text, "OTHER")
	require.NotContains(t, text, "ARY")
	require.NotEmpty(t, d.HeldOut)
	require.Greater(t, len(d.Train), 5*len(d.HeldOut))

	link := filepath.Join(t.TempDir(), "link")
	require.NoError(t, os.Symlink(dir, link))
	again := testutil.Must(ReadData(link, ".go"))(t)
	require.Equal(t, link, again.Name)
	again.Name = dir
	require.Equal(t, d, again)
}

func TestReadDataFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "text")
	require.NoError(t, os.WriteFile(path, []byte(strings.Repeat("a", 950)+strings.Repeat("b", 50)), 0o644))
	d := testutil.Must(ReadData(path, ""))(t)
	require.Equal(t, strings.Repeat("a", 950), string(d.Train))
	require.Equal(t, strings.Repeat("b", 50), string(d.HeldOut))
	require.NoError(t, d.Check(49, 256))
	require.ErrorContains(t, d.Check(50, 256), "the held-out part has 50 bytes, want at least 51 for a context of 50")
	require.ErrorContains(t, d.Check(10, 98), "byte 0 of the held-out part is 98, the vocabulary has 98")
}

func TestDataRefuses(t *testing.T) {
	dir := t.TempDir()
	require.ErrorIs(t, testutil.Err(ReadData(filepath.Join(dir, "missing"), "")), os.ErrNotExist)
	empty := filepath.Join(dir, "empty.txt")
	require.NoError(t, os.WriteFile(empty, nil, 0o644))
	require.ErrorContains(t, testutil.Err(ReadData(empty, "")), "is empty")
	require.ErrorContains(t, testutil.Err(ReadData(dir, ".go")), "no text file *.go below")
	require.ErrorContains(t, testutil.Err(ReadData(os.DevNull, "")), "neither a file nor a folder")
	require.ErrorContains(t, testutil.Err(RandomData(100, 257, 1)), "want at least 1 below at most 256")
}

func TestReadDataHoldsOutAFairPart(t *testing.T) {
	dir, files := t.TempDir(), map[string]string{}
	for i := range 200 {
		files[fmt.Sprint(i)] = "short"
	}
	writeFiles(t, dir, files)
	held := len(testutil.Must(ReadData(dir, ""))(t).HeldOut)
	require.NotZero(t, held)
	require.Zero(t, held%len("short\n"), "whole files")
	writeFiles(t, dir, map[string]string{"long": strings.Repeat("x", 200*held)})
	d := testutil.Must(ReadData(dir, ""))(t)
	all := len(d.Train) + len(d.HeldOut)
	require.Equal(t, all/heldOutPart, len(d.HeldOut), "the last twentieth, not the few short files")
}

func TestPrintable(t *testing.T) {
	require.Equal(t, "Größe\t\uFFFD\n\uFFFD\uFFFD[", Printable("Größe\t\xff\n\x00\x1b["))
}

func TestWindows(t *testing.T) {
	text := []byte("0123456789")
	tokens, targets := make([]int32, 4), make([]int32, 4)
	(&Model{batch: 1, seq: 4, tokens: tokens, targets: targets}).fill(text, nil, func(int) int { return 5 })
	require.Equal(t, Encode("5678"), tokens)
	require.Equal(t, Encode("6789"), targets)

	b, m := newBatches(text, nil, 1), &Model{batch: 2, seq: 2, tokens: tokens, targets: targets}
	seen := map[int32]bool{}
	for range 200 {
		b.next(m)
		require.Equal(t, tokens[0]+1, targets[0])
		require.Equal(t, tokens[2]+1, tokens[3])
		seen[tokens[0]] = true
	}
	require.Len(t, seen, 8, "every offset is drawn, the last target is the last byte")

	var first []int32
	for i := range 2 {
		m.spread(text, nil, i, 2)
		first = append(first, tokens[0], tokens[2])
	}
	require.Equal(t, Encode("0247"), first, "from the begin to the end of the text")
}

func TestTokenizer(t *testing.T) {
	text := "Größe\x00\xff\n"
	require.Equal(t, text, testutil.Must(Decode(Encode(text)))(t))
	require.EqualError(t, testutil.Err(Decode([]int32{65, 256})), "tinylm: token 256 at 1 is not a byte")
}
