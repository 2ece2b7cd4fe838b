package quote

import (
	"fmt"
	"io/fs"
	"math/rand/v2"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"

	"github.com/stretchr/testify/require"
)

func TestText(t *testing.T) {
	for text, want := range map[string]string{
		"": "", `a "b" \c`: `a "b" \c`, "überall": "überall", "a\x1b[2Jb\n": `a\x1b[2Jb\n`, "\xff": `\xff`,
		"\u202egnp": `\u202egnp`, "\u009b": `\u009b`,
		strings.Repeat("x", 60): strings.Repeat("x", 60), strings.Repeat("ü", 40): strings.Repeat("ü", 30) + "...",
	} {
		require.Equal(t, want, Text(text))
	}
}

// TestAnyText: whatever a text has in it, the message is short and printable, and an error still is what it was.
func TestAnyText(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for range 500 {
		b := make([]byte, r.IntN(2000))
		for i := range b {
			b[i] = byte(r.IntN(256) >> r.IntN(2))
		}
		err := Error(fmt.Errorf("%s: %w", b, fs.ErrInvalid))
		require.ErrorIs(t, err, fs.ErrInvalid)
		for s, most := range map[string]int{Text(string(b)): maxText, err.Error(): maxBegin + 4*rawEnd} {
			require.LessOrEqual(t, len(s), most+len("..."))
			require.True(t, utf8.ValidString(s))
			require.Equal(t, -1, strings.IndexFunc(s, func(r rune) bool { return !unicode.IsPrint(r) }), "%q", s)
		}
	}
	require.NoError(t, Error(nil))
	long := Error(fmt.Errorf("file: %s: %w", strings.Repeat("ü", 1<<20), fs.ErrInvalid)).Error()
	require.Regexp(t, "^file: ü+[.]{3}ü+: invalid argument$", long)
}
