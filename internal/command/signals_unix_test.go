//go:build unix

package command

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gorgonia-nsa/nsa/internal/testutil"
)

// childMode is the environment variable of a program in a process of its own: it waits for signals.
const childMode = "COMMAND_TEST_MODE"

func TestMain(m *testing.M) {
	switch os.Getenv(childMode) {
	case "polite", "deaf":
		ctx, stop := OnSignals(context.Background(), os.Stdout, "stopping")
		fmt.Println("ready")
		select {
		case <-ctx.Done():
		case <-time.After(time.Minute):
		}
		if os.Getenv(childMode) == "deaf" {
			time.Sleep(time.Minute)
		}
		stop()
		os.Exit(ExitStatus(context.Cause(ctx), os.Stderr))
	}
	os.Exit(m.Run())
}

// start starts a program whose parent ignores signals, a list for trap. It returns when the program waits for signals.
func start(t *testing.T, mode, ignored string) (*exec.Cmd, *bufio.Scanner) {
	if signal.Ignored(syscall.SIGINT) || signal.Ignored(syscall.SIGHUP) {
		t.Skip("the tests run with signals ignored")
	}
	cmd := exec.Command("/bin/sh", "-c", `trap "" `+ignored+`; exec "$0"`, testutil.Must(os.Executable())(t))
	if ignored == "" {
		cmd = exec.Command(cmd.Args[3])
	}
	cmd.Env = append(os.Environ(), childMode+"="+mode)
	lines := bufio.NewScanner(testutil.Must(cmd.StdoutPipe())(t))
	require.NoError(t, cmd.Start())
	late := time.AfterFunc(time.Minute, func() { _ = cmd.Process.Kill() })
	t.Cleanup(func() { late.Stop() })
	require.True(t, lines.Scan())
	require.Equal(t, "ready", lines.Text())
	return cmd, lines
}

// TestIgnoredSignals: signals that the parent ignores do nothing; any other one is the first signal.
func TestIgnoredSignals(t *testing.T) {
	for _, c := range []struct {
		ignored string
		none    []syscall.Signal
		ends    syscall.Signal
	}{
		{"", nil, syscall.SIGINT},
		{"", nil, syscall.SIGHUP},
		{"INT", []syscall.Signal{syscall.SIGINT, syscall.SIGINT}, syscall.SIGTERM},
		{"INT HUP", []syscall.Signal{syscall.SIGINT, syscall.SIGHUP}, syscall.SIGTERM},
		{"HUP", []syscall.Signal{syscall.SIGHUP, syscall.SIGHUP}, syscall.SIGINT},
	} {
		cmd, lines := start(t, "polite", c.ignored)
		for _, s := range append(c.none, c.ends) {
			require.NoError(t, cmd.Process.Signal(s))
		}
		require.True(t, lines.Scan()) // an empty line
		require.True(t, lines.Scan())
		require.Equal(t, fmt.Sprintf("%v: stopping; a second one leaves at once", c.ends), lines.Text())
		require.Error(t, cmd.Wait())
		require.Equal(t, 128+int(c.ends), cmd.ProcessState.ExitCode(), c.ignored)
	}
}

// TestSecondSignal: a second signal ends a program that does not stop, whichever of them the parent ignores.
func TestSecondSignal(t *testing.T) {
	for _, c := range []struct {
		ignored string
		s       syscall.Signal
	}{{"", syscall.SIGINT}, {"", syscall.SIGTERM}, {"INT", syscall.SIGTERM}, {"HUP", syscall.SIGINT}} {
		cmd, lines := start(t, "deaf", c.ignored)
		require.NoError(t, cmd.Process.Signal(c.s))
		require.True(t, lines.Scan())
		require.True(t, lines.Scan())
		require.Contains(t, lines.Text(), "a second one leaves at once")
		require.NoError(t, cmd.Process.Signal(c.s))
		require.Error(t, cmd.Wait())
		require.Equal(t, c.s, cmd.ProcessState.Sys().(syscall.WaitStatus).Signal(), c.ignored)
	}
}
