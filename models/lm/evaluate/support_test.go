package evaluate

import (
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/graph"
	"github.com/gorgonia-nsa/nsa/internal/testutil"
	"github.com/gorgonia-nsa/nsa/models/tinylm"
	"github.com/gorgonia-nsa/nsa/models/tinylm/tokenizer"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// config returns a very small model.
func config(attention tinylm.Attention, vocab int) tinylm.Config {
	c := tinylm.Tiny()
	c.Dim, c.Layers, c.Context, c.Attention, c.Vocab = 32, 1, 64, attention, vocab
	return c
}

// evaluator returns an evaluator of a very small model with random weights that make no uniform guesses.
func evaluator(t testing.TB, attention tinylm.Attention, tok *tokenizer.Tokenizer) *Evaluator {
	return evaluatorOn(t, graph.NewCPU(0), attention, tok)
}

func evaluatorOn(t testing.TB, b graph.Backend, attention tinylm.Attention, tok *tokenizer.Tokenizer) *Evaluator {
	w := testutil.Must(tinylm.NewWeights(config(attention, tok.Vocab()), tensor.Float32, 1))(t)
	head := w.Tensors["head.weight"].Data().([]float32)
	for i := range head {
		head[i] *= 20
	}
	require.NoError(t, w.MoveTo(b))
	t.Cleanup(func() { require.NoError(t, w.Free()); require.NoError(t, b.Close()) })
	return &Evaluator{Weights: w, Tokenizer: tok, Backend: b}
}

func byteTokens(t testing.TB) *tokenizer.Tokenizer { return testutil.Must(tokenizer.Open("", ""))(t) }

// subwords returns a tokenizer whose texts begin with BOS if bos.
func subwords(t testing.TB, bos bool) *tokenizer.Tokenizer {
	folder := t.TempDir()
	config := `{"bos_token": "<|endoftext|>", "add_bos_token": false}`
	if bos {
		config = strings.ReplaceAll(config, "false", "true")
	}
	for name, content := range map[string]string{"tokenizer_config.json": config,
		"tokenizer.json": string(testutil.Must(testutil.Tokenizer("q u", "Ġ a"))(t))} {
		require.NoError(t, os.WriteFile(filepath.Join(folder, name), []byte(content), 0o644))
	}
	return testutil.Must(tokenizer.OpenFolder(folder, ""))(t)
}

// oracle returns the cross entropy of each token but the first, in loops of float64 over the logits of a model of this
// length.
func oracle(t testing.TB, w *tinylm.Weights, tokens []int32) (list []float64) {
	m := testutil.Closing(tinylm.NewModel(w, 1, len(tokens)))(t)
	copy(m.Tokens(), tokens)
	m.NextTokens()
	require.NoError(t, m.Run())
	logits := testutil.Must(m.Logits())(t).Data().([]float32)
	v := w.Config.Vocab
	for i, next := range tokens[1:] {
		row := logits[i*v:][:v]
		top := math.Inf(-1)
		for _, l := range row {
			top = max(top, float64(l))
		}
		sum := 0.0
		for _, l := range row {
			sum += math.Exp(float64(l) - top)
		}
		list = append(list, top+math.Log(sum)-float64(row[next]))
	}
	return list
}

func sum(list []float64) (s float64) {
	for _, x := range list {
		s += x
	}
	return s
}
