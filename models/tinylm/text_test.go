package tinylm

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"
)

func TestPrintable(t *testing.T) {
	require.Equal(t, "Größe\t\uFFFD\n\uFFFD\uFFFD[", Printable("Größe\t\xff\n\x00\x1b["))
	const joined = "日本\u3000語 👨\u200d👩 a\u00a0b\u00ad\u200c"
	require.Equal(t, joined, Printable(joined))
	require.Equal(t, "\uFFFD\uFFFD\uFFFD", Printable("\u202e\u2028\u2066"))
}

func TestBytes(t *testing.T) {
	text, got := "Größe\x00\xff\n", []byte(nil)
	for _, id := range (Bytes{}).Encode(text) {
		got = Bytes{}.AppendToken(got, id)
	}
	require.Equal(t, text, string(got))
}

// pieces is a vocabulary of arbitrary texts.
type pieces []string

func (p pieces) Vocab() int                               { return len(p) }
func (p pieces) AppendToken(text []byte, id int32) []byte { return append(text, p[id]...) }

// firstStop returns the text before the stop string that ends first, and whether there is one.
func firstStop(text string, stops []string) (string, bool) {
	for end := range len(text) + 1 {
		longest := ""
		for _, stop := range stops {
			if strings.HasSuffix(text[:end], stop) && len(stop) > len(longest) {
				longest = stop
			}
		}
		if longest != "" {
			return text[:end-len(longest)], true
		}
	}
	return text, false
}

// TestTextStream cuts random text, some of it not UTF-8, into random tokens. The stream emits the whole text before the
// first stop string, in whole characters, and as early as possible.
func TestTextStream(t *testing.T) {
	alphabet := []string{"a", "b", "ab", "\n", "ö", "€", "😀", "\xff", "\xe2\x82", "\xf0\x9f", "\x80"}
	r := rand.New(rand.NewPCG(1, 2))
	word := func(most int) (s string) {
		for range 1 + r.IntN(most) {
			s += alphabet[r.IntN(len(alphabet))]
		}
		return s
	}
	stopped := 0
	for range 20_000 {
		text, stops := word(20), []string(nil)
		for range r.IntN(4) {
			stops = append(stops, word(4))
		}
		want, stop := firstStop(text, stops)
		want = string([]rune(want))
		var x textStream
		x.start(stops)
		got, ended := "", false
		for rest := text; rest != "" && !ended; {
			n := 1 + r.IntN(min(5, len(rest)))
			x.next()
			ended = x.add(pieces{rest[:n]}, 0)
			require.True(t, utf8.Valid(x.out))
			got += string(x.out)
			rest = rest[n:]
			require.LessOrEqual(t, len(x.held), 16+3, "no more than a stop string and a character are held back")
		}
		x.next()
		x.end()
		got += string(x.out)
		require.Equal(t, want, got, "%q stops %q", text, stops)
		require.Equal(t, stop, ended)
		if ended {
			stopped++
		}
	}
	require.Greater(t, stopped, 1000)
}

// TestTextStreamIsPrompt: the text of a token is not held back longer than needed.
func TestTextStreamIsPrompt(t *testing.T) {
	var x textStream
	x.start([]string{"\n\n", "END"})
	var got []string
	for _, b := range []byte("a€\nEN\nE\xe2x") {
		x.next()
		require.False(t, x.add(Bytes{}, int32(b)))
		got = append(got, string(x.out))
	}
	require.Equal(t, []string{"a", "", "", "€", "", "\n", "", "EN", "\n", "E", "\uFFFDx"}, got, fmt.Sprint(got))
}
