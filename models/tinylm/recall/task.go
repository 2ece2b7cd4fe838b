// Package recall has a task whose answers lie far before the questions, and trains small models on it: full NSA, NSA
// without its selected branch, and dense attention. It shows the purpose of the selected branch.
//
// A document is filler with blocks of pairs in it, and ends with questions. A pair is one token for a key and its
// value. A question is a token for a key, and its answer is the token for the value:
//
//	. . . . [a7 f2 c5 b0] . . . . . . . . [e2 d7 h0 g5] . . . . . . . . . . . . a? h? c? ...    answers 7 0 5 ...
//
// The blocks of pairs are the blocks that NSA compresses and selects. Every value appears equally often in a block, so
// the mean of a block does not tell which key has which value: compressed attention can find the block, but only its
// tokens have the answer.
package recall

import (
	"math/rand/v2"
	"strings"

	"github.com/gorgonia-nsa/nsa/internal/fault"
)

// fillers is the number of different tokens that documents are filled with.
const fillers = 16

// maxTokens bounds a document, maxVocab the vocabulary.
const (
	maxTokens = 1 << 22
	maxVocab  = 1 << 20
)

// Task has the sizes of a document.
type Task struct {
	Context   int // tokens
	Pairs     int // pairs, each with its own key; a multiple of Values
	Values    int // different values, and tokens of a block: each value appears once in a block
	Questions int // tokens at the end that ask for keys in random order, for none again before all have been asked
	Skip      int // tokens at the beginning without pairs, a multiple of Values
	Gap       int // least distance of a question from its answer
	Free      int // blocks that NSA selects besides the forced ones
}

// Validate returns an error that names the size that is wrong.
func (t Task) Validate() (err error) {
	defer fault.Name(&err, "recall", "")
	for _, s := range []struct {
		name        string
		v, min, max int
	}{
		{"Context", t.Context, 1, maxTokens}, {"Values", t.Values, 2, 1 << 10}, {"Pairs", t.Pairs, 1, 1 << 16},
		{"Questions", t.Questions, 1, t.Context}, {"Skip", t.Skip, 0, t.Context}, {"Gap", t.Gap, 1, t.Context},
		{"Free", t.Free, 1, maxTokens},
	} {
		if s.v < s.min || s.v > s.max {
			return fault.Of(s.name, strings.ToLower(s.name), "is %d, want %d to %d", s.v, s.min, s.max)
		}
	}
	switch {
	case t.Pairs%t.Values != 0:
		return fault.Between("Pairs", "%d pairs are not a multiple of the %d values", t.Pairs, t.Values)
	case t.Skip%t.Values != 0:
		return fault.Between("Skip", "skip of %d tokens is not a multiple of the %d of a block", t.Skip, t.Values)
	case t.Vocab() > maxVocab:
		return fault.Between("Pairs", "%d pairs of %d values need %d tokens, want at most %d", t.Pairs, t.Values,
			t.Vocab(), maxVocab)
	case t.places() < t.Pairs/t.Values:
		return fault.Between("Context Pairs",
			"a context of %d tokens has room for %d blocks of %d pairs "+
				"behind the first %d tokens and %d before the last %d, want %d",
			t.Context, max(0, t.places()), t.Values, t.Skip, t.Gap, t.Questions, t.Pairs/t.Values)
	}
	return nil
}

// places returns the number of blocks that may hold pairs.
func (t Task) places() int { return (t.Context - t.Questions - t.Gap + 1 - t.Skip) / t.Values }

// Vocab returns the number of tokens: pairs, questions, answers and fillers, in this order.
func (t Task) Vocab() int { return t.Pairs*t.Values + t.Pairs + t.Values + fillers }

// Chance returns the accuracy of guessing.
func (t Task) Chance() float64 { return 1 / float64(t.Values) }

// Farthest returns the largest distance of a question from its answer.
func (t Task) Farthest() int { return t.Context - 1 - t.Skip }

// pair returns the token of a key with a value.
func (t Task) pair(key, value int) int32 { return int32(key*t.Values + value) }

// question returns the token that asks for a key.
func (t Task) question(key int) int32 { return int32(t.Pairs*t.Values + key) }

// answer returns the token of a pair's value, which is only a target.
func (t Task) answer(pair int32) int32 { return int32(t.Pairs*(t.Values+1)) + pair%int32(t.Values) }

// filler returns filler token i.
func (t Task) filler(i int) int32 { return int32(t.Pairs*(t.Values+1) + t.Values + i) }

// document is one document of a Task.
type document struct {
	tokens    []int32 // [Context]
	targets   []int32 // [Context], the value's token at questions, -1 elsewhere
	distances []int   // [Questions], from each question back to its pair
}

// fill draws a document into d. The keys of a block have `distinct` different values, each equally often; distinct
// divides Values. Evaluations use documents with distinct = Values. Models also train on documents with distinct = 1:
// compressed attention can answer these without the selected branch, and learns from them where a key is. The selection
// of blocks needs this: it has no gradient of its own and follows compressed attention.
func (t Task) fill(r *rand.Rand, d document, distinct int) {
	for i := range d.tokens {
		d.tokens[i], d.targets[i] = t.filler(r.IntN(fillers)), -1
	}
	keys, at := r.Perm(t.Pairs), make([]int, t.Pairs) // at: the position of each key's pair
	for i, place := range r.Perm(t.places())[:t.Pairs/t.Values] {
		values := r.Perm(t.Values)
		for j, key := range keys[i*t.Values:][:t.Values] {
			at[key] = t.Skip + place*t.Values + j
			d.tokens[at[key]] = t.pair(key, values[j%distinct])
		}
	}
	first := t.Context - t.Questions
	for i := range t.Questions {
		if i%len(keys) == 0 {
			r.Shuffle(len(keys), func(i, j int) { keys[i], keys[j] = keys[j], keys[i] })
		}
		key := keys[i%len(keys)]
		d.tokens[first+i], d.targets[first+i] = t.question(key), t.answer(d.tokens[at[key]])
		d.distances[i] = first + i - at[key]
	}
}

// newDocument returns an empty document.
func (t Task) newDocument() document {
	return document{make([]int32, t.Context), make([]int32, t.Context), make([]int, t.Questions)}
}
