package train

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
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
	childHook = "TRAIN_TEST_HOOK" // what it does after its first step: hang, wait for a signal, or kill itself some microseconds later
)

func TestMain(m *testing.M) {
	if args, ok := os.LookupEnv(childArgs); ok {
		os.Unsetenv(childArgs)
		os.Exit(child(strings.Split(args, "\n")))
	}
	goleak.VerifyTestMain(m)
}

// child runs Parse and Run as a program does.
func child(args []string) int {
	ctx, stop := OnSignals(context.Background(), os.Stderr)
	defer stop()
	o, err := Parse(args, os.Stdout)
	if err == nil {
		o.hooks.stepped = afterFirstStep(ctx, os.Getenv(childHook))
	}
	switch {
	case err != nil:
	case os.Getenv(childFake) != "":
		_, err = runOn(ctx, fakedevice.New(), o, os.Stderr)
	default:
		_, err = Run(ctx, o, os.Stderr)
	}
	return command.ExitStatus(err, os.Stderr)
}

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
			case "wait":
				fmt.Println(middle)
				<-ctx.Done()
			default:
				fmt.Println(middle)
				go killAfter(what)
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
	folder := filepath.Join(t.TempDir(), "text")
	require.NoError(t, os.Mkdir(folder, 0o755))
	for i := range 60 {
		text := strings.Repeat(fmt.Sprintf("The block of query %d is clamped to the query; blocks before it are whole.\n", i), 5+i%7)
		require.NoError(t, os.WriteFile(filepath.Join(folder, fmt.Sprintf("%02d.txt", i)), []byte(text), 0o644))
	}
	return append(strings.Fields(fmt.Sprintf("-steps %d -data %s -layers 2 -dim 32 -heads 2 -kv-heads 1 -key-dim 16 -value-dim 16 -context 64 -gate-hidden 8 "+
		"-batch 2 -eval-tokens 512 -final-eval 1024 -sample 8 -device cpu", steps, folder)), more...)
}

// run trains with the given arguments, in this process.
func runArgs(t testing.TB, args ...string) (*Result, error) {
	t.Helper()
	return Run(context.Background(), testutil.Must(Parse(args, io.Discard))(t), io.Discard)
}

// modelOf returns the bytes of the weights in a run folder.
func modelOf(t testing.TB, folder string) string {
	t.Helper()
	return string(testutil.Must(os.ReadFile(filepath.Join(folder, modelFile)))(t))
}

// resultOf returns the result in run.json.
func resultOf(t testing.TB, folder string) *Result {
	t.Helper()
	var d description
	require.NoError(t, json.Unmarshal(testutil.Must(os.ReadFile(filepath.Join(folder, runFile)))(t), &d))
	require.NotNil(t, d.Result)
	return d.Result
}
