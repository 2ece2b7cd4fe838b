package evaluate

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"image/png"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/go-json-experiment/json"
	"github.com/stretchr/testify/require"
	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/internal/testutil"
	"github.com/gorgonia-nsa/nsa/models/tinylm"
)

// inputs writes a very small model of bytes, a text and questions, and returns the flags that name them.
func inputs(t testing.TB) (model, data, questions string) {
	folder := t.TempDir()
	w := testutil.Must(tinylm.NewWeights(config(tinylm.NSA, 256), tensor.Float32, 1))(t)
	model, data = filepath.Join(folder, "w.safetensors"), filepath.Join(folder, "data.txt")
	questions = filepath.Join(folder, "q.jsonl")
	require.NoError(t, w.Save(model))
	require.NoError(t, os.WriteFile(data, []byte(strings.Repeat("The quick quay, a queue. ", 40)), 0o644))
	question := `{"question": "1 + 1 =", "choices": ["2", "3"], "answer": 0}`
	require.NoError(t, os.WriteFile(questions, []byte(question), 0o644))
	return model, data, questions
}

func call(t testing.TB, args ...string) (code int, out, status string) {
	t.Helper()
	var o, s bytes.Buffer
	code = Main(append([]string{"-device", "cpu"}, args...), &o, &s)
	return code, o.String(), s.String()
}

// read returns the results in a folder.
func read(t testing.TB, folder string) (r Report) {
	require.NoError(t, json.Unmarshal(testutil.Must(os.ReadFile(filepath.Join(folder, resultFile)))(t), &r,
		json.RejectUnknownMembers(true)))
	return r
}

// TestProgram: the program prints its tables, and writes all numbers with what they come from, and pictures. A second
// call does not replace them.
func TestProgram(t *testing.T) {
	model, data, questions := inputs(t)
	out := filepath.Join(t.TempDir(), "a", "b")
	args := []string{"-model", model, "-data", data, "-windows", "3", "-decode", "5", "-needles", "200,300",
		"-depths", "3", "-times", "2", "-choices", questions, "-out", out}
	code, tables, status := call(t, args...)
	require.Zero(t, code, status)
	r := read(t, out)
	require.Equal(t, []int{64, 3}, []int{r.Perplexity.Length, r.Perplexity.Windows}, "the length of the training")
	require.Len(t, r.Needles, 6)
	require.Equal(t, []int{1, 5, 1000}, []int{r.Choices.Asked, r.Speed.Decoded, r.Data.Tokens})
	require.Equal(t, Model{Path: model, Weights: model, Attention: "nsa", Layers: 1, Vocab: 256, Context: 64,
		Parameters: config(tinylm.NSA, 256).Parameters()}, r.Model)
	require.Len(t, r.Data.SHA256, 64)
	for _, name := range []string{"date", "commit", "device", "cores", "precision", "go", "command"} {
		require.NotEmpty(t, r.Origin[name], name)
	}
	require.Contains(t, r.Origin["command"], "go run ./examples/evaluate -choices "+questions)
	require.Contains(t, r.Origin["command"], " -needles 200,300 ")
	for _, want := range []string{
		"windows: 3 of 64 tokens", fmt.Sprintf("%.4f", r.Perplexity.All.Loss),
		fmt.Sprintf("%.4f", r.Perplexity.All.BitsPerByte), "prefill: 64 tokens", "5 tokens", "200 tokens  300 tokens\n",
		"   50 %      0 of 2      0 of 2\n", "of 1 right (acc)", "a guess 50 %",
	} {
		require.Contains(t, tables, want)
	}
	for _, name := range []string{perplexityFile, needleFile} {
		picture := testutil.Must(os.ReadFile(filepath.Join(out, name)))(t)
		require.InDelta(t, 827, testutil.Must(png.DecodeConfig(bytes.NewReader(picture)))(t).Width, 1)
	}

	require.NoError(t, os.Remove(filepath.Join(out, resultFile)))
	code, tables, status = call(t, args...)
	require.Equal(t, 2, code)
	require.Empty(t, tables)
	require.Contains(t, status, "has the perplexity.png of another evaluation: want another folder")
}

// TestMeasuresWhatIsAsked: nothing else is in the results.
func TestMeasuresWhatIsAsked(t *testing.T) {
	model, data, questions := inputs(t)
	for args, want := range map[string][4]bool{
		"-data " + data:                           {true, true, false, false},
		"-data " + data + " -decode 0":            {true, false, false, false},
		"-data " + data + " -windows 0 -decode 2": {false, true, false, false},
		"-data " + data + " -windows 0 -decode 0 -needles 200 -times 1 -depths 1": {false, false, true, false},
		"-choices " + questions: {false, false, false, true},
	} {
		out := filepath.Join(t.TempDir(), "out")
		code, _, status := call(t, append(strings.Fields(args), "-model", model, "-out", out)...)
		require.Zero(t, code, status)
		r := read(t, out)
		require.Equal(t, want, [4]bool{r.Perplexity != nil, r.Speed != nil, r.Needles != nil, r.Choices != nil}, args)
	}
	short := filepath.Join(t.TempDir(), "short")
	require.NoError(t, os.WriteFile(short, []byte("a short text"), 0o644))
	code, tables, status := call(t, "-model", model, "-data", short, "-decode", "0")
	require.Zero(t, code, status)
	require.Contains(t, tables, "windows: 1 of 12 tokens", "without -length a text may be shorter than a window")
}

// TestKeepsWhatIsMeasured: when a signal ends the program, its results so far are there.
func TestKeepsWhatIsMeasured(t *testing.T) {
	model, data, _ := inputs(t)
	out, stop := filepath.Join(t.TempDir(), "out"), errors.New("stop")
	args := []string{"-model", model, "-device", "cpu", "-data", data, "-needles", "200", "-out", out}
	o := testutil.Must(Parse(args, io.Discard))(t)
	ctx, cancel := context.WithCancelCause(t.Context())
	status := &testutil.Listener{Heard: func() { cancel(stop) }, Phrase: "needle in 200 tokens"}
	var tables bytes.Buffer
	require.ErrorIs(t, Run(ctx, o, &tables, status), stop)
	r := read(t, out)
	require.NotNil(t, r.Speed)
	require.Nil(t, r.Needles)
	require.Contains(t, tables.String(), "perplexity")
}

// TestFlagsRefuseValues: a wrong value gives one line that names the flag, no result, and no folder.
func TestFlagsRefuseValues(t *testing.T) {
	model, data, questions := inputs(t)
	out := filepath.Join(t.TempDir(), "out")
	nonsense := map[string][]string{
		"length": {"-1", "1", "131073", "x"}, "windows": {"-1", "x"}, "decode": {"-1", "131073", "x"},
		"needles": {"x", "0", "-5", "131073", "200,", "200;300", "200,300,200"},
		"depths":  {"0", "-1", "1025", "x"}, "times": {"0", "x"}, "sequences": {"0", "1025", "x"},
		"seed": {"-1", "x"}, "device": {"tpu"}, "precision": {"f8", ""}, "model": {""}, "no-such-flag": {"1"},
	}
	failing := map[string]string{"model": "/missing", "tokenizer": "/missing", "data": "/missing",
		"choices": "/missing", "device": "cuda:-1", "out": "/dev/null/x", "ext": ".nothing"}
	new(Options).flags().VisitAll(func(f *flag.Flag) {
		require.True(t, nonsense[f.Name] != nil || failing[f.Name] != "", f.Name)
	})
	try := func(want int, name, value string) {
		code, tables, status := call(t, "-model", model, "-data", data, "-choices", questions, "-out", out,
			"-"+name+"="+value)
		require.Equal(t, want, min(code, 2), "-%s %q: %s", name, value, status)
		require.Empty(t, tables)
		require.NoDirExists(t, out)
		testutil.RequireFlagError(t, errors.New(lastLine(status)), "evaluate", name)
	}
	for name, values := range nonsense {
		for _, value := range values {
			try(2, name, value)
		}
	}
	for name, value := range failing {
		if name == "ext" {
			continue // of a folder alone
		}
		try(map[bool]int{true: 2, false: 1}[name == "device"], name, value)
	}
	for args, want := range map[string]string{
		"-model m": "nothing to measure", "-model m -data d -windows 0 -decode 0": "nothing to measure",
		"-model m -needles 200": "want -data", "-model m -choices c -ext .md": "-ext without -data",
		"": "-model is missing", "-model m more": "unexpected argument",
	} {
		code, _, status := call(t, strings.Fields(args)...)
		require.Equal(t, 2, code, args)
		require.Contains(t, status, want)
	}
	for args, want := range map[string]string{
		"-needles 2000":                     "evaluate: -data " + data + ": 1000 tokens, -needles has 2000",
		"-needles 100 -windows 0 -decode 0": "length 100, want at least",
		"-length 2000":                      "evaluate: -data " + data + ": 1000 tokens, a window of -length has 2000",
		"-choices " + data:                  "evaluate: -choices " + data + ": questions: line 1: ",
		"-data " + filepath.Dir(data) + " -ext .nothing": ": no text",
	} {
		code, _, status := call(t, append([]string{"-model", model, "-data", data}, strings.Fields(args)...)...)
		require.Equal(t, 1, code, args)
		require.Contains(t, status, want)
	}
	code, help, _ := call(t, "-help")
	require.Zero(t, code)
	require.Contains(t, help, "-needles lengths")
}

func lastLine(text string) string {
	lines := strings.Split(strings.TrimSpace(text), "\n")
	return lines[len(lines)-1]
}

func TestNilArguments(t *testing.T) {
	model, data, _ := inputs(t)
	o := testutil.Must(Parse([]string{"-model", model, "-data", data, "-device", "cpu", "-decode", "0"}, io.Discard))(t)
	var ctx context.Context
	require.ErrorContains(t, Run(ctx, o, io.Discard, io.Discard), "no context")
	require.ErrorContains(t, Run(t.Context(), nil, io.Discard, io.Discard), "no options")
	require.ErrorContains(t, (*Options)(nil).Validate(), "no options")
	require.ErrorContains(t, Run(t.Context(), o, nil, io.Discard), "no writer")
	require.ErrorContains(t, Run(t.Context(), o, io.Discard, (*bytes.Buffer)(nil)), "no writer")
	require.NoError(t, Run(t.Context(), &Options{Model: model, Data: data, Windows: 1, Depths: 1, Times: 1, Sequences: 1,
		Device: "cpu", Precision: "f32"}, io.Discard, io.Discard))
	require.ErrorIs(t, Run(t.Context(), o, broken{}, io.Discard), syscall.ENOSPC)
}

// broken is a writer of a full disk.
type broken struct{}

func (broken) Write([]byte) (int, error) { return 0, syscall.ENOSPC }

// TestFitsTerminal: no row of a terminal is broken.
func TestFitsTerminal(t *testing.T) {
	model, data, questions := inputs(t)
	for _, columns := range []int{20, 40, 80} {
		s := &testutil.Screen{Width: columns}
		require.Zero(t, Main([]string{"-model", model, "-data", data, "-choices", questions, "-device", "cpu",
			"-needles", "200", "-times", "1"}, s, s))
		require.Zero(t, s.Broken, "%q", s.Lines())
	}
}

// TestPictures: any grid and any losses can be drawn, and numbers that JSON has not are written as text.
func TestPictures(t *testing.T) {
	at := Position{From: 1, To: 2, Loss: 2000}
	r := &Report{Data: &Text{Path: "d"}, Perplexity: &Perplexity{Length: 2, Windows: 1, All: at,
		Positions: []Position{at}}}
	r.Perplexity.Positions[0].finish()
	for i := range 40 {
		for _, depth := range Depths(30) {
			r.Needles = append(r.Needles, Needle{1 + i, depth, 3, i % 4})
		}
	}
	folder := t.TempDir()
	require.NoError(t, r.Save(folder))
	text := testutil.Must(os.ReadFile(filepath.Join(folder, resultFile)))(t)
	require.Contains(t, string(text), `"perplexity": "+Inf"`)
	require.Equal(t, 2+1+30, strings.Count(needleTable(r.Needles), "\n"))
	require.ErrorContains(t, r.Save(filepath.Join(folder, resultFile)), "evaluate: report: ")
}
