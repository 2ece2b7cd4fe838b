package recall

import (
	"bytes"
	"context"
	"errors"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gorgonia-nsa/nsa/graph"
	"github.com/gorgonia-nsa/nsa/graph/dist/disttest"
	"github.com/gorgonia-nsa/nsa/internal/testutil"
)

// TestRanksShareDocuments: ranks train as one does, on documents that fit in a rank's part and on longer ones, and have
// its answers at the trained length and at another. All ranks have the same results; rank 0 alone looks at the model.
func TestRanksShareDocuments(t *testing.T) {
	task, other := testutil.Must(NewTask(512, 16))(t), testutil.Must(NewTask(1024, 16))(t)
	options := func() Options {
		o := smallOptions(t)
		o.Steps, o.EvalEvery, o.Seed = 8, 4, 5
		return o
	}
	drawn, r := map[int]bool{}, rand.New(rand.NewPCG(options().Seed, 0))
	for step, o := 0, options(); step < o.Steps; step++ {
		draws := trainer{Options: o, task: task, tokens: make([]int32, 512), targets: make([]int32, 512),
			lengths: make([]int, 1)}
		draws.fill(r, o.lengths(task, step))
		drawn[draws.lengths[0]] = true
	}
	require.Equal(t, map[int]bool{128: true, 256: true, 512: true}, drawn)
	compare := func(g graph.Group) (r Run, err error) {
		o := options()
		o.Group, o.Backend = g, graph.NewCPU(1)
		runs, err := Compare(context.Background(), task, other, []Kind{NSA}, o, new(bytes.Buffer))
		if err = errors.Join(err, o.Backend.Close()); err != nil {
			return r, err
		}
		for i := range runs[0].Evaluations {
			runs[0].Evaluations[i].Elapsed = 0
		}
		return runs[0], nil
	}
	one := testutil.Must(compare(nil))(t)
	for _, ranks := range []int{2, 4} { // of 4 documents of 256 tokens lie over all, too
		runs := make([]Run, ranks)
		require.NoError(t, disttest.OnRanks(ranks, func(g graph.Group) (err error) {
			runs[g.Rank()], err = compare(g)
			return err
		}))
		require.NotNil(t, runs[0].Look)
		runs[0].Look = nil
		for _, run := range runs[1:] {
			require.Equal(t, runs[0], run)
		}
		for i, want := range one.Evaluations {
			got := runs[0].Evaluations[i]
			require.InEpsilon(t, want.Loss, got.Loss, 1e-4)
			requireSameAnswers(t, want.Answers, got.Answers)
		}
		for context, bins := range one.Final {
			for i, want := range bins {
				requireSameAnswers(t, want.Answers, runs[0].Final[context][i].Answers)
			}
		}
	}
}

// requireSameAnswers requires answers to the same questions, of which a few may differ by rounding.
func requireSameAnswers(t *testing.T, want, got []Answer) {
	t.Helper()
	require.Len(t, got, len(want))
	differ := 0
	for i, a := range want {
		require.Equal(t, a.Distance, got[i].Distance)
		if a != got[i] {
			differ++
		}
	}
	require.LessOrEqual(t, differ, 1+len(want)/20)
}

// TestRanksRefuse: a context that ranks cannot share is an error of all of them before anything runs.
func TestRanksRefuse(t *testing.T) {
	task := testutil.Must(NewTask(258, 16))(t)
	require.NoError(t, disttest.OnRanks(2, func(g graph.Group) error {
		o := smallOptions(t)
		o.Group = g
		require.ErrorContains(t, o.Validate(task), "2 ranks share a context of 258 tokens")
		_, err := Compare(context.Background(), testutil.Must(NewTask(256, 16))(t), task, Kinds(), o, new(bytes.Buffer))
		require.ErrorContains(t, err, "recall: 2 ranks share a context of 258 tokens")
		return nil
	}))
	require.NoError(t, disttest.OnRanks(3, func(g graph.Group) error {
		o := smallOptions(t)
		o.Group = g
		require.ErrorContains(t, o.Validate(testutil.Must(NewTask(288, 16))(t)), "want a power of two")
		return nil
	}))
}
