package main

import (
	"os"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestResultFolder: beside a program that is named bench there can be no folder bench.
func TestResultFolder(t *testing.T) {
	t.Chdir("..")
	require.Equal(t, "bench/results", resultFolder())
	t.Chdir(t.TempDir())
	require.Equal(t, "results", resultFolder())
	require.NoError(t, os.WriteFile("bench", nil, 0o644))
	require.Equal(t, "results", resultFolder())
}
