package command

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestParse(t *testing.T) {
	for args, message := range map[string]string{
		"-n=x":      `play: invalid value "x" for flag -n: parse error (-help lists all flags)`,
		"-nonsense": "play: flag provided but not defined: -nonsense (-help lists all flags)",
		"rest":      `play: unexpected argument "rest" (-help lists all flags)`,
		"-n=1":      "",
	} {
		set := flag.NewFlagSet("play", flag.ContinueOnError)
		n := set.Int("n", 0, "of times")
		err := Parse(set, []string{args}, io.Discard)
		if message == "" {
			require.NoError(t, err)
			require.Equal(t, 1, *n)
			continue
		}
		require.EqualError(t, err, message)
		require.Equal(t, 2, ExitStatus(err, io.Discard))
	}
	set := flag.NewFlagSet("play", flag.ContinueOnError)
	set.Int("n", 0, "of times")
	var help bytes.Buffer
	require.ErrorIs(t, Parse(set, []string{"-help"}, &help), flag.ErrHelp)
	require.Contains(t, help.String(), "of times")
}

func TestExitStatus(t *testing.T) {
	ctx, cancel := context.WithCancelCause(context.Background())
	cancel(Stop{syscall.SIGTERM})
	failed := errors.New("failed")
	for _, c := range []struct {
		err    error
		status int
		says   string
	}{
		{nil, 0, ""},
		{WrongUse(nil), 0, ""},
		{WrongUse(flag.ErrHelp), 0, ""},
		{failed, 1, "failed\n"},
		{fmt.Errorf("play: %w", WrongUse(failed)), 2, "play: failed\n"},
		{errors.Join(context.Cause(ctx), failed), 128 + 15, ""},
	} {
		var said bytes.Buffer
		require.Equal(t, c.status, ExitStatus(c.err, &said), c.err)
		require.Equal(t, c.says, said.String())
	}
	require.ErrorIs(t, WrongUse(failed), failed)
}

func TestClosers(t *testing.T) {
	var c Closers
	var called []int
	for i := range 3 {
		c.Add(func() error {
			called = append(called, i)
			return fmt.Errorf("closer %d", i)
		})
	}
	require.EqualError(t, c.Close(), "closer 2\ncloser 1\ncloser 0")
	require.NoError(t, c.Close())
	require.Equal(t, []int{2, 1, 0}, called)
}
