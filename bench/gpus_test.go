//go:build unix

package main

import (
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gorgonia-nsa/nsa/internal/cpu"
	"github.com/gorgonia-nsa/nsa/internal/testutil"
)

// TestMain runs the tests or, as a child of one of them, the program.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == "-child" {
		main()
		return
	}
	os.Exit(m.Run())
}

// TestRanksMeasureTogether: processes with a CPU each measure the forms of training that a CPU has, and ZeRO-1 saves
// memory. If a rank fails, the error says which and why.
func TestRanksMeasureTogether(t *testing.T) {
	t.Setenv("NSA_DDP_BUCKET_MB", "1") // several buckets, for ZeRO-1 to share
	job := ranksJob{Preset: "tiny", Batch: 1, Seq: 16, Steps: 1, Rounds: 1, Devices: []string{"cpu", "cpu"}}
	list, forms := testutil.Must(job.launch())(t), []int{0, 2}
	if cpu.HasBF16() { // gradients in bf16, too
		forms = []int{0, 1, 2, 3}
	}
	require.Len(t, list, len(forms))
	for i, form := range forms {
		f := list[i]
		require.Equal(t, form, f.Form)
		for _, x := range []float64{f.Alone, f.Apart, f.Together, float64(f.Before)} {
			require.Positive(t, x)
		}
	}
	require.Less(t, list[len(list)/2].Memory, list[0].Memory)
	job.Context = true
	f := testutil.Must(job.launch())(t)[0]
	require.Positive(t, min(f.Alone, f.Together))
	require.InDelta(t, f.Losses[0], f.Losses[1], 1e-5)
	layer := ranksJob{Batch: 1, Seq: 64, Rounds: 1, Layer: true, Devices: job.Devices}
	f = testutil.Must(layer.launch())(t)[0]
	require.Positive(t, min(f.Forward, float64(f.Memory)))
	job.Devices[1] = "nonsense"
	_, err := job.launch()
	require.ErrorContains(t, err, `rank 1: exit status 2: bench: -device "nonsense"`)
}
