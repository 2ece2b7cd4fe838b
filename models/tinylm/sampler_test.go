package tinylm

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/internal/testutil"
)

// TestSamplerBatchEqualsAlone: 2,000 sequences with random lengths, prompts and Sampling join a running batch of seven
// slots and leave it, some of them early. Each has the tokens of a run by itself.
func TestSamplerBatchEqualsAlone(t *testing.T) {
	s, d := ofHashes(t, 7, 12)
	r := rand.New(rand.NewPCG(1, 2))
	type request struct {
		prompt []int32
		how    Sampling
		remove int // the sequence is removed after this token
		got    []int32
	}
	var requests []*request
	add := func() {
		d.best = r.IntN(27)
		for len(requests) < 2000 && s.Running() < s.Slots() && r.IntN(3) > 0 {
			q := &request{prompt: testutil.Tokens(uint64(len(requests)), 1+r.IntN(20), 26), remove: 1 + r.IntN(60)}
			q.how = Sampling{Temperature: float64(r.IntN(3)), TopK: r.IntN(30), TopP: r.Float64(), RepetitionPenalty: 0.5 +
				r.Float64(),
				Seed: r.Uint64(), MaxTokens: 1 + r.IntN(40)}
			require.Equal(t, len(requests), testutil.Must(s.Add(q.prompt, q.how))(t))
			requests = append(requests, q)
		}
	}
	ended := 0
	for ended < 2000 {
		add()
		for x, err := range s.Tokens() {
			require.NoError(t, err)
			q := requests[x.Seq]
			q.got = append(q.got, x.ID)
			switch {
			case x.End != EndNone:
				require.Equal(t, EndMaxTokens, x.End)
				require.Len(t, q.got, q.how.MaxTokens)
				require.False(t, s.Remove(x.Seq))
				ended++
			case len(q.got) == q.remove:
				require.True(t, s.Remove(x.Seq))
				ended++
			}
			add()
			if r.IntN(10) == 0 {
				break // the next loop continues
			}
		}
	}
	require.Zero(t, s.Running())
	for i, q := range requests {
		require.Len(t, q.got, min(q.how.MaxTokens, q.remove))
		require.Equal(t, alone(t, d, q.prompt, q.how, len(q.got)), q.got, "sequence %d", i)
	}
	tokens := 0
	for _, p := range d.prefills {
		tokens += len(p)
	}
	require.Equal(t, tokens, s.Stats().Prefilled)
	for slot := range d.seqs {
		require.Zero(t, d.Len(slot))
	}
}

// TestSamplerAtTheContext: a long prompt keeps its last Context tokens, a full sequence the newer half of its tokens.
func TestSamplerAtTheContext(t *testing.T) {
	for _, context := range []int{1, 2, 3, 8} {
		s, d := ofHashes(t, 1, context)
		prompt := testutil.Tokens(1, 9, 26)
		testutil.Must(s.Add(prompt, Sampling{MaxTokens: 12}))(t)
		ids, _, _ := collect(t, s)
		require.Equal(t, prompt[9-context:], d.prefills[0])
		all := append(slices.Clone(prompt), ids[0]...)
		half := max(1, context/2)
		at := len(prompt) // number of tokens in the decoder
		for _, p := range d.prefills[1:] {
			require.Equal(t, all[at+1-half:at+1], p)
			at += 1 + context - half
		}
		require.Equal(t, 1+(11+context-half)/(context-half+1), len(d.prefills))
	}
}

// TestSamplerEnds: stop tokens, stop strings and the number of tokens end a sequence, and its text ends at the right
// place.
func TestSamplerEnds(t *testing.T) {
	s, _ := ofHashes(t, 3, 50)
	prompt := []int32{1, 2, 3}
	testutil.Must(s.Add(prompt, Sampling{MaxTokens: 20}))(t)
	ids, texts, ends := collect(t, s)
	whole := texts[0]
	require.Len(t, whole, 20)
	require.Equal(t, EndMaxTokens, ends[0])

	end := slices.Index(ids[0], ids[0][7]) // the first place of this token
	testutil.Must(s.Add(prompt, Sampling{StopTokens: []int32{ids[0][7]}}))(t)
	testutil.Must(s.Add(prompt, Sampling{Stop: []string{whole[5:8], "AB€"}}))(t)
	testutil.Must(s.Add(prompt, Sampling{Stop: []string{whole[9:10] + "€", "€"}, MaxTokens: 10}))(t)
	stopped, texts, ends := collect(t, s)
	require.Equal(t, []any{whole[:end], EndStopToken, end + 1}, []any{texts[1], ends[1], len(stopped[1])})
	before, _ := firstStop(whole, []string{whole[5:8]})
	require.Equal(t, []any{before, EndStopString, len(before) + 3}, []any{texts[2], ends[2], len(stopped[2])})
	require.Equal(t, []any{whole[:10], EndMaxTokens}, []any{texts[3], ends[3]}, "what was held back is given out")
	require.Equal(t, "stop string", EndStopString.String())
}

// TestSamplerFailures: a step that fails loses no token. Logits by which no token can be chosen end only their own
// sequence.
func TestSamplerFailures(t *testing.T) {
	s, d := ofHashes(t, 2, 6)
	want := map[int][]int32{}
	for seed := range 2 {
		how := Sampling{Temperature: 1, Seed: uint64(seed), MaxTokens: 30}
		want[seed] = alone(t, d, []int32{4}, how, 30)
		testutil.Must(s.Add([]int32{4}, how))(t)
	}
	got, failures, r := map[int][]int32{}, 0, rand.New(rand.NewPCG(1, 2))
	for s.Running() > 0 {
		for x, err := range s.Tokens() {
			if err != nil {
				require.ErrorContains(t, err, "power cut")
				require.Equal(t, -1, x.Seq)
				failures++
				continue
			}
			got[x.Seq] = append(got[x.Seq], x.ID)
			if r.IntN(4) == 0 {
				d.fail = errors.New("power cut")
			}
		}
	}
	require.Equal(t, want, got)
	require.Greater(t, failures, 5)

	s, d = ofHashes(t, 2, 50)
	testutil.Must(s.Add([]int32{4}, Sampling{MaxTokens: 9}))(t)
	testutil.Must(s.Add([]int32{5}, Sampling{MaxTokens: 9}))(t)
	calls, good := 0, 0
	d.change = func(logits []float32) {
		if calls++; calls == 7 {
			logits[11] = float32(math.NaN())
		}
	}
	for x, err := range s.Tokens() {
		if err == nil {
			good++
			continue
		}
		require.ErrorContains(t, err, fmt.Sprintf("sequence %d: the logit of token 11", x.Seq))
		require.Equal(t, EndError, x.End)
	}
	require.Less(t, good, 18)
	require.Greater(t, good, 9)
}

// TestSamplerOfALargeVocabulary: sequences whose tokens are picked at once have those of each alone, also where some are
// removed and others added between their turns.
func TestSamplerOfALargeVocabulary(t *testing.T) {
	const slots = 6
	d := newHashDecoder(t, slots, 8, manyLogits/2)
	s := testutil.Must(newSampler(d, nil))(t)
	want, got := map[int][]int32{}, map[int][]int32{}
	add := func(seed int) {
		how := Sampling{Temperature: 1, TopK: 40 * (seed % 2), Seed: uint64(seed), MaxTokens: 3}
		seq := testutil.Must(s.Add([]int32{int32(seed)}, how))(t)
		want[seq] = alone(t, d, []int32{int32(seed)}, how, 3)
	}
	for seed := range slots {
		add(seed)
	}
	for x, err := range s.Tokens() {
		require.NoError(t, err)
		if got[x.Seq] = append(got[x.Seq], x.ID); x.Seq == 1 && len(got[1]) == 2 {
			require.True(t, s.Remove(4)) // its token is picked already
			add(9)
		}
	}
	require.True(t, slices.Equal(want[4][:len(got[4])], got[4]))
	delete(want, 4)
	delete(got, 4)
	require.Equal(t, want, got)
}

func TestSamplerRefuses(t *testing.T) {
	nan := math.NaN()
	for _, c := range []struct {
		prompt []int32
		how    Sampling
		want   string
	}{
		{nil, Sampling{}, "the prompt is empty"},
		{[]int32{1, 26}, Sampling{}, "token 26 at 1"},
		{[]int32{-1}, Sampling{}, "token -1 at 0"},
		{[]int32{1}, Sampling{Temperature: -1}, "temperature is -1"},
		{[]int32{1}, Sampling{Temperature: nan}, "temperature is NaN"},
		{[]int32{1}, Sampling{Temperature: math.Inf(1)}, "temperature is +Inf"},
		{[]int32{1}, Sampling{TopK: -1}, "top k is -1"},
		{[]int32{1}, Sampling{TopP: 1.1}, "top p is 1.1"},
		{[]int32{1}, Sampling{TopP: nan}, "top p is NaN"},
		{[]int32{1}, Sampling{RepetitionPenalty: -2}, "repetition penalty is -2"},
		{[]int32{1}, Sampling{MaxTokens: -1}, "at most -1 tokens"},
		{[]int32{1}, Sampling{Stop: []string{"a", ""}}, "stop string 1 is empty"},
	} {
		s, d := ofHashes(t, 1, 8)
		err := testutil.Err(s.Add(c.prompt, c.how))
		require.ErrorContains(t, err, c.want)
		require.Equal(t, 1, strings.Count(err.Error(), "tinylm: "), err)
		require.Zero(t, d.Len(0))
		require.Zero(t, s.Running())
		require.Equal(t, 0, testutil.Must(s.Add([]int32{1}, Sampling{}))(t), "the slot is free")
		require.ErrorIs(t, testutil.Err(s.Add([]int32{1}, Sampling{})), ErrBatchFull)
		require.False(t, s.Remove(-1))
		require.True(t, s.Remove(0))
	}
	d := newHashDecoder(t, 2, 8, 26)
	s := testutil.Must(newSampler(d, nil))(t)
	require.ErrorContains(t, testutil.Err(s.Add([]int32{1}, Sampling{Stop: []string{"a"}})), "no vocabulary")
	s = testutil.Must(newSampler(d, Bytes{}))(t)
	require.ErrorContains(t, testutil.Err(s.Add([]int32{1}, Sampling{})), "256 tokens")
	d.seqs[1] = []int32{1}
	require.ErrorContains(t, testutil.Err(newSampler(d, nil)), "slot 1")
	require.ErrorContains(t, testutil.Err(NewSampler(nil, nil)), "no decoder")
}

// TestSamplerFollowsModel: sequences of different lengths get the most likely tokens of a Model that runs the text so
// far.
func TestSamplerFollowsModel(t *testing.T) {
	w := newTestWeights(t, small(), tensor.Float32, 1)
	m := newTestModel(t, w, nil, 1, w.Config.Context)
	d := testutil.Closing(NewDecoder(w, 3, w.Config.Context))(t)
	s := testutil.Must(NewSampler(d, Bytes{}))(t)
	prompts := []string{"func ", "if err != nil { return err }", "x"}
	for _, p := range prompts {
		testutil.Must(s.Add(Bytes{}.Encode(p), Sampling{MaxTokens: 24}))(t)
	}
	ids, _, _ := collect(t, s)
	for i, p := range prompts {
		text := Bytes{}.Encode(p)
		for _, id := range ids[i] {
			clear(m.Tokens()[copy(m.Tokens(), text):]) // padding, which causal attention does not read
			require.NoError(t, m.Run())
			logits := testutil.Must(m.Logits())(t).Float32s()[(len(text)-1)*256:][:256]
			require.InDelta(t, logits[argmax(logits)], logits[id], 1e-4)
			text = append(text, id)
		}
	}
}

// TestSamplerMemory: 2,000 sequences of random lengths join and leave a running batch of a model, and memory does not
// grow.
func TestSamplerMemory(t *testing.T) {
	c := small()
	c.Layers, c.Dim = 1, 16
	s := testutil.Must(NewSampler(testutil.Closing(NewDecoder(newTestWeights(t, c, tensor.Float32, 1), 24, 40))(t),
		Bytes{}))(t)
	r := rand.New(rand.NewPCG(1, 2))
	var heap [2]uint64 // after a tenth of the sequences and after all
	for added, ended := 0, 0; ended < 2000; {
		for added < 2000 && s.Running() < s.Slots() && r.IntN(8) > 0 {
			testutil.Must(s.Add(testutil.Tokens(r.Uint64(), 1+r.IntN(50), 256),
				Sampling{Temperature: 1, TopP: 0.9, RepetitionPenalty: 1.2, Seed: r.Uint64(), MaxTokens: 1 + r.IntN(16)}))(t)
			added++
		}
		for x, err := range s.Tokens() {
			require.NoError(t, err)
			if x.End != EndNone {
				if ended++; ended == 200 || ended == 2000 {
					heap[ended/2000] = heapBytes()
				}
				break
			}
		}
	}
	require.Less(t, heap[1], heap[0]+heap[0]/20+200<<10)
}

// TestSamplerDoesNotAllocate: a warm sampler allocates nothing.
func TestSamplerDoesNotAllocate(t *testing.T) {
	w := newTestWeights(t, small(), tensor.Float32, 1)
	s := testutil.Must(NewSampler(testutil.Closing(NewDecoder(w, 2, w.Config.Context))(t), Bytes{}))(t)
	how := Sampling{Temperature: 1, TopK: 100, TopP: 0.95, RepetitionPenalty: 1.1, StopTokens: []int32{300},
		Stop: []string{"no such text"}}
	token := func() {
		if _, _, err := s.token(); err != nil {
			panic(err)
		}
	}
	for range 2 {
		testutil.Must(s.Add(Bytes{}.Encode("func "), how))(t)
	}
	for range 200 { // beyond the context
		token()
	}
	require.Zero(t, testing.AllocsPerRun(100, token))
}
