package train

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gorgonia-nsa/nsa/internal/cpu"
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

// TestKills kills and resumes runs at random moments until they end, on the CPU and on a device with its own memory and
// queues. Each ends with the bits of a run that was not killed. Only kills between the first step and the end of a
// process count.
func TestKills(t *testing.T) {
	t.Parallel()
	kills := testutil.Tries(t, 6, 100)
	args := smallArgs(t, 60, "-eval-every", "25", "-save-minutes", "0.0003", "-keep", "2")
	whole := newRun(t, args...)
	for device, env := range map[string]string{"cpu": "", "fake device": "1"} {
		t.Run(device, func(t *testing.T) {
			t.Parallel()
			r := rand.New(rand.NewPCG(1, 2))
			for killed, runs := 0, 0; killed < kills; runs++ {
				require.LessOrEqual(t, runs, kills, "the runs end before they are killed")
				run := newFolder(t)
				killed += killUntilItEnds(t, r, min(kills-killed, 12), childFake+"="+env, run, args)
				require.Equal(t, modelOf(t, whole), modelOf(t, run))
				require.Equal(t, heldOutOf(t, whole), heldOutOf(t, run))
				require.Empty(t, testutil.Must(filepath.Glob(filepath.Join(run, checkpointFolder, partPrefix+"*")))(t))
				requireWholeRecord(t, run, 60)
			}
		})
	}
}

// requireWholeRecord checks that the record of a run has one row for each of its steps, also after each kill, and whole
// lines of events.
func requireWholeRecord(t testing.TB, run string, steps int) {
	t.Helper()
	rows := strings.Split(read(t, run, runlog.StepsFile), "\n")
	require.Len(t, rows, steps+2)
	for i, row := range rows[1 : steps+1] {
		require.Regexp(t, fmt.Sprintf(`^%d(,[^,]*){9}$`, i+1), row)
	}
	for line := range strings.Lines(read(t, run, runlog.EventsFile)) {
		require.True(t, json.Valid([]byte(line)), line)
		require.NotRegexp(t, `"rows_missing":[^0]`, line)
	}
}

// killUntilItEnds starts a run and resumes it after each kill. Each process kills itself up to 50 ms after its first
// step, but one in eight is killed up to 200 ms after its start, whatever it does then. After so many kills after a
// first step the run may end. It returns the number of these.
func killUntilItEnds(t testing.TB, r *rand.Rand, most int, env, folder string, args []string) (killed int) {
	for {
		begin := append(slices.Clip(args), "-out", folder)
		if exists(filepath.Join(folder, optionsFile)) {
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

// TestSignals: after signal n in the middle of its work a run exits with 128 + n and a checkpoint of its last step.
// Resumed, it ends with the same bits.
func TestSignals(t *testing.T) {
	t.Parallel()
	args := smallArgs(t, 6, "-save-minutes", "0", "-eval-every", "100")
	whole := newRun(t, args...)
	for _, s := range []syscall.Signal{syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP} {
		if signal.Ignored(s) { // as by nohup: then it stays ignored
			continue
		}
		folder := newFolder(t)
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

// TestStops stops a run after every step and resumes it. Weights, held-out loss and sample have the bits of a run that
// was not stopped. The same is true with accumulation, packed documents and initial weights.
func TestStops(t *testing.T) {
	t.Parallel()
	for name, more := range map[string][]string{
		"plain": nil, "packed": {"-packed", "-accumulate", "3"}, "accumulate": {"-accumulate", "3"},
		"recompute": {"-recompute"}, "dense": {"-attention", "dense"}, "mixed": {"-attention", "window,nsa"},
	} {
		t.Run(name, func(t *testing.T) {
			if name != "plain" && name != "packed" {
				testutil.FullOnly(t)
			}
			const steps = 4
			args := smallArgs(t, steps, append([]string{"-save-minutes", "0", "-eval-every", "3"}, more...)...)
			whole, run := newFolder(t), newFolder(t)
			want := testutil.Must(runArgs(t, append(args, "-out", whole)...))(t)
			begin := append(args, "-out", run)
			for step := 1; step <= steps; step++ {
				stopAfter(t, step, begin...)
				begin = []string{"-resume", run}
			}
			got := testutil.Must(runArgs(t, begin...))(t)
			require.Equal(t, want.HeldOutLoss, got.HeldOutLoss)
			require.Equal(t, want.Sample, got.Sample)
			require.Equal(t, want.BestStep, got.BestStep)
			require.Equal(t, modelOf(t, whole), modelOf(t, run))
			evaluations := wholeCheckpoint(t, whole).state.Evaluations
			require.Len(t, evaluations, 2)
			require.Equal(t, evaluations, wholeCheckpoint(t, run).state.Evaluations, "none was left out")
			for _, file := range []string{solverFile, modelFile} {
				require.Equal(t, read(t, folder(whole).checkpoint(steps), file), read(t, folder(run).checkpoint(steps), file), file)
			}
		})
	}
}

// TestResumeElsewhere: a run of relative paths goes on to the same bits from another working directory, and with its
// data and tokenizer at another place. So does one whose config.yaml has relative paths, from its own directory. Other
// data and another tokenizer are errors.
func TestResumeElsewhere(t *testing.T) {
	const words = `{"added_tokens":[],"pre_tokenizer":{"type":"Whitespace"},"model":{"type":"BPE","ignore_merges":true,"fuse_unk":true,"merges":[],"unk_token":"[UNK]",` +
		`"vocab":{"[UNK]":0,"[SEP]":1,"The":2,"block":3,"of":4,"query":5,"is":6,"to":7}}}`
	args := withOwnText(t, smallArgs(t, 4, "-tokenizer", "words.json"))
	home, moved, away := filepath.Dir(args[3]), t.TempDir(), t.TempDir()
	args[3] = "text"
	for path, text := range map[string]string{
		filepath.Join(home, "words.json"): words, filepath.Join(moved, "words.json"): words,
		filepath.Join(moved, "others.json"): strings.Replace(words, `"The":2,"block":3`, `"The":3,"block":2`, 1),
		filepath.Join(moved, "more.json"):   strings.Replace(words, `"to":7`, `"to":7,"it":8`, 1),
		filepath.Join(moved, "other.txt"):   strings.Repeat("The query of a block.\n", 1000),
	} {
		write(t, path, text)
	}
	require.NoError(t, os.CopyFS(filepath.Join(moved, "copy"), os.DirFS(filepath.Join(home, "text"))))
	t.Chdir(home)
	whole, stopped := newRun(t, args...), newFolder(t)
	stopAfter(t, 1, append(args, "-out", stopped)...)
	older := copyOf(t, stopped)
	options := testutil.Must(ReadOptions(filepath.Join(older, optionsFile), ""))(t)
	require.Equal(t, []string{filepath.Join(home, "text"), filepath.Join(home, "words.json")},
		[]string{options.Data, options.Tokenizer})
	options.Data, options.Tokenizer, options.Init = "text", "words.json", "w"
	write(t, filepath.Join(older, optionsFile), string(options.YAML()))
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
		folder := copyOf(t, c.run)
		t.Chdir(c.from)
		err := refusal(append([]string{"-resume", folder}, strings.Fields(c.more)...)...)
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

// TestResumeWithEvalData: a run with a text field and evaluation data of their own goes on to the same bits. Their loss
// is that of these data. Other evaluation data, or a change of them, are an error.
func TestResumeWithEvalData(t *testing.T) {
	args, place := smallArgs(t, 4, "-text-field", "doc.body", "-eval-data", "valid.jsonl"), t.TempDir()
	text := strings.Repeat(`The block of a query is clamped to the query.\n`, 20)
	lines := func(field string) []byte {
		return []byte(strings.Repeat(fmt.Sprintf(`{"doc":{"%s":"%s","x":"\ud800"},"text":7}`, field, text)+"\n", 40))
	}
	for name, content := range map[string][]byte{"train.JSONL": append(lines("body"), "{damaged\n"...),
		"valid.jsonl": lines("body"), "other.jsonl": lines("body")[100:], "wrong.jsonl": lines("title")} {
		write(t, filepath.Join(place, name), string(content))
	}
	t.Chdir(place)
	args[3] = "train.JSONL"
	whole, stopped := newFolder(t), newFolder(t)
	said := says(t, append(args, "-out", whole)...)
	require.Equal(t, 1, strings.Count(said, `skipped 1 files, folders or records: not JSON, such as "train.JSONL"`), said)
	stopAfter(t, 1, append(args, "-out", stopped)...)
	options := testutil.Must(ReadOptions(filepath.Join(stopped, optionsFile), ""))(t)
	require.Equal(t, []string{"doc.body", filepath.Join(place, "valid.jsonl")},
		[]string{options.TextField, options.EvalData})

	for _, c := range []struct{ more, want string }{
		{"-eval-data other.jsonl", "held-out part have changed"},
		{"-eval-data ", "held-out part have changed"},
		{"-text-field text", `-text-field text: the run in ` + stopped + ` has "doc.body"`},
	} {
		require.ErrorContains(t, refusal(append([]string{"-resume", stopped}, strings.Split(c.more, " ")...)...), c.want)
	}
	require.NoError(t, os.Rename("valid.jsonl", "moved.jsonl"))
	require.NoError(t, os.Mkdir("sub", 0o755))
	require.NoError(t, os.Rename("moved.jsonl", "sub/valid.jsonl"))
	testutil.Must(runArgs(t, "-resume", stopped, "-eval-data", "sub/valid.jsonl"))(t)
	require.Equal(t, modelOf(t, whole), modelOf(t, stopped))
	require.Equal(t, heldOutOf(t, whole), heldOutOf(t, stopped))

	args[3] = "wrong.jsonl"
	require.ErrorContains(t, refusal(append(args, "-eval-data", "sub/valid.jsonl")...),
		`the fields are ["doc" "doc.title" "doc.x" "text"]`)
	for _, refused := range []string{"-data random -eval-data x", "-text-field="} {
		require.Error(t, testutil.Err(Parse(strings.Fields("-steps 1 "+refused), io.Discard)))
	}
}

// TestResumeWithoutCheckpoints: a run that has ended and lost its checkpoints keeps its model.
func TestResumeWithoutCheckpoints(t *testing.T) {
	run := newRun(t, smallArgs(t, 2)...)
	model := modelOf(t, run)
	require.NoError(t, os.RemoveAll(filepath.Join(run, checkpointFolder)))
	err := refusal("-resume", run, "-steps", "3")
	require.ErrorContains(t, err,
		run+" has a model but no checkpoint to continue from; a new run with -init "+run+" begins with the model")
	require.Equal(t, model, modelOf(t, run))
}

// TestResumeOfChangedOptions: a run goes on only with the options that it wrote. A line that is missing or altered is
// an error that names the option, unless the command line gives it. Then it must be what the run has, if it is fixed.
// The file of a run by an older version has all lines that this version had, and nothing to compare them with.
func TestResumeOfChangedOptions(t *testing.T) {
	whole := newRun(t, smallArgs(t, 2)...)
	text := read(t, whole, optionsFile)
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
		{false, strings.Join(strings.SplitAfter(text, "\n")[:14], ""), "", "no line for accumulate, align, batch, beta2, block, "},
		{false, "", "", "no line for accumulate, "},
		{false, without("batch"), "",
			"no line for batch: a run writes all options, so the file was cut or is of an older version; " +
				"give the run's value by a flag, as -batch VALUE"},
		{false, without("batch"), "-batch 2", ""},
		{false, without("batch"), "-batch 3", `-batch 3: the run in `},
		{false, without("lr"), "-lr 1e-4", ""},
		{false, strings.Replace(text, "batch: 2\n", "batch: 6\n", 1), "",
			`batch is "6", run.json has "2": the file was changed after the run wrote it; ` +
				`give the value to continue with by a flag, as -batch VALUE`},
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
		write(t, filepath.Join(folder, runFile), read(t, whole, runFile))
		if c.older {
			forgetOptions(t, folder)
		}
		write(t, filepath.Join(folder, optionsFile), c.text)
		_, err := Parse(append([]string{"-resume", folder}, strings.Fields(c.more)...), io.Discard)
		if c.want == "" {
			require.NoError(t, err, "%s\n%s", c.more, c.text)
			continue
		}
		require.ErrorContains(t, err, c.want, "%s\n%s", c.more, c.text)
		require.NotContains(t, err.Error(), "\n")
	}

	first := read(t, whole, optionsFile) // a kill between the writes of run.json and of the options
	testutil.Must(runArgs(t, "-resume", whole, "-steps", "3", "-lr", "1e-4"))(t)
	require.Equal(t, 1e-4, parse(t, "-resume", whole).LR)
	write(t, filepath.Join(whole, optionsFile), first)
	require.Equal(t, 6e-3, parse(t, "-resume", whole).LR)
	write(t, filepath.Join(whole, runFile), "cut")
	require.Contains(t, says(t, "-resume", whole, "-steps", "4"),
		"rewriting it and keeping the old one as run.json.damaged; cannot verify that config.yaml is unchanged")
	require.Equal(t, "cut", read(t, whole, runFile+".damaged"))
	require.NoError(t, os.Remove(filepath.Join(whole, runFile)))
	require.Contains(t, says(t, "-resume", whole, "-steps", "5"),
		"rewriting it; cannot verify that config.yaml is unchanged")
}

// forgetOptions takes the options out of run.json, as older versions wrote it.
func forgetOptions(t testing.TB, folder string) {
	d := descriptionOf(t, folder)
	for i := range d.Processes {
		d.Processes[i].Options = ""
	}
	describeAs(t, folder, d)
}

// TestOtherKernels: a run that is resumed on another SIMD level or device says so, once.
func TestOtherKernels(t *testing.T) {
	t.Parallel()
	run := newRun(t, tinyArgs(t)...)
	require.NotContains(t, says(t, "-resume", run, "-steps", "7"), "warning: ")
	d := descriptionOf(t, run)
	require.Contains(t, d.Processes[1].Kernels, strings.TrimSuffix(cpu.Level(), "bf16"), "float32 has the same bits")
	d.Processes[1].Kernels = "cpu (other, \x1b[2J)"
	describeAs(t, run, d)
	said := says(t, "-resume", run, "-steps", "8")
	require.Contains(t, said, `warning: the run was on cpu (other, \x1b[2J), now it is on cpu (`)
	require.Contains(t, said, "it continues, but not with the same bits")
	require.NotContains(t, says(t, "-resume", run, "-steps", "9"), "warning: ")
}

// TestResumeRefuses: options that would make it another run are errors.
func TestResumeRefuses(t *testing.T) {
	args := withOwnText(t, smallArgs(t, 4))
	run := newRun(t, args...)
	for _, more := range []string{"-batch 8", "-seed 2", "-dim 64", "-ext .md", "-packed", "-accumulate 2",
		"-optimizer adamw", "-out elsewhere"} {
		require.ErrorContains(t, testutil.Err(Parse(append([]string{"-resume", run}, strings.Fields(more)...), io.Discard)),
			"begin a new one", more)
	}
	require.Equal(t, 6, testutil.Must(runArgs(t, "-resume", run, "-steps", "6", "-lr", "1e-4"))(t).Steps)
	write(t, filepath.Join(args[3], "more.txt"), "more text")
	require.ErrorContains(t, refusal("-resume", run, "-steps", "8"), "have changed")
	require.ErrorIs(t, refusal("-resume", t.TempDir()), os.ErrNotExist)
}
