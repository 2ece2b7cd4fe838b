package pretrained_test

import (
	"encoding/json"
	"io/fs"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"unicode"

	"github.com/stretchr/testify/require"
	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/graph/safetensors"
	"github.com/gorgonia-nsa/nsa/internal/testutil"
	"github.com/gorgonia-nsa/nsa/models/lm/pretrained"
)

const (
	single = "model.safetensors"
	index  = "model.safetensors.index.json"

	first, second = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"
)

// sample returns tensors of 1,000, 24, 600 and 1 elements, in the order of their names.
func sample() map[string]*tensor.Dense {
	all := map[string]*tensor.Dense{}
	for i, shape := range [][]int{{10, 100}, {2, 3, 4}, {600}, {1}} {
		x := testutil.Convert[float32](testutil.Normal(uint64(i), tensor.Shape(shape).TotalSize()))
		all["model.layers."+string(rune('a'+i))] = tensor.New(tensor.WithShape(shape...), tensor.WithBacking(x))
	}
	return all
}

// names returns the sorted names of the files in a folder.
func names(t testing.TB, folder string) (list []string) {
	for _, e := range testutil.Must(os.ReadDir(folder))(t) {
		list = append(list, e.Name())
	}
	return list
}

// TestWriteOpen: what Write has written Open reads, in every type and however many files there are.
func TestWriteOpen(t *testing.T) {
	for dtype, c := range map[string]struct {
		size  int64
		round func(float64) float64
	}{
		"F32":  {4, func(v float64) float64 { return v }},
		"BF16": {2, func(v float64) float64 { return testutil.FromBFloat16(testutil.BFloat16(v)) }},
		"F16":  {2, func(v float64) float64 { return testutil.FromFloat16(testutil.Float16(v)) }},
	} {
		for _, l := range []struct {
			elements int64 // of a shard
			files    int
		}{{0, 1}, {1625, 1}, {1624, 2}, {999, 2}, {625, 2}, {624, 3}, {601, 3}, {600, 4}, {1, 4}} {
			dir, tensors := t.TempDir(), sample()
			require.NoError(t, pretrained.Write(dir, tensors, pretrained.Layout{Type: dtype, ShardBytes: c.size * l.elements}))
			files := names(t, dir)
			if l.files == 1 {
				require.Equal(t, []string{single}, files)
			} else {
				require.Len(t, files, l.files+1)
				require.Contains(t, files, "model-00001-of-0000"+string(rune('0'+l.files))+".safetensors")
				var in struct {
					Metadata struct {
						Total int64 `json:"total_size"`
					} `json:"metadata"`
				}
				require.NoError(t, json.Unmarshal(testutil.Must(os.ReadFile(filepath.Join(dir, index)))(t), &in))
				require.Equal(t, c.size*1625, in.Metadata.Total)
			}
			for _, name := range files {
				if name != index {
					file := testutil.Must(safetensors.Read(filepath.Join(dir, name)))(t)
					require.Equal(t, map[string]string{"format": "pt"}, file.Metadata)
				}
			}
			f := testutil.Closing(pretrained.Open(dir))(t)
			require.Equal(t, slices.Sorted(maps.Keys(tensors)), f.Names())
			for name, x := range tensors {
				shape, ok := f.Shape(name)
				require.True(t, ok)
				require.Equal(t, []int(x.Shape()), shape)
				require.Equal(t, dtype, f.Type(name))
				dst := make([]float32, x.Shape().TotalSize())
				require.NoError(t, f.Read(name, dst))
				for i, v := range x.Float32s() {
					require.Equal(t, float32(c.round(float64(v))), dst[i])
				}
				require.ErrorContains(t, f.Read(name, dst[1:]), "the destination has")
			}
			_, ok := f.Shape("missing")
			require.False(t, ok)
			require.Empty(t, f.Type("missing"))
			require.ErrorContains(t, f.Read("missing", nil), `no tensor "missing"`)
		}
	}
}

// TestWriteRefuses: Write leaves a folder with weights as it is, and writes none that are not as wanted.
func TestWriteRefuses(t *testing.T) {
	for _, name := range []string{single, index} {
		dir := t.TempDir()
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte("before"), 0o644))
		for _, l := range []pretrained.Layout{{}, {ShardBytes: 1}} {
			require.ErrorIs(t, pretrained.Write(dir, sample(), l), fs.ErrExist)
			require.Equal(t, []string{name}, names(t, dir))
			require.Equal(t, "before", string(testutil.Must(os.ReadFile(filepath.Join(dir, name)))(t)))
		}
	}
	dir, bad := t.TempDir(), sample()
	bad["x"] = tensor.New(tensor.WithShape(1), tensor.WithBacking([]float64{1}))
	require.ErrorContains(t, pretrained.Write(dir, bad, pretrained.Layout{}), `"x" is nil or not of float32`)
	require.ErrorContains(t, pretrained.Write(dir, nil, pretrained.Layout{}), "no tensors")
	require.ErrorContains(t, pretrained.Write(dir, sample(), pretrained.Layout{Type: "Q4_0"}), `type "Q4_0"`)
	require.ErrorContains(t, pretrained.Write(dir, sample(), pretrained.Layout{ShardBytes: -1}), "shards of -1 bytes")
	bad["x"] = tensor.New(tensor.WithShape(1), tensor.WithBacking([]float32{1e5}))
	require.ErrorContains(t, pretrained.Write(dir, bad, pretrained.Layout{Type: "F16", ShardBytes: 1}),
		`00005-of-00005.safetensors: tensor "x": element 0 is 100000, which F16 does not hold`)
	require.NotContains(t, names(t, dir), index)
	require.Error(t, testutil.Err(pretrained.Open(dir)))
	require.ErrorIs(t, pretrained.Write(filepath.Join(dir, "missing"), sample(), pretrained.Layout{}), fs.ErrNotExist)
}

// sharded returns a folder with the sample in two files and its index.
func sharded(t testing.TB) string {
	dir := t.TempDir()
	require.NoError(t, pretrained.Write(dir, sample(), pretrained.Layout{ShardBytes: 4000}))
	require.Equal(t, []string{first, second, index}, names(t, dir))
	return dir
}

// TestOpenRefuses: an index that is damaged or does not say what is in the files.
func TestOpenRefuses(t *testing.T) {
	replace := func(from, to string) func(string) string {
		return func(s string) string { return strings.Replace(s, from, to, 1) }
	}
	for _, c := range []struct {
		name   string
		change func(index string) string
		reason string
	}{
		{"not JSON", func(s string) string { return s[1:] }, index + ": "},
		{"no map", func(string) string { return `{"metadata":{}}` }, "no weight_map"},
		{"map of numbers", func(string) string { return `{"weight_map":{"a":1}}` }, index + ": "},
		{"name twice", replace(`"model.layers.b"`, `"model.layers.a"`), "duplicate"},
		{"missing shard", replace(first, "model-3.safetensors"), "no such file"},
		{"other folder", replace(first, "../"+first), `shard "../` + first + `", want the name of a file in the folder`},
		{"absolute", replace(first, "/"+first), "want the name of a file in the folder"},
		{"subfolder", replace(first, "x/"+first), "want the name of a file in the folder"},
		{"no name", replace(first, ""), "want the name of a file in the folder"},
		{"dots", replace(first, ".."), "want the name of a file in the folder"},
		{"itself", replace(first, index), "safetensors.index.json: "},
		{"not listed", replace(`"model.layers.b": "`+second+`",`, ""), `"model.layers.b" of "` + second + `" is not listed`},
		{"in no file", replace(`"model.layers.b"`, `"c": "`+second+`", "model.layers.b"`), `"c" is not in "` + second},
		{"other file", replace(`"model.layers.b": "`+second, `"model.layers.b": "`+first), second + `", not in "` + first},
		{"long name", replace(first, strings.Repeat("x", 1<<16)), "too long"},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := sharded(t)
			path := filepath.Join(dir, index)
			before := string(testutil.Must(os.ReadFile(path))(t))
			after := c.change(before)
			require.NotEqual(t, before, after)
			require.NoError(t, os.WriteFile(path, []byte(after), 0o644))
			_, err := pretrained.Open(dir)
			require.ErrorContains(t, err, c.reason)
			requireShort(t, err)
		})
	}
	_, err := pretrained.Open(t.TempDir())
	require.ErrorContains(t, err, "neither model.safetensors nor ")
	require.ErrorIs(t, err, fs.ErrNotExist)
	dir := sharded(t)
	copied := testutil.Must(os.ReadFile(filepath.Join(dir, first)))(t)
	require.NoError(t, os.WriteFile(filepath.Join(dir, second), copied, 0o644))
	_, err = pretrained.Open(dir)
	require.ErrorContains(t, err, `tensor "model.layers.a" is in "`+first+`" and in "`+second)
	require.NoError(t, os.WriteFile(filepath.Join(dir, single), copied, 0o644))
	f := testutil.Closing(pretrained.Open(dir))(t) // the single file comes first
	require.Equal(t, []string{"model.layers.a"}, f.Names())
}

// requireShort: an error names the package, is on one line and not long.
func requireShort(t testing.TB, err error) {
	t.Helper()
	require.True(t, strings.HasPrefix(err.Error(), "pretrained: "), "%v", err)
	require.Less(t, len(err.Error()), 1<<10)
	require.Equal(t, -1, strings.IndexFunc(err.Error(), func(r rune) bool { return !unicode.IsPrint(r) }), "%q", err)
}

// requireHarmless opens a folder and, if it is good, reads all of it. This needs little memory.
func requireHarmless(t testing.TB, dir string) {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	f, err := pretrained.Open(dir)
	if err != nil {
		requireShort(t, err)
	} else {
		for _, name := range f.Names() {
			shape, _ := f.Shape(name)
			if err := f.Read(name, make([]float32, tensor.Shape(shape).TotalSize())); err != nil {
				requireShort(t, err)
			}
		}
		require.NoError(t, f.Close())
	}
	runtime.ReadMemStats(&after)
	require.Less(t, after.TotalAlloc-before.TotalAlloc, uint64(1<<20))
}

// TestMutations: see requireHarmless; one of the three files is damaged.
func TestMutations(t *testing.T) {
	dir, r := sharded(t), rand.New(rand.NewPCG(1, 2))
	for i := range testutil.Mutations(t) {
		path := filepath.Join(dir, names(t, dir)[i%3])
		good := testutil.Must(os.ReadFile(path))(t)
		require.NoError(t, os.WriteFile(path, testutil.Mutate(r, good), 0o644))
		requireHarmless(t, dir)
		require.NoError(t, os.WriteFile(path, good, 0o644))
	}
}

// FuzzIndex: see requireHarmless.
func FuzzIndex(f *testing.F) {
	f.Add(testutil.Must(os.ReadFile(filepath.Join(sharded(f), index)))(f))
	f.Add([]byte(`{"weight_map":{"a":"../a"}}`))
	f.Fuzz(func(t *testing.T, content []byte) {
		dir := sharded(t)
		require.NoError(t, os.WriteFile(filepath.Join(dir, index), content, 0o644))
		requireHarmless(t, dir)
	})
}
