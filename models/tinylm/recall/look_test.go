package recall

import (
	"math/rand/v2"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestVocabulary: keys have different names, and the text of a document has each question's name once more, in the pair
// of its answer.
func TestVocabulary(t *testing.T) {
	names := map[string]bool{}
	for key := range 1 << 16 {
		names[keyName(key)] = true
	}
	require.Len(t, names, 1<<16)
	for _, task := range tasks(t) {
		v, d := Vocabulary{task}, task.newDocument()
		task.fill(rand.New(rand.NewPCG(1, 2)), d, task.Values)
		var text []byte
		for _, id := range d.tokens {
			text = v.AppendToken(text, id)
		}
		pairs := map[string]string{}
		for _, p := range regexp.MustCompile(`(\w+)=(\d+)`).FindAllStringSubmatch(string(text), -1) {
			require.Empty(t, pairs[p[1]])
			pairs[p[1]] = p[2]
		}
		require.Len(t, pairs, task.Pairs)
		questions := regexp.MustCompile(` (\w{4,})\?`).FindAllStringSubmatch(string(text), -1)
		require.Len(t, questions, task.Questions)
		for i, q := range questions {
			answer := d.targets[len(d.targets)-task.Questions+i]
			require.Equal(t, pairs[q[1]], string(v.AppendToken(nil, answer)))
		}
	}
}

// TestLook: the look asks each key once a document, has no losses, and names the value that the model expects.
func TestLook(t *testing.T) {
	task, o := tasks(t)[0], smallOptions(t)
	w, err := Train(t.Context(), task, NSA, o, nil)
	require.NoError(t, err)
	defer func() { require.NoError(t, w.Free()) }()
	r, err := task.look(w, o)
	require.NoError(t, err)
	require.False(t, r.HasLoss())
	require.Equal(t, o.FinalDocs, r.Windows)
	require.NotContains(t, r.Summary(), "loss")
	words := r.AllRepeatedWords()
	require.Equal(t, o.FinalDocs*task.Pairs, words.Queries)
	require.Equal(t, words.Queries, words.Blocks, "an answer is in one block")
	values := Vocabulary{task}
	for i, next := range slices.Backward(r.Next) {
		if !strings.HasSuffix(r.Tokens[i], "?") {
			break
		}
		require.Regexp(t, `^\d+$`, next, "a trained model answers with a value")
		require.Greater(t, r.NextShares[i], 1/float64(values.Vocab()))
	}
}
