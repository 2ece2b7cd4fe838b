package tinylm

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/graph/nn"
	"github.com/gorgonia-nsa/nsa/internal/testutil"
)

// TestPackedWindows: windows have the documents of the text, cut at their ends; a document's last token predicts nothing.
func TestPackedWindows(t *testing.T) {
	text, ends := []byte("aabcccddddee"), []int{2, 3, 6, 6, 10, 12}
	m := &Model{batch: 2, seq: 4, tokens: make([]int32, 8), targets: make([]int32, 8), cuSeqlens: make([]int32, 9)}
	m.fill(text, ends, func(row int) int { return []int{1, 6}[row] })
	require.Equal(t, append(Encode("abcc"), Encode("dddd")...), m.tokens)
	require.Equal(t, []int32{-1, -1, 'c', 'c', 'd', 'd', 'd', -1}, m.targets)
	require.Equal(t, []int32{0, 1, 2, 4, 8, 8, 8, 8, 8}, m.cuSeqlens)
	m.fill(text, ends, func(row int) int { return []int{3, 4}[row] })
	require.Equal(t, []int32{0, 3, 3, 4, 6, 6, 8, 8, 8}, m.cuSeqlens) // the empty document is one, too
	require.Equal(t, []int32{'c', 'c', -1, 'd', 'c', -1, 'd', 'd'}, m.targets)

	m.cuSeqlens = []int32{0, 1, 4, 4, 8}
	m.NextTokens()
	require.Equal(t, []int32{-1, 'c', 'd', -1, 'c', 'd', 'd', -1}, m.targets)
	m.cuSeqlens = make([]int32, 5)
	m.wholeRows()
	require.Equal(t, []int32{0, 4, 8, 8, 8}, m.cuSeqlens)
}

// TestMostDocuments holds the room for documents to all windows of random texts.
func TestMostDocuments(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for range 300 {
		var ends []int
		n := 0
		for range 1 + r.IntN(20) {
			n += r.IntN(6)
			ends = append(ends, n)
		}
		for seq := 1; seq <= n; seq++ {
			most := 0
			for at := range n - seq + 1 {
				inside := 1
				for _, end := range ends {
					if at < end && end < at+seq {
						inside++
					}
				}
				most = max(most, inside)
			}
			require.Equal(t, most, mostDocuments(ends, seq), "%v, %d", ends, seq)
		}
	}
	require.Equal(t, 1, mostDocuments(nil, 5))
}

// TestReadDataDocuments: the files of a folder are documents, also where the last twentieth is held out instead.
func TestReadDataDocuments(t *testing.T) {
	dir, files := t.TempDir(), map[string]string{}
	for i := range 200 {
		files[fmt.Sprint(i)] = strings.Repeat("x", i%7)
	}
	writeFiles(t, dir, files)
	lengths := func(d *Data) (list []int) {
		for _, part := range []struct {
			text []byte
			ends []int
		}{{d.Train, d.TrainEnds}, {d.HeldOut, d.HeldOutEnds}} {
			from := 0
			for _, end := range part.ends {
				require.Equal(t, end, from+strings.Index(string(part.text[from:])+"\n", "\n")+1, "a file ends with its line break")
				list, from = append(list, end-from), end
			}
			require.Len(t, part.text, from)
		}
		return list
	}
	d := testutil.Must(ReadData(dir, ""))(t)
	require.NoError(t, d.Check(5, 256))
	require.Len(t, lengths(d), 200)

	writeFiles(t, dir, map[string]string{"long": strings.Repeat("x", 20000)}) // the cut goes through it
	d = testutil.Must(ReadData(dir, ""))(t)
	require.NoError(t, d.Check(5, 256))
	require.Equal(t, len(d.Train), d.TrainEnds[len(d.TrainEnds)-1])
	require.Equal(t, len(d.HeldOut), d.HeldOutEnds[len(d.HeldOutEnds)-1])
	require.GreaterOrEqual(t, len(d.TrainEnds)+len(d.HeldOutEnds), 201)

	for _, ends := range [][]int{{}, {3}, {7, 3, len(d.Train)}, {-1, len(d.Train)}, {len(d.Train) + 1}} {
		bad := *d
		bad.TrainEnds = ends
		require.ErrorContains(t, bad.Check(5, 256), "the training part: ", "%v", ends)
	}
}

// TestPackedModel: the logits of each document are those of a model of its own, bit by bit, and the loss is the mean over their
// targets.
func TestPackedModel(t *testing.T) {
	const batch, seq, most = 2, 64, 20
	mlp, dense := small(), small()
	mlp.Phi, mlp.PhiHidden = nn.PhiMLP, 12
	dense.Attention = Dense
	for name, c := range map[string]Config{"mean": small(), "mlp": mlp, "dense": dense} {
		t.Run(name, func(t *testing.T) {
			w := newTestWeights(t, c, tensor.Float32, 1)
			m := newTestModel(t, w, nil, batch, seq, WithDocuments(most))
			plain := newTestModel(t, w, nil, batch, seq)
			require.Nil(t, plain.CuSeqlens())
			copy(m.Tokens(), testutil.Tokens(3, batch*seq, c.Vocab))
			copy(plain.Tokens(), m.Tokens())
			for _, x := range []*Model{m, plain} { // rows are documents before there are any
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
			require.ErrorContains(t, m.Run(), "cu_seqlens[3] is 9, less than the 64 before it")
			want := testutil.Must(plain.Generate([]int32{'a'}, 3, Sampling{}))(t)
			require.Equal(t, want, testutil.Must(m.Generate([]int32{'a'}, 3, Sampling{}))(t), "whole rows again")
		})
	}
	w := newTestWeights(t, small(), tensor.Float32, 1)
	require.ErrorContains(t, testutil.Err(NewModel(w, 3, 8, WithDocuments(2))), "tinylm: model of 3 x 8 tokens: room for 2 documents, want 3 to 67108864")
	require.ErrorContains(t, testutil.Err(NewModel(w, 3, 8, WithDocuments(math.MaxInt))), "want 3 to 67108864")
	m := newTestModel(t, w, nil, 2, 8, WithDocuments(3))
	text := []byte(strings.Repeat("a document. ", 9))
	require.ErrorContains(t, testutil.Err(m.EvaluateDocuments(text, []int{1, 2, 108}, 1)), "2 windows may have 6 documents, the model has room for 3")
	require.ErrorContains(t, testutil.Err(m.EvaluateDocuments(text, []int{1, 2}, 1)), "the last of 2 documents ends at 2, want 108")
	require.NoError(t, testutil.Err(m.EvaluateDocuments(text, nil, 2)))
}

// copies are random bytes of which every second document repeats the one before it: a model that sees across the boundary learns to.
func copies(n int) *Data {
	r, d := rand.New(rand.NewPCG(1, 2)), &Data{Name: "copies"}
	for range n {
		document := make([]byte, 2+r.IntN(20))
		for i := range document {
			document[i] = byte(r.UintN(256))
		}
		for range 2 {
			d.Train = append(d.Train, document...)
			d.TrainEnds = append(d.TrainEnds, len(d.Train))
		}
	}
	d.split(d.Train, d.TrainEnds)
	return d
}

// TestPackedTraining: nothing can be learned from other documents, the same run gives the same bits, and its weights are those of any
// model.
func TestPackedTraining(t *testing.T) {
	data := copies(20000)
	for _, attention := range []Attention{NSA, Dense} {
		c := small()
		c.Attention = attention
		training := short(150)
		training.Packed, training.FinalTokens, training.Out = true, 32<<10, filepath.Join(t.TempDir(), "run")
		r := testutil.Must(Train(context.Background(), c, data, training))(t)
		require.Greater(t, r.HeldOut, 5.53, attention)
		require.Less(t, r.HeldOut, 5.8, attention)
		w := testutil.Must(LoadWeights(filepath.Join(training.Out, WeightsFile)))(t)
		require.Equal(t, r.Weights.Config, w.Config)
		training.Out = ""
		again := testutil.Must(Train(context.Background(), c, data, training))(t)
		require.Equal(t, outcome(t, r), outcome(t, again))
	}
	plain := *data // one document each
	plain.TrainEnds, plain.HeldOutEnds = nil, nil
	training := short(3)
	want := testutil.Must(Train(context.Background(), small(), &plain, training))(t)
	training.Packed = true
	require.Equal(t, outcome(t, want), outcome(t, testutil.Must(Train(context.Background(), small(), &plain, training))(t)))

	wrong := *data
	wrong.HeldOutEnds = slices.Clone(data.HeldOutEnds[1:])
	wrong.HeldOutEnds[0] = len(data.HeldOut) + 1
	require.ErrorContains(t, testutil.Err(Train(context.Background(), small(), &wrong, training)), "tinylm: data: copies: the held-out part: document 0 ends at")
}

// TestPackedSteps: wrong boundaries are an error that changes no weight and spoils no later step, and a step of documents allocates
// nothing.
func TestPackedSteps(t *testing.T) {
	data := copies(500)
	w := newTestWeights(t, small(), tensor.Float32, 1)
	m := newTestModel(t, w, nil, 4, w.Config.Context, WithDocuments(4*mostDocuments(data.TrainEnds, w.Config.Context)))
	b, solver := newBatches(data.Train, data.TrainEnds, 1), newTestSolver(t, m)
	b.next(m)
	require.NoError(t, m.RunAndStep(solver))
	before := bits(t, w)
	good := slices.Clone(m.CuSeqlens())
	m.CuSeqlens()[1] = 65
	require.ErrorContains(t, m.RunAndStep(solver), "document 0, tokens [0, 65), crosses the end of a row of 64 tokens at 64")
	require.Equal(t, before, bits(t, w))
	copy(m.CuSeqlens(), good)
	require.NoError(t, m.RunAndStep(solver))
	require.NotEqual(t, before, bits(t, w))
	require.Zero(t, testing.AllocsPerRun(10, func() {
		b.next(m)
		if err := m.RunAndStep(solver); err != nil {
			panic(err)
		}
	}))
}
