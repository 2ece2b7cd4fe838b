//go:build unix

package main

import (
	"encoding/csv"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gorgonia-nsa/nsa/internal/testutil"
)

// TestMain runs the tests or, as a child of one of them, the program.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == "-context" {
		main()
		return
	}
	os.Exit(m.Run())
}

// TestRanks: two processes that share documents write what one does, once; -device and -context-parallel must agree.
func TestRanks(t *testing.T) {
	train := func(more ...string) (loss, accuracy []float64) {
		const args = "-context 256 -needles 16 -asked 256 -models nsa -rows 1 -steps 8 -eval-every 4"
		out := t.TempDir()
		said, err := exec.Command(os.Args[0], append(append(strings.Fields(args), "-out", out), more...)...).CombinedOutput()
		require.NoError(t, err, "%s", said)
		require.Equal(t, 1, strings.Count(string(said), "\nwrote "), "%s", said)
		require.NotContains(t, string(said), "rank 1")
		file := testutil.Must(os.Open(filepath.Join(out, "recall_256.csv")))(t)
		defer file.Close()
		rows := testutil.Must(csv.NewReader(file).ReadAll())(t)
		n := len(rows[0])
		for _, row := range rows[1:] {
			if row[n-7] != "" {
				loss = append(loss, testutil.Must(strconv.ParseFloat(row[n-7], 64))(t))
			}
			accuracy = append(accuracy, testutil.Must(strconv.ParseFloat(row[n-2], 64))(t))
		}
		return loss, accuracy
	}
	loss, accuracy := train()
	losses, accuracies := train("-device", "cpu:2", "-context-parallel", "2")
	require.Len(t, loss, 2)
	require.InDeltaSlice(t, loss, losses, 1e-3)
	require.InDeltaSlice(t, accuracy, accuracies, 0.05)
	said, err := exec.Command(os.Args[0], "-context", "256", "-device", "cpu:2", "-out", t.TempDir()).CombinedOutput()
	require.Error(t, err)
	require.Equal(t, "recall: -context-parallel 1 on 2 ranks: want as many\n", string(said))
}
