package train

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gorgonia-nsa/nsa/internal/testutil"
)

// start starts a run in a process of its own, with environment variables.
func start(t testing.TB, env string, args ...string) (*exec.Cmd, *bytes.Buffer) {
	t.Helper()
	cmd, out := exec.Command(testutil.Must(os.Executable())(t)), new(bytes.Buffer)
	cmd.Env = append(os.Environ(), childArgs+"="+strings.Join(args, "\n"), env)
	cmd.Stdout, cmd.Stderr = out, out
	require.NoError(t, cmd.Start())
	return cmd, out
}

// TestKills kills and resumes runs at random moments until they end, on the CPU and on a device with its own memory and queues. Each
// ends with the bits of a run that was not killed.
func TestKills(t *testing.T) {
	kills := 100
	if testing.Short() {
		kills = 10
	}
	args := smallArgs(t, 100, "-eval-every", "40", "-save-minutes", "0.0003", "-keep", "2")
	whole := filepath.Join(t.TempDir(), "whole")
	want := testutil.Must(runArgs(t, append(args, "-out", whole)...))(t)
	for device, env := range map[string]string{"cpu": "", "fake device": childFake + "=1"} {
		t.Run(device, func(t *testing.T) {
			t.Parallel()
			r := rand.New(rand.NewPCG(1, 2))
			for killed := 0; killed < kills; {
				folder := filepath.Join(t.TempDir(), "run")
				killed += killUntilItEnds(t, r, env, folder, args)
				require.Equal(t, modelOf(t, whole), modelOf(t, folder))
				require.Equal(t, want.HeldOut, resultOf(t, folder).HeldOut)
				require.Empty(t, testutil.Must(filepath.Glob(filepath.Join(folder, checkpointFolder, partPrefix+"*")))(t))
			}
		})
	}
}

// killUntilItEnds starts a run and resumes it after each kill. It returns the number of kills.
func killUntilItEnds(t testing.TB, r *rand.Rand, env, folder string, args []string) (killed int) {
	for {
		begin := append(slices.Clip(args), "-out", folder)
		if _, err := os.Stat(filepath.Join(folder, optionsFile)); err == nil {
			begin = []string{"-resume", folder}
		} else {
			require.NoError(t, os.RemoveAll(folder))
		}
		cmd, out := start(t, env, begin...)
		timer := time.AfterFunc(time.Duration(10+r.IntN(300))*time.Millisecond, func() { _ = cmd.Process.Kill() })
		err := cmd.Wait()
		timer.Stop()
		if err == nil {
			return killed
		}
		require.True(t, cmd.ProcessState.Sys().(syscall.WaitStatus).Signaled(), "%v: %s", err, out)
		if exists(filepath.Join(folder, modelFile)) {
			testutil.Must(Find(folder))(t) // its sum is right, or not there yet
		}
		killed++
	}
}

// TestSignals: after signal n a run exits with 128 + n and a checkpoint of its last step. Resumed, it ends with the same bits.
func TestSignals(t *testing.T) {
	args := smallArgs(t, 60, "-save-minutes", "0")
	whole := filepath.Join(t.TempDir(), "whole")
	testutil.Must(runArgs(t, append(args, "-out", whole)...))(t)
	for _, s := range []syscall.Signal{syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP} {
		folder := filepath.Join(t.TempDir(), "run")
		cmd, out := start(t, "", append(args, "-out", folder)...)
		require.Eventually(t, func() bool { // until it has taken steps
			info, err := os.Stat(filepath.Join(folder, optionsFile))
			return err == nil && info.Size() > 0
		}, 10*time.Second, time.Millisecond)
		time.Sleep(30 * time.Millisecond)
		require.NoError(t, cmd.Process.Signal(s))
		var exit *exec.ExitError
		if err := cmd.Wait(); err != nil { // no error: the run ended before the signal
			require.True(t, errors.As(err, &exit), "%v: %s", err, out)
			require.Equal(t, 128+int(s), exit.ExitCode(), "%s", out)
			require.Contains(t, out.String(), s.String())
			testutil.Must(runArgs(t, "-resume", folder))(t)
		}
		require.Equal(t, modelOf(t, whole), modelOf(t, folder))
	}
}

// TestSecondSignal: the first signal does not end a step that hangs, and a message says so. The second signal ends the program at once.
func TestSecondSignal(t *testing.T) {
	cmd := exec.Command(testutil.Must(os.Executable())(t))
	cmd.Env = append(os.Environ(), childArgs+"="+strings.Join(smallArgs(t, 60, "-out", filepath.Join(t.TempDir(), "run")), "\n"), childHang+"=1")
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
	for name, more := range map[string][]string{
		"plain": nil, "packed": {"-packed"}, "accumulate": {"-accumulate", "3"}, "recompute": {"-recompute"}, "dense": {"-attention", "dense"},
	} {
		t.Run(name, func(t *testing.T) {
			args := smallArgs(t, 6, append([]string{"-save-minutes", "0", "-eval-every", "4"}, more...)...)
			whole, folder := filepath.Join(t.TempDir(), "whole"), filepath.Join(t.TempDir(), "run")
			want := testutil.Must(runArgs(t, append(args, "-out", whole)...))(t)
			begin := append(args, "-out", folder)
			for step := 1; ; step++ {
				o := testutil.Must(Parse(begin, io.Discard))(t)
				ctx, cancel := context.WithCancelCause(context.Background())
				o.stepped = func(int) { cancel(errStop) }
				got, err := Run(ctx, o, io.Discard)
				if err == nil {
					require.Equal(t, want.HeldOut, got.HeldOut)
					require.Equal(t, want.Sample, got.Sample)
					require.Equal(t, want.Best, got.Best)
					break
				}
				require.ErrorIs(t, err, errStop)
				begin = []string{"-resume", folder}
				require.LessOrEqual(t, step, 6)
			}
			require.Equal(t, modelOf(t, whole), modelOf(t, folder))
			last, _, err := newest(folder)
			require.NoError(t, err)
			straight, _, err := newest(whole)
			require.NoError(t, err)
			require.Len(t, straight.state.Evaluations, 2)
			require.Equal(t, straight.state.Evaluations, last.state.Evaluations, "none was left out")
			for _, file := range []string{solverFile, modelFile} {
				last := filepath.Join(checkpointFolder, nameOfStep(6), file)
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
	o.stepped = func(int) { cancel(errStop) }
	require.ErrorIs(t, testutil.Err(Run(ctx, o, io.Discard)), errStop)
	require.NoError(t, os.CopyFS(older, os.DirFS(stopped)))
	options := testutil.Must(ReadOptions(filepath.Join(older, optionsFile), ""))(t)
	require.Equal(t, []string{filepath.Join(home, "text"), filepath.Join(home, "words.json")}, []string{options.Data, options.Tokenizer})
	options.Data, options.Tokenizer, options.Init = "text", "words.json", "w"
	require.NoError(t, os.WriteFile(filepath.Join(older, optionsFile), options.YAML(), 0o644))

	for _, c := range []struct{ run, from, more, want string }{
		{stopped, away, "", ""},
		{stopped, moved, "-data copy -tokenizer words.json", ""},
		{stopped, moved, "-data " + filepath.Join(home, "text"), ""},
		{older, home, "", ""},
		{older, home, "-data text -init w", ""},
		{older, moved, "-data copy -tokenizer words.json", ""},
		{older, away, "", "words.json: no such file or directory"},
		{stopped, moved, "-data other.txt", filepath.Join(moved, "other.txt") + ": corpus: reader: cursor: it is of the data "},
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

var errStop = errors.New("stopped by the test")
