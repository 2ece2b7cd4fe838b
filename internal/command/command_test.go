package command

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gorgonia-nsa/nsa/internal/fault"
	"github.com/gorgonia-nsa/nsa/internal/testutil"
)

func TestParse(t *testing.T) {
	for args, message := range map[string]string{
		"-n=x":      `play: invalid value "x" for flag -n: parse error (-help lists all flags)`,
		"-nonsense": "play: flag provided but not defined: -nonsense (-help lists all flags)",
		"rest":      `play: unexpected argument "rest" (-help lists all flags)`,
		"-n=1":      "",
	} {
		set := NewFlags("play", "", "")
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
	set := NewFlags("play", "", "")
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
		{UsageError(nil), 0, ""},
		{UsageError(flag.ErrHelp), 0, ""},
		{failed, 1, "failed\n"},
		{fmt.Errorf("play: %w", UsageError(failed)), 2, "play: failed\n"},
		{errors.Join(context.Cause(ctx), failed), 128 + 15, ""},
	} {
		var said bytes.Buffer
		require.Equal(t, c.status, ExitStatus(c.err, &said), c.err)
		require.Equal(t, c.says, said.String())
	}
	require.ErrorIs(t, UsageError(failed), failed)
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

func playFlags() *flag.FlagSet {
	set := NewFlags("examples/play", "Play plays a game with a long description, "+
		"which does not fit into a line of a narrow terminal.", `
		-n 3 # three times
		-heads 4 -kv-heads 2 # with heads`)
	set.Int("n", 1, "times to `play` the game")
	set.Int("heads", 4, "query heads")
	set.Int("kv-heads", 2, "key/value heads")
	set.String("model", "", "file of the model")
	return set
}

// TestHelp: the help has what the program does, how it is called, examples and all flags, and fits the terminal, or 80
// columns without one.
func TestHelp(t *testing.T) {
	var text bytes.Buffer
	require.ErrorIs(t, Parse(playFlags(), []string{"-help"}, &text), flag.ErrHelp)
	for _, want := range []string{"Play plays a game", "\nUsage: go run ./examples/play [FLAGS]\n",
		"\n  go run ./examples/play -n 3\n      three times\n",
		"\n  -n play\n      times to play the game (1)\n", "\n  -model string\n"} {
		require.Contains(t, text.String(), want)
	}
	require.NotRegexp(t, regexp.MustCompile(`(?m)^.{81}`), text.String())
	for columns := 20; columns <= 200; columns++ {
		s := &testutil.Screen{Width: columns}
		require.NoError(t, Help(playFlags(), s))
		require.Zero(t, s.Broken, "%d: %q", columns, s.Lines())
	}
	require.EqualError(t, Parse(playFlags(), []string{"-h"}, broken{syscall.ENOSPC}),
		"play: -help: no space left on device")
}

// broken is a writer whose file is broken.
type broken struct{ err error }

func (b broken) Write([]byte) (int, error) { return 0, b.err }

// TestExplain: an error is said of the flags that were given, once, and of the program, once.
func TestExplain(t *testing.T) {
	missing := &fs.PathError{Op: "open", Path: "nope", Err: fs.ErrNotExist}
	heads := fault.In("tinylm", "", fault.In("nn", "nsa", fault.Between("Heads KVHeads",
		"heads 4 not a multiple of kv heads 3")))
	for _, c := range []struct {
		args   string
		err    error
		want   string
		status int
	}{
		{"", nil, "", 0},
		{"-n 0", fault.In("ops", "", fault.Of("Times", "times n", "is 0, want at least 1")),
			"play: -n is 0, want at least 1", 2},
		{"", fault.In("ops", "", fault.Of("Window", "window w", "is 0")), "play: window w is 0", 1},
		{"-kv-heads 3", heads, "play: -kv-heads 3: heads 4 not a multiple of kv heads 3", 2},
		{"-kv-heads 3 -heads 4", heads, "play: -heads 4 -kv-heads 3: heads 4 not a multiple of kv heads 3", 2},
		{"", heads, "play: -heads 4: heads 4 not a multiple of kv heads 3", 2},
		{"-model nope", Flag("model", "nope", missing), "play: -model nope: file does not exist", 1},
		{"-model nope", fault.In("corpus", "", fault.About("Model", missing)), "play: -model nope: file does not exist", 1},
		{"-model nope", Flag("model", "nope", fault.In("train", "model nope", missing)),
			"play: -model nope: file does not exist", 1},
		{"-model=", Flag("model", "", errors.New("want one")), `play: -model "": want one`, 1},
		{"-n 0", Flag("model", "a", fault.Of("Times", "times n", "is 0")), "play: -n is 0", 2},
	} {
		set := playFlags()
		require.NoError(t, Parse(set, strings.Fields(c.args), &bytes.Buffer{}))
		err := c.err
		for range 2 { // the second time changes nothing
			Explain(&err, set, map[string]string{"Times": "n"})
		}
		if c.err == nil {
			require.NoError(t, err)
			continue
		}
		require.EqualError(t, err, c.want)
		require.ErrorIs(t, err, c.err)
		require.Equal(t, c.status, ExitStatus(err, &bytes.Buffer{}), c.want)
	}
}

// TestClosedPipe: a closed pipe is no error, unless there is another one.
func TestClosedPipe(t *testing.T) {
	pipe := &fs.PathError{Op: "write", Path: "/dev/stdout", Err: syscall.EPIPE}
	var said bytes.Buffer
	for _, err := range []error{pipe, fault.In("play", "", pipe), errors.Join(pipe, nil, pipe)} {
		require.Zero(t, ExitStatus(err, &said))
		require.Empty(t, said.String())
	}
	require.Equal(t, 1, ExitStatus(errors.Join(pipe, errors.New("lost")), &said))
}
