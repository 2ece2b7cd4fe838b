package main

import (
	"bytes"
	"io"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gorgonia-nsa/nsa/internal/command"
)

func TestRun(t *testing.T) {
	var text bytes.Buffer
	require.NoError(t, run([]string{"-device", "cpu"}, &text))
	require.Contains(t, text.String(), "TapeMachine: ")
	require.Contains(t, text.String(), "Machine, step 4: ")
}

// TestRefusesBeforeRunning: wrong arguments are an error of status 2, and nothing runs.
func TestRefusesBeforeRunning(t *testing.T) {
	for args, message := range map[string]string{
		"-device tpu":                 `attention: -device "tpu", want auto, cpu or cuda:N`,
		"-precision f8":               `attention: -precision "f8"`,
		"-device cpu -precision fp16": "attention: -precision fp16: cpu computes in float32",
		"rest":                        `attention: unexpected argument "rest"`,
	} {
		var text bytes.Buffer
		err := run(strings.Fields(args), &text)
		require.ErrorContains(t, err, message)
		require.Equal(t, 2, command.ExitStatus(err, io.Discard), args)
		require.Empty(t, text.String())
	}
}
