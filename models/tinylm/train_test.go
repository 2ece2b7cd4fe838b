package tinylm

import (
	"bytes"
	"context"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	G "gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/graph"
	"github.com/gorgonia-nsa/nsa/graph/optim"
	"github.com/gorgonia-nsa/nsa/internal/testutil"
)

// text is data that a small model learns quickly.
func text(t testing.TB) *Data {
	t.Helper()
	all := []byte(strings.Repeat("The block of a query is clamped to the query; blocks before it are whole. ", 400))
	cut := len(all) * 9 / 10
	return &Data{Name: "a text", Train: all[:cut], HeldOut: all[cut:]}
}

// short is a training of a few steps.
func short(steps int) Training {
	t := TinyTraining()
	t.Batch, t.Steps, t.Duration = 4, steps, 0
	t.Evaluations, t.EvalTokens, t.FinalTokens = 2, 512, 8192
	t.SampleBytes = 20
	return t
}

// train trains a small model on text.
func train(t testing.TB, how Training) *Result {
	t.Helper()
	return testutil.Must(Train(context.Background(), small(), text(t), how))(t)
}

// outcome is all numbers of a run: its weights and its loss.
func outcome(t testing.TB, r *Result) map[string][]float64 {
	all := bits(t, r.Weights)
	all["held out"] = []float64{r.HeldOut}
	return all
}

func TestTrainLearnsAndWritesTheRunFolder(t *testing.T) {
	var progress bytes.Buffer
	training := short(60)
	training.Progress, training.Out = &progress, filepath.Join(t.TempDir(), "runs", "a")
	r := train(t, training)
	require.Less(t, r.HeldOut, 3.2)
	require.Equal(t, 60, r.Steps)
	require.Equal(t, 60*4*64, r.Tokens)
	require.Len(t, r.Sample, 20)
	require.Contains(t, progress.String(), "held out")

	require.FileExists(t, filepath.Join(training.Out, "loss.png"))
	require.FileExists(t, filepath.Join(training.Out, "steps.csv"))
	w := testutil.Must(LoadWeights(filepath.Join(training.Out, WeightsFile)))(t)
	require.Equal(t, bits(t, r.Weights), bits(t, w))
}

// TestRandomBytesCanNotBeLearned would find any look at a token's future: it would show as a loss below ln 256 = 5.545.
func TestRandomBytesCanNotBeLearned(t *testing.T) {
	for _, attention := range []Attention{NSA, Dense} {
		t.Run(string(attention), func(t *testing.T) {
			data := testutil.Must(RandomData(1<<20, 256, 1))(t)
			c := small()
			c.Attention = attention
			training := short(200)
			training.FinalTokens = 32 << 10
			r := testutil.Must(Train(context.Background(), c, data, training))(t)
			require.Greater(t, r.HeldOut, 5.54)
			require.Less(t, r.HeldOut, 5.8)
		})
	}
}

func TestTrainStopsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), 300*time.Millisecond)
	defer cancel()
	training := short(1 << 30)
	training.Out = filepath.Join(t.TempDir(), "run")
	r := testutil.Must(Train(ctx, small(), text(t), training))(t)
	require.Less(t, r.Steps, 1<<30)
	require.FileExists(t, filepath.Join(training.Out, WeightsFile))
	require.FileExists(t, filepath.Join(training.Out, "steps.csv"))
}

// TestTrainByTime: training goes on for its duration, which is doubled until it has room for a second step on this machine.
func TestTrainByTime(t *testing.T) {
	training, steps := short(0), 0
	for training.Duration = 50 * time.Millisecond; steps < 2; training.Duration *= 2 {
		r := train(t, training)
		require.GreaterOrEqual(t, r.Elapsed, training.Duration)
		steps = r.Steps
	}
}

func TestLearningRate(t *testing.T) {
	r := run{Training: Training{Steps: 100, LR: 1, Warmup: 0.1, Floor: 0.5}}
	for steps, want := range map[int]float64{0: 0.1, 9: 1, 10: 1, 55: 0.75, 100: 0.5} {
		r.steps = steps
		require.InDelta(t, want, r.rate(0), 1e-12)
	}
	r.Steps, r.Duration = 0, time.Hour
	for done, want := range map[float64]float64{0: 0, 0.05: 0.5, 0.1: 1, 0.55: 0.75, 1: 0.5} {
		require.InDelta(t, want, r.rate(done), 1e-4)
	}
}

func TestTrainRefuses(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	require.NoError(t, os.WriteFile(file, []byte("in the way"), 0o644))
	for _, c := range []struct {
		name    string
		change  func(*Config, *Data, *Training)
		message string
	}{
		{"no length", func(_ *Config, _ *Data, t *Training) { t.Steps = 0 }, "0 steps and a duration of 0s, want one above 0"},
		{"two lengths", func(_ *Config, _ *Data, t *Training) { t.Duration = time.Second }, "3 steps and a duration of 1s, want one above 0"},
		{"duration", func(_ *Config, _ *Data, t *Training) { t.Duration = -1 }, "3 steps and a duration of -1ns, want one above 0"},
		{"warm-up", func(_ *Config, _ *Data, t *Training) { t.Warmup = 1.5 }, "warm-up is 1.5 of the run"},
		{"learning rate", func(_ *Config, _ *Data, t *Training) { t.LR = 0 }, "learning rate is 0"},
		{"temperature", func(_ *Config, _ *Data, t *Training) { t.Sampling.Temperature = -1 }, "temperature is -1"},
		{"config", func(c *Config, _ *Data, _ *Training) { c.Heads = 3 }, "heads 3 not a multiple of kv heads 2"},
		{"data", func(_ *Config, d *Data, _ *Training) { d.HeldOut = d.HeldOut[:64] }, "the held-out part has 64 bytes, want at least 65"},
		{"sample", func(c *Config, _ *Data, _ *Training) { c.Vocab = 257 }, "a sample of text from a vocabulary of 257"},
		{"size", func(_ *Config, _ *Data, t *Training) { t.Batch = 1 << 50 },
			"tinylm: train: batch of 1125899906842624 x 64 tokens: a run has at most 67108864 tokens"},
		{"negative batch", func(_ *Config, _ *Data, t *Training) { t.Batch = -3 }, "batch: -3, want at least 1"},
		{"negative steps", func(_ *Config, _ *Data, t *Training) { t.Steps = -1 }, "steps: -1, want at least 0"},
		{"sample", func(_ *Config, _ *Data, t *Training) { t.SampleBytes = math.MaxInt }, "bytes of the sample: 9223372036854775807, want at most 67108864"},
		{"learning rate that is no number", func(_ *Config, _ *Data, t *Training) { t.LR = math.NaN() }, "learning rate is NaN"},
		{"floor", func(_ *Config, _ *Data, t *Training) { t.Floor = 2 }, "floor is 2"},
		{"decay", func(_ *Config, _ *Data, t *Training) { t.Decay = -1 }, "tinylm: train: optim: adamw: decay is -1"},
		{"clip", func(_ *Config, _ *Data, t *Training) { t.Clip = math.NaN() }, "clip is NaN"},
		{"precision", func(_ *Config, _ *Data, t *Training) { t.Precision = graph.BF16 }, "precision bf16: cpu computes in float32"},
		{"no precision", func(_ *Config, _ *Data, t *Training) { t.Precision = 7 }, "precision 7, want f32, bf16 or fp16"},
		{"folder", func(_ *Config, _ *Data, t *Training) { t.Out = file }, "file exists"},
		{"folder below a file", func(_ *Config, _ *Data, t *Training) { t.Out = filepath.Join(file, "run") }, "not a directory"},
	} {
		t.Run(c.name, func(t *testing.T) {
			config, data, training := small(), text(t), short(3)
			out := filepath.Join(t.TempDir(), "run")
			training.Out = out
			c.change(&config, data, &training)
			require.ErrorContains(t, testutil.Err(Train(context.Background(), config, data, training)), c.message)
			require.NoDirExists(t, out)
		})
	}
	require.ErrorContains(t, testutil.Err(Train(context.Background(), small(), nil, short(3))), "no data")
	var none context.Context
	require.EqualError(t, testutil.Err(Train(none, small(), text(t), short(3))), "tinylm: train: no context")
}

// TestTrainingValidate: what Train refuses for its options and for the environment, Validate refuses without data.
func TestTrainingValidate(t *testing.T) {
	training := short(3)
	training.Backend = graph.NewCPU(1)
	require.NoError(t, training.Validate(small()))
	t.Setenv("NSA_TF32", "perhaps")
	require.ErrorContains(t, training.Validate(small()), `NSA_TF32 is "perhaps", want a boolean`)
	require.EqualError(t, testutil.Err(Train(context.Background(), small(), text(t), training)), training.Validate(small()).Error())
	t.Setenv("NSA_TF32", "")
	training.Backend = (*device)(nil)
	require.ErrorContains(t, training.Validate(small()), "the backend is a nil *tinylm.device")
}

func TestTrainSameBitsForAnyGOMAXPROCS(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(0))
	var runs []map[string][]float64
	for _, procs := range []int{1, 2} {
		runtime.GOMAXPROCS(procs)
		runs = append(runs, outcome(t, train(t, short(5))))
	}
	require.Equal(t, runs[0], runs[1])
}

func TestTrainingStepDoesNotAllocate(t *testing.T) {
	w := newTestWeights(t, small(), tensor.Float32, 1)
	m := newTestModel(t, w, nil, 4, w.Config.Context)
	solver := testutil.Must(optim.NewAdamW())(t)
	b := newBatches(text(t).Train, nil, 1)
	require.Zero(t, testing.AllocsPerRun(10, func() {
		b.next(m)
		if _, err := m.LossAndStep(solver); err != nil {
			t.Error(err)
		}
	}))
}

func TestEvaluateSharesWeights(t *testing.T) {
	w := newTestWeights(t, small(), tensor.Float64, 1)
	data := text(t).HeldOut
	var losses []float64
	for _, size := range [][2]int{{4, 64}, {2, 64}} {
		m := testutil.Must(NewModel(w, size[0], size[1]))(t)
		losses = append(losses, testutil.Must(m.Evaluate(data, 8/size[0]))(t))
		require.ErrorContains(t, testutil.Err(m.Evaluate(data, math.MaxInt)), "are too many")
		require.ErrorContains(t, testutil.Err(m.Evaluate(data[:64], 1)), "want at least 1 of 65")
		require.ErrorContains(t, testutil.Err(m.LossAndStep(nil)), "built without gradients")
		require.NoError(t, m.Close())
	}
	require.InEpsilon(t, losses[0], losses[1], 1e-12, "the same windows in other batches")
	require.InDelta(t, math.Log(256), losses[0], 1.5)
}

// TestTrainKeepsWhatAFailedRunHas: a learning rate that ends in NaN is an error, and the steps before it and the weights are on
// disk.
func TestTrainKeepsWhatAFailedRunHas(t *testing.T) {
	training := short(10)
	training.LR, training.Warmup, training.Out = 1e300, 0, filepath.Join(t.TempDir(), "run")
	r, err := Train(context.Background(), small(), text(t), training)
	require.ErrorContains(t, err, "step 2: ")
	require.Equal(t, 1, r.Steps)
	record := testutil.Must(os.ReadFile(filepath.Join(training.Out, "steps.csv")))(t)
	require.Len(t, strings.Split(strings.TrimSpace(string(record)), "\n"), 2)
	require.FileExists(t, filepath.Join(training.Out, WeightsFile))
	train(t, short(1))
	require.ErrorContains(t, testutil.Err(Train(context.Background(), small(), text(t), training)), "a new run needs a new folder")

	last := short(1) // a step that no later one looks at
	last.LR, last.Warmup, last.Out = 1e38, 0, filepath.Join(t.TempDir(), "run")
	r, err = Train(context.Background(), small(), text(t), last)
	require.ErrorContains(t, err, "the held-out loss after step 1 is NaN")
	require.NotNil(t, r.Weights)
}

// TestTrainWithoutItsFolder: training goes on when its run folder is removed, and returns its weights with the error.
func TestTrainWithoutItsFolder(t *testing.T) {
	training := short(20)
	training.Evaluations, training.Out = 4, filepath.Join(t.TempDir(), "run")
	training.Progress = writer(func([]byte) { os.RemoveAll(training.Out) })
	r, err := Train(context.Background(), small(), text(t), training)
	require.ErrorIs(t, err, os.ErrNotExist)
	require.Equal(t, 20, r.Steps)
	training.Out, training.Progress = "", nil
	same := train(t, training)
	require.Equal(t, bits(t, same.Weights), bits(t, r.Weights))
}

// writer is an io.Writer.
type writer func([]byte)

func (w writer) Write(b []byte) (int, error) { w(b); return len(b), nil }

func TestModelRefuses(t *testing.T) {
	w := newTestWeights(t, small(), tensor.Float32, 1)
	for _, c := range []struct {
		w          *Weights
		batch, seq int
		opts       []ModelOption
		message    string
	}{
		{nil, 1, 8, nil, "no weights"},
		{w, 0, 8, nil, "model of 0 x 8 tokens"},
		{w, 1, 8, []ModelOption{WithVM(func(*Model) (G.VM, error) { return nil, nil })}, "no VM"},
		{w, 1, 8, []ModelOption{nil}, "tinylm: model of 1 x 8 tokens: nil option"},
		{w, 1, 8, []ModelOption{WithMachine(nil)}, "graph: machine: nil option"},
		{w, 1 << 40, 8, nil, "a run has at most 67108864 tokens"},
		{w, 1, 8, []ModelOption{WithVM(tape), WithMachine(graph.WithCapture())}, "WithVM and WithMachine exclude each other"},
	} {
		require.ErrorContains(t, testutil.Err(NewModel(c.w, c.batch, c.seq, c.opts...)), c.message)
	}
	require.ErrorContains(t, testutil.Err(newTestModel(t, w, nil, 1, 8).LossAndStep(nil)), "no solver")
}

// TestLossScaleCancels: the weights after some steps are the same bits at any scale.
func TestLossScaleCancels(t *testing.T) {
	var want map[string][]float64
	for _, scale := range []float64{0, 1, 1 << 16} {
		w := newTestWeights(t, small(), tensor.Float32, 1)
		var opts []ModelOption
		if scale > 0 {
			opts = append(opts, WithLossScale())
		}
		m := newTestModel(t, w, nil, 2, 64, opts...)
		if scale > 0 {
			require.NoError(t, m.SetLossScale(scale))
			require.ErrorContains(t, m.SetLossScale(0), "want a number above 0")
		} else {
			require.ErrorContains(t, m.SetLossScale(1), "built without one")
		}
		solver := newTestSolver(t, m)
		b := newBatches(text(t).Train, nil, 1)
		for range 3 {
			b.next(m)
			require.NoError(t, m.RunAndStep(solver))
		}
		norm := testutil.Must(solver.Norm())(t)
		got := bits(t, w)
		got["norm"] = []float64{norm}
		if want == nil {
			want = got
		}
		require.Equal(t, want, got)
	}
}
