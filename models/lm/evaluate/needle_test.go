package evaluate

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gorgonia-nsa/nsa/internal/testutil"
	"github.com/gorgonia-nsa/nsa/models/tinylm"
	"github.com/gorgonia-nsa/nsa/models/tinylm/tokenizer"
)

// TestHaystack: a prompt has exactly its length, begins with BOS where texts do, has the needle at its depth and ends
// with the question; all else is the beginning of the text.
func TestHaystack(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for _, tok := range []*tokenizer.Tokenizer{byteTokens(t), subwords(t, false), subwords(t, true)} {
		e := &Evaluator{Tokenizer: tok}
		text := testutil.Must(tok.Encode(strings.Repeat("The quick quay, a queue. ", 100)))(t)
		for range 200 {
			length, depth, number := 200+r.IntN(1000), r.Float64(), lowest+r.IntN(9*lowest)
			prompt := testutil.Must(e.haystack(text, length, depth, "Oslo", number))(t)
			require.Len(t, prompt, length)
			begin := len(tok.Prefix())
			require.True(t, slices.Equal(tok.Prefix(), prompt[:begin]))
			prompt = prompt[begin:]
			q := testutil.Must(tok.Encode("\nQuestion: What is the special magic number for Oslo?\n" +
				"Answer: The special magic number for Oslo is:"))(t)
			n := testutil.Must(tok.Encode(fmt.Sprintf("\nThe special magic number for Oslo is: %d.\n", number)))(t)
			hay := len(prompt) - len(q) - len(n)
			at := int(depth * float64(hay))
			require.Equal(t, q, prompt[len(prompt)-len(q):])
			require.Equal(t, n, prompt[at:][:len(n)])
			require.InDelta(t, depth, float64(at)/float64(hay), 1/float64(hay))
			require.Equal(t, text[:hay], slices.Concat(prompt[:at], prompt[at+len(n):len(prompt)-len(q)]))
		}
		for depth, at := range map[float64]int{0: 0, 1: 1} { // the ends of the text
			tokens := testutil.Must(e.haystack(text, 300, depth, "Lima", lowest))(t)
			prompt := testutil.Must(tok.Decode(tokens[len(tok.Prefix()):]))(t)
			edges := [2]string{"\nThe special", ": 1000000.\n\nQuestion: "}
			require.Contains(t, prompt, edges[at])
			require.Equal(t, at == 0, strings.HasPrefix(prompt, edges[0]))
		}
	}
}

// TestAnswerIsRight: what copies the number of the needle is right; another number, more digits, or none is wrong.
func TestAnswerIsRight(t *testing.T) {
	tok := byteTokens(t)
	e, r := &Evaluator{Tokenizer: tok}, rand.New(rand.NewPCG(1, 2))
	text := testutil.Must(tok.Encode(strings.Repeat("hay ", 200)))(t)
	needle := regexp.MustCompile(`special magic number for (\w+) is: (\d{7})\.`)
	for format, want := range map[string]bool{
		" %s.\n": true, "%s": true, "\n**%s**, not 12.": true, " 1 %s": false, " %s0": false, " 1234": false, "": false,
	} {
		for _, depth := range Depths(5) {
			found := testutil.Must(e.ask(text, 400, depth, r, func(prompt []int32) (string, error) {
				all := testutil.Must(tok.Decode(prompt))(t)
				hidden := needle.FindStringSubmatch(all)
				require.Len(t, hidden, 3)
				require.Contains(t, all, "number for "+hidden[1]+"?")
				return strings.ReplaceAll(format, "%s", hidden[2]), nil
			}))(t)
			require.Equal(t, want, found, "%q", format)
		}
	}
	failed := errors.New("failed")
	_, err := e.ask(text, 400, 0, r, func([]int32) (string, error) { return "", failed })
	require.ErrorIs(t, err, failed)
}

// TestNeedles: there is a cell for each length and depth, in this order, with all needles; a model with random weights
// finds none. The seed decides the needles.
func TestNeedles(t *testing.T) {
	e := evaluator(t, tinylm.NSA, byteTokens(t))
	text := testutil.Must(e.Tokenizer.Encode(strings.Repeat("hay ", 200)))(t)
	list := testutil.Must(e.Needles(t.Context(), text, []int{200, 300}, Depths(3), 2, 1))(t)
	var want []Needle
	for _, length := range []int{200, 300} {
		for _, depth := range []float64{0, 0.5, 1} {
			want = append(want, Needle{Length: length, Depth: depth, Asked: 2})
		}
	}
	require.Equal(t, want, list)
	require.Equal(t, []float64{0.5}, Depths(1))
	require.Empty(t, Depths(-1))

	for _, c := range []struct {
		lengths []int
		depths  []float64
		times   int
		want    string
	}{
		{nil, Depths(1), 1, "0 lengths, 1 depths"}, {[]int{200}, nil, 1, "0 depths"},
		{[]int{200}, Depths(1), 0, "0 times"},
		{[]int{200, 100}, Depths(1), 1, "length 100, want at least "},
		{[]int{-5}, Depths(1), 1, "length -5, want at least "},
		{[]int{900}, Depths(1), 1, "a text of 800 tokens for a length of 900"},
		{[]int{MaxLength + 1}, Depths(1), 1, "length 131073, want at most 131072"},
		{[]int{200}, []float64{1.1}, 1, "depth 1.1, want 0 to 1"},
	} {
		_, err := e.Needles(t.Context(), text, c.lengths, c.depths, c.times, 1)
		require.ErrorContains(t, err, "evaluate: needle: ")
		require.ErrorContains(t, err, c.want)
	}
}
