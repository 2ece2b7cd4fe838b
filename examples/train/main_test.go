package main

import (
	"context"
	"io"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gorgonia-nsa/nsa/internal/command"
)

// TestRefusesBeforeReading gives wrong options and data that do not exist: the error is about the options.
func TestRefusesBeforeReading(t *testing.T) {
	missing := filepath.Join(t.TempDir(), "missing")
	for options, message := range map[string]string{
		"-batch -3":         "-batch is -3, want 1 to",
		"-batch 10000000":   "want at most 67108864 tokens",
		"-steps -1":         "-steps is -1, want 0 to",
		"-lr NaN":           "train: -lr is NaN",
		"-minutes -1":       "-minutes is -1, want a number from 0",
		"-precision fp16":   "train: -precision fp16: cpu computes in float32",
		"-precision f8":     `precision "f8"`,
		"-device tpu":       `train: -device "tpu", want auto, cpu or cuda:N`,
		"-preset huge":      "train: -preset huge: no preset \"huge\", want one of: base, tiny",
		"-separator x":      `train: -separator "x" without -tokenizer`,
		"-attention linear": `-attention is "linear"`,
		"-steps 1":          missing,
	} {
		args := append([]string{"-device", "cpu", "-out", "", "-data", missing}, strings.Fields(options)...)
		err := run(context.Background(), args)
		require.ErrorContains(t, err, message, options)
		if message != missing {
			require.Equal(t, 2, command.ExitStatus(err, io.Discard), options)
		}
	}
	t.Setenv("NSA_STRICT", "rather")
	require.ErrorContains(t, run(context.Background(), []string{"-device", "cpu", "-out", "", "-data", missing}),
		`NSA_STRICT is "rather"`)
}
