package train

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gorgonia-nsa/nsa/internal/runlog"
	"github.com/gorgonia-nsa/nsa/internal/testutil"
)

// start starts a run in a process of its own, with environment variables. What it says goes to out.
func start(t testing.TB, out io.Writer, env []string, args ...string) *exec.Cmd {
	t.Helper()
	cmd := exec.Command(testutil.Must(os.Executable())(t))
	cmd.Env = append(append(os.Environ(), childArgs+"="+strings.Join(args, "\n")), env...)
	cmd.Stdout, cmd.Stderr = out, out
	require.NoError(t, cmd.Start())
	return cmd
}

// TestKills kills and resumes runs at random moments until they end, on the CPU and on a device with its own memory and queues. Each
// ends with the bits of a run that was not killed. Only kills between the first step and the end of a process count.
func TestKills(t *testing.T) {
	t.Parallel()
	kills := testutil.Tries(t, 6, 100)
	args := smallArgs(t, 60, "-eval-every", "25", "-save-minutes", "0.0003", "-keep", "2")
	whole := filepath.Join(t.TempDir(), "whole")
	want := testutil.Must(runArgs(t, append(args, "-out", whole)...))(t)
	for device, env := range map[string]string{"cpu": "", "fake device": "1"} {
		t.Run(device, func(t *testing.T) {
			t.Parallel()
			r := rand.New(rand.NewPCG(1, 2))
			for killed, runs := 0, 0; killed < kills; runs++ {
				require.LessOrEqual(t, runs, kills, "the runs end before they are killed")
				folder := filepath.Join(t.TempDir(), "run")
				killed += killUntilItEnds(t, r, min(kills-killed, 12), childFake+"="+env, folder, args)
				require.Equal(t, modelOf(t, whole), modelOf(t, folder))
				require.Equal(t, want.HeldOutLoss, resultOf(t, folder).HeldOutLoss)
				require.Empty(t, testutil.Must(filepath.Glob(filepath.Join(folder, checkpointFolder, partPrefix+"*")))(t))
				requireWholeRecord(t, folder, 60)
			}
		})
	}
}

// requireWholeRecord checks that the record of a run has one row for each of its steps, also after each kill, and whole lines of events.
func requireWholeRecord(t testing.TB, folder string, steps int) {
	t.Helper()
	rows := strings.Split(string(testutil.Must(os.ReadFile(filepath.Join(folder, runlog.StepsFile)))(t)), "\n")
	require.Len(t, rows, steps+2)
	for i, row := range rows[1 : steps+1] {
		require.Regexp(t, fmt.Sprintf(`^%d(,[^,]*){9}$`, i+1), row)
	}
	for line := range strings.Lines(string(testutil.Must(os.ReadFile(filepath.Join(folder, runlog.EventsFile)))(t))) {
		require.True(t, json.Valid([]byte(line)), line)
		require.NotRegexp(t, `"rows_missing":[^0]`, line)
	}
}

// killUntilItEnds starts a run and resumes it after each kill. Each process kills itself up to 50 ms after its first step, but one in eight is killed
// up to 200 ms after its start, whatever it does then. After so many kills after a first step the run may end. It returns the number of these.
func killUntilItEnds(t testing.TB, r *rand.Rand, most int, env, folder string, args []string) (killed int) {
	for {
		begin := append(slices.Clip(args), "-out", folder)
		if _, err := os.Stat(filepath.Join(folder, optionsFile)); err == nil {
			begin = []string{"-resume", folder}
		} else {
			require.NoError(t, os.RemoveAll(folder))
		}
		var out bytes.Buffer
		hook := ""
		if killed < most {
			hook = strconv.Itoa(r.IntN(50_000))
		}
		cmd := start(t, &out, []string{env, childHook + "=" + hook}, begin...)
		if killed < most && r.IntN(8) == 0 {
			defer time.AfterFunc(time.Duration(r.IntN(200))*time.Millisecond, func() { _ = cmd.Process.Kill() }).Stop()
		}
		err := cmd.Wait()
		if err == nil {
			return killed
		}
		require.True(t, cmd.ProcessState.Sys().(syscall.WaitStatus).Signaled(), "%v: %s", err, &out)
		if exists(filepath.Join(folder, modelFile)) {
			testutil.Must(FindModel(folder))(t) // its sum is right, or not there yet
		}
		if strings.Contains(out.String(), middle) {
			killed++
		}
	}
}

// TestSignals: after signal n in the middle of its work a run exits with 128 + n and a checkpoint of its last step. Resumed, it ends with the
// same bits.
func TestSignals(t *testing.T) {
	t.Parallel()
	args := smallArgs(t, 6, "-save-minutes", "0", "-eval-every", "100")
	whole := filepath.Join(t.TempDir(), "whole")
	testutil.Must(runArgs(t, append(args, "-out", whole)...))(t)
	for _, s := range []syscall.Signal{syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP} {
		folder := filepath.Join(t.TempDir(), "run")
		var cmd *exec.Cmd
		arrived := make(chan error, 1)
		started := make(chan struct{})
		out := &testutil.Listener{Phrase: middle, Heard: func() { <-started; arrived <- cmd.Process.Signal(s) }}
		cmd = start(t, out, []string{childHook + "=wait"}, append(args, "-out", folder)...)
		close(started)
		var exit *exec.ExitError
		require.ErrorAs(t, cmd.Wait(), &exit, "%s", out)
		require.NoError(t, <-arrived)
		require.Equal(t, 128+int(s), exit.ExitCode(), "%s", out)
		require.Contains(t, out.String(), s.String())
		require.Equal(t, 1, wholeCheckpoint(t, folder).state.Step)
		testutil.Must(runArgs(t, "-resume", folder))(t)
		require.Equal(t, modelOf(t, whole), modelOf(t, folder))
	}
}

// TestSecondSignal: the first signal does not end a step that hangs, and a message says so. The second signal ends the program at once.
func TestSecondSignal(t *testing.T) {
	cmd := exec.Command(testutil.Must(os.Executable())(t))
	cmd.Env = append(os.Environ(), childArgs+"="+strings.Join(smallArgs(t, 60, "-out", filepath.Join(t.TempDir(), "run")), "\n"), childHook+"=hang")
	lines := bufio.NewScanner(testutil.Must(cmd.StderrPipe())(t))
	require.NoError(t, cmd.Start())
	defer time.AfterFunc(time.Minute, func() { _ = cmd.Process.Kill() }).Stop()
	for _, said := range []string{"first batch", "terminated: this step is finished and a checkpoint written; a second one leaves at once"} {
		for lines.Scan() && !strings.Contains(lines.Text(), said) {
		}
		require.Contains(t, lines.Text(), said)
		require.NoError(t, cmd.Process.Signal(syscall.SIGTERM))
	}
	require.False(t, lines.Scan(), lines.Text())
	require.Error(t, cmd.Wait())
	require.Equal(t, syscall.SIGTERM, cmd.ProcessState.Sys().(syscall.WaitStatus).Signal())
}

// TestStops stops a run after every step and resumes it. Weights, held-out loss and sample have the bits of a run that was not stopped.
// The same is true with accumulation, packed documents and initial weights.
func TestStops(t *testing.T) {
	t.Parallel()
	for name, more := range map[string][]string{
		"plain": nil, "packed": {"-packed", "-accumulate", "3"}, "accumulate": {"-accumulate", "3"}, "recompute": {"-recompute"}, "dense": {"-attention", "dense"},
	} {
		t.Run(name, func(t *testing.T) {
			if name != "plain" && name != "packed" {
				testutil.FullOnly(t)
			}
			args := smallArgs(t, 6, append([]string{"-save-minutes", "0", "-eval-every", "4"}, more...)...)
			whole, folder := filepath.Join(t.TempDir(), "whole"), filepath.Join(t.TempDir(), "run")
			want := testutil.Must(runArgs(t, append(args, "-out", whole)...))(t)
			begin := append(args, "-out", folder)
			for step := 1; ; step++ {
				o := testutil.Must(Parse(begin, io.Discard))(t)
				ctx, cancel := context.WithCancelCause(context.Background())
				o.hooks.stepped = func(int) { cancel(errStop) }
				got, err := Run(ctx, o, io.Discard)
				if err == nil {
					require.Equal(t, want.HeldOutLoss, got.HeldOutLoss)
					require.Equal(t, want.Sample, got.Sample)
					require.Equal(t, want.BestStep, got.BestStep)
					break
				}
				require.ErrorIs(t, err, errStop)
				begin = []string{"-resume", folder}
				require.LessOrEqual(t, step, 6)
			}
			require.Equal(t, modelOf(t, whole), modelOf(t, folder))
			last, _, err := newestCheckpoint(folder)
			require.NoError(t, err)
			straight, _, err := newestCheckpoint(whole)
			require.NoError(t, err)
			require.Len(t, straight.state.Evaluations, 2)
			require.Equal(t, straight.state.Evaluations, last.state.Evaluations, "none was left out")
			for _, file := range []string{solverFile, modelFile} {
				last := filepath.Join(checkpointFolder, checkpointName(6), file)
				require.Equal(t, testutil.Must(os.ReadFile(filepath.Join(whole, last)))(t), testutil.Must(os.ReadFile(filepath.Join(folder, last)))(t), file)
			}
		})
	}
}

// TestResumeElsewhere: a run of relative paths goes on to the same bits from another working directory, and with its data and tokenizer at
// another place. So does one whose config.yaml has relative paths, from its own directory. Other data and another tokenizer are errors.
func TestResumeElsewhere(t *testing.T) {
	const words = `{"added_tokens":[],"pre_tokenizer":{"type":"Whitespace"},"model":{"type":"WordLevel","unk_token":"[UNK]",` +
		`"vocab":{"[UNK]":0,"[SEP]":1,"The":2,"block":3,"of":4,"query":5,"is":6,"to":7}}}`
	args := smallArgs(t, 4, "-tokenizer", "words.json")
	home, moved, away := filepath.Dir(args[3]), t.TempDir(), t.TempDir()
	args[3] = "text"
	for path, text := range map[string]string{
		filepath.Join(home, "words.json"): words, filepath.Join(moved, "words.json"): words,
		filepath.Join(moved, "others.json"): strings.Replace(words, `"The":2,"block":3`, `"The":3,"block":2`, 1),
		filepath.Join(moved, "more.json"):   strings.Replace(words, `"to":7`, `"to":7,"it":8`, 1),
		filepath.Join(moved, "other.txt"):   strings.Repeat("The query of a block.\n", 1000),
	} {
		require.NoError(t, os.WriteFile(path, []byte(text), 0o644))
	}
	require.NoError(t, os.CopyFS(filepath.Join(moved, "copy"), os.DirFS(filepath.Join(home, "text"))))
	t.Chdir(home)
	whole, stopped, older := filepath.Join(t.TempDir(), "whole"), filepath.Join(t.TempDir(), "stopped"), filepath.Join(t.TempDir(), "older")
	testutil.Must(runArgs(t, append(args, "-out", whole)...))(t)
	o := testutil.Must(Parse(append(args, "-out", stopped), io.Discard))(t)
	ctx, cancel := context.WithCancelCause(t.Context())
	o.hooks.stepped = func(int) { cancel(errStop) }
	require.ErrorIs(t, testutil.Err(Run(ctx, o, io.Discard)), errStop)
	require.NoError(t, os.CopyFS(older, os.DirFS(stopped)))
	options := testutil.Must(ReadOptions(filepath.Join(older, optionsFile), ""))(t)
	require.Equal(t, []string{filepath.Join(home, "text"), filepath.Join(home, "words.json")}, []string{options.Data, options.Tokenizer})
	options.Data, options.Tokenizer, options.Init = "text", "words.json", "w"
	require.NoError(t, os.WriteFile(filepath.Join(older, optionsFile), options.YAML(), 0o644))
	forgetOptions(t, older)

	for _, c := range []struct{ run, from, more, want string }{
		{stopped, away, "", ""},
		{stopped, moved, "-data copy -tokenizer words.json", ""},
		{stopped, moved, "-data " + filepath.Join(home, "text"), ""},
		{older, home, "", ""},
		{older, home, "-data text -init w", ""},
		{older, moved, "-data copy -tokenizer words.json", ""},
		{older, away, "", "words.json: no such file or directory"},
		{stopped, moved, "-data other.txt", filepath.Join(moved, "other.txt") + ": reader: cursor belongs to data "},
		{stopped, moved, "-data random", "a vocabulary of 8 where the data want 256"},
		{stopped, moved, "-tokenizer others.json", "files, tokenizer or held-out part have changed"},
		{stopped, moved, "-tokenizer more.json", "a vocabulary of 8 where the data want 9"},
	} {
		folder := filepath.Join(t.TempDir(), "run")
		require.NoError(t, os.CopyFS(folder, os.DirFS(c.run)))
		t.Chdir(c.from)
		err := testutil.Err(runArgs(t, append([]string{"-resume", folder}, strings.Fields(c.more)...)...))
		if c.want != "" {
			require.ErrorContains(t, err, c.want, c.more)
			require.NotContains(t, err.Error(), "\n", c.more)
			require.NoFileExists(t, filepath.Join(folder, modelFile), c.more)
			continue
		}
		require.NoError(t, err, "%s from %s", c.more, c.from)
		require.Equal(t, modelOf(t, whole), modelOf(t, folder), c.more)
	}
}

// TestResumeOfChangedOptions: a run goes on only with the options that it wrote. A line that is missing or altered is
// an error that names the option, unless the command line gives it. Then it must be what the run has, if it is fixed.
// The file of a run by an older version has all lines that this version had, and nothing to compare them with.
// TestResumeWithEvalData: a run with a text field and evaluation data of their own goes on to the same bits. Their loss
// is that of these data. Other evaluation data, or a change of them, are an error.
func TestResumeWithEvalData(t *testing.T) {
	args, place := smallArgs(t, 4, "-text-field", "doc.body", "-eval-data", "valid.jsonl"), t.TempDir()
	text := strings.Repeat(`The block of a query is clamped to the query.\n`, 20)
	lines := func(field string) []byte {
		return []byte(strings.Repeat(fmt.Sprintf(`{"doc":{"%s":"%s","x":"\ud800"},"text":7}`, field, text)+"\n", 40))
	}
	for name, content := range map[string][]byte{"train.JSONL": append(lines("body"), "{damaged\n"...), "valid.jsonl": lines("body"), "other.jsonl": lines("body")[100:], "wrong.jsonl": lines("title")} {
		require.NoError(t, os.WriteFile(filepath.Join(place, name), content, 0o644))
	}
	t.Chdir(place)
	args[3] = "train.JSONL"
	whole, stopped := filepath.Join(t.TempDir(), "whole"), filepath.Join(t.TempDir(), "stopped")
	said := new(bytes.Buffer)
	testutil.Must(Run(t.Context(), testutil.Must(Parse(append(args, "-out", whole), io.Discard))(t), said))(t)
	require.Equal(t, 1, strings.Count(said.String(), `skipped 1 files, folders or records: not JSON, such as "train.JSONL"`), said)
	o := testutil.Must(Parse(append(args, "-out", stopped), io.Discard))(t)
	ctx, cancel := context.WithCancelCause(t.Context())
	o.hooks.stepped = func(int) { cancel(errStop) }
	require.ErrorIs(t, testutil.Err(Run(ctx, o, io.Discard)), errStop)
	options := testutil.Must(ReadOptions(filepath.Join(stopped, optionsFile), ""))(t)
	require.Equal(t, []string{"doc.body", filepath.Join(place, "valid.jsonl")}, []string{options.TextField, options.EvalData})

	for _, c := range []struct{ more, want string }{
		{"-eval-data other.jsonl", "held-out part have changed"},
		{"-eval-data ", "held-out part have changed"},
		{"-text-field text", `-text-field text: the run in ` + stopped + ` has "doc.body"`},
	} {
		o, err := Parse(append([]string{"-resume", stopped}, strings.Split(c.more, " ")...), io.Discard)
		if err == nil {
			_, err = Run(t.Context(), o, io.Discard)
		}
		require.ErrorContains(t, err, c.want)
	}
	require.NoError(t, os.Rename("valid.jsonl", "moved.jsonl"))
	require.NoError(t, os.Mkdir("sub", 0o755))
	require.NoError(t, os.Rename("moved.jsonl", "sub/valid.jsonl"))
	testutil.Must(runArgs(t, "-resume", stopped, "-eval-data", "sub/valid.jsonl"))(t)
	require.Equal(t, modelOf(t, whole), modelOf(t, stopped))
	require.Equal(t, resultOf(t, whole).HeldOutLoss, resultOf(t, stopped).HeldOutLoss)

	args[3] = "wrong.jsonl"
	err := testutil.Err(runArgs(t, append(args, "-eval-data", "sub/valid.jsonl")...))
	require.ErrorContains(t, err, `the fields are ["doc" "doc.title" "doc.x" "text"]`)
	for _, refused := range []string{"-data random -eval-data x", "-text-field="} {
		require.Error(t, testutil.Err(Parse(strings.Fields("-steps 1 "+refused), io.Discard)))
	}
}

// TestResumeWithoutCheckpoints: a run that has ended and lost its checkpoints keeps its model.
func TestResumeWithoutCheckpoints(t *testing.T) {
	folder := filepath.Join(t.TempDir(), "run")
	testutil.Must(runArgs(t, smallArgs(t, 2, "-out", folder)...))(t)
	model := testutil.Must(os.ReadFile(filepath.Join(folder, modelFile)))(t)
	require.NoError(t, os.RemoveAll(filepath.Join(folder, checkpointFolder)))
	err := testutil.Err(runArgs(t, "-resume", folder, "-steps", "3"))
	require.ErrorContains(t, err, folder+" has a model but no checkpoint to continue from; a new run with -init "+folder+" begins with the model")
	require.Equal(t, model, testutil.Must(os.ReadFile(filepath.Join(folder, modelFile)))(t))
}

func TestResumeOfChangedOptions(t *testing.T) {
	whole := filepath.Join(t.TempDir(), "whole")
	testutil.Must(runArgs(t, smallArgs(t, 2, "-out", whole)...))(t)
	text := string(testutil.Must(os.ReadFile(filepath.Join(whole, optionsFile)))(t))
	without := func(name string) string {
		return regexp.MustCompile("(?m)^"+name+": .*\n").ReplaceAllString(text, "")
	}
	for _, c := range []struct {
		older      bool
		text, more string
		want       string // "": no error
	}{
		{false, text, "", ""},
		{false, "# a note\n" + text, "-lr 1e-4 -steps 3", ""},
		{false, strings.Join(strings.SplitAfter(text, "\n")[:14], ""), "", "no line for accumulate, batch, beta2, block, "},
		{false, "", "", "no line for accumulate, "},
		{false, without("batch"), "", "no line for batch: a run writes all options, so the file was cut or is of an older version; give the run's value by a flag, as -batch VALUE"},
		{false, without("batch"), "-batch 2", ""},
		{false, without("batch"), "-batch 3", `-batch 3: the run in `},
		{false, without("lr"), "-lr 1e-4", ""},
		{false, strings.Replace(text, "batch: 2\n", "batch: 6\n", 1), "", `batch is "6", run.json has "2": the file was changed after the run wrote it; give the value to continue with by a flag, as -batch VALUE`},
		{false, strings.Replace(text, "batch: 2\n", "batch: 6\n", 1), "-batch 2", ""},
		{false, strings.Replace(text, "batch: 2\n", "batch: 6\n", 1), "-batch 6", `-batch 6: the run in `},
		{false, strings.Replace(text, "warmup: 0.03\n", "warmup: 0.13\n", 1), "", `warmup is "0.13", run.json has "0.03": `},
		{false, strings.Replace(text, "warmup: 0.03\n", "warmup: 0.13\n", 1), "-warmup 0.2", ""},
		{true, text, "", ""},
		{true, strings.Replace(text, "warmup: 0.03\n", "warmup: 0.13\n", 1), "", ""},
		{true, without("optimizer"), "", "no line for optimizer: "},
		{true, without("optimizer"), "-optimizer adamw", ""},
		{true, without("optimizer") + "optimizer: adamw\n", "", ""},
	} {
		folder := t.TempDir()
		for _, name := range []string{optionsFile, runFile} {
			require.NoError(t, os.WriteFile(filepath.Join(folder, name), testutil.Must(os.ReadFile(filepath.Join(whole, name)))(t), 0o644))
		}
		if c.older {
			forgetOptions(t, folder)
		}
		require.NoError(t, os.WriteFile(filepath.Join(folder, optionsFile), []byte(c.text), 0o644))
		_, err := Parse(append([]string{"-resume", folder}, strings.Fields(c.more)...), io.Discard)
		if c.want == "" {
			require.NoError(t, err, "%s\n%s", c.more, c.text)
			continue
		}
		require.ErrorContains(t, err, c.want, "%s\n%s", c.more, c.text)
		require.NotContains(t, err.Error(), "\n")
	}

	first := testutil.Must(os.ReadFile(filepath.Join(whole, optionsFile)))(t) // a kill between the writes of run.json and of the options
	testutil.Must(runArgs(t, "-resume", whole, "-steps", "3", "-lr", "1e-4"))(t)
	require.Equal(t, 1e-4, testutil.Must(Parse([]string{"-resume", whole}, io.Discard))(t).LR)
	require.NoError(t, os.WriteFile(filepath.Join(whole, optionsFile), first, 0o644))
	require.Equal(t, 6e-3, testutil.Must(Parse([]string{"-resume", whole}, io.Discard))(t).LR)
	var said bytes.Buffer
	resume := func(steps string) {
		said.Reset()
		testutil.Must(Run(t.Context(), testutil.Must(Parse([]string{"-resume", whole, "-steps", steps}, io.Discard))(t), &said))(t)
	}
	require.NoError(t, os.WriteFile(filepath.Join(whole, runFile), []byte("cut"), 0o644))
	resume("4")
	require.Contains(t, said.String(), "rewriting it and keeping the old one as run.json.damaged; cannot verify that config.yaml is unchanged")
	require.Equal(t, "cut", string(testutil.Must(os.ReadFile(filepath.Join(whole, runFile+".damaged")))(t)))
	require.NoError(t, os.Remove(filepath.Join(whole, runFile)))
	resume("5")
	require.Contains(t, said.String(), "rewriting it; cannot verify that config.yaml is unchanged")
}

// forgetOptions takes the options out of run.json, as older versions wrote it.
func forgetOptions(t testing.TB, folder string) {
	d := testutil.Must(readDescription(folder))(t)
	for i := range d.Processes {
		d.Processes[i].Options = ""
	}
	require.NoError(t, os.WriteFile(filepath.Join(folder, runFile), testutil.Must(json.Marshal(d))(t), 0o644))
}

var errStop = errors.New("stopped by the test")
