package tinylm

import (
	"cmp"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gorgonia-nsa/nsa/internal/cpu"
	"github.com/gorgonia-nsa/nsa/internal/testutil"
)

// sortedPick is pick by a sort of all tokens. It returns the tokens that may be chosen, their probabilities, and the
// token of a draw.
func sortedPick(logits []float32, how Sampling, seen []int32, draw float64) (ids []int32, probs []float64, id int32) {
	z := make([]float64, len(logits))
	for i, l := range logits {
		z[i] = float64(l)
		if slices.Contains(seen, int32(i)) && how.RepetitionPenalty != 0 {
			if l < 0 {
				z[i] = float64(float32(z[i] * how.RepetitionPenalty))
			} else {
				z[i] = float64(float32(z[i] / how.RepetitionPenalty))
			}
		}
		ids = append(ids, int32(i))
	}
	slices.SortFunc(ids, func(a, b int32) int { return cmp.Or(cmp.Compare(z[b], z[a]), cmp.Compare(a, b)) })
	if how.Temperature == 0 {
		return ids[:1], []float64{1}, ids[0]
	}
	if how.TopK > 0 {
		ids = ids[:min(len(ids), how.TopK)]
	}
	normalised := func() (p []float64) {
		total := 0.0
		for _, id := range ids {
			p = append(p, math.Exp((z[id]-z[ids[0]])/how.Temperature))
			total += p[len(p)-1]
		}
		for i := range p {
			p[i] /= total
		}
		return p
	}
	if probs = normalised(); how.TopP > 0 && how.TopP < 1 {
		n := 0
		for mass := 0.0; mass < how.TopP; n++ {
			mass += probs[n]
		}
		ids = ids[:n]
	}
	slices.Sort(ids)
	top := slices.MaxFunc(ids, func(a, b int32) int { return cmp.Compare(z[a], z[b]) })
	total := 0.0
	probs = probs[:0]
	for _, id := range ids {
		probs = append(probs, math.Exp((z[id]-z[top])/how.Temperature))
		total += probs[len(probs)-1]
	}
	id = -1
	for i := range probs {
		probs[i] /= total
		if draw -= probs[i]; draw < 0 && id < 0 {
			id = ids[i]
		}
	}
	return ids, probs, id
}

// testLogits returns random logits. Some are -Inf, zeros of both signs, or equal to others.
func testLogits(r *rand.Rand, vocab int) []float32 {
	logits := make([]float32, vocab)
	for i := range logits {
		switch n := r.IntN(20); {
		case n == 0 && i > 0:
			logits[i] = float32(math.Inf(-1))
		case n == 1 && i > 0:
			logits[i] = logits[r.IntN(i)]
		case n == 2:
			logits[i] = float32(math.Copysign(0, float64(r.IntN(2))-0.5))
		default:
			logits[i] = float32(3 * r.NormFloat64())
		}
	}
	return logits
}

// TestPickMatchesSort draws from random logits with random values of temperature, top-k, top-p and penalty.
func TestPickMatchesSort(t *testing.T) {
	var p picker
	r := rand.New(rand.NewPCG(1, 2))
	for range 3000 {
		vocab := 1 + r.IntN(300)
		logits, seen := testLogits(r, vocab), tokenSet(nil).reset(vocab)
		how := Sampling{Temperature: []float64{0, 0.3, 1, 2}[r.IntN(4)], TopK: r.IntN(3) * r.IntN(vocab+10),
			TopP:              float64(r.IntN(2)) * r.Float64(),
			RepetitionPenalty: []float64{0, 1, 1.3, 0.7}[r.IntN(4)]}
		before := slices.Clone(logits)
		var list []int32
		for range r.IntN(20) {
			list = append(list, int32(r.IntN(vocab)))
			seen.add(list[len(list)-1])
		}
		ids, probs, _ := sortedPick(logits, how, list, 0)
		at := 0.0
		for i, id := range ids { // each candidate has its part of [0, 1): in its middle, and near the ends of a wide part
			for _, part := range []float64{0.5, 0.01, 0.99} {
				if probs[i] > 1e-5 && part == 0.5 || probs[i] > 1e-3 {
					require.Equal(t, id, testutil.Must(p.pick(logits, &how, seen, at+probs[i]*part))(t), "%+v", how)
				}
			}
			at += probs[i]
		}
		require.Equal(t, before, logits)
	}
}

// TestTopTokensPickAsAll: by the largest logits of a random row a token is chosen if they decide it, and it is the one
// that all logits give. Without a penalty they decide the most likely token, and a draw from as many as there are.
func TestTopTokensPickAsAll(t *testing.T) {
	var all, few picker
	r := rand.New(rand.NewPCG(3, 2))
	inf := float32(math.Inf(1))
	special := []float32{float32(math.NaN()), inf, -inf, -math.MaxFloat32, math.MaxFloat32}
	decided := map[bool]int{} // by penalty
	for range 20000 {
		vocab := 1 + r.IntN(300)
		logits, seen := testLogits(r, vocab), tokenSet(nil).reset(vocab)
		switch r.IntN(4) {
		case 0: // ties
			for i, l := range logits {
				logits[i] = float32(math.Round(float64(l)))
			}
		case 1:
			for range 1 + r.IntN(vocab) {
				logits[r.IntN(vocab)] = special[r.IntN(len(special))]
			}
		}
		for range r.IntN(20) {
			seen.add(int32(r.IntN(vocab)))
		}
		how := Sampling{Temperature: []float64{0, 0.3, 1, 2}[r.IntN(4)], TopK: r.IntN(40),
			TopP: float64(r.IntN(2)) * r.Float64(), RepetitionPenalty: []float64{0, 1, 1.3, 0.7}[r.IntN(4)]}
		ids, draw := make([]int32, min(vocab, 1+r.IntN(40))), r.Float64()
		cpu.Top(ids, logits)
		var top []float32
		for _, id := range ids {
			top = append(top, logits[id])
		}
		want, err := all.pick(logits, &how, seen, draw)
		got, ok := few.pickTop(ids, top, vocab, &how, seen, draw)
		known := how.Temperature == 0 || how.TopK > 0 && how.TopK <= len(ids)
		switch {
		case ok:
			require.NoError(t, err)
			require.Equal(t, want, got, "%+v, %d tokens", how, len(ids))
			require.True(t, known)
			decided[how.penalises()]++
		case !how.penalises():
			require.False(t, known && err == nil, "%+v, %d tokens", how, len(ids))
		}
	}
	require.Greater(t, min(decided[false], decided[true]), 500)
}

// TestPickRefuses: logits by which no token can be chosen are an error.
func TestPickRefuses(t *testing.T) {
	inf := float32(math.Inf(1))
	for want, logits := range map[string][]float32{
		"the logit of token 1 is NaN":         {0, float32(math.NaN()), 1},
		"the logit of token 2 is +Inf":        {0, -inf, inf},
		"the logits of all tokens are -Inf":   {-inf, -inf},
		"the logit of token 0 is NaN":         {float32(math.NaN())},
		"the logit of token 3 is +Inf":        {3, 2, 1, inf, float32(math.NaN())},
		"the logit of token 1 is NaN, seen":   {1, float32(math.NaN())},
		"the logit of token 1 is +Inf, seen ": {1, inf},
	} {
		for _, how := range []Sampling{{}, {Temperature: 1}, {Temperature: 1, TopK: 1, RepetitionPenalty: 2}} {
			var p picker
			seen := tokenSet(nil).reset(len(logits))
			seen.add(int32(len(logits) - 1))
			err := testutil.Err(p.pick(logits, &how, seen, 0.5))
			require.Error(t, err)
			require.Contains(t, want, err.Error())
		}
	}
}

// TestPickExtremes: values at the ends of their ranges give neither NaN nor an impossible token.
func TestPickExtremes(t *testing.T) {
	var p picker
	inf := float32(math.Inf(-1))
	for _, logits := range [][]float32{{inf, math.MaxFloat32, -math.MaxFloat32, inf}, {inf, 1e-45, -1e-45, inf},
		{inf, 0, inf, inf}} {
		seen := tokenSet{6}
		for _, temperature := range []float64{0, math.SmallestNonzeroFloat64, 1, math.MaxFloat64} {
			for _, penalty := range []float64{0, math.SmallestNonzeroFloat64, 1.1, math.MaxFloat64} {
				for _, topP := range []float64{0, math.SmallestNonzeroFloat64, math.Nextafter(1, 0)} {
					for _, draw := range []float64{0, 0.5, math.Nextafter(1, 0)} {
						how := Sampling{Temperature: temperature, RepetitionPenalty: penalty, TopP: topP, TopK: 3}
						require.NoError(t, how.Validate())
						id := testutil.Must(p.pick(logits, &how, seen, draw))(t)
						require.False(t, math.IsInf(float64(logits[id]), -1), "%v %+v", logits, how)
					}
				}
			}
		}
	}
}

func TestPickDoesNotAllocate(t *testing.T) {
	var p picker
	r, how := rand.New(rand.NewPCG(1, 2)), Sampling{Temperature: 0.8, TopK: 40, TopP: 0.95, RepetitionPenalty: 1.1}
	logits, seen := testLogits(r, 5000), tokenSet(nil).reset(5000)
	seen.add(17)
	require.Zero(t, testing.AllocsPerRun(10, func() {
		if _, err := p.pick(logits, &how, seen, r.Float64()); err != nil {
			panic(err)
		}
	}))
	ids := make([]int32, 50)
	cpu.Top(ids, logits)
	require.Zero(t, testing.AllocsPerRun(10, func() {
		p.pickTop(ids, logits[:50], 5000, &how, seen, r.Float64())
	}))
}

func BenchmarkPick(b *testing.B) {
	for name, how := range map[string]Sampling{
		"greedy": {}, "temperature": {Temperature: 0.8}, "top-k 40": {Temperature: 0.8, TopK: 40},
		"top-p 0.95": {Temperature: 0.8, TopP: 0.95},
		"all":        {Temperature: 0.8, TopK: 40, TopP: 0.95, RepetitionPenalty: 1.1},
	} {
		for _, vocab := range []int{256, 50257} {
			b.Run(fmt.Sprintf("%s/%d", name, vocab), func(b *testing.B) {
				var p picker
				r := rand.New(rand.NewPCG(1, 2))
				logits, seen := testLogits(r, vocab), tokenSet(nil).reset(vocab)
				for b.Loop() {
					if _, err := p.pick(logits, &how, seen, r.Float64()); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
	}
}

func BenchmarkPickTop(b *testing.B) {
	for name, how := range map[string]Sampling{"greedy": {}, "top-k 40": {Temperature: 0.8, TopK: 40},
		"all": {Temperature: 0.8, TopK: 40, TopP: 0.95, RepetitionPenalty: 1.1}} {
		b.Run(name, func(b *testing.B) {
			var p picker
			r := rand.New(rand.NewPCG(1, 2))
			logits, seen, ids := testLogits(r, 50257), tokenSet(nil).reset(50257), make([]int32, maxTopTokens)
			cpu.Top(ids, logits)
			top := make([]float32, len(ids))
			for i, id := range ids {
				top[i] = logits[id]
			}
			for b.Loop() {
				p.pickTop(ids, top, 50257, &how, seen, r.Float64())
			}
		})
	}
}
