package main

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gorgonia-nsa/nsa/internal/command"
	"github.com/gorgonia-nsa/nsa/internal/terminal"
	"github.com/gorgonia-nsa/nsa/internal/testutil"
)

func TestRefuses(t *testing.T) {
	for args, message := range map[string]string{
		"-context 0":          "recall: -context is 0, want 1 to",
		"-context 100":        "room for",
		"-needles 33":         "recall: -needles 33: 33 pairs are not a multiple of the 16 values",
		"-needles -16":        "recall: -needles is -16, want 1 to",
		"-asked -1":           "recall: -asked is -1, want 0 or more",
		"-free -1":            "recall: -free is -1, want 0 or more",
		"-asked 64":           "recall: -asked 64: a context of 64 tokens has room for 0 blocks",
		"-steps 0":            "recall: -steps is 0, want 1 to",
		"-steps -1":           "recall: -steps is -1, want 1 to",
		"-rows 0":             "recall: -rows is 0, want 1 to",
		"-eval-every 0":       "recall: -eval-every is 0, want at least 1",
		"-context-parallel 2": "recall: -context-parallel 2 on 1 ranks: want as many",
		"-out=":               "recall: -out is empty",
		"-lr NaN":             "recall: -lr is NaN",
		"-models nsa,linear":  `recall: -models nsa,linear: model "linear"`,
		"-device gpu":         `recall: -device "gpu", want auto, cpu or cuda:N`,
		"-precision f8":       `recall: -precision "f8"`,
		"-nonsense":           "flag provided but not defined: -nonsense (-help lists all flags)",
		"-steps abc":          "(-help lists all flags)",
		"-out /dev/null/x":    "recall: -out /dev/null/x: mkdir /dev/null",
		"rest":                `recall: unexpected argument "rest"`,
	} {
		t.Run(args, func(t *testing.T) {
			var said bytes.Buffer
			err := run(context.Background(), append([]string{"-out", t.TempDir()}, strings.Fields(args)...), &said)
			require.ErrorContains(t, err, message)
			if args != "rest" {
				fields := strings.Fields(strings.TrimSuffix(args, "="))
				testutil.RequireFlagError(t, err, "recall", strings.TrimPrefix(fields[max(0, len(fields)-2)], "-"))
			}
			status := 2
			if strings.Contains(message, "mkdir") {
				status = 1
			}
			require.Equal(t, status, command.ExitStatus(err, io.Discard))
			if status == 2 {
				require.Empty(t, said.String(), "it began")
			}
		})
	}
}

// TestFitsTerminal: no row of a terminal is broken.
func TestFitsTerminal(t *testing.T) {
	for _, columns := range []int{40, 80} {
		s := &testutil.Screen{Width: columns}
		args := "-context 256 -needles 16 -models nsa -steps 1 -asked 512 -out " + t.TempDir()
		require.NoError(t, run(context.Background(), strings.Fields(args), terminal.Writer(s)))
		require.Zero(t, s.Broken, "%q", s.Lines())
	}
}

// TestStops: when a context ends, the training stops, and so do the questions after it.
func TestStops(t *testing.T) {
	const args = "-context 256 -needles 16 -models dense -steps 1 -asked 512"
	for _, at := range []string{"dense, ", "step"} { // the context ends when this text is written
		ctx, cancel := context.WithCancelCause(context.Background())
		stop, out := errors.New("stop"), filepath.Join(t.TempDir(), "out")
		said := &testutil.Listener{Phrase: at, Heard: func() { cancel(stop) }}
		require.ErrorIs(t, run(ctx, append(strings.Fields(args), "-out", out), said), stop)
		require.Empty(t, testutil.Must(os.ReadDir(out))(t))
	}
}
