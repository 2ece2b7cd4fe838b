package recall

import (
	"fmt"
	"math/rand/v2"

	"github.com/gorgonia-nsa/nsa/models/tinylm"
	"github.com/gorgonia-nsa/nsa/models/tinylm/inspect"
)

// Vocabulary is the text of a Task's tokens: " dove=7" is a pair, " dove?" its question, "7" the answer, and fillers
// are dots.
type Vocabulary struct{ Task }

func (v Vocabulary) AppendToken(text []byte, id int32) []byte {
	i := int(id)
	if i < v.Pairs*v.Values {
		return fmt.Appendf(text, " %s=%d", keyName(i/v.Values), i%v.Values)
	}
	if i -= v.Pairs * v.Values; i < v.Pairs {
		return fmt.Appendf(text, " %s?", keyName(i))
	}
	if i -= v.Pairs; i < v.Values {
		return fmt.Append(text, i)
	}
	return append(text, '.')
}

// keyName returns the name of a key: two syllables, or three of a key above all that have two.
func keyName(key int) (name string) {
	const consonants, vowels, syllables = "bdfghjklmnprstvz", "aeiou", 80
	if key < syllables*syllables {
		key = key * 2503 % (syllables * syllables) // neighbours get names that differ much
	}
	for len(name) < 4 || key > 0 {
		name += string(consonants[key%16]) + string(vowels[key/16%5])
		key /= syllables
	}
	return name
}

// shownContext is the longest context of a document that is shown, unless its pairs need a longer one.
const shownContext = 1024

// look inspects a model that selects blocks, on o.FinalDocs documents in which each key is asked once.
func (t Task) look(w *tinylm.Weights, o Options) (*inspect.Report, error) {
	t.Questions = t.Pairs
	for short := t; t.Context > shownContext && t.Context%2 == 0; t = short {
		if short.Context /= 2; short.Validate() != nil {
			break
		}
	}
	r, d, tokens := rand.New(rand.NewPCG(o.Seed, 0)), t.newDocument(), []int32(nil)
	for range o.FinalDocs {
		t.fill(r, d, t.Values)
		tokens = append(tokens, d.tokens...)
	}
	return inspect.Inspect(w, tokens, inspect.Options{
		Title: "Recall: which blocks a question selects", Vocabulary: Vocabulary{t}, Backend: o.Backend, NoLoss: true,
		About: fmt.Sprintf("In this text a pair such as “%s=7” gives a key its value; there are %d of them in %d blocks. A question at the end asks "+
			"for a key, and dots are filler. The value stands nowhere but in the pair, so the question has to select its block, however far back that is.",
			keyName(0), t.Pairs, t.Pairs/t.Values),
	})
}
