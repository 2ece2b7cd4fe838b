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
	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/internal/command"
	"github.com/gorgonia-nsa/nsa/internal/testutil"
	"github.com/gorgonia-nsa/nsa/models/tinylm"
)

// TestFlagsRefuseValues gives flags impossible values. Each is an error of one line that names the flag or the value.
// It comes before the first step, and no folder is made.
func TestFlagsRefuseValues(t *testing.T) {
	numbers := []string{"x", "", "1e", "0x", "1 2"}
	nonsense := map[string][]string{
		"data": {"/missing"}, "eval-data": {"/missing"}, "text-field": {"", "a..b"}, "tokenizer": {"/missing"},
		"separator": {"x"}, "init": {"/missing", ""}, "config": {"/missing", ""}, "resume": {"/missing", ""},
		"preset": {"huge", "Tiny"}, "attention": {"linear"}, "phi": {"max"}, "device": {"tpu", "cuda:x", "cuda:-1"},
		"precision": {"f8", "F64"}, "optimizer": {"sgd", "Muon"},
		"family": {"x", "{", `{"Size":1}`}, "packed": {"maybe"}, "recompute": {"2"}, "shard": {"maybe"}, "context-parallel": {"0", "-1", "2"}, "ext": {".nothing"},
		"batch": {"0", "-3", "100000000"}, "align": {"maybe"}, "accumulate": {"-1"}, "steps": {"-1"},
		"minutes": {"-1", "NaN", "Inf", "1e300"},
		"context": {"0", "-1"}, "layers": {"0", "-1", "100000000"}, "dim": {"0", "-8"}, "heads": {"0", "-3"},
		"kv-heads": {"0", "3"}, "key-dim": {"0", "3"},
		"value-dim": {"0", "-1"}, "block": {"0", "5"}, "stride": {"0", "3"}, "select-block": {"0", "7"},
		"top-n": {"0", "-1"}, "window": {"0", "-1"},
		"phi-hidden": {"-1"}, "gate-hidden": {"0", "-1"}, "lr": {"0", "-1", "NaN", "Inf"}, "warmup": {"-1", "2", "NaN"},
		"floor":    {"-1", "2"},
		"schedule": {"", "flat"}, "beta2": {"-1", "1", "NaN"},
		"decay": {"-1", "NaN"}, "clip": {"-1", "NaN"}, "eval-every": {"-1"}, "eval-tokens": {"0", "-1"}, "final-eval": {"-1"},
		"out": {"/dev/null/x"}, "v": {"maybe"},
		"sample": {"-1"}, "temperature": {"-1", "NaN"}, "top-k": {"-1"}, "save-minutes": {"-1", "NaN"}, "keep": {"0", "-1"},
		"seed": {"-1"},
	}
	for name, f := range optionFields() {
		if f.Type.Kind() != reflect.String && f.Type.Kind() != reflect.Bool {
			nonsense[name] = append(nonsense[name], numbers...)
		}
	}
	nonsense["no-such-flag"] = []string{"1"}
	new(Options).flags().VisitAll(func(f *flag.Flag) { require.Contains(t, nonsense, f.Name) })
	args, tried := smallArgs(t, 2), 0
	for name, values := range nonsense {
		for _, value := range values {
			out, said := newFolder(t), new(bytes.Buffer)
			o, err := Parse(append(args, "-out", out, "-"+name+"="+value), said)
			if err == nil {
				_, err = Run(context.Background(), o, io.Discard)
			}
			testutil.RequireFlagError(t, err, "train", name)
			require.Empty(t, said.String())
			require.NoDirExists(t, out)
			tried++
		}
	}
	require.Greater(t, tried, 100)
	for args, message := range map[string]string{"train": `unexpected argument "train"`,
		"-steps 0 -lr -1": "train: -lr is -1, want a positive number", "-steps 1 -minutes 1": "does nothing beside",
		"-phi-hidden 5": "-phi-hidden 5 does nothing without -phi mlp"} {
		err := testutil.Err(Parse(strings.Fields(args), io.Discard))
		require.ErrorContains(t, err, message)
		require.Equal(t, 2, command.ExitStatus(err, io.Discard), args)
	}
}

func TestNilArguments(t *testing.T) {
	require.ErrorIs(t, testutil.Err(Parse([]string{"-help"}, nil)), flag.ErrHelp)
	require.ErrorContains(t, (*Options)(nil).Validate(), "no options")
}

// TestOptionsFile: a file of options gives the options that were written. Flags override the file, and the file
// overrides the preset.
func TestOptionsFile(t *testing.T) {
	for _, preset := range []string{"tiny", "base"} {
		o := testutil.Must(Preset(preset))(t)
		require.NoError(t, o.Validate())
		o.Data, o.Tokenizer, o.Init, o.LR, o.Seed, o.Packed = "a: b # \"c\"\n", "\xff/null", "~", 1.25e-7, 1<<64-1, true
		path := filepath.Join(t.TempDir(), "o.yaml")
		require.NoError(t, os.WriteFile(path, o.YAML(), 0o644))
		require.Equal(t, o, *testutil.Must(ReadOptions(path, ""))(t))
	}
	path := filepath.Join(t.TempDir(), "o.yaml")
	require.NoError(t, os.WriteFile(path, []byte("preset: base\nbatch: 7\nlr: 1e-2\n"), 0o644))
	o := parse(t, "-config", path, "-batch", "3")
	require.Equal(t, []any{"base", 3, 1e-2, 12}, []any{o.Preset, o.Batch, o.LR, o.Layers})
	require.NoError(t, os.WriteFile(path, nil, 0o644))
	require.Equal(t, 6, testutil.Must(ReadOptions(path, ""))(t).Batch)
	for _, text := range []string{"# nothing\n", "---\n", "init: \"\"\n", "layers: &n 6\nbatch: *n\n", "batch: \"6\"\n"} {
		write(t, path, text)
		require.Equal(t, 6, testutil.Must(ReadOptions(path, ""))(t).Batch, "%q", text)
	}
}

// TestWrongOptionsFile: what is wrong with a file of options is an error of one line that says where and what.
func TestWrongOptionsFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "o.yaml")
	for text, want := range map[string]string{
		"batch: 1\nstepz: 3":      `line 2: no option is called "stepz" (-help lists all)`,
		"batch: 3\nbatch: 4":      `line 2: "batch" appears twice, in line 1 before`,
		"batch: many":             `line 1: batch is "many", want a whole number: parse error`,
		"seed: 1.7":               `line 1: seed is "1.7", want a whole number of at least 0: parse error`,
		"batch: !!int \"1\\n2\"":  `line 1: batch is "1\n2", want a whole number: parse error`,
		"packed: yes":             `line 1: packed is "yes", want true or false: parse error`,
		"lr: fast":                `line 1: lr is "fast", want a number: parse error`,
		"batch:":                  `line 1: "batch" has no value, want one, "" if it is empty`,
		"data: ~":                 `line 1: "data" has no value, want one, "" if it is empty`,
		"batch: [3]":              `line 1: "batch" has a list or names below it, want one value`,
		"batch:\n  size: 3":       `line 1: "batch" has a list or names below it, want one value`,
		"a: &a [*a]":              `line 1: "a" has a list or names below it, want one value`,
		"data: &lr a\n*lr : 3":    `line 2: a name that is a list or a reference, want NAME: VALUE`,
		"out: elsewhere":          `line 1: out is for the command line alone`,
		"resume: elsewhere":       `line 1: resume is for the command line alone`,
		"\"\": 1":                 `line 1: no option is called "" (-help lists all)`,
		"- 1":                     `line 1: a list or a text, want lines of NAME: VALUE`,
		"hello":                   `line 1: a list or a text, want lines of NAME: VALUE`,
		"batch: 1\n---\nbatch: 2": "more than one document",
		"preset: huge":            "huge",
		"data: !!binary \"?\"":    "base64",
		"\x00":                    "",
	} {
		write(t, path, text)
		err := testutil.Err(ReadOptions(path, ""))
		require.ErrorContains(t, err, want, "%q", text)
		require.ErrorContains(t, err, "train: options "+path+": ", "%q", text)
		require.NotContains(t, err.Error(), "\n", "%q", text)
	}
}

// TestFileTakesWhatFlagsTake: a value in a file is what it is after its flag, or is refused as there.
func TestFileTakesWhatFlagsTake(t *testing.T) {
	values := strings.Fields("1.5 3.9 -1 +2 1e1 0x10 0b11 010 1_000 9223372036854775808 18446744073709551615 18446744073709551616 " +
		"1e400 .5 .inf NaN " +
		"true True yes on T 1 2024-01-01 text")
	for name, f := range optionFields() {
		if name == "preset" || !inFile(f) {
			continue
		}
		for _, value := range values {
			flags := testutil.Must(Preset("tiny"))(t)
			wrong := flags.flags().Parse([]string{"-" + name + "=" + value})
			file, _, err := parseOptions([]byte(name+": "+value), "")
			require.Equal(t, wrong == nil, err == nil, "%s: %s: %v, %v", name, value, wrong, err)
			if err == nil {
				require.Equal(t, flags.flags().Lookup(name).Value.String(), file.flags().Lookup(name).Value.String(), "%s: %s",
					name, value)
			}
		}
	}
}

// TestPathsAreAbsolute: what a run reads has absolute paths, from flags and from a file; -data random is none.
func TestPathsAreAbsolute(t *testing.T) {
	t.Chdir(t.TempDir())
	here := testutil.Must(os.Getwd())(t)
	require.NoError(t, os.Mkdir("in", 0o755))
	require.NoError(t, os.WriteFile("in/o.yaml", []byte("data: text\ntokenizer: t.json\n"), 0o644))
	w := testutil.Must(tinylm.NewWeights(tinylm.Tiny(), tensor.Float32, 1))(t)
	require.NoError(t, w.Save("w.safetensors"))
	text, tokenizer, init := filepath.Join(here, "text"), filepath.Join(here, "t.json"),
		filepath.Join(here, "w.safetensors")
	for args, want := range map[string][]string{
		"":                                     {"", "", ""},
		"-config in/o.yaml":                    {text, tokenizer, ""},
		"-data ./random":                       {filepath.Join(here, "random"), "", ""},
		"-data random":                         {"random", "", ""},
		"-init w.safetensors":                  {"", "", init},
		"-data text -tokenizer ./t.json":       {text, tokenizer, ""},
		"-config in/o.yaml -data random":       {"random", tokenizer, ""},
		"-data " + text + " -tokenizer t.json": {text, tokenizer, ""},
	} {
		o := parse(t, strings.Fields(args)...)
		require.Equal(t, want, []string{o.Data, o.Tokenizer, o.Init}, args)
	}
}

// checkOptions: a file of options is a short error of one line, or options that are the same when they are written and
// read again.
func checkOptions(t *testing.T, text []byte) (good bool) {
	o, _, err := parseOptions(text, "")
	if err != nil {
		require.NotContains(t, err.Error(), "\n")
		require.Less(t, len(err.Error()), 400)
		return false
	}
	_ = o.Validate()
	again, named, err := parseOptions(o.YAML(), "")
	require.NoError(t, err)
	require.Equal(t, string(o.YAML()), string(again.YAML()))
	require.NotEmpty(t, named)
	return true
}

// TestMutatedOptions changes a file of options at random.
func TestMutatedOptions(t *testing.T) {
	o := testutil.Must(Preset("tiny"))(t)
	r, good := rand.New(rand.NewPCG(1, 2)), 0
	for range testutil.Mutations(t) {
		if checkOptions(t, testutil.Mutate(r, o.YAML())) {
			good++
		}
	}
	require.Positive(t, good)
}

func FuzzOptions(f *testing.F) {
	for _, preset := range []string{"tiny", "base"} {
		o := testutil.Must(Preset(preset))(f)
		f.Add(o.YAML())
	}
	for _, text := range []string{"", "a: &x 1\nlr: *x", "lr: !!binary MQ==", "data: |\n  a\n  b",
		"\ufeffsteps: 0x10\r\n", "{steps: 1, lr: .inf}", "---\n---", "seed: 1_0"} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, text []byte) { checkOptions(t, text) })
}

func TestHelp(t *testing.T) {
	var said bytes.Buffer
	require.ErrorIs(t, testutil.Err(Parse([]string{"-help"}, &said)), flag.ErrHelp)
	for name, f := range optionFields() {
		require.NotEmpty(t, f.Tag.Get("help"), name)
		require.Regexp(t, "(?m)^  -"+name+"( |$)", said.String())
	}
	require.Less(t, strings.Count(said.String(), "\n"), 150)
}
