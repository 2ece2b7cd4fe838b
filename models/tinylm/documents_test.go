package tinylm

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/graph/nn"
	"github.com/gorgonia-nsa/nsa/internal/testutil"
)

// TestDocumentTargets: the last token of a document predicts nothing.
func TestDocumentTargets(t *testing.T) {
	m := &Model{batch: 2, seq: 4, tokens: Bytes{}.Encode("abccdddd"), targets: make([]int32, 8),
		cuSeqlens: []int32{0, 1, 4, 4, 8}}
	m.NextTokens()
	require.Equal(t, []int32{-1, 'c', 'c', -1, 'd', 'd', 'd', -1}, m.targets)
	m.cuSeqlens = make([]int32, 5)
	m.wholeRows()
	require.Equal(t, []int32{0, 4, 8, 8, 8}, m.cuSeqlens)
}

// TestPackedModel: the logits of each document have the bits of a model of this document alone, and the loss is the
// mean over the targets of all documents.
func TestPackedModel(t *testing.T) {
	const batch, seq, most = 2, 64, 20
	mlp, dense, mixed := small(), small(), small()
	mlp.Phi, mlp.PhiHidden = nn.PhiMLP, 12
	dense.Attention = Dense
	mixed.Attention = "window,dense"
	for name, c := range map[string]Config{"mean": small(), "mlp": mlp, "dense": dense, "mixed": mixed} {
		t.Run(name, func(t *testing.T) {
			w := newTestWeights(t, c, tensor.Float32, 1)
			m := newTestModel(t, w, nil, batch, seq, WithDocuments(most))
			plain := newTestModel(t, w, nil, batch, seq)
			require.Nil(t, plain.CuSeqlens())
			copy(m.Tokens(), testutil.Tokens(3, batch*seq, c.Vocab))
			copy(plain.Tokens(), m.Tokens())
			for _, x := range []*Model{m, plain} { // without boundaries, rows are documents
				x.NextTokens()
				require.NoError(t, x.Run())
			}
			require.Equal(t, testutil.Must(plain.Logits())(t).Data(), testutil.Must(m.Logits())(t).Data())
			require.Equal(t, testutil.Must(plain.Loss())(t), testutil.Must(m.Loss())(t))

			cu := []int32{0, 1, 1, 9, 10, 64, 90, 128}
			for i := copy(m.CuSeqlens(), cu); i <= most; i++ {
				m.CuSeqlens()[i] = batch * seq
			}
			m.NextTokens()
			require.NoError(t, m.Run())
			logits, sum, targets := testutil.Must(m.Logits())(t).Float32s(), 0.0, 0
			for i := range len(cu) - 1 {
				first, end := int(cu[i]), int(cu[i+1])
				if first == end {
					continue
				}
				own := newTestModel(t, w, nil, 1, end-first)
				copy(own.Tokens(), m.Tokens()[first:end])
				own.NextTokens()
				require.NoError(t, own.Run())
				require.Equal(t, testutil.Must(own.Logits())(t).Float32s(), logits[first*c.Vocab:end*c.Vocab], "document %d", i)
				sum += testutil.Must(own.Loss())(t) * float64(end-first-1)
				targets += end - first - 1
			}
			require.InEpsilon(t, sum/float64(targets), testutil.Must(m.Loss())(t), 1e-5)

			m.CuSeqlens()[2] = 64
			require.ErrorContains(t, m.Run(), "cu_seqlens[3] is 9")
		})
	}
	w := newTestWeights(t, small(), tensor.Float32, 1)
	require.ErrorContains(t, testutil.Err(NewModel(w, 3, 8, WithDocuments(2))), "room for 2 documents")
	require.ErrorContains(t, testutil.Err(NewModel(w, 3, 8, WithDocuments(math.MaxInt))), "want 3 to 67108864")
}

// TestPackedSteps: wrong boundaries are an error. It changes no weight and no later step. A step of documents allocates
// nothing.
func TestPackedSteps(t *testing.T) {
	const documents = 40
	w := newTestWeights(t, small(), tensor.Float32, 1)
	m := newTestModel(t, w, nil, 4, w.Config.Context, WithDocuments(documents), WithOptimizer(newTestSolver(t)))
	fill, r := windows(m, prose, 1), rand.New(rand.NewPCG(1, 2))
	next := func() {
		fill()
		cu := m.CuSeqlens()
		m.wholeRows()
		for i := 5; i <= documents; i++ {
			cu[i] = int32(1 + r.IntN(len(m.Tokens())))
		}
		slices.Sort(cu)
		m.endDocuments()
	}
	next()
	require.NoError(t, m.Step())
	before := bits(t, w)
	good := slices.Clone(m.CuSeqlens())
	m.CuSeqlens()[1] = 65
	require.ErrorContains(t, m.Step(), "document 0, tokens [0, 65)")
	require.Equal(t, before, bits(t, w))
	copy(m.CuSeqlens(), good)
	require.NoError(t, m.Step())
	require.NotEqual(t, before, bits(t, w))
	require.Zero(t, testing.AllocsPerRun(10, func() {
		next()
		if err := m.Step(); err != nil {
			panic(err)
		}
	}))
}
