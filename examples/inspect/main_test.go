package main

import (
	"bytes"
	"flag"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/internal/command"
	"github.com/gorgonia-nsa/nsa/internal/testutil"
	"github.com/gorgonia-nsa/nsa/models/tinylm"
)

func model(t *testing.T) string { return modelOf(t, 256) }

func modelOf(t *testing.T, vocab int) string {
	c := tinylm.Tiny()
	c.Layers, c.Context, c.Dim, c.Vocab = 2, 128, 32, vocab
	path := filepath.Join(t.TempDir(), "w.safetensors")
	require.NoError(t, testutil.Must(tinylm.NewWeights(c, tensor.Float32, 1))(t).Save(path))
	return path
}

// TestRun runs the texts that a user may name, and checks the output.
func TestRun(t *testing.T) {
	file := filepath.Join(t.TempDir(), "text")
	require.NoError(t, os.WriteFile(file, bytes.Repeat([]byte("some text from a file, "), 100), 0o644))
	for _, c := range []struct {
		windows string
		args    []string
	}{
		{"one window of 128 tokens", nil},
		{"one window of 128 tokens", []string{"-layer", "1"}},
		{"one window of 18 tokens", []string{"-text", "a </script> & text"}},
		{"15 windows of 128 tokens", []string{"-file", file, "-tokens", "2000"}},
		{"17 windows of 128 tokens", []string{"-file", file, "-tokens", "100000"}},
	} {
		folder := filepath.Join(t.TempDir(), "out")
		var out bytes.Buffer
		require.NoError(t, run(append([]string{"-model", model(t), "-device", "cpu", "-out", folder}, c.args...), &out))
		require.Contains(t, out.String(), c.windows)
		page := filepath.Join(folder, "index.html")
		require.Contains(t, out.String(), page)
		require.FileExists(t, page)
	}
}

// TestFitsTerminal: no row of a terminal is broken.
func TestFitsTerminal(t *testing.T) {
	weights := model(t)
	for _, columns := range []int{20, 40, 80} {
		s := &testutil.Screen{Width: columns}
		require.NoError(t, run([]string{"-model", weights, "-device", "cpu", "-out", filepath.Join(t.TempDir(), "out")}, s))
		require.Zero(t, s.Broken, "%q", s.Lines())
	}
}

// TestRefuses: an error is one line, and no folder is made.
func TestRefuses(t *testing.T) {
	weights, missing := model(t), filepath.Join(t.TempDir(), "missing")
	folder, large := filepath.Join(t.TempDir(), "out"), filepath.Join(t.TempDir(), "large")
	require.NoError(t, os.WriteFile(large, nil, 0o644))
	require.NoError(t, os.Truncate(large, maxTextBytes+1)) // a file with a hole, as /dev/zero without its end
	runFolder := t.TempDir()
	for _, name := range []string{"config.yaml", "run.json"} {
		require.NoError(t, os.WriteFile(filepath.Join(runFolder, name), nil, 0o644))
	}
	for _, c := range []struct {
		status        int
		args, message string
	}{
		{2, "", "inspect: -model is missing: want a run folder"},
		{2, "-model m more", `unexpected argument "more"`},
		{2, "-model m -tokens many", "(-help lists all flags)"},
		{2, "-model m -tokens -1", "inspect: -tokens is -1, want 0 or at least 2"},
		{2, "-model m -tokens 1", "inspect: -tokens is 1, want 0 or at least 2"},
		{2, "-model w -out=", "inspect: -out is empty"},
		{2, "-model m -text a -file b", "-text and -file exclude each other"},
		{2, "-model m -out " + runFolder, "inspect: -out " + runFolder + " is a run's folder, whose files would be replaced: want another one, such as "},
		{1, "-model " + missing, "inspect: -model " + missing + ": no such file or directory"},
		{1, "-model w -file " + missing, missing},
		{1, "-model w -file " + large, "inspect: -file " + large + ": more than 64.0 MiB"},
		{1, "-model w -text a", "1 tokens in a window, want at least 2"},
		{2, "-model w -layer 2", "inspect: -layer is 2, the model has 0 to 1"},
		{2, "-model w -layer -2", "inspect: -layer is -2, want -1 or more"},
		{2, "-model w -text=", "inspect: -text is empty"},
		{2, "-model w -device tpu", `inspect: -device "tpu"`},
		{1, "-model w -tokenizer none", "inspect: -tokenizer none: no such file or directory"},
		{1, "-model " + modelOf(t, 300), "the model has 300 tokens, a text of bytes has 256"},
		{1, "-model " + t.TempDir(), "neither model.safetensors nor a checkpoint"},
	} {
		list := strings.Fields(strings.ReplaceAll(c.args, "-model w", "-model "+weights))
		err := run(append([]string{"-out", folder}, list...), &bytes.Buffer{})
		require.ErrorContains(t, err, c.message, c.args)
		require.NotContains(t, err.Error(), "\n")
		require.NoDirExists(t, folder)
		require.Equal(t, c.status, command.ExitStatus(err, io.Discard), c.args)
	}
	wrong := map[string][]string{"model": {"/missing"}, "tokenizer": {"/missing"}, "file": {"/missing", ""},
		"text": {""}, "out": {"", "/dev/null/x"},
		"device": {"tpu", "cuda:x", "cuda:-1"}, "tokens": {"x", "-1", "1"}, "layer": {"x", "-2", "2"}}
	testutil.Must(parse([]string{"-model", weights}, io.Discard))(t).set.VisitAll(func(f *flag.Flag) {
		require.NotEmpty(t, wrong[f.Name], f.Name)
		for _, value := range wrong[f.Name] {
			err := run([]string{"-model", weights, "-device", "cpu", "-out", folder, "-" + f.Name + "=" + value}, io.Discard)
			testutil.RequireFlagError(t, err, "inspect", f.Name)
		}
	})
	var help bytes.Buffer
	require.Error(t, run([]string{"-help"}, &help))
	require.Contains(t, help.String(), "-tokens")
}
