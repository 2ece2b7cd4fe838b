package generate

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/stretchr/testify/require"

	"github.com/gorgonia-nsa/nsa/internal/testutil"
	"github.com/gorgonia-nsa/nsa/models/tinylm"
)

// TestBatchEqualsSingleTexts: texts generated at once, in any number of slots, equal those of single calls, in the
// order of the prompts.
func TestBatchEqualsSingleTexts(t *testing.T) {
	same := []string{"-model", weightsFile(t), "-tokens", "40", "-temperature", "1.3", "-top-k", "0", "-top-p", "0.9",
		"-repetition-penalty", "1.2", "-past-end"}
	prompts, want := []string{"func ", "größer als der Kontext, der 32 Bytes hat", ""}, ""
	for i, p := range prompts {
		for seed := 5; seed < 7; seed++ {
			want += fmt.Sprintf("--- prompt %d, seed %d\n", i+1, seed) + texts(t, append(promptArgs(p, seed), same...)...)
		}
	}
	for _, batch := range []string{"0", "1", "2", "5"} {
		args := append([]string{"-n", "2", "-seed", "5", "-batch", batch, "-prompt", prompts[0], "-prompt", prompts[1],
			"-prompt", prompts[2]}, same...)
		require.Equal(t, want, texts(t, args...), "%s at once", batch)
	}
	_, _, status := call(t, "", append(promptArgs(prompts[1], 5), same...)...)
	require.Contains(t, status, "prompt 1 has 42 tokens, the context 32: the first 10 are left out\n")
	require.Regexp(t, `(?m)^prefill: 80 tokens, [0-9]+ tokens/s; decode: 36 tokens, [0-9]+ tokens/s\n$`, status,
		"32, and 16 three times")
}

// TestPrompts: a prompt from a flag, a file or the standard input gives the same text, and a stop string ends it.
// TestSharedPrompts: texts whose prompts begin alike, or are the same, equal those of single calls with whole prompts.
func TestSharedPrompts(t *testing.T) {
	same := []string{"-model", weightsFile(t), "-tokens", "20", "-context", "150", "-past-end"}
	prefix := strings.Repeat("the same beginning ", 5)
	for _, n := range []int{1, 2} {
		want, args := "", append([]string{"-n", fmt.Sprint(n), "-seed", "5", "-batch", "2", "-prefill-chunk", "30"}, same...)
		for i, p := range []string{prefix + "of one", prefix + "of another", prefix} {
			for seed := 5; seed < 5+n; seed++ {
				want += fmt.Sprintf("--- prompt %d, seed %d\n", i+1, seed) + texts(t, append(promptArgs(p, seed), same...)...)
			}
			args = append(args, "-prompt", p)
		}
		require.Equal(t, want, texts(t, args...), "%d texts a prompt", n)
	}
}

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
			require.Equal(t, strings.TrimSuffix("größe\n"+before, "\n"), strings.TrimSuffix(texts(t,
				append(args, "-prompt", "größe\n", "-stop", stop)...), "\n"))
			return
		}
	}
	t.Fatal("no letter")
}

// TestFindsModels: a run folder, its checkpoint and its weights give the same model, also if the newest checkpoint is
// damaged. Without -model, it is the model of the newest run.
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
	require.Equal(t, want, texts(t, "-model", alone, "-tokenizer", tokenizer, "-prompt", "qu<|endoftext|>", "-tokens",
		"20"))
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"-model", alone},
			"the model has 258 tokens, a text of bytes has 256: name the model's tokenizer with -tokenizer"},
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

// TestInteractive: each line gets the text of a call with this prompt. A line that is not UTF-8, for a tokenizer, is
// reported, and the next one is answered.
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
		"temperature": {"-1", "NaN", "Inf", "x", ""}, "top-k": {"-1", "x", "1e99"}, "top-p": {"-0.1", "1.1", "NaN"},
		"repetition-penalty": {"0", "-1", "NaN", "Inf"},
		"n":                  {"0", "-1", "x", "2000000", "99999999999"}, "tokens": {"-1", "x"}, "batch": {"-1", "x"},
		"context": {"-1", "x", "100000000"}, "prefill-chunk": {"-1", "x", "100000000"}, "seed": {"-1", "x"}, "stop": {""},
		"device": {"tpu", "cuda:x"}, "precision": {"f8", ""}, "interactive": {"maybe"}, "echo": {"maybe"},
		"past-end": {"maybe"}, "no-such-flag": {"1"},
		"file": {""}, "chat": {"maybe", "true"}, "system": {"You are terse."},
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
		{2, "-device cpu -precision fp16", "generate: -precision fp16: cpu computes in float32"},
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

// TestStreams: text is written before all prompts have been prefilled. When the context ends, no more prompts are
// prefilled.
func TestStreams(t *testing.T) {
	ctx, cancel := context.WithCancelCause(context.Background())
	stop, prefilled := errors.New("stop"), 0
	out := &testutil.Listener{Heard: func() { cancel(stop) }}
	var status bytes.Buffer
	o := testutil.Must(Parse([]string{"-model", weightsFile(t), "-device", "cpu", "-n", "200", "-batch", "200", "-tokens",
		"50", "-prompt", "ab"}, io.Discard))(t)
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
		return testutil.Must(Parse(append([]string{"-model", weightsFile(t), "-device", "cpu", "-tokens", "1"}, args...),
			io.Discard))(t)
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

// failing is a writer of a broken file.
type failing struct{ err error }

func (f failing) Write([]byte) (int, error) {
	return 0, &fs.PathError{Op: "write", Path: "/dev/stdout", Err: f.err}
}

// TestOutputFails: a closed pipe ends the program without a word, and a full disk with an error, also for the help.
func TestOutputFails(t *testing.T) {
	for _, args := range [][]string{{"-help"}, {"-model", weightsFile(t), "-device", "cpu", "-tokens", "5", "-past-end"}} {
		var status bytes.Buffer
		require.Zero(t, Main(args, strings.NewReader("prompt"), failing{syscall.EPIPE}, &status))
		require.NotContains(t, status.String(), "generate: ")
		require.Equal(t, 1, Main(args, strings.NewReader("prompt"), failing{syscall.ENOSPC}, &status))
		require.Equal(t, 1, strings.Count(status.String(), "generate: "), status.String())
	}
}

// collected keeps what a program writes.
type collected struct {
	mutex sync.Mutex
	text  strings.Builder
}

func (c *collected) Write(p []byte) (int, error) {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	return c.text.Write(p)
}

func (c *collected) String() string {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	return c.text.String()
}

// process is the program in a process of its own.
type process struct {
	testing.TB
	cmd         *exec.Cmd
	in          io.WriteCloser
	out, status collected
}

func startProcess(t *testing.T, args ...string) *process {
	if runtime.GOOS == "windows" || signal.Ignored(syscall.SIGINT) {
		t.Skip("a process cannot be sent an interrupt")
	}
	p := &process{TB: t, cmd: exec.Command(testutil.Must(os.Executable())(t))}
	p.cmd.Env = append(os.Environ(), childArgs+"="+strings.Join(append([]string{"-device", "cpu"}, args...), "\n"))
	p.cmd.Stdout, p.cmd.Stderr = &p.out, &p.status
	p.in = testutil.Must(p.cmd.StdinPipe())(t)
	require.NoError(t, p.cmd.Start())
	late := time.AfterFunc(time.Minute, func() { _ = p.cmd.Process.Kill() })
	t.Cleanup(func() { late.Stop() })
	return p
}

// await waits until a condition is true.
func (p *process) await(condition func() bool) {
	p.Helper()
	require.Eventually(p, condition, time.Minute, time.Millisecond, p.status.String())
}

// requireExit waits for the end of the program and checks its status.
func (p *process) requireExit(code int) {
	p.Helper()
	if err := p.cmd.Wait(); err != nil {
		require.ErrorAs(p, err, new(*exec.ExitError), p.status.String())
	}
	require.Equal(p, code, p.cmd.ProcessState.ExitCode(), p.status.String())
}

// TestSignal: Ctrl-C ends an endless text after a whole character. The program reports its speed and exits with 128 +
// n.
func TestSignal(t *testing.T) {
	p := startProcess(t, "-model", weightsFile(t), "-tokens", "0", "-past-end")
	require.NoError(t, p.in.Close())
	p.await(func() bool { return len(p.out.String()) > 100 })
	require.NoError(t, p.cmd.Process.Signal(syscall.SIGINT))
	p.requireExit(128 + int(syscall.SIGINT))
	require.True(t, utf8.ValidString(p.out.String()))
	require.Regexp(t, `interrupt: the text ends here; a second one leaves at once\nprefill: .*; decode: .*\n$`,
		p.status.String())
}

// TestInterruptInDialog: an interrupt ends the text that streams and no more; the next line is answered. An interrupt
// at the prompt ends the program, and so does the end of the input.
func TestInterruptInDialog(t *testing.T) {
	model := weightsFile(t)
	for _, c := range []struct {
		code int
		end  func(p *process)
	}{
		{128 + int(syscall.SIGINT), func(p *process) { require.NoError(p, p.cmd.Process.Signal(syscall.SIGINT)) }},
		{0, func(p *process) { require.NoError(p, p.in.Close()) }},
		{128 + int(syscall.SIGTERM), func(p *process) { require.NoError(p, p.cmd.Process.Signal(syscall.SIGTERM)) }},
	} {
		p := startProcess(t, "-model", model, "-interactive", "-tokens", "0", "-past-end")
		for answers := 1; answers <= 2; answers++ {
			p.await(func() bool { return strings.Count(p.status.String(), "> ") == answers })
			before := len(p.out.String())
			testutil.Must(io.WriteString(p.in, "one\n"))(t)
			p.await(func() bool { return len(p.out.String()) > before+100 })
			require.NoError(t, p.cmd.Process.Signal(syscall.SIGINT))
		}
		p.await(func() bool { return strings.Count(p.status.String(), "> ") == 3 })
		p.await(func() bool { return strings.HasSuffix(p.out.String(), "\n") }) // the text ends its line
		c.end(p)
		p.requireExit(c.code)
		require.Regexp(t, `prefill: .*; decode: .*\n$`, p.status.String())
	}
}

// TestFitsTerminal: at each width no row of the terminal is broken, also by wide characters.
func TestFitsTerminal(t *testing.T) {
	args := []string{"-model", weightsFile(t), "-device", "cpu", "-tokens", "60", "-past-end", "-echo", "-n", "2",
		"-prompt", "日本語 größe\tx " + strings.Repeat("語", 150)}
	for _, columns := range []int{20, 33, 40, 60, 80, 132, 200} {
		s := &testutil.Screen{Width: columns}
		require.Zero(t, Main(args, nil, s, s))
		require.Zero(t, s.Broken, "%d: %q", columns, s.Lines())
		require.Zero(t, Main([]string{"-help"}, nil, s, s))
		require.Equal(t, 2, Main([]string{"-top-p", "3"}, nil, s, s))
		require.Equal(t, 1, Main([]string{"-model", strings.Repeat("/missing", 20)}, nil, s, s))
		require.Zero(t, s.Broken, "%d: %q", columns, s.Lines())
	}
}
