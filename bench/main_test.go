package main

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	G "gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/graph"
	"github.com/gorgonia-nsa/nsa/graph/fakedevice"
	"github.com/gorgonia-nsa/nsa/internal/testutil"
	"github.com/gorgonia-nsa/nsa/models/tinylm"
)

// TestLengthRestrictsEveryPart: with -length a suite runs those of its parts that have this number of tokens, all of
// them and no other.
func TestLengthRestrictsEveryPart(t *testing.T) {
	for i := range 2 * len(suites) {
		s := suites[i/2]
		measure, device := s.cpu, graph.Backend(graph.NewCPU(1))
		if i%2 == 1 {
			measure, device = s.gpu, fakedevice.New()
		}
		if measure == nil {
			continue
		}
		t.Run(fmt.Sprint(i, " ", s.name), func(t *testing.T) {
			plan := func(length int) []int { return plan(measure, device, length) }
			all := plan(0)
			require.NotEmpty(t, all)
			for _, length := range slices.Concat(all, []int{1, 100, 512, 1984, 2048, 65536, 1 << 20}) {
				if length == 0 {
					continue
				}
				parts := slices.DeleteFunc(slices.Clone(all), func(n int) bool { return n != length })
				switch {
				case s.name == "attention" && len(parts) < len(attentionShapes): // it takes any number
					parts = slices.Repeat([]int{length}, len(attentionShapes))
				case s.name == "profile" && slices.ContainsFunc(trainSizes,
					func(c trainSize) bool { return c.seq == length }):
					parts = []int{length}
				}
				require.ElementsMatch(t, parts, plan(length), "length %d", length)
			}
		})
	}
}

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

// TestShortAttention builds attention at short lengths, also at one without a complete compression block.
func TestShortAttention(t *testing.T) {
	for s := 16; s <= 4096; s *= 4 {
		a := attentionBench{attentionShape: attentionShape{heads: 16, kvHeads: 2, dim: 64, valueDim: 32}, s: s}
		q := input(G.NewGraph(), "q", 1, s, a.heads, a.dim)
		require.Equal(t, []int{1, s, a.heads, a.valueDim}, []int(a.graph(q, a.nsa).Shape()))
	}
}

// TestPrefillRows: the suite prefill has rows for the whole prompt and for chunks that are shorter, and for shared
// prefixes.
func TestPrefillRows(t *testing.T) {
	c := tinylm.Tiny()
	c.Layers = 1
	f, w := fakedevice.New(), testutil.Must(tinylm.NewWeights(c, tensor.Float32, 1))(t)
	require.NoError(t, w.MoveTo(f))
	r := newReport(t.TempDir(), f, 0)
	r.addPrefills(w, 96, []int{32, 96, 128})
	r.addShared(w, 3, 80, 10)
	var got []string
	for _, x := range r.rows {
		require.Positive(t, x.value)
		got = append(got, x.what+", "+x.size)
	}
	require.Equal(t, []string{"a prompt whole, S=96", "memory of a prompt whole, S=96", "a prompt in chunks of 32, S=96",
		"memory of a prompt in chunks of 32, S=96", "prompts, each by itself, 3 of S=80, 70 in common",
		"prompts that share their prefix, 3 of S=80, 70 in common",
		"a sequence takes over a shared prefix, 3 of S=80, 70 in common"}, got)
	require.NoError(t, w.Free())
	require.Zero(t, f.MemoryInUse)
}

// TestPeers: the columns that the bench names are in the committed tables. A size without a run has no figure.
func TestPeers(t *testing.T) {
	size := map[string]string{"shape": "i", "length": "65536", "attention": "dense"}
	forward, both := cuDNNFigure("gpu_peers.csv", "forward_ms", size), cuDNNFigure("gpu_peers.csv",
		"forward_and_backward_ms", size)
	require.Positive(t, forward)
	require.Greater(t, both, forward)
	require.Positive(t, cuDNNFigure("gpu_decode_peers.csv", "us", map[string]string{"shape": "i", "length": "65536",
		"batch": "8"}))
	size["length"] = "1"
	require.Zero(t, cuDNNFigure("gpu_peers.csv", "forward_ms", size))
}
