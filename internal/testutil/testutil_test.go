package testutil

import (
	"fmt"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"testing/fstest"
	"unsafe"

	"github.com/stretchr/testify/require"
	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/graph/safetensors"
)

// recorder is a testing.TB that records how a test fails or ends.
type recorder struct {
	testing.TB
	failures []string
	end      string
}

func (r *recorder) Helper() {}

func (r *recorder) Errorf(format string, a ...any) {
	r.failures = append(r.failures, fmt.Sprintf(format, a...))
}

func (r *recorder) Skip(...any)           { r.stop("skipped") }
func (r *recorder) Fatal(...any)          { r.stop("failed") }
func (r *recorder) Fatalf(string, ...any) { r.stop("no boolean") }

func (r *recorder) stop(how string) {
	r.end = how
	runtime.Goexit()
}

func TestNoGPU(t *testing.T) {
	for _, name := range requireGPU {
		for _, other := range requireGPU {
			t.Setenv(other, "")
		}
		for value, want := range map[string]string{"": "skipped", "0": "skipped", "false": "skipped", "1": "failed",
			"true": "failed", "yes": "no boolean"} {
			t.Setenv(name, value)
			r, done := new(recorder), make(chan struct{})
			go func() {
				defer close(done)
				NoGPU(r, "no GPU")
			}()
			<-done
			require.Equal(t, want, r.end, "%s=%s", name, value)
		}
	}
}

func TestGoldensEmbedded(t *testing.T) {
	t.Setenv(envGoldens, "")
	var names []string
	EachGolden(t, Ops, func(t *testing.T, g Golden) {
		names = append(names, g.Name)
		c := g.Config
		require.Equal(t, []int{c.B, c.S, c.Hq, c.D}, g.Shape(t, "q"), g.Name)
		require.Equal(t, []int{c.B, c.S, c.Hkv, c.TopN}, g.Shape(t, "idx"), g.Name)
		require.Len(t, g.I32(t, "idx"), c.B*c.S*c.Hkv*c.TopN)
		require.Len(t, g.F64(t, "o"), c.B*c.S*c.Hq*c.Dv)
	})
	require.Equal(t, []string{
		"ops_full_cover", "ops_group6", "ops_mha_edges", "ops_no_block", "ops_small", "ops_sparse",
	}, names)

	tiny := Must(goldens(TinyLM))(t)
	require.Len(t, tiny, 2)
	require.Equal(t, Config{
		B: 2, S: 72, Hq: 6, Hkv: 2, D: 8, Dv: 8, Seed: 12,
		BlockLen: 8, Stride: 4, SelBlock: 8, TopN: 4, Window: 16,
		Vocab: 61, Dim: 48, Layers: 2, GateHidden: 8, Phi: "mlp", PhiHidden: 12, LR: 3e-3, Warmup: 3, Total: 10, Floor: 0.1,
	}, tiny[1].Config)
}

func TestGoldensFolder(t *testing.T) {
	dir := t.TempDir()
	x := tensor.New(tensor.WithBacking([]float64{2.5}))
	f := safetensors.File{Metadata: map[string]string{"config": `{"B": 1, "S": 9, "Hq": 2, "Hkv": 1, "D": 4, "Dv": 3, "l": 4, "d": 2, "lp": 4, "n": 3, "w": 2}`}, Tensors: map[string]*tensor.Dense{"x": x}}
	require.NoError(t, f.Write(filepath.Join(dir, "mine.safetensors")), "the kind is in the file, not in its name")
	require.NoError(t, os.WriteFile(filepath.Join(dir, "notes.txt"), []byte("no golden"), 0o644))
	t.Setenv(envGoldens, dir)

	list := Must(goldens(Ops))(t)
	last := list[len(list)-1]
	require.Len(t, list, 7)
	require.Equal(t, "mine", last.Name)
	require.False(t, last.BuiltIn)
	require.True(t, list[0].BuiltIn)
	require.Equal(t, Config{B: 1, S: 9, Hq: 2, Hkv: 1, D: 4, Dv: 3, BlockLen: 4, Stride: 2, SelBlock: 4, TopN: 3,
		Window: 2}, last.Config)
	require.Equal(t, []float64{2.5}, last.F64(t, "x"))
	require.Len(t, Must(goldens(TinyLM))(t), 2, "the folder need not have goldens of every kind")
}

// TestGoldensRelativeFolder: go test runs in the package's folder, but the variable is set in the top folder.
func TestGoldensRelativeFolder(t *testing.T) {
	top := t.TempDir()
	pkg := filepath.Join(top, "internal", "pkg")
	require.NoError(t, os.MkdirAll(pkg, 0o755))
	require.NoError(t, os.MkdirAll(filepath.Join(top, "cases"), 0o755))
	require.NoError(t, os.WriteFile(filepath.Join(top, "go.mod"), nil, 0o644))
	t.Chdir(pkg)
	real := Must(filepath.EvalSymlinks(top))(t)
	got := Must(filepath.EvalSymlinks(inModule("cases")))(t)
	require.Equal(t, filepath.Join(real, "cases"), got)
	require.Equal(t, "elsewhere", inModule("elsewhere"), "else as seen from here")
}

// TestGoldensRefuses: a folder without goldens is an error, and so is each file that is none. The others are read.
func TestGoldensRefuses(t *testing.T) {
	require.ErrorIs(t, Err(loadGoldens(os.DirFS(filepath.Join(t.TempDir(), "missing")), Ops)), os.ErrNotExist)
	require.ErrorContains(t, Err(loadGoldens(fstest.MapFS{"notes.txt": {}}, Ops)), "no .safetensors file")
	x := func(shape ...int) *tensor.Dense {
		return tensor.New(tensor.WithShape(shape...), tensor.Of(tensor.Float64))
	}
	golden := func(config, name string, x *tensor.Dense) []byte {
		f := safetensors.File{Metadata: map[string]string{"config": config}, Tensors: map[string]*tensor.Dense{name: x}}
		path := filepath.Join(t.TempDir(), "golden")
		require.NoError(t, f.Write(path))
		return Must(os.ReadFile(path))(t)
	}
	config := func(changes string) string { // the later one of two equal keys counts
		return `{"B": 1, "S": 9, "Hq": 2, "Hkv": 1, "D": 4, "Dv": 3, "l": 4, "d": 2, "lp": 4, "n": 3, "w": 2` + changes + "}"
	}
	const model = `, "layers": 1, "V": 5, "dim": 4, "total": 2`
	for _, c := range []struct {
		data    []byte
		message string
	}{
		{[]byte("xx"), "safetensors: truncated"},
		{[]byte("\x02\x00\x00\x00\x00\x00\x00\x00{}"), "no config in the metadata"},
		{golden(`{"S": 9}`, "q", x(1)), "config in the metadata: B is 0, want at least 1"},
		{golden(`{"S": "nine"}`, "q", x(1)), "config in the metadata: json: "},
		{golden(config(`, "S": 60`), "q", x(1, 61, 2, 4)), "(1, 61, 2, 4), want (1, 60, 2, 4)"},
		{golden(config(""), "q", x(1, 9, 2, 3)), "(1, 9, 2, 3), want (1, 9, 2, 4)"},
		{golden(config(""), "idx", x(1, 9, 1, 4)), "idx has the shape (1, 9, 1, 4), want (1, 9, 1, 3)"},
		{golden(config(""), "grad_v_sel", x(1, 9, 1, 4)), "grad_v_sel has the shape"},
		{golden(config(`, "d": 0`), "q", x(1, 9, 2, 4)), "d is 0, want at least 1"},
		{golden(config(`, "l": -8, "d": -2`), "q", x(1, 9, 2, 4)), "l is -8, want at least 1"},
		{golden(config(`, "lp": 5`), "q", x(1, 9, 2, 4)), "l is 4 and lp 5, want multiples of d, 2"},
		{golden(config(`, "n": 2`), "q", x(1, 9, 2, 4)), "n is 2, want at least 3"},
		{golden(config(`, "Hkv": 3`), "q", x(1, 9, 2, 4)), "heads Hq = 2 are no multiple of Hkv = 3"},
		{golden(config(model+`, "layers": 0`), "tokens", x(2, 1, 9)), "layers is 0, want at least 1"},
		{golden(config(model), "tokens", x(1, 1, 9)), "tokens has the shape (1, 1, 9), want (2, 1, 9)"},
		{golden(config(model), "logits", x(1, 9, 4)), "logits has the shape"},
	} {
		files := fstest.MapFS{"bad.safetensors": {Data: c.data}, "good.safetensors": {Data: golden(config(""), "q",
			x(1, 9, 2, 4))}}
		list := Must(loadGoldens(files, Ops))(t)
		if list[0].err == nil { // a model
			list = append(Must(loadGoldens(files, TinyLM))(t), list...)
		}
		require.Len(t, list, 2, c.message)
		require.ErrorContains(t, list[0].err, c.message)
		require.NoError(t, list[1].err)
	}
}

func TestRelErr(t *testing.T) {
	inf, nan := math.Inf(1), math.NaN()
	for name, c := range map[string]struct {
		got, want []float64
		err       float64
	}{
		"equal":              {[]float64{1, -2}, []float64{1, -2}, 0},
		"scale of the array": {[]float64{1, -3.5}, []float64{0, -4}, 0.25},
		"empty":              {nil, []float64{}, 0},
		"length":             {[]float64{1}, []float64{1, 2}, inf},
		"zeros":              {[]float64{0}, []float64{0}, 0},
		"zero wanted":        {[]float64{1e-9}, []float64{0}, 1e-9},
		"NaN got":            {[]float64{nan}, []float64{1}, inf},
		"NaN wanted":         {[]float64{1}, []float64{nan}, inf},
		"NaN both":           {[]float64{nan}, []float64{nan}, inf},
		"-Inf both":          {[]float64{-inf, 3}, []float64{-inf, 2}, 0.5},
		"-Inf got":           {[]float64{-inf}, []float64{2}, inf},
		"-Inf wanted":        {[]float64{2}, []float64{-inf}, inf},
		"+Inf both":          {[]float64{inf}, []float64{inf}, inf},
		"opposite":           {[]float64{inf}, []float64{-inf}, inf},
	} {
		require.Equal(t, c.err, RelErr(c.got, c.want), name)
	}
}

func TestWithin(t *testing.T) {
	nan := float32(math.NaN())
	for name, c := range map[string]struct {
		got     []float32
		want    []float64
		tol     float64
		failure string // "" passes
	}{
		"within": {[]float32{1, 2.5}, []float64{1, 2}, 0.25, ""},
		"beyond": {[]float32{1, 2.5}, []float64{1, 2}, 0.2,
			"x: relative error 0.25 > 0.2, worst at 1 of 2: got 2.5, want 2"},
		"length":            {[]float32{1}, []float64{1, 2}, 1, "x: 1 elements, want 2"},
		"NaN, no tolerance": {[]float32{9, nan}, []float64{1, 2}, math.Inf(1), "worst at 1 of 2: got NaN, want 2"},
		"NaN tolerance":     {[]float32{1}, []float64{1}, math.NaN(), "x: relative error"},
	} {
		r := new(recorder)
		require.Equal(t, c.failure == "", Within(r, "x", c.got, c.want, c.tol), name)
		require.Contains(t, strings.Join(r.failures, "\n"), c.failure, name)
		require.Equal(t, c.failure == "", len(r.failures) == 0, name)
	}
}

func TestPoison(t *testing.T) {
	x := make([]float32, 3)
	Poison(x)
	require.True(t, x[0] != x[0] && x[2] != x[2])
	require.Equal(t, 0, Poisoned(x))
	x[0], x[1] = float32(math.NaN()), 2 // another NaN is no poison
	require.Equal(t, 2, Poisoned(x))
	x[2] = 0
	require.Equal(t, -1, Poisoned(x))
}

// TestGuardedTells writes past the end and before the start, as a kernel with a wrong bound would.
func TestGuardedTells(t *testing.T) {
	for _, c := range []struct {
		at      int
		failure string
	}{
		{-1, "x: wrote 1 at index -1 of 5"},
		{4, ""},
		{5, "x: wrote 1 at index 5 of 5"},
		{8, "x: wrote 1 at index 8 of 5"},
	} {
		x, check := Guarded[float64](5)
		require.Equal(t, 5, cap(x))
		require.Equal(t, 0, Poisoned(x))
		require.True(t, math.IsNaN(x[4]))
		*(*float64)(unsafe.Add(unsafe.Pointer(unsafe.SliceData(x)), c.at*8)) = 1
		r := &recorder{TB: t}
		check(r, "x")
		require.Equal(t, c.failure, strings.Join(r.failures, ""))
	}
}

// TestHalfPrecision goes through every number of both types.
func TestHalfPrecision(t *testing.T) {
	for v, want := range map[float64]uint16{0: 0, 1: 0x3c00, -2: 0xc000, 65504: 0x7bff, 65520: 0x7c00, 0x1p-24: 1,
		0.1: 0x2e66, 0x1p-14: 0x400} {
		require.Equal(t, want, Float16(v), "%v", v)
	}
	for v, want := range map[float64]uint16{0: 0, 1: 0x3f80, -2: 0xc000, 0.1: 0x3dcd, 1 + 0x1p-8: 0x3f80,
		1 + 0x3p-8: 0x3f82, 3.5e38: 0x7f80} {
		require.Equal(t, want, BFloat16(v), "%v", v)
	}
	for b := range uint16(0x7c00) {
		require.Equal(t, b, Float16(FromFloat16(b)))
		require.Equal(t, b|0x8000, Float16(-FromFloat16(b)))
	}
	for b := range uint16(0x7f80) {
		require.Equal(t, b, BFloat16(FromBFloat16(b)))
	}
	require.True(t, math.IsNaN(FromFloat16(Float16(math.NaN()))))
	require.True(t, math.IsNaN(FromBFloat16(BFloat16(math.NaN()))))
}
