package evaluate

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gorgonia-nsa/nsa/graph/fakedevice"
	"github.com/gorgonia-nsa/nsa/internal/testutil"
	"github.com/gorgonia-nsa/nsa/models/tinylm"
)

// TestOnDevice: a device with memory of its own gives the numbers of the CPU, and has its memory back afterwards.
func TestOnDevice(t *testing.T) {
	f := fakedevice.New()
	host, device := evaluator(t, tinylm.NSA, byteTokens(t)), evaluatorOn(t, f, tinylm.NSA, byteTokens(t))
	text := testutil.Must(host.Tokenizer.Encode(strings.Repeat("hay ", 100)))(t)
	weights := f.MemoryInUse
	var losses, likelihoods [2]float64
	var needles [2][]Needle
	for i, e := range []*Evaluator{host, device} {
		losses[i] = testutil.Must(e.Perplexity(t.Context(), text, 100, 2))(t).All.Loss
		choices := testutil.Must(e.Choose(t.Context(), []Question{{"q", []string{"a", "b"}, 0}}))(t)
		likelihoods[i] = choices.Answers[0].LogLikelihoods[1]
		needles[i] = testutil.Must(e.Needles(t.Context(), text, []int{200}, Depths(2), 1, 1))(t)
		testutil.Must(e.Speed(t.Context(), text[:20], 2, 2))(t)
	}
	require.InEpsilon(t, losses[0], losses[1], 1e-5)
	require.InEpsilon(t, likelihoods[0], likelihoods[1], 1e-5)
	require.Equal(t, needles[0], needles[1])
	require.Positive(t, f.Launches)
	require.Equal(t, weights, f.MemoryInUse)
}
