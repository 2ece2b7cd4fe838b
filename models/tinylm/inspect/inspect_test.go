package inspect

import (
	"math"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"gonum.org/v1/gonum/floats"

	"github.com/gorgonia-nsa/nsa/cuda"
	"github.com/gorgonia-nsa/nsa/graph"
	"github.com/gorgonia-nsa/nsa/graph/fakedevice"
	"github.com/gorgonia-nsa/nsa/internal/testutil"
	"github.com/gorgonia-nsa/nsa/models/tinylm"
	"github.com/gorgonia-nsa/nsa/models/tinylm/tokenizer"
	"github.com/gorgonia-nsa/nsa/ops/spec/decode"
)

// TestReportMatchesModel: losses and blocks equal those of a plain run of the model on each window.
func TestReportMatchesModel(t *testing.T) {
	for _, c := range []tinylm.Config{small(), dense(), mixed()} {
		w := weightsOf(t, c)
		tokens := tinylm.Bytes{}.Encode(prose)
		r := testutil.Must(Inspect(w, tokens, Options{}))(t)
		require.Equal(t, len(tokens)/c.Context, r.Windows)
		m := testutil.Closing(tinylm.NewModel(w, 1, c.Context, tinylm.WithParts()))(t)
		mean := 0.0
		for i := range r.Windows {
			copy(m.Tokens(), tokens[i*c.Context:])
			m.NextTokens()
			require.NoError(t, m.Run())
			loss := testutil.Must(m.Loss())(t)
			mean += loss / float64(r.Windows)
			if i > 0 {
				continue
			}
			require.InDelta(t, loss, floats.Sum(r.Loss)/float64(c.Context-1), 1e-5)
			for l, nodes := range m.Layers() {
				if nodes.Blocks == nil {
					require.Nil(t, r.Layers[l].Blocks)
					continue
				}
				blocks := testutil.Must(graph.HostTensor(nodes.Blocks))(t)
				require.Equal(t, blocks.Int32s(), r.Layers[l].Blocks)
			}
		}
		require.InDelta(t, mean, r.MeanLoss(), 1e-5)
	}
}

// pieces is a vocabulary whose tokens begin with a space, as in SentencePiece.
type pieces struct{ tinylm.Bytes }

func (pieces) AppendToken(text []byte, id int32) []byte { return append(text, ' ', byte(id)) }

// TestTokensInsideText: the report has the text that a token has inside a text, not at its beginning.
func TestTokensInsideText(t *testing.T) {
	r := testutil.Must(Inspect(weightsOf(t, small()), tinylm.Bytes{}.Encode(prose), Options{Vocabulary: pieces{}}))(t)
	require.Equal(t, []string{" T", " h", " e"}, r.Tokens[:3])
}

// TestReportProperties checks properties that hold for any model and text.
func TestReportProperties(t *testing.T) {
	for name, c := range map[string]tinylm.Config{"nsa": small(), "dense": dense(), "mixed": mixed()} {
		r := report(t, c, prose)
		require.Equal(t, c.Attention != tinylm.Dense, r.HasBlocks(), name)
		require.Equal(t, prose[:c.Context], strings.Join(r.Tokens, ""))
		for _, l := range r.Layers {
			for _, k := range l.Distances {
				require.InDelta(t, 1, floats.Sum(k.Shares), 1e-9, k.Branch)
				require.Less(t, k.Mean, float64(c.Context))
				if k.Branch == "window" {
					require.Less(t, k.Mean, float64(c.Window))
					require.Zero(t, floats.Sum(k.Shares[bucket(float64(c.Window))+1:]))
				}
			}
			for _, g := range l.Gates {
				require.LessOrEqual(t, g.Entropy, math.Log(3)+1e-9)
				require.Greater(t, g.Entropy, 0.0)
				for _, v := range g.Mean {
					require.True(t, v > 0 && v < 1, v)
				}
			}
			if l.Blocks == nil {
				require.NotEqual(t, "nsa", name)
				require.Empty(t, l.Gates)
				require.Len(t, l.Distances, 1)
				continue
			}
			require.Len(t, l.Gates, c.Heads)
			require.Len(t, l.Distances, 3)
			for at := 0; at < len(l.Blocks); at += l.N {
				q, forced, shares := at/l.N/l.Groups, 0, 0.0
				for k, b := range l.Blocks[at : at+l.N] {
					if b < 0 {
						require.Zero(t, l.Shares[at+k])
						continue
					}
					shares += l.Shares[at+k]
					if r.Forced(q, b) {
						forced++
					}
				}
				require.InDelta(t, 1, shares, 1e-9)
				require.Equal(t, min(3, q/c.SelectBlock+1), forced)
			}
		}
	}
}

// TestInspectOnBackend: Inspect uses the given backend, with its own or the host's memory, and does not close it.
func TestInspectOnBackend(t *testing.T) {
	tokens := tinylm.Bytes{}.Encode(prose)
	want := testutil.Must(Inspect(weightsOf(t, small()), tokens, Options{}))(t)
	for _, b := range []graph.Backend{graph.NewCPU(2), fakedevice.New()} {
		for range 2 {
			require.Equal(t, want, testutil.Must(Inspect(weightsOf(t, small()), tokens, Options{Backend: b}))(t))
		}
		require.NoError(t, b.Close())
	}
}

func TestShortTexts(t *testing.T) {
	for _, n := range []int{2, 7, 9} { // a block has 8 tokens
		r := report(t, small(), prose[:n])
		require.Len(t, r.Tokens, n)
		require.NoError(t, r.WriteHTML(&strings.Builder{}))
		_, err := r.pictures()
		require.NoError(t, err)
	}
}

func TestInspectRefuses(t *testing.T) {
	w := weightsOf(t, small())
	broken := weightsOf(t, small())
	broken.Tensors["head.weight"].Float32s()[7] = float32(math.NaN())
	var unset *tokenizer.Tokenizer
	one, narrow, wide := small(), small(), small()
	one.Context, narrow.Without, wide.Vocab = 1, decode.BranchesOf(decode.Selected), 300
	refused := func(w *tinylm.Weights, o Options, tokens ...int32) error { return testutil.Err(Inspect(w, tokens, o)) }
	for message, err := range map[string]error{
		"inspect: weights: tinylm: ":                     refused(&tinylm.Weights{}, Options{}, 1, 2),
		"a vocabulary of 256 tokens, the model has 300":  refused(weightsOf(t, wide), Options{}, 1, 2),
		"the vocabulary is a nil pointer":                refused(w, Options{Vocabulary: unset}, 1, 2),
		"the backend is a nil pointer":                   refused(w, Options{Backend: (*cuda.Backend)(nil)}, 1, 2),
		"inspect: no weights":                            refused(nil, Options{}, 1, 2),
		"inspect: 1 tokens in a window, want at least 2": refused(w, Options{}, 1),
		"inspect: 0 tokens in a window":                  refused(w, Options{}),
		"1 tokens in a window, want":                     refused(weightsOf(t, one), Options{}, 1, 2, 3),
		"token 256 at 1, want 0 to 255":                  refused(w, Options{}, 1, 256),
		"without one of its branches":                    refused(weightsOf(t, narrow), Options{}, 1, 2, 3),
		"token -1 at 0":                                  refused(w, Options{}, -1, 2),
		"window 0: the loss of token 1 is NaN":           refused(broken, Options{}, 1, 2, 3),
	} {
		require.ErrorContains(t, err, message)
	}
}
