package recall

import (
	"bytes"
	"context"
	"encoding/csv"
	"image/png"
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/cuda"
	"github.com/gorgonia-nsa/nsa/graph"
	"github.com/gorgonia-nsa/nsa/internal/testutil"
	"github.com/gorgonia-nsa/nsa/models/tinylm"
)

// smallOptions returns options for a training of a moment.
func smallOptions(t *testing.T) Options {
	o := DefaultOptions()
	o.Backend = graph.NewCPU(2)
	t.Cleanup(func() { require.NoError(t, o.Backend.Close()) })
	o.Steps, o.Rows, o.EvalEvery, o.EvalDocs, o.FinalDocs = 30, 1, 10, 1, 2
	return o
}

// TestCompare trains and evaluates models of all kinds. The loss falls, and a second call gives the same numbers and
// plots.
func TestCompare(t *testing.T) {
	task := testutil.Must(NewTask(256, 16))(t)
	compare := func() (runs []Run, files map[string][]byte) {
		var text bytes.Buffer
		runs = testutil.Must(Compare(context.Background(), task, testutil.Must(NewTask(512, 16))(t), UsualKinds(),
			smallOptions(t), &text))(t)
		for i, run := range runs {
			for j := range run.Evaluations {
				runs[i].Evaluations[j].Elapsed = 0
			}
			require.Contains(t, text.String(), string(run.Kind))
		}
		files = map[string][]byte{}
		for _, path := range testutil.Must(Report{task, runs, []Column{{Name: "commit",
			Value: "abc"}}}.Save(t.TempDir()))(t) {
			files[filepath.Base(path)] = testutil.Must(os.ReadFile(path))(t)
		}
		return runs, files
	}
	runs, files := compare()
	require.Len(t, runs, 3)
	for _, run := range runs {
		require.Len(t, run.Evaluations, 3)
		require.Less(t, run.Evaluations[2].Loss, 0.8*run.Evaluations[0].Loss, run.Kind)
		require.Equal(t, []int{256, 512}, run.contexts())
		for _, context := range run.contexts() {
			questions := 0
			for _, b := range run.Final[context] {
				questions += len(b.Answers)
			}
			require.Equal(t, 2*task.Questions, questions)
		}
	}
	for _, name := range []string{"recall_256_steps.png", "recall_256_distance.png"} {
		testutil.Must(png.Decode(bytes.NewReader(files[name])))(t)
	}
	lines := testutil.Must(csv.NewReader(bytes.NewReader(files["recall_256.csv"])).ReadAll())(t)
	require.Len(t, lines, 1+3*(3+2*bins))
	again, sameFiles := compare()
	require.Equal(t, runs, again)
	require.Equal(t, files, sameFiles)
}

func TestOptionsRefuse(t *testing.T) {
	task := testutil.Must(NewTask(1024, 32))(t)
	for message, change := range map[string]func(*Options){
		"recall: no backend":                     func(o *Options) { o.Backend = nil },
		"recall: precision 9":                    func(o *Options) { o.Precision = 9 },
		"recall: precision fp16":                 func(o *Options) { o.Precision = graph.FP16 },
		"recall: steps is 0":                     func(o *Options) { o.Steps = 0 },
		"recall: rows is -1":                     func(o *Options) { o.Rows = -1 },
		"recall: learning rate is 0":             func(o *Options) { o.LR = 0 },
		"recall: share of easier documents is 1": func(o *Options) { o.Easier = 1 },
		"recall: evaluations of 0 documents":     func(o *Options) { o.EvalDocs = 0 },
	} {
		o := smallOptions(t)
		change(&o)
		_, err := Train(context.Background(), task, NSA, o, nil)
		require.ErrorContains(t, err, message)
	}
	_, err := Train(context.Background(), Task{}, NSA, smallOptions(t), nil)
	require.ErrorContains(t, err, "recall: context is 0")
	stopped, cancel := context.WithCancel(context.Background())
	cancel()
	_, err = Train(stopped, task, NSA, smallOptions(t), nil)
	require.ErrorIs(t, err, context.Canceled)
	_, err = Train(context.Background(), task, "linear", smallOptions(t), nil)
	require.ErrorContains(t, err, `model "linear"`)
	_, err = ParseKinds("nsa,linear")
	require.ErrorContains(t, err, `model "linear"`)
}

// TestNilArguments: an argument that is nil is an error, as is an unknown kind.
func TestNilArguments(t *testing.T) {
	task, o, ctx := testutil.Must(NewTask(256, 16))(t), smallOptions(t), context.Background()
	w := testutil.Must(tinylm.NewWeights(task.Model(NSA), tensor.Float32, 1))(t)
	typed, none, odd := o, o, o
	var noContext context.Context
	typed.Backend, none.FinalDocs, odd.Precision = (*cuda.Backend)(nil), 0, 9
	for _, c := range []struct {
		err  error
		want string
	}{
		{testutil.Err(Train(noContext, task, NSA, o, nil)), "recall: no context"},
		{testutil.Err(Train(ctx, task, NSA, typed, nil)), "recall: no backend"},
		{testutil.Err(Evaluate(noContext, w, task, o)), "recall: no context"},
		{testutil.Err(Evaluate(ctx, nil, task, o)), "recall: no weights"},
		{testutil.Err(Evaluate(ctx, w, task, typed)), "recall: no backend"},
		{testutil.Err(Evaluate(ctx, w, task, none)), "evaluation of 0 documents"},
		{testutil.Err(Evaluate(ctx, w, task, odd)), "recision"},
		{testutil.Err(Compare(noContext, task, task, UsualKinds(), o, io.Discard)), "recall: no context"},
		{testutil.Err(Compare(ctx, task, task, nil, o, io.Discard)), "recall: no models to compare"},
		{testutil.Err(Compare(ctx, task, task, []Kind{NSA, "linear"}, o, io.Discard)), `recall: model "linear"`},
		{testutil.Err(Compare(ctx, task, task, UsualKinds(), o, nil)), "recall: no writer"},
		{testutil.Err(Compare(ctx, task, task, UsualKinds(), o, (*bytes.Buffer)(nil))), "recall: no writer"},
		{testutil.Err(Compare(ctx, task, task, UsualKinds(), typed, io.Discard)), "recall: no backend"},
		{testutil.Err(Compare(ctx, task, Task{}, UsualKinds(), o, io.Discard)), "recall: context is 0"},
		{testutil.Err(Compare(ctx, task, testutil.Must(NewTask(512, 32))(t), UsualKinds(), o, io.Discard)),
			"32 pairs of 16 values"},
	} {
		require.ErrorContains(t, c.err, c.want)
	}
}
