package main

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gorgonia-nsa/nsa/graph"
	"github.com/gorgonia-nsa/nsa/internal/testutil"
)

// TestSaveKeepsOtherRows: a run replaces the rows of its suites, and with -length only those that it measured again.
func TestSaveKeepsOtherRows(t *testing.T) {
	dir := t.TempDir()
	save := func(onlyLength int, rows ...row) (what []string) {
		r := newReport(dir, graph.NewCPU(1), onlyLength)
		r.rows = rows
		r.save()
		for _, record := range r.saved()[1:] {
			n := len(r.origin)
			what = append(what, record[n]+" "+record[n+1]+" "+record[n+2]+" "+record[n+3])
		}
		return what
	}
	step := func(suite, size string, value float64) row {
		return row{suite: suite, what: "step", size: size, value: value}
	}
	require.Equal(t, []string{"gemm step 1 1", "decode step 512 2", "decode step 2048 3"},
		save(0, step("gemm", "1", 1), step("decode", "512", 2), step("decode", "2048", 3)))
	require.Equal(t, []string{"gemm step 1 1", "decode step 512 2", "decode step 2048 4"},
		save(2048, step("decode", "2048", 4)))
	require.Equal(t, []string{"gemm step 1 1", "decode step 64 5"}, save(0, step("decode", "64", 5)))
}

// TestRefusesOtherColumns: a cpu.csv of another program is an error before anything is measured, and stays as it is.
func TestRefusesOtherColumns(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "cpu.csv")
	const mine = "cores,price\n64,9000\n"
	require.NoError(t, os.WriteFile(path, []byte(mine), 0o644))
	defer func() {
		require.ErrorContains(t, recover().(failed), path+` has the columns ["cores" "price"], want ["date" `)
		require.Equal(t, mine, string(testutil.Must(os.ReadFile(path))(t)))
	}()
	newReport(dir, graph.NewCPU(1), 0)
}
