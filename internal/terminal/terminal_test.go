package terminal

import (
	"bytes"
	"math/rand/v2"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gorgonia-nsa/nsa/internal/testutil"
)

// words are pieces of text: spaces, a tab, characters that are wide, that combine, and a word longer than most lines.
var words = []string{" ", "  ", "\t", "\n", "a", "word", "größe", "日本語", "한국어", "e\u0301", "-flag",
	strings.Repeat("long", 30)}

// textOf returns so many random words.
func textOf(r *rand.Rand, n int) string {
	var b strings.Builder
	for range n {
		b.WriteString(words[r.IntN(len(words))] + " "[:r.IntN(2)])
	}
	return b.String()
}

// TestWrapFits: at each width no row is broken by the terminal, and all words are there. Text that fits is unchanged.
func TestWrapFits(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for columns := 20; columns <= 200; columns += 3 {
		text := textOf(r, 30)
		s := &testutil.Screen{Width: columns}
		s.Write([]byte(Wrap(text, columns, 2)))
		require.Zero(t, s.Broken, "%d: %q", columns, text)
		plain := func(s string) string { return strings.Join(strings.Fields(s), "") }
		require.Equal(t, plain(text), plain(strings.Join(s.Lines(), "\n")))
	}
	require.Equal(t, "a line\n  of\n  words\n", Wrap("a line of words\n", 8, 2))
	require.Equal(t, "fits\n\n as it is", Wrap("fits\n\n as it is", 9, 2))
	require.Equal(t, "no terminal, no break", Wrap("no terminal, no break", 0, 2))
	require.Equal(t, "日\n本", Wrap("日本", 3, 0))
	require.NotPanics(t, func() { Wrap("日本", 1, 0) })
}

// TestWriterFits: text that is written in pieces breaks no row, whatever the pieces are, and lines that fit are
// unchanged.
func TestWriterFits(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	for columns := 20; columns <= 200; columns += 3 {
		s := &testutil.Screen{Width: columns}
		w, text := Writer(s), textOf(r, 60)
		for rest := []rune(text); len(rest) > 0; {
			n := 1 + r.IntN(min(5, len(rest)))
			n, err := w.Write([]byte(string(rest[:n])))
			require.NoError(t, err)
			rest = []rune(string(rest))[len([]rune(string([]byte(string(rest))[:n]))):]
		}
		require.Zero(t, s.Broken, "%d: %q", columns, text)
		all := strings.NewReplacer("\n", "", "\t", "", " ", "")
		require.Equal(t, all.Replace(text), all.Replace(strings.Join(s.Lines(), "")))
	}
	var file bytes.Buffer
	require.Same(t, &file, Writer(&file))
}

func TestCut(t *testing.T) {
	for columns, want := range []string{"", "a", "a", "a日", "a日", "a日本", "a日本"} {
		require.Equal(t, want, Cut("a日本", columns))
	}
	require.Equal(t, "e\u0301", Cut("e\u0301x", 1))
}

// TestNoTerminal: files, pipes and buffers have no width.
func TestNoTerminal(t *testing.T) {
	require.Zero(t, Width(&bytes.Buffer{}))
	require.Zero(t, Width((*os.File)(nil)))
	null := testutil.Must(os.Open(os.DevNull))(t)
	defer null.Close()
	require.Zero(t, Width(null))
}
