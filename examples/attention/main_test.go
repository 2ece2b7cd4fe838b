package main

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// printed returns what run prints, and its error.
func printed(t *testing.T, device, precision string) (string, error) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "out")
	f, err := os.Create(path)
	require.NoError(t, err)
	stdout := os.Stdout
	os.Stdout = f
	failed := run(device, precision)
	os.Stdout = stdout
	require.NoError(t, f.Close())
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	return string(text), failed
}

func TestRun(t *testing.T) {
	text, err := printed(t, "cpu", "f32")
	require.NoError(t, err)
	require.Contains(t, text, "TapeMachine: ")
	require.Contains(t, text, "Machine, step 4: ")
}

// TestRefusesBeforeRunning: of what the device does not have nothing has run.
func TestRefusesBeforeRunning(t *testing.T) {
	text, err := printed(t, "cpu", "bf16")
	require.ErrorContains(t, err, "precision bf16: cpu computes in float32")
	require.Empty(t, text)
}
