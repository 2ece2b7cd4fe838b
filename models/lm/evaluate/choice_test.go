package evaluate

import (
	"math"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"

	"github.com/gorgonia-nsa/nsa/internal/testutil"
	"github.com/gorgonia-nsa/nsa/models/tinylm"
	"github.com/gorgonia-nsa/nsa/models/tinylm/tokenizer"
)

// TestChooseMatchesLogits: likelihoods are sums over the logits of the choices' tokens, whatever the length of a
// question, and the counts follow from them.
func TestChooseMatchesLogits(t *testing.T) {
	questions := []Question{
		{"Is a queue quick?", []string{"a queue", "größer", "no, it is a quay of a quick queue"}, 1},
		{"Long: " + strings.Repeat("quick quay ", 9), []string{"a", "quick", "9"}, 0},
		{"ends with spaces:  ", []string{"a", "b"}, 1},
		{"", []string{"quick", "a"}, 0},
	}
	for name, c := range map[string]struct {
		attention tinylm.Attention
		tokenizer *tokenizer.Tokenizer
	}{
		"nsa": {tinylm.NSA, byteTokens(t)}, "dense": {tinylm.Dense, subwords(t, false)},
		"with BOS": {tinylm.Dense, subwords(t, true)},
	} {
		t.Run(name, func(t *testing.T) {
			e := evaluator(t, c.attention, c.tokenizer)
			got := testutil.Must(e.Choose(t.Context(), questions))(t)
			want := Choices{Asked: len(questions), Guess: (1./3 + 1./3 + 1./2 + 1./2) / 4}
			for i, q := range questions {
				require.Equal(t, q.Answer, got.Answers[i].Answer)
				best, norm, bestNorm := 0, math.Inf(-1), 0
				for j, choice := range q.Choices {
					tokens, question := c.tokenizer.Prefix(), strings.TrimRight(q.Question, " ")
					if q.Question == "" && len(tokens) == 0 {
						tokens = append(tokens, c.tokenizer.Separator())
					}
					before := len(tokens) + len(testutil.Must(c.tokenizer.Encode(question))(t))
					tokens = append(tokens, testutil.Must(c.tokenizer.Encode(question+" "+choice))(t)...)
					l := -sum(oracle(t, e.Weights, tokens)[before-1:])
					require.InEpsilon(t, l, got.Answers[i].LogLikelihoods[j], 1e-5, "%d %d", i, j)
					if got.Answers[i].LogLikelihoods[j] > got.Answers[i].LogLikelihoods[best] {
						best = j
					}
					if l /= float64(utf8.RuneCountInString(choice)); l > norm {
						bestNorm, norm = j, l
					}
				}
				if best == q.Answer {
					want.Right++
				}
				if bestNorm == q.Answer {
					want.RightNorm++
				}
			}
			require.InDelta(t, want.Guess, got.Guess, 1e-12)
			require.Equal(t, []int{want.Asked, want.Right, want.RightNorm}, []int{got.Asked, got.Right, got.RightNorm})
		})
	}
}

// TestChooseByLikelihood: a model that prefers some bytes answers by them, by all of them or by character.
func TestChooseByLikelihood(t *testing.T) {
	e := evaluator(t, tinylm.Dense, byteTokens(t))
	right := func(questions ...Question) []int {
		c := testutil.Must(e.Choose(t.Context(), questions))(t)
		return []int{c.Right, c.RightNorm}
	}
	clear(e.Weights.Tensors["head.weight"].Data().([]float32)) // all bytes are equally likely
	short, long := Question{"q", []string{"aa", "aaaa"}, 0}, Question{"q", []string{"aa", "aaaa"}, 1}
	require.Equal(t, []int{1, 0}, right(short), "fewer tokens are more likely; the space counts less in a longer text")
	require.Equal(t, []int{0, 1}, right(long))
}

// TestChooseRefuses: a choice that has no tokens of its own, or is too long.
func TestChooseRefuses(t *testing.T) {
	e := evaluator(t, tinylm.Dense, byteTokens(t))
	_, err := e.Choose(t.Context(), []Question{{strings.Repeat("q", MaxLength), []string{"a", "b"}, 0}})
	require.ErrorContains(t, err, "evaluate: choices: question 1, choice 0: 131074 tokens, want at most 131072")
	e.Tokenizer = subwords(t, false)
	_, err = e.Choose(t.Context(), []Question{{"\xff", []string{"a", "b"}, 0}})
	require.ErrorContains(t, err, "not UTF-8")
}

func TestReadQuestions(t *testing.T) {
	list := testutil.Must(ReadQuestions(strings.NewReader(
		`{"question": "1 + 1?", "choices": ["2", "3"], "answer": 0, "id": 7}` + "\n\n \r\n" +
			`{"answer":1,"choices":["a","b","ü"],"question":""}`)))(t)
	require.Equal(t, []Question{{"1 + 1?", []string{"2", "3"}, 0}, {"", []string{"a", "b", "ü"}, 1}}, list)
	for text, want := range map[string]string{
		"": "no question", "\n \n": "no question",
		`{"question": "q", "choices": ["a", "b"]}`:                     "line 1: answer is -1 or missing, want 0 to 1",
		"\n" + `{"question": "q", "choices": ["a", "b"], "answer": 2}`: "line 2: answer is 2 or missing, want 0 to 1",
		`{"question": "q", "choices": ["a"], "answer": 0}`:             "line 1: 1 choices, want at least 2",
		`{"question": "q", "choices": ["a", ""], "answer": 0}`:         "line 1: choice 1 is empty",
		`{"question": "q", "choices": ["a", "b"], "answer": "B"}`:      "line 1: ",
		`[]`:                                  "line 1: ",
		"\n" + strings.Repeat(" ", maxLine+1): "line 2: more than 1048576 bytes",
	} {
		_, err := ReadQuestions(strings.NewReader(text))
		require.ErrorContains(t, err, "evaluate: questions: ")
		require.ErrorContains(t, err, want)
		require.NotContains(t, err.Error(), "\n")
	}
}

func FuzzReadQuestions(f *testing.F) {
	f.Add(`{"question": "1 + 1?", "choices": ["2", "3"], "answer": 0}`)
	f.Fuzz(func(t *testing.T, text string) {
		list, err := ReadQuestions(strings.NewReader(text))
		for _, q := range list {
			require.NoError(t, err)
			require.GreaterOrEqual(t, len(q.Choices), 2)
			require.Less(t, q.Answer, len(q.Choices))
			require.GreaterOrEqual(t, q.Answer, 0)
		}
	})
}
