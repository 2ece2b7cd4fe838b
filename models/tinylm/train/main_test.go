package train

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/gorgonia-nsa/nsa/graph/fakedevice"
	"github.com/gorgonia-nsa/nsa/internal/command"
	"github.com/gorgonia-nsa/nsa/internal/testutil"
)

// Environment variables of a run in a process of its own, which a test may kill.
const (
	childArgs = "TRAIN_TEST_ARGS"
	childFake = "TRAIN_TEST_FAKE" // not empty: it runs on a device with its own memory and queues
	// what it does after its first step: hang, say so, wait for a signal, or kill itself some microseconds later
	childHook = "TRAIN_TEST_HOOK"
	// the rank, "" for the process that starts the ranks, that kills itself; if it is not set, all do
	childKilled = "TRAIN_TEST_KILLED"
	// of a child that is rank 1 of a run: what goes wrong, see haveFault
	childFault = "TRAIN_TEST_FAULT"
)

func TestMain(m *testing.M) {
	if args, ok := os.LookupEnv(childArgs); ok {
		os.Exit(child(strings.Split(args, "\n")))
	}
	_ = flag.Set("test.parallel", "8") // many tests wait
	goleak.VerifyTestMain(m, goleak.Cleanup(func(status int) {
		_ = os.RemoveAll(filepath.Dir(sharedText()))
		os.Exit(status)
	}))
}

// sharedText returns a folder of 60 small texts, which tests read: to make it takes longer than a small run.
var sharedText = sync.OnceValue(func() string {
	folder, err := os.MkdirTemp("", "nsa-train-")
	if err == nil {
		folder = filepath.Join(folder, "text")
		err = os.Mkdir(folder, 0o755)
	}
	for i := 0; i < 60 && err == nil; i++ {
		text := strings.Repeat(fmt.Sprintf("The block of query %d is clamped to the query; blocks before it are whole.\n",
			i), 5+i%7)
		err = os.WriteFile(filepath.Join(folder, fmt.Sprintf("%02d.txt", i)), []byte(text), 0o644)
	}
	if err != nil {
		panic(err)
	}
	return folder
})

// withOwnText makes the data of smallArgs a copy that a test may change, in a folder of its own.
func withOwnText(t testing.TB, args []string) []string {
	t.Helper()
	folder := filepath.Join(t.TempDir(), "text")
	require.NoError(t, os.CopyFS(folder, os.DirFS(args[3])))
	args[3] = folder
	return args
}

// child runs Parse and Run as a program does.
func child(args []string) int {
	ctx, stop := OnSignals(context.Background(), os.Stderr)
	defer stop()
	o, err := Parse(args, os.Stdout)
	launched := false
	if err == nil {
		_, alive := strconv.Atoi(os.Getenv(childHook))
		o.hooks.stepped = afterFirstStep(ctx, os.Getenv(childHook))
		o.hooks.undrawn = alive != nil                                                        // a kill may meet a drawing
		if who, ok := os.LookupEnv(childKilled); ok && who == "" && os.Getenv("RANK") == "" { // it takes no steps
			go killAfter(os.Getenv(childHook) + "0")
		}
		if launched, err = Launch(ctx, o); !launched && rankFault != nil && os.Getenv("RANK") == "1" {
			err = rankFault(os.Getenv(childFault), o)
		}
	}
	switch {
	case err != nil || launched:
	case os.Getenv(childFake) != "":
		_, err = runOn(ctx, fakedevice.New(), nil, o, os.Stderr)
	default:
		_, err = Run(ctx, o, os.Stderr)
	}
	return command.ExitStatus(err, os.Stderr)
}

// rankFault makes something go wrong in a rank; nil on systems whose ranks are not tested.
var rankFault func(name string, o *Options) error

// middle is what a child says in the middle of its work.
const middle = "in the middle"

// afterFirstStep returns a hook that does once what childHook says.
func afterFirstStep(ctx context.Context, what string) func(step int) {
	var once sync.Once
	return func(int) {
		once.Do(func() {
			switch what {
			case "":
			case "hang":
				time.Sleep(time.Hour)
			case "say":
				fmt.Println(middle)
			case "wait":
				fmt.Println(middle)
				<-ctx.Done()
			default:
				fmt.Println(middle)
				if who, ok := os.LookupEnv(childKilled); !ok || who == os.Getenv("RANK") {
					go killAfter(what)
				}
			}
		})
	}
}

// killAfter kills this process after some microseconds.
func killAfter(microseconds string) {
	n, err := strconv.Atoi(microseconds)
	self, findErr := os.FindProcess(os.Getpid())
	if err = errors.Join(err, findErr); err != nil {
		panic(err)
	}
	time.Sleep(time.Duration(n) * time.Microsecond)
	_ = self.Kill()
}

// smallArgs are the arguments of a run of a very small model by so many steps.
func smallArgs(t testing.TB, steps int, more ...string) []string {
	t.Helper()
	return append(strings.Fields(fmt.Sprintf("-steps %d -data %s -layers 2 -dim 32 -heads 2 -kv-heads 1 "+
		"-key-dim 16 -value-dim 16 -context 64 -gate-hidden 8 "+
		"-batch 2 -accumulate 1 -eval-tokens 512 -final-eval 1024 -sample 8 -device cpu", steps, sharedText())), more...)
}

// tinyArgs are the arguments of a run of 6 steps that takes milliseconds.
func tinyArgs(t testing.TB, more ...string) []string {
	return append(append(smallArgs(t, 6),
		strings.Fields("-batch 1 -context 32 -dim 16 -key-dim 8 -value-dim 8 -layers 1 -gate-hidden 4 "+
			"-eval-every 3 -eval-tokens 64 -final-eval 64 -sample 4")...), more...)
}

// parse returns the options of a run without curves, which would take half of its time.
func parse(t testing.TB, args ...string) *Options {
	t.Helper()
	o := testutil.Must(Parse(args, io.Discard))(t)
	o.hooks.undrawn = true
	return o
}

// runArgs trains with the given arguments, in this process.
func runArgs(t testing.TB, args ...string) (*Result, error) {
	t.Helper()
	return Run(context.Background(), parse(t, args...), io.Discard)
}

// refusal returns the error of Parse or of the run.
func refusal(args ...string) error {
	o, err := Parse(args, io.Discard)
	if err == nil {
		o.hooks.undrawn = true
		_, err = Run(context.Background(), o, io.Discard)
	}
	return err
}

// says trains and returns what the run says.
func says(t testing.TB, args ...string) string {
	t.Helper()
	var said bytes.Buffer
	testutil.Must(Run(t.Context(), parse(t, args...), &said))(t)
	return said.String()
}

// newFolder returns the path of a run that does not exist yet.
func newFolder(t testing.TB) string { return filepath.Join(t.TempDir(), "run") }

// newRun trains in a new folder, which it returns.
func newRun(t testing.TB, args ...string) string {
	t.Helper()
	path := newFolder(t)
	testutil.Must(runArgs(t, append(args, "-out", path)...))(t)
	return path
}

var errStop = errors.New("stopped by the test")

// stopAfter trains until a step, after which its context ends.
func stopAfter(t testing.TB, step int, args ...string) {
	t.Helper()
	o := parse(t, args...)
	ctx, cancel := context.WithCancelCause(context.Background())
	o.hooks.stepped = func(n int) {
		if n == step {
			cancel(errStop)
		}
	}
	require.ErrorIs(t, testutil.Err(Run(ctx, o, io.Discard)), errStop)
}

// copyOf copies a run to a new folder, which it returns.
func copyOf(t testing.TB, run string) string {
	t.Helper()
	path := newFolder(t)
	require.NoError(t, os.CopyFS(path, os.DirFS(run)))
	return path
}

func read(t testing.TB, path ...string) string {
	t.Helper()
	return string(testutil.Must(os.ReadFile(filepath.Join(path...)))(t))
}

func write(t testing.TB, path, text string) {
	t.Helper()
	require.NoError(t, os.WriteFile(path, []byte(text), 0o644))
}

func stepsOf(t testing.TB, run string) []int {
	t.Helper()
	return testutil.Must(folder(run).checkpoints())(t)
}

func wholeCheckpoint(t testing.TB, run string) *checkpoint {
	t.Helper()
	c, damaged, err := newestCheckpoint(folder(run))
	require.NoError(t, err)
	require.Empty(t, damaged)
	require.NotNil(t, c)
	return c
}

// descriptionOf returns what run.json says.
func descriptionOf(t testing.TB, run string) description {
	t.Helper()
	return testutil.Must(folder(run).description())(t)
}

func describeAs(t testing.TB, run string, d description) {
	t.Helper()
	write(t, folder(run).file(runFile), string(testutil.Must(json.Marshal(d))(t)))
}

// contents returns what the files and links of a folder hold, by path.
func contents(t testing.TB, folder string) map[string]string {
	all := map[string]string{}
	require.NoError(t, filepath.WalkDir(folder, func(path string, e fs.DirEntry, err error) error {
		require.NoError(t, err)
		switch {
		case e.Type() == fs.ModeSymlink:
			all[path] = "to " + testutil.Must(os.Readlink(path))(t)
		case e.Type().IsRegular():
			all[path] = read(t, path)
		}
		return nil
	}))
	return all
}

// modelOf returns the bytes of the weights in a run folder.
func modelOf(t testing.TB, run string) string {
	t.Helper()
	return read(t, run, modelFile)
}

func heldOutOf(t testing.TB, run string) float64 {
	t.Helper()
	d := descriptionOf(t, run)
	require.NotNil(t, d.Result)
	return d.Result.HeldOutLoss
}
