package main

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestRun(t *testing.T) {
	var text bytes.Buffer
	require.NoError(t, run(&text, "cpu", "f32"))
	require.Contains(t, text.String(), "TapeMachine: ")
	require.Contains(t, text.String(), "Machine, step 4: ")
}

// TestRefusesBeforeRunning: if the device lacks something, the example returns an error and runs nothing.
func TestRefusesBeforeRunning(t *testing.T) {
	var text bytes.Buffer
	require.ErrorContains(t, run(&text, "cpu", "bf16"), "precision bf16: cpu computes in float32")
	require.Empty(t, text.String())
}
