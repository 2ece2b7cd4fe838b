package train

import (
	"bytes"
	"context"
	"flag"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gorgonia-nsa/nsa/internal/testutil"
)

// TestNonsense gives flags impossible values. Each is an error of one line that names the flag or the value. It comes before the first
// step, and no folder is made.
func TestNonsense(t *testing.T) {
	numbers := []string{"x", "", "1e", "0x", "1 2"}
	nonsense := map[string][]string{
		"data": {"/missing"}, "tokenizer": {"/missing"}, "separator": {"x"}, "init": {"/missing"}, "config": {"/missing"}, "resume": {"/missing"},
		"preset": {"huge", "Tiny"}, "attention": {"linear"}, "phi": {"max"}, "device": {"tpu", "cuda:x", "cuda:-1"}, "precision": {"f8", "F64"}, "optimizer": {"sgd", "Muon"},
		"packed": {"maybe"}, "recompute": {"2"}, "ext": {".nothing"},
		"batch": {"0", "-3", "100000000"}, "accumulate": {"0", "-1"}, "steps": {"-1"}, "minutes": {"-1", "NaN", "Inf", "1e300"},
		"context": {"0", "-1"}, "layers": {"0", "-1", "100000000"}, "dim": {"0", "-8"}, "heads": {"0", "-3"}, "kv-heads": {"0", "3"}, "key-dim": {"0", "3"},
		"value-dim": {"0", "-1"}, "block": {"0", "5"}, "stride": {"0", "3"}, "select-block": {"0", "7"}, "top-n": {"0", "-1"}, "window": {"0", "-1"},
		"phi-hidden": {"-1"}, "gate-hidden": {"0", "-1"}, "lr": {"0", "-1", "NaN", "Inf"}, "warmup": {"-1", "2", "NaN"}, "floor": {"-1", "2"},
		"schedule": {"", "flat"}, "beta2": {"-1", "1", "NaN"},
		"decay": {"-1", "NaN"}, "clip": {"-1", "NaN"}, "eval-every": {"-1"}, "eval-tokens": {"0", "-1"}, "final-eval": {"-1"},
		"sample": {"-1"}, "temperature": {"-1", "NaN"}, "top-k": {"-1"}, "save-minutes": {"-1", "NaN"}, "keep": {"0", "-1"}, "seed": {"-1"},
	}
	fields := reflect.VisibleFields(reflect.TypeFor[Options]())
	for _, f := range fields {
		if f.IsExported() && f.Type.Kind() != reflect.String && f.Type.Kind() != reflect.Bool {
			nonsense[nameOf(f)] = append(nonsense[nameOf(f)], numbers...)
		}
	}
	nonsense["no-such-flag"] = []string{"1"}
	args, tried := smallArgs(t, 2), 0
	for name, values := range nonsense {
		for _, value := range values {
			out, said := filepath.Join(t.TempDir(), "run"), new(bytes.Buffer)
			o, err := Parse(append(args, "-out", out, "-"+name, value), said)
			if err == nil {
				_, err = Run(context.Background(), o, io.Discard)
			}
			require.Error(t, err, "-%s %q", name, value)
			require.NotContains(t, err.Error(), "\n", "-%s %q", name, value)
			require.Less(t, len(err.Error()), 400, "-%s %q: %v", name, value, err)
			require.Empty(t, said.String())
			require.NoDirExists(t, out)
			tried++
		}
	}
	require.Greater(t, tried, 100)
	require.ErrorContains(t, testutil.Err(Parse([]string{"train"}, io.Discard)), `unexpected argument "train"`)
}

// TestOptionsFile: a file of options gives the options that were written. Flags override the file, and the file overrides the preset.
func TestOptionsFile(t *testing.T) {
	for _, preset := range []string{"tiny", "base"} {
		o := testutil.Must(Preset(preset))(t)
		require.NoError(t, o.Validate())
		o.Data, o.LR, o.Seed, o.Packed = "a: b # \"c\"\n", 1.25e-7, 1<<64-1, true
		path := filepath.Join(t.TempDir(), "o.yaml")
		require.NoError(t, os.WriteFile(path, o.YAML(), 0o644))
		require.Equal(t, o, *testutil.Must(ReadOptions(path, ""))(t))
	}
	path := filepath.Join(t.TempDir(), "o.yaml")
	require.NoError(t, os.WriteFile(path, []byte("preset: base\nbatch: 7\nlr: 1e-2\n"), 0o644))
	o := testutil.Must(Parse([]string{"-config", path, "-batch", "3"}, io.Discard))(t)
	require.Equal(t, []any{"base", 3, 1e-2, 12}, []any{o.Preset, o.Batch, o.LR, o.Layers})
	require.NoError(t, os.WriteFile(path, nil, 0o644))
	require.Equal(t, 4, testutil.Must(ReadOptions(path, ""))(t).Batch)
	for text, want := range map[string]string{
		"batchh: 3": "batchh", "batch: many": "many", "batch: 3\nbatch: 4": "already defined", "- 1": "cannot unmarshal", "\x00": "",
		"preset: huge": "huge", "batch: 1\n---\nbatch: 2": "more than one document", "a: &a [*a]": "",
	} {
		require.NoError(t, os.WriteFile(path, []byte(text), 0o644))
		require.ErrorContains(t, testutil.Err(ReadOptions(path, "")), want, "%q", text)
	}
}

// TestMutatedOptions changes a file of options at random: reading it neither panics nor takes long.
func TestMutatedOptions(t *testing.T) {
	o := testutil.Must(Preset("tiny"))(t)
	r, good := rand.New(rand.NewPCG(1, 2)), 0
	for range testutil.Mutations(t) {
		if o, err := parseOptions(testutil.Mutate(r, o.YAML()), ""); err == nil {
			good++
			_ = o.Validate()
		}
	}
	require.Positive(t, good)
}

func TestHelp(t *testing.T) {
	var said bytes.Buffer
	require.ErrorIs(t, testutil.Err(Parse([]string{"-help"}, &said)), flag.ErrHelp)
	for _, f := range reflect.VisibleFields(reflect.TypeFor[Options]()) {
		if f.IsExported() {
			require.NotEmpty(t, f.Tag.Get("help"), f.Name)
			require.Regexp(t, "(?m)^  -"+nameOf(f)+"( |$)", said.String())
		}
	}
	require.Less(t, strings.Count(said.String(), "\n"), 150)
}
