package evaluate

import (
	"context"
	"errors"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gorgonia-nsa/nsa/internal/testutil"
	"github.com/gorgonia-nsa/nsa/models/tinylm"
	"github.com/gorgonia-nsa/nsa/models/tinylm/tokenizer"
)

// TestPerplexityMatchesLogits: the numbers are those that loops over the logits of each window give.
func TestPerplexityMatchesLogits(t *testing.T) {
	for name, c := range map[string]struct {
		attention tinylm.Attention
		tokenizer *tokenizer.Tokenizer
	}{
		"nsa": {tinylm.NSA, byteTokens(t)}, "dense": {tinylm.Dense, subwords(t, false)},
		"with BOS": {tinylm.Dense, subwords(t, true)},
	} {
		t.Run(name, func(t *testing.T) {
			const length, windows = 150, 3
			e := evaluator(t, c.attention, c.tokenizer)
			prefix := c.tokenizer.Prefix()
			step := length - len(prefix)
			text := testutil.Tokens(1, windows*step+step/2, c.tokenizer.Vocab())
			text[10], text[20] = int32(c.tokenizer.Vocab()-1), 'x' // the former is special, where any is
			p := testutil.Must(e.Perplexity(t.Context(), text, length, 10))(t)
			require.Equal(t, windows, p.Windows)
			require.Positive(t, p.TokensPerSecond)

			var all [length][]float64 // by position
			var bytes [length]int
			for i := range windows {
				window := slices.Concat(prefix, text[i*step:][:step])
				for j, l := range oracle(t, e.Weights, window) {
					if j+1 < len(prefix) {
						continue
					}
					all[j+1] = append(all[j+1], l)
					if !c.tokenizer.Special(window[j+1]) {
						bytes[j+1] += c.tokenizer.TextLen(window[j+1 : j+2])
					}
				}
			}
			from := max(1, len(prefix))
			require.Equal(t, from, p.Positions[0].From)
			require.Equal(t, []int{from, length}, []int{p.All.From, p.All.To})
			for _, at := range append(p.Positions, p.All) {
				losses, n := slices.Concat(all[at.From:at.To]...), 0
				for _, b := range bytes[at.From:at.To] {
					n += b
				}
				require.Len(t, losses, windows*(at.To-at.From))
				require.Equal(t, len(losses), at.Tokens)
				require.Equal(t, n, at.Bytes)
				require.InEpsilon(t, sum(losses)/float64(len(losses)), at.Loss, 1e-5)
				require.InEpsilon(t, math.Exp(sum(losses)/float64(len(losses))), at.Perplexity, 1e-4)
				require.InEpsilon(t, sum(losses)/math.Ln2/float64(n), at.BitsPerByte, 1e-5)
			}
			require.Greater(t, p.All.Loss, 1.05*math.Log(float64(c.tokenizer.Vocab())), "the guesses are not uniform")
		})
	}
}

// TestPositionsCoverWindow: the ranges have each token of a window behind the first ones once, and end at powers of 2.
func TestPositionsCoverWindow(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for range 1000 {
		first := 1 + r.IntN(200)
		length := first + 1 + r.IntN(1+r.IntN(MaxLength))
		at := first
		for _, p := range positions(first, length) {
			require.Equal(t, at, p.From)
			require.Greater(t, p.To, p.From)
			require.True(t, p.To == length || p.To >= firstPosition && p.To&(p.To-1) == 0)
			at = p.To
		}
		require.Equal(t, length, at)
	}
}

// TestUniformPerplexity: the perplexity of a model that knows nothing is the size of its vocabulary, everywhere; of
// bytes it needs 8 bits.
func TestUniformPerplexity(t *testing.T) {
	e := evaluator(t, tinylm.NSA, byteTokens(t))
	clear(e.Weights.Tensors["head.weight"].Data().([]float32))
	p := testutil.Must(e.Perplexity(t.Context(), testutil.Tokens(1, 500, 256), 200, 2))(t)
	for _, at := range append(p.Positions, p.All) {
		require.InEpsilon(t, math.Log(256), at.Loss, 1e-6)
		require.InEpsilon(t, 256, at.Perplexity, 1e-5)
		require.InEpsilon(t, 8, at.BitsPerByte, 1e-6)
	}
}

func TestPerplexityRefuses(t *testing.T) {
	e := evaluator(t, tinylm.Dense, subwords(t, true))
	text := testutil.Tokens(1, 100, 256)
	for _, c := range []struct {
		text            []int32
		length, windows int
		want            string
	}{
		{text, 1, 1, "windows of 1 tokens, want 2 to 131072"}, {text, MaxLength + 1, 1, "want 2 to 131072"},
		{text, 10, 0, "0 windows, want at least 1"}, {text, 102, 1, "a text of 100 tokens, want at least 101"},
		{[]int32{999, 999}, 3, 1, "window 1: "},
	} {
		_, err := e.Perplexity(t.Context(), c.text, c.length, c.windows)
		require.ErrorContains(t, err, "evaluate: perplexity: ")
		require.ErrorContains(t, err, c.want)
	}
	_, err := e.Perplexity(t.Context(), text, 101, 1)
	require.NoError(t, err, "BOS and the whole text")

	head := e.Weights.Tensors["head.weight"].Data().([]float32)
	head[0] = float32(math.NaN())
	_, err = e.Perplexity(t.Context(), text, 10, 1)
	require.ErrorContains(t, err, "window 1: the cross entropy of token ")
}

// TestContextEnds: each measurement returns the cause of a context that has ended.
func TestContextEnds(t *testing.T) {
	e, stop := evaluator(t, tinylm.Dense, byteTokens(t)), errors.New("stop")
	text := testutil.Tokens(1, 300, 256)
	ctx, cancel := context.WithCancelCause(t.Context())
	status := &testutil.Listener{Heard: func() { cancel(stop) }}
	e.Status = status
	_, err := e.Perplexity(ctx, text, 30, 10)
	require.ErrorIs(t, err, stop)
	require.Contains(t, status.String(), "window 1 of 10: ")
	require.NotContains(t, status.String(), "window 2 of 10: ", "the current window is the last one")
	_, err = e.Speed(ctx, text, 2, 3)
	require.ErrorIs(t, err, stop)
	_, err = e.Needles(ctx, text, []int{300}, Depths(2), 1, 1)
	require.ErrorIs(t, err, stop)
	_, err = e.Choose(ctx, []Question{{"q", []string{"a", "b"}, 0}})
	require.ErrorIs(t, err, stop)
}

// TestSpeedCounts: the numbers are of the second pass alone, whose prompt and steps are those asked for.
func TestSpeedCounts(t *testing.T) {
	e := evaluator(t, tinylm.NSA, byteTokens(t))
	for _, sequences := range []int{1, 3} {
		s := testutil.Must(e.Speed(t.Context(), testutil.Tokens(1, 100, 256), sequences, 7))(t)
		require.Equal(t, []int{sequences, 100, 7 * sequences}, []int{s.Sequences, s.Prompt, s.Decoded})
		require.Positive(t, s.Prefill)
		require.Positive(t, s.Decode)
	}
	for _, n := range [][3]int{{0, 1, 1}, {1, 1, 0}, {1, 1, MaxLength + 1}, {1, 0, 1}, {1, maxSequences + 1, 1}} {
		_, err := e.Speed(t.Context(), make([]int32, n[0]), n[1], n[2])
		require.ErrorContains(t, err, "evaluate: speed: ")
	}
}
