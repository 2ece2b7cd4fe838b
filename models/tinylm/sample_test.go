package tinylm

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/internal/testutil"
)

func TestGenerateDependsOnTheSeed(t *testing.T) {
	w := newTestWeights(t, small(), tensor.Float32, 1)
	s := newTestModel(t, w, nil, 1, w.Config.Context)
	generate := func(how Sampling) []int32 {
		ids := testutil.Must(s.Generate(Encode("func "), 80, how))(t) // beyond the context of 64
		require.Len(t, ids, 80)
		return ids
	}
	a := generate(Sampling{Temperature: 1, Seed: 1})
	require.NotEqual(t, a, generate(Sampling{Temperature: 1, Seed: 2}))
	require.Equal(t, a, generate(Sampling{Temperature: 1, Seed: 1}))
	require.Equal(t, generate(Sampling{Seed: 1}), generate(Sampling{Seed: 2}), "the most likely token needs no draw")
	require.Equal(t, generate(Sampling{}), generate(Sampling{Temperature: 1, TopK: 1, Seed: 3}))
}

// TestPaddingIsNotSeen compares the logits of a padded text with those of a graph of its own length.
func TestPaddingIsNotSeen(t *testing.T) {
	w := newTestWeights(t, small(), tensor.Float64, 1)
	s := newTestModel(t, w, nil, 1, w.Config.Context)
	ids := Encode("if err != nil { return err }")
	padded := testutil.Must(s.last(ids))(t)
	m := testutil.Closing(NewModel(w, 1, len(ids)))(t)
	copy(m.Tokens(), ids)
	require.NoError(t, m.Run())
	require.InDeltaSlice(t, testutil.Must(m.Logits())(t).Float64s()[(len(ids)-1)*256:], padded, 1e-12)
}

func TestPick(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 1))
	logits := func() []float64 { return []float64{math.Log(1), math.Log(4), math.Inf(-1), math.Log(5)} }
	counts := func(how Sampling) [4]int {
		var n [4]int
		for range 10_000 {
			n[testutil.Must(pick(logits(), how, r))(t)]++
		}
		return n
	}
	n := counts(Sampling{Temperature: 1})
	require.InDelta(t, 1000, n[0], 150)
	require.InDelta(t, 4000, n[1], 250)
	require.Zero(t, n[2])
	n = counts(Sampling{Temperature: 0.5}) // 1 : 16 : 25
	require.InDelta(t, 10_000*16/42, n[1], 250)
	n = counts(Sampling{Temperature: 1, TopK: 2})
	require.Zero(t, n[0])
	require.InDelta(t, 10_000*4/9, n[1], 250)
	require.Equal(t, [4]int{3: 10_000}, counts(Sampling{}))

	require.EqualError(t, testutil.Err(pick([]float64{0, math.NaN(), 0, 0}, Sampling{}, r)), "tinylm: sample: logit of token 1 is NaN")
}

func TestGenerateRefuses(t *testing.T) {
	w := newTestWeights(t, small(), tensor.Float32, 1)
	s := newTestModel(t, w, nil, 1, w.Config.Context)
	for message, c := range map[string]struct {
		prompt []int32
		n      int
		how    Sampling
	}{
		"the prompt is empty":                              {nil, 1, Sampling{}},
		"tinylm: sample: -1 tokens, want at least 0":       {[]int32{1}, -1, Sampling{}},
		"top k is -1":                                      {[]int32{1}, 1, Sampling{TopK: -1}},
		"temperature is NaN":                               {[]int32{1}, 1, Sampling{Temperature: math.NaN()}},
		"id 256 at (0, 0) is outside the vocabulary [0, 2": {[]int32{256}, 1, Sampling{}},
	} {
		require.ErrorContains(t, testutil.Err(s.Generate(c.prompt, c.n, c.how)), message)
	}
	require.Empty(t, testutil.Must(s.Generate([]int32{1}, 0, Sampling{}))(t))
}
