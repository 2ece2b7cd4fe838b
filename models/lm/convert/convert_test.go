package convert

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/go-json-experiment/json"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/graph/nn"
	"github.com/gorgonia-nsa/nsa/internal/command"
	"github.com/gorgonia-nsa/nsa/internal/testutil"
	"github.com/gorgonia-nsa/nsa/models/lm"
	"github.com/gorgonia-nsa/nsa/models/lm/pretrained"
	"github.com/gorgonia-nsa/nsa/models/tinylm"
	"github.com/gorgonia-nsa/nsa/models/tinylm/train"
	"github.com/gorgonia-nsa/nsa/ops"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// inputs writes a very small dense model and texts, and returns the flags of a conversion of it but -out.
func inputs(t testing.TB, more ...string) []string {
	folder := t.TempDir()
	model, data := filepath.Join(folder, "model"), filepath.Join(folder, "data")
	tokens := testutil.Must(testutil.Tokenizer("q u", "Ġ a"))(t)
	c := tinylm.Config{Vocab: 259, Context: 32, Layers: 2, Attention: tinylm.Dense,
		Family:    tinylm.Family{MLPDim: 24, GatedMLP: true, TiedHead: true, NormEps: 1e-5},
		NSAConfig: nn.NSAConfig{Dim: 16, Heads: 2, KVHeads: 1, KeyDim: 8, ValueDim: 8}}
	w := testutil.Must(tinylm.NewWeights(c, tensor.Float32, 1))(t)
	require.NoError(t, lm.Save(w, model, pretrained.Layout{}))
	require.NoError(t, os.WriteFile(filepath.Join(model, "tokenizer.json"), tokens, 0o644))
	require.NoError(t, os.Mkdir(data, 0o755))
	for i, text := range testutil.Documents(60, 400, 1) {
		require.NoError(t, os.WriteFile(filepath.Join(data, fmt.Sprintf("%d.txt", i)), []byte(text), 0o644))
	}
	return append([]string{"-model", model, "-data", data, "-device", "cpu", "-block", "8", "-stride", "4",
		"-select-block", "8", "-top-n", "3", "-window", "8", "-gate-hidden", "4", "-align-steps", "3", "-steps", "3",
		"-context", "64", "-batch-tokens", "128", "-lengths", "32,64", "-windows", "3", "-lr", "3e-3",
		"-align-lr", "3e-3"}, more...)
}

// stopped is the cause of a context that a signal has ended.
var stopped = command.Stop{Signal: syscall.SIGTERM}

// convert converts, until stop is written to the status, if it is not empty.
func convert(t testing.TB, stop string, args ...string) (table string, err error) {
	ctx, cancel := context.WithCancelCause(t.Context())
	defer cancel(nil)
	status := &testutil.Listener{Phrase: stop, Heard: func() {
		if stop != "" {
			cancel(stopped)
		}
	}}
	o, err := Parse(args, io.Discard)
	if err != nil {
		return "", err
	}
	var out bytes.Buffer
	err = Run(ctx, o, &out, status)
	return out.String(), err
}

// read returns the results in a folder, without what differs from call to call.
func read(t testing.TB, folder string) (r Result) {
	require.NoError(t, json.Unmarshal(testutil.Must(os.ReadFile(filepath.Join(folder, resultFile)))(t), &r,
		json.RejectUnknownMembers(true)))
	require.NotEmpty(t, r.Origin["commit"])
	r.Origin = nil
	for i := range r.Phases {
		require.Positive(t, r.Phases[i].Seconds)
		r.Phases[i].Seconds = 0
	}
	for _, m := range r.Measured {
		m.Perplexity.TokensPerSecond = 0
	}
	return r
}

// TestConversion: a conversion has its phases and measurements, and a model that is read as a sparse one. Stopped
// wherever it says something and continued, it ends with the same bits. The same command again changes nothing.
func TestConversion(t *testing.T) {
	stops := []string{"dense: perplexity", "align-32: ", "held out", "aligned: perplexity", "train-64: ",
		"trained: perplexity"}
	for i, kind := range []string{"-seed=2", "-steps=0", "-attention=dense,nsa -lora=2 -rope-scaling=llama3:4",
		"-align-steps=0"} {
		stops := stops
		if i > 0 && !testutil.Full(t) {
			stops = stops[i+1 : i+2]
		}
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			args := inputs(t, strings.Fields(kind)...)
			several := strings.Contains(kind, " ")
			whole, parts := filepath.Join(t.TempDir(), "a", "whole"), filepath.Join(t.TempDir(), "parts")
			table := testutil.Must(convert(t, "", append(args, "-out", whole)...))(t)
			r := read(t, whole)
			var names, stages []string
			for _, p := range r.Phases {
				names = append(names, p.Name)
				require.Equal(t, 128, p.Batch*p.Context)
				require.FileExists(t, filepath.Join(whole, p.Name, "steps.csv"))
			}
			for _, m := range r.Measured {
				stages = append(stages, fmt.Sprint(m.Stage, " ", m.Perplexity.Length))
				require.Contains(t, table, fmt.Sprintf("%.4g", m.Perplexity.All.Perplexity))
			}
			want := strings.Fields("align-32 train-32 train-64")
			wantStages := strings.Split("dense 32,dense 64,aligned 32,aligned 64,trained 32,trained 64", ",")
			switch kind {
			case "-steps=0":
				want, wantStages = want[:1], wantStages[:4]
			case "-align-steps=0":
				want, wantStages = want[1:], append(wantStages[:2], wantStages[4:]...)
			}
			if several {
				wantStages = slices.Insert(wantStages, 2, "dense, llama3:4 32", "dense, llama3:4 64")
			}
			require.Equal(t, want, names)
			require.Equal(t, wantStages, stages)
			require.FileExists(t, filepath.Join(whole, pictureFile))
			model := filepath.Join(whole, modelFolder)
			w := testutil.Must(lm.ReadWeights(model))(t)
			require.EqualValues(t, map[bool]string{true: "dense,nsa", false: "nsa"}[several], w.Config.Attention)
			require.Equal(t, ops.Params{BlockLen: 8, Stride: 4, SelectBlock: 8, TopN: 3, Window: 8}, w.Config.Params)
			require.Equal(t, several, w.Config.RoPEScaling == ops.RoPEScaling{Factor: 4, Low: 1, High: 4, Original: 32})
			require.Zero(t, w.Config.LoRA)
			_, tokens, err := testutil.Must(train.FindModel(model))(t).Open("")
			require.NoError(t, err)
			require.Equal(t, w.Config.Vocab, tokens.Vocab())

			for _, stop := range stops {
				_, err := convert(t, stop, append(args, "-out", parts)...)
				if err != nil {
					require.ErrorIs(t, err, stopped)
					require.Equal(t, 128+int(syscall.SIGTERM), command.ExitStatus(err, io.Discard))
				}
			}
			again := testutil.Must(convert(t, "", append(args, "-out", parts)...))(t)
			require.Equal(t, table, again)
			require.Equal(t, r, read(t, parts))
			for _, name := range []string{"model.safetensors", "config.json", "README.md", "tokenizer.json"} {
				require.Equal(t, testutil.Must(os.ReadFile(filepath.Join(model, name)))(t),
					testutil.Must(os.ReadFile(filepath.Join(parts, modelFolder, name)))(t), name)
			}
			require.Equal(t, table, testutil.Must(convert(t, "", append(args, "-out", parts, "-device", "auto")...))(t))
		})
	}
}

// TestContinuesAfterKill: what a kill leaves at any place is not used, and the conversion ends with the same bits.
func TestContinuesAfterKill(t *testing.T) {
	args := inputs(t)
	out := filepath.Join(t.TempDir(), "out")
	args = append(args, "-out", out)
	table := testutil.Must(convert(t, "", args...))(t)
	model := testutil.Must(os.ReadFile(filepath.Join(out, modelFolder, "model.safetensors")))(t)
	r := read(t, out)
	content := testutil.Must(os.ReadFile(filepath.Join(out, resultFile)))(t)
	for phases := range r.Phases {
		if phases != 1 && !testutil.Full(t) {
			continue
		}
		var cut Result
		require.NoError(t, json.Unmarshal(content, &cut))
		cut.Phases, cut.Measured = cut.Phases[:phases], cut.Measured[:2]
		require.NoError(t, os.WriteFile(filepath.Join(out, resultFile), testutil.Must(json.Marshal(cut))(t), 0o644))
		require.NoError(t, os.RemoveAll(filepath.Join(out, modelFolder)))
		require.NoError(t, os.MkdirAll(filepath.Join(out, ".model"), 0o755))
		if phases > 0 { // a run that is there but not in convert.json continues, one without options begins again
			for _, name := range []string{"config.yaml", "checkpoints"} {
				require.NoError(t, os.RemoveAll(filepath.Join(out, r.Phases[phases].Name, name)))
			}
		}
		require.Equal(t, table, testutil.Must(convert(t, "", args...))(t))
		require.Equal(t, r, read(t, out))
		require.Equal(t, model, testutil.Must(os.ReadFile(filepath.Join(out, modelFolder, "model.safetensors")))(t))
	}
}

// TestOtherOptions: a folder is that of one conversion. The error names what differs.
func TestOtherOptions(t *testing.T) {
	args := inputs(t)
	out := filepath.Join(t.TempDir(), "out")
	_, err := convert(t, "dense: perplexity", append(args, "-out", out)...)
	require.ErrorIs(t, err, stopped)
	for name, value := range map[string]string{"steps": "4", "attention": "dense,nsa", "seed": "7", "lengths": "32",
		"data": args[1], "precision": "bf16", "align-lr": "0.5"} {
		_, err := convert(t, "", append(args, "-out", out, "-"+name, value)...)
		testutil.RequireFlagError(t, err, "convert", name)
		require.ErrorContains(t, err, "begun with other options: -"+name+" ")
	}
	folder := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(folder, "notes.txt"), nil, 0o644))
	_, err = convert(t, "", append(args, "-out", folder)...)
	require.ErrorContains(t, err, "want a new or an empty folder")
	require.NoError(t, os.WriteFile(filepath.Join(args[3], "0.txt"), []byte("another text"), 0o644))
	require.NoError(t, os.WriteFile(filepath.Join(args[3], "z.txt"), bytes.Repeat([]byte("another text"), 5000), 0o644))
	_, err = convert(t, "", append(args, "-out", out)...)
	require.ErrorContains(t, err, "has changed since")
}

// TestFlagsRefuseValues: a wrong value gives an error that names the flag, and no folder.
func TestFlagsRefuseValues(t *testing.T) {
	args := inputs(t)
	out := filepath.Join(t.TempDir(), "out")
	refused := map[string][]string{
		"model": {"", "/missing", args[3]}, "data": {"", "/missing"}, "eval-data": {"/missing"}, "ext": {".nothing"},
		"tokenizer": {"/missing"}, "out": {"", "/dev/null/x"}, "attention": {"sparse", "dense", "nsa,nsa,nsa"},
		"block": {"0", "x"}, "stride": {"0", "3"}, "select-block": {"0", "6"}, "top-n": {"0", "2"}, "window": {"0", "-1"},
		"gate-hidden":  {"0", "-1"},
		"rope-scaling": {"yarn:4", "linear", "linear:x", "linear:1", "llama3:-1", "llama3:Inf", "linear:NaN"},
		"align-steps":  {"-1", "x"}, "steps": {"-1", "x"}, "context": {"1", "-1", "x"}, "batch-tokens": {"1", "63", "x"},
		"align-lr": {"0", "-1", "2", "NaN"}, "lr": {"0", "-1", "2", "NaN"}, "lora": {"-1", "x"},
		"lengths": {"", "1", "32,32", "131073", "x", "100000"}, "windows": {"0", "-1", "x"}, "seed": {"-1", "x"},
		"device": {"tpu", "cuda:-1"}, "precision": {"f8", ""}, "no-such-flag": {"1"},
	}
	Defaults().flags().VisitAll(func(f *flag.Flag) { require.NotNil(t, refused[f.Name], f.Name) })
	for name, values := range refused {
		for _, value := range values {
			_, err := convert(t, "", append(args, "-out", out, "-"+name+"="+value)...)
			testutil.RequireFlagError(t, err, "convert", name)
			require.NoDirExists(t, out, "-%s=%s", name, value)
		}
	}
	_, err := convert(t, "", append(args, "-out", out, "-steps=0", "-align-steps=0")...)
	require.ErrorContains(t, err, "-steps")
	sparse := filepath.Join(t.TempDir(), "sparse")
	testutil.Must(convert(t, "", append(args, "-out", sparse)...))(t)
	_, err = convert(t, "", append(args, "-out", out, "-model", filepath.Join(sparse, modelFolder))...)
	require.ErrorContains(t, err, "want dense")
	require.Zero(t, Main([]string{"-help"}, io.Discard, io.Discard))
	require.Equal(t, 2, Main([]string{"-model", "m"}, io.Discard, io.Discard))
}

func TestNilArguments(t *testing.T) {
	var ctx context.Context
	require.ErrorContains(t, Run(ctx, Defaults(), io.Discard, io.Discard), "no context")
	require.ErrorContains(t, Run(t.Context(), nil, io.Discard, io.Discard), "no options")
	require.ErrorContains(t, (*Options)(nil).Validate(), "no options")
	o := Defaults()
	o.Model, o.Data, o.Out = "m", "d", "o"
	require.ErrorContains(t, Run(t.Context(), o, nil, io.Discard), "no writer")
}
