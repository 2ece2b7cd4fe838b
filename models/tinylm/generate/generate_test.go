package generate

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gorgonia-nsa/nsa/internal/testutil"
	"github.com/gorgonia-nsa/nsa/models/tinylm"
)

// TestBatchEqualsSingleTexts: texts generated at once, in any number of slots, equal those of single calls, in the order of the prompts.
func TestBatchEqualsSingleTexts(t *testing.T) {
	same := []string{"-model", weightsFile(t), "-tokens", "40", "-temperature", "1.3", "-top-k", "0", "-top-p", "0.9", "-repetition-penalty", "1.2", "-past-end"}
	prompts, want := []string{"func ", "größer als der Kontext, der 32 Bytes hat", ""}, ""
	for i, p := range prompts {
		for seed := 5; seed < 7; seed++ {
			want += fmt.Sprintf("--- prompt %d, seed %d\n", i+1, seed) + texts(t, append(promptArgs(p, seed), same...)...)
		}
	}
	for _, batch := range []string{"0", "1", "2", "5"} {
		args := append([]string{"-n", "2", "-seed", "5", "-batch", batch, "-prompt", prompts[0], "-prompt", prompts[1], "-prompt", prompts[2]}, same...)
		require.Equal(t, want, texts(t, args...), "%s at once", batch)
	}
	_, _, status := call(t, "", append(promptArgs(prompts[1], 5), same...)...)
	require.Contains(t, status, "prompt 1 has 42 tokens, the context 32: the first 10 are left out\n")
	require.Regexp(t, `(?m)^prefill: 80 tokens, [0-9]+ tokens/s; decode: 36 tokens, [0-9]+ tokens/s\n$`, status, "32, and 16 three times")
}

// TestPrompts: a prompt from a flag, a file or the standard input gives the same text, and a stop string ends it.
func TestPrompts(t *testing.T) {
	model := weightsFile(t)
	args := []string{"-model", model, "-tokens", "30", "-echo", "-past-end"}
	path := filepath.Join(t.TempDir(), "prompt.txt")
	require.NoError(t, os.WriteFile(path, []byte("größe\n"), 0o644))
	want := texts(t, append(args, "-prompt", "größe\n")...)
	require.True(t, strings.HasPrefix(want, "größe\n"))
	require.Equal(t, want, texts(t, append(args, "-file", path)...))
	_, out, _ := call(t, "größe\n", append(args, "-file", "-")...)
	require.Equal(t, want, out)
	line := texts(t, append(args, "-prompt", "größe")...)
	for _, more := range [][]string{nil, {"-prompt", "-"}} { // as echo writes a prompt
		for _, in := range []string{"größe", "größe\n", "größe\r\n"} {
			_, out, _ := call(t, in, append(args, more...)...)
			require.Equal(t, line, out, more)
		}
	}
	_, out, _ = call(t, "not read", append(args, "-prompt", "größe")...)
	require.Equal(t, line, out)
	code, _, status := call(t, "", append(args, "-prompt", "-", "-file", "-")...)
	require.Equal(t, 2, code)
	require.Contains(t, status, "the standard input is wanted more than once")
	text := []rune(strings.TrimPrefix(want, "größe\n"))
	require.Greater(t, len(text), 10)
	for i := range text {
		if stop := string(text[i : i+1]); stop != "\uFFFD" && stop != "\n" {
			before, _, _ := strings.Cut(string(text), stop)
			require.Equal(t, strings.TrimSuffix("größe\n"+before, "\n"), strings.TrimSuffix(texts(t, append(args, "-prompt", "größe\n", "-stop", stop)...), "\n"))
			return
		}
	}
	t.Fatal("no letter")
}

// TestFindsModels: a run folder, its checkpoint and its weights give the same model, also if the newest checkpoint is damaged. Without
// -model, it is the model of the newest run.
func TestFindsModels(t *testing.T) {
	t.Chdir(t.TempDir())
	code, out, status := call(t, "")
	require.Equal(t, 2, code)
	require.Empty(t, out)
	require.Contains(t, status, "go run ./examples/train")
	trained(t, filepath.Join("runs", "b"))
	time.Sleep(20 * time.Millisecond) // so that their times differ
	trained(t, filepath.Join("runs", "a"), "-seed", "2")
	want := texts(t, "-tokens", "20", "-past-end")
	args := []string{"-tokens", "20", "-past-end", "-model"}
	for _, path := range []string{"runs/a", "runs/a/model.safetensors"} {
		require.Equal(t, want, texts(t, append(args, path)...), path)
	}
	require.NotEqual(t, want, texts(t, append(args, "runs/b")...))
	require.NoError(t, os.Mkdir("weights", 0o755)) // in a folder with the options of another program
	require.NoError(t, os.Link("runs/a/model.safetensors", "weights/model.safetensors"))
	require.NoError(t, os.WriteFile("weights/config.yaml", []byte("foo: bar\n"), 0o644))
	require.Equal(t, want, texts(t, append(args, "weights/model.safetensors")...))

	checkpoints := testutil.Must(filepath.Glob("runs/a/checkpoints/step-*"))(t)
	newest := checkpoints[len(checkpoints)-1]
	require.NoError(t, os.Remove("runs/a/model.safetensors"))
	unfinished := texts(t, append(args, "runs/a")...)
	require.Equal(t, unfinished, texts(t, append(args, newest)...))
	require.NoError(t, os.Truncate(filepath.Join(newest, "optimizer.safetensors"), 10))
	_, _, status = call(t, "", append(args, "runs/a")...)
	require.Contains(t, status, "warning: checkpoint "+filepath.Base(newest))
	code, _, status = call(t, "", append(args, newest)...)
	require.Equal(t, 1, code)
	require.Contains(t, status, "optimizer.safetensors: truncated")
}

// TestTokenizer: the tokenizer of the run turns the prompt into tokens. Weights without a run need the flag -tokenizer.
func TestTokenizer(t *testing.T) {
	folder, tokenizer := filepath.Join(t.TempDir(), "run"), tokenizerFile(t)
	trained(t, folder, "-tokenizer", tokenizer)
	code, want, status := call(t, "", "-model", folder, "-prompt", "qu<|endoftext|>", "-tokens", "20")
	require.Zero(t, code, status)
	require.Contains(t, status, "prefill: 2 tokens")
	alone := filepath.Join(t.TempDir(), "w.safetensors")
	require.NoError(t, testutil.Must(tinylm.LoadWeights(filepath.Join(folder, "model.safetensors")))(t).Save(alone))
	require.Equal(t, want, texts(t, "-model", alone, "-tokenizer", tokenizer, "-prompt", "qu<|endoftext|>", "-tokens", "20"))
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"-model", alone}, "the model has 258 tokens, a text of bytes has 256: name the model's tokenizer with -tokenizer"},
		{[]string{"-model", weightsFile(t), "-tokenizer", tokenizer}, "the model has 256 tokens, " + tokenizer + " has 258"},
		{[]string{"-model", folder, "-prompt", "\xff"}, "generate: prompt 1: encode: text is not UTF-8"},
	} {
		code, _, status := call(t, "", c.args...)
		require.Equal(t, 1, code)
		require.Contains(t, status, c.want)
	}
	require.NoError(t, os.Remove(tokenizer))
	_, _, status = call(t, "", "-model", folder)
	require.Contains(t, status, "say where with -tokenizer")

	content := strings.ReplaceAll(string(testutil.Must(os.ReadFile(tokenizerFile(t)))(t)), "endoftext", "fin")
	require.NoError(t, os.WriteFile(tokenizer, []byte(content), 0o644))
	other := filepath.Join(t.TempDir(), "other")
	trained(t, other, "-tokenizer", tokenizer, "-separator", "<|fin|>")
	code, _, status = call(t, "", "-model", other, "-prompt", "qu<|fin|>", "-tokens", "5")
	require.Zero(t, code, status)
	require.Contains(t, status, "prefill: 2 tokens", "the token that ends a document is that of the run")
}

// TestInteractive: each line gets the text of a call with this prompt. A line that is not UTF-8, for a tokenizer, is reported, and the next
// one is answered.
func TestInteractive(t *testing.T) {
	args := []string{"-model", weightsFile(t), "-tokens", "10", "-past-end"}
	want := texts(t, append(args, "-prompt", "one")...) + texts(t, append(args, "-prompt", "two")...) + texts(t, args...)
	code, out, status := call(t, "one\r\ntwo\n\n", append(args, "-interactive")...)
	require.Zero(t, code)
	require.Equal(t, want, out)
	require.Equal(t, 4, strings.Count(status, "> "))

	folder := filepath.Join(t.TempDir(), "run")
	trained(t, folder, "-tokenizer", tokenizerFile(t))
	args[1] = folder
	code, out, status = call(t, "q\xffu\nqu\n", append(args, "-interactive")...)
	require.Zero(t, code, status)
	require.Contains(t, status, "prompt 1: ")
	require.Equal(t, texts(t, append(args, "-prompt", "qu")...), out)
}

// TestFlagsRefuseValues: wrong arguments give one line that names the flag or the value, and the exit status 2.
func TestFlagsRefuseValues(t *testing.T) {
	model := weightsFile(t)
	nonsense := map[string][]string{
		"temperature": {"-1", "NaN", "Inf", "x", ""}, "top-k": {"-1", "x", "1e99"}, "top-p": {"-0.1", "1.1", "NaN"}, "repetition-penalty": {"0", "-1", "NaN", "Inf"},
		"n": {"0", "-1", "x", "2000000", "99999999999"}, "tokens": {"-1", "x"}, "batch": {"-1", "x"}, "context": {"-1", "x", "100000000"}, "seed": {"-1", "x"}, "stop": {""},
		"device": {"tpu", "cuda:x"}, "precision": {"f8", ""}, "interactive": {"maybe"}, "echo": {"maybe"}, "past-end": {"maybe"}, "no-such-flag": {"1"},
		"file": {""},
	}
	noFile := map[string]string{"model": "/missing", "file": "/missing", "tokenizer": "/missing", "device": "cuda:-1"}
	new(Options).flags().VisitAll(func(f *flag.Flag) {
		if nonsense[f.Name] == nil && f.Name != "prompt" { // any text is one
			require.Contains(t, noFile, f.Name)
		}
	})
	for name, value := range noFile {
		code, _, status := call(t, "", "-model", model, "-"+name, value)
		require.NotZero(t, code)
		testutil.RequireFlagError(t, errors.New(status), "generate", name)
	}
	tried := 0
	for name, values := range nonsense {
		for _, value := range values {
			args := []string{"-model", model, "-" + name + "=" + value}
			code, out, status := call(t, "", args...)
			require.Equal(t, 2, code, "%q: %s", args, status)
			require.Empty(t, out)
			testutil.RequireFlagError(t, errors.New(status), "generate", name)
			tried++
		}
	}
	require.Greater(t, tried, 30)
	for _, c := range []struct {
		code int
		args string
		want string
	}{
		{2, "hello", `generate: unexpected argument "hello"`},
		{2, "-interactive -prompt x", "want neither -prompt nor -file"},
		{1, "-model /missing", "/missing: no such file or directory"},
		{1, "-model " + t.TempDir(), "neither model.safetensors nor a checkpoint in it"},
		{1, "-file /missing", "generate: -file /missing: no such file"},
		{2, "-device cpu -precision bf16", "generate: -precision bf16: cpu computes in float32"},
		{2, "-context 100000000", "generate: -context is 100000000, want 0 to 67108864"},
		{2, "-context 67108864 -n 2", "generate: 2 texts at once of -context 67108864, want at most 67108864 tokens"},
		{1, "-n 600000 -prompt a -prompt b", "1200000 texts, want at most 1048576"},
		{0, "-help", ""},
	} {
		if runtime.GOOS == "windows" {
			c.want = strings.ReplaceAll(c.want, "no such file or directory", "")
		}
		code, out, status := call(t, "", append([]string{"-model", model}, strings.Fields(c.args)...)...)
		require.Equal(t, c.code, code, c.args)
		require.Contains(t, status, c.want)
		require.LessOrEqual(t, strings.Count(status, "\n"), 2)
		require.Equal(t, c.code == 0, strings.Contains(out, "-repetition-penalty"), "the list of flags")
	}
}

// TestStreams: text is written before all prompts have been prefilled. When the context ends, no more prompts are prefilled.
func TestStreams(t *testing.T) {
	ctx, cancel := context.WithCancelCause(context.Background())
	stop, prefilled := errors.New("stop"), 0
	out := &testutil.Listener{Heard: func() { cancel(stop) }}
	var status bytes.Buffer
	o := testutil.Must(Parse([]string{"-model", weightsFile(t), "-device", "cpu", "-n", "200", "-batch", "200", "-tokens", "50", "-prompt", "ab"}, io.Discard))(t)
	require.ErrorIs(t, Run(ctx, o, nil, out, &status), stop)
	testutil.Must(fmt.Sscanf(status.String()[strings.Index(status.String(), "prefill: "):], "prefill: %d", &prefilled))(t)
	require.LessOrEqual(t, prefilled, 3*2)
}

// TestIdleInput: when the context ends, Run does not wait for the end of its input.
func TestIdleInput(t *testing.T) {
	ctx, cancel := context.WithCancelCause(context.Background())
	stop := errors.New("stop")
	in, end := io.Pipe()
	defer end.Close()
	o := testutil.Must(Parse([]string{"-model", weightsFile(t), "-device", "cpu", "-file", "-"}, io.Discard))(t)
	time.AfterFunc(10*time.Millisecond, func() { cancel(stop) })
	require.ErrorIs(t, Run(ctx, o, in, io.Discard, io.Discard), stop)
}

// TestNilArguments: an argument that is nil is an error.
func TestNilArguments(t *testing.T) {
	parse := func(args ...string) *Options {
		return testutil.Must(Parse(append([]string{"-model", weightsFile(t), "-device", "cpu", "-tokens", "1"}, args...), io.Discard))(t)
	}
	var ctx context.Context
	require.ErrorContains(t, Run(ctx, parse(), nil, io.Discard, io.Discard), "no context")
	ctx = t.Context()
	require.ErrorContains(t, Run(ctx, nil, nil, io.Discard, io.Discard), "no context")
	require.ErrorContains(t, (*Options)(nil).Validate(), "no options")
	for _, o := range []*Options{parse("-file", "-"), parse("-prompt", "-"), parse("-interactive")} {
		for _, in := range []io.Reader{nil, (*os.File)(nil)} {
			require.ErrorContains(t, Run(ctx, o, in, io.Discard, io.Discard), "no input")
		}
	}
	require.ErrorContains(t, Run(ctx, parse(), nil, nil, io.Discard), "no writer")
	require.ErrorContains(t, Run(ctx, parse(), nil, io.Discard, (*bytes.Buffer)(nil)), "no writer")
	require.NoError(t, Run(ctx, parse(), nil, io.Discard, io.Discard))
}
