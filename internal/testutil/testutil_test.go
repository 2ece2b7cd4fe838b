package testutil

import (
	"fmt"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"testing"
	"testing/fstest"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/gorgonia-nsa/nsa/internal/safetensors"
)

// recorder is a testing.TB that keeps failures instead of failing.
type recorder struct {
	testing.TB
	failures []string
}

func (r *recorder) Helper() {}
func (r *recorder) Errorf(format string, a ...any) {
	r.failures = append(r.failures, fmt.Sprintf(format, a...))
}

// ender is a testing.TB that remembers how it ends.
type ender struct {
	testing.TB
	how string
}

func (e *ender) Helper()               {}
func (e *ender) Skip(...any)           { e.end("skipped") }
func (e *ender) Fatal(...any)          { e.end("failed") }
func (e *ender) Fatalf(string, ...any) { e.end("no boolean") }

func (e *ender) end(how string) {
	e.how = how
	runtime.Goexit()
}

func TestNoGPU(t *testing.T) {
	for value, want := range map[string]string{"": "skipped", "0": "skipped", "false": "skipped", "1": "failed", "true": "failed", "yes": "no boolean"} {
		t.Setenv(EnvRequireGPU, value)
		e, done := new(ender), make(chan struct{})
		go func() {
			defer close(done)
			NoGPU(e, "no GPU")
		}()
		<-done
		require.Equal(t, want, e.how, "%s=%s", EnvRequireGPU, value)
	}
}

func TestGoldensEmbedded(t *testing.T) {
	t.Setenv(EnvGoldens, "")
	var names []string
	for _, g := range Goldens(t, Ops) {
		names = append(names, g.Name)
		c := g.Config
		require.Equal(t, []int{c.B, c.S, c.Hq, c.D}, g.Shape(t, "q"), g.Name)
		require.Equal(t, []int{c.B, c.S, c.Hkv, c.TopN}, g.Shape(t, "idx"), g.Name)
		require.Len(t, g.I32(t, "idx"), c.B*c.S*c.Hkv*c.TopN)
		require.Len(t, g.F64(t, "o"), c.B*c.S*c.Hq*c.Dv)
	}
	require.Equal(t, []string{
		"ops_full_cover", "ops_group6", "ops_mha_edges", "ops_no_block", "ops_small", "ops_sparse",
	}, names)

	tiny := Goldens(t, TinyLM)
	require.Len(t, tiny, 2)
	require.Equal(t, Config{
		B: 2, S: 72, Hq: 6, Hkv: 2, D: 8, Dv: 8, Seed: 12,
		BlockLen: 8, Stride: 4, SelBlock: 8, TopN: 4, Window: 16,
		Vocab: 61, Dim: 48, Layers: 2, GateHidden: 8, Phi: "mlp", PhiHidden: 12, LR: 3e-3, Warmup: 3, Total: 10, Floor: 0.1,
	}, tiny[1].Config)
}

func TestGoldensFolder(t *testing.T) {
	dir := t.TempDir()
	x := &safetensors.Tensor{Dtype: "F64", Shape: []int{1}, Data: []float64{2.5}}
	f := &safetensors.File{Metadata: map[string]string{"config": `{"S": 9}`}, Tensors: map[string]*safetensors.Tensor{"x": x}}
	require.NoError(t, safetensors.Write(filepath.Join(dir, "mine.safetensors"), f), "the kind is in the file, not in its name")
	require.NoError(t, os.WriteFile(filepath.Join(dir, "notes.txt"), []byte("no golden"), 0o644))
	t.Setenv(EnvGoldens, dir)

	list := Goldens(t, Ops)
	last := list[len(list)-1]
	require.Len(t, list, 7)
	require.Equal(t, "mine", last.Name)
	require.False(t, last.BuiltIn)
	require.True(t, list[0].BuiltIn)
	require.Equal(t, Config{S: 9}, last.Config)
	require.Equal(t, []float64{2.5}, last.F64(t, "x"))
	require.Len(t, Goldens(t, TinyLM), 2, "the folder need not have goldens of every kind")
}

// TestGoldensRelativeFolder: go test runs in the package's folder, the variable is set at the top.
func TestGoldensRelativeFolder(t *testing.T) {
	top := t.TempDir()
	pkg := filepath.Join(top, "internal", "pkg")
	require.NoError(t, os.MkdirAll(pkg, 0o755))
	require.NoError(t, os.MkdirAll(filepath.Join(top, "cases"), 0o755))
	require.NoError(t, os.WriteFile(filepath.Join(top, "go.mod"), nil, 0o644))
	t.Chdir(pkg)
	real, err := filepath.EvalSymlinks(top)
	require.NoError(t, err)
	got, err := filepath.EvalSymlinks(inModule("cases"))
	require.NoError(t, err)
	require.Equal(t, filepath.Join(real, "cases"), got)
	require.Equal(t, "pkg", filepath.Base(filepath.Dir(inModule("elsewhere"))), "else as seen from here")
}

func TestGoldensRefuses(t *testing.T) {
	_, err := loadGoldens(os.DirFS(filepath.Join(t.TempDir(), "missing")), Ops)
	require.ErrorIs(t, err, os.ErrNotExist)
	_, err = loadGoldens(fstest.MapFS{"notes.txt": {}}, Ops)
	require.ErrorContains(t, err, "no .safetensors file")
	_, err = loadGoldens(fstest.MapFS{"ops_bad.safetensors": {Data: []byte("xx")}}, Ops)
	require.ErrorContains(t, err, "ops_bad.safetensors: safetensors: truncated")
	plain := []byte("\x02\x00\x00\x00\x00\x00\x00\x00{}")
	_, err = loadGoldens(fstest.MapFS{"ops_bare.safetensors": {Data: plain}}, Ops)
	require.ErrorContains(t, err, "no config")
}

func TestRelErr(t *testing.T) {
	inf, nan := math.Inf(1), math.NaN()
	cases := []struct {
		name      string
		got, want []float64
		err       float64
	}{
		{"equal", []float64{1, -2}, []float64{1, -2}, 0},
		{"scale of the array", []float64{1, -3.5}, []float64{0, -4}, 0.25},
		{"empty", nil, []float64{}, 0},
		{"length", []float64{1}, []float64{1, 2}, inf},
		{"zeros", []float64{0}, []float64{0}, 0},
		{"zero wanted", []float64{1e-9}, []float64{0}, 1e-9},
		{"NaN got", []float64{nan}, []float64{1}, inf},
		{"NaN wanted", []float64{1}, []float64{nan}, inf},
		{"NaN both", []float64{nan}, []float64{nan}, inf},
		{"-Inf both", []float64{-inf, 3}, []float64{-inf, 2}, 0.5},
		{"-Inf got", []float64{-inf}, []float64{2}, inf},
		{"-Inf wanted", []float64{2}, []float64{-inf}, inf},
		{"+Inf both", []float64{inf}, []float64{inf}, inf},
		{"opposite", []float64{inf}, []float64{-inf}, inf},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			if got := RelErr(c.got, c.want); got != c.err && math.Abs(got-c.err) > 1e-12*c.err {
				t.Errorf("got %v, want %v", got, c.err)
			}
		})
	}
}

func TestWithin(t *testing.T) {
	nan := float32(math.NaN())
	cases := []struct {
		name    string
		got     []float32
		want    []float64
		tol     float64
		failure string // empty: passes
	}{
		{"within", []float32{1, 2.5}, []float64{1, 2}, 0.25, ""},
		{"beyond", []float32{1, 2.5}, []float64{1, 2}, 0.2, "x: relative error 0.25 > 0.2, worst at 1 of 2: got 2.5, want 2"},
		{"length", []float32{1}, []float64{1, 2}, 1, "x: 1 elements, want 2"},
		{"NaN before tolerance", []float32{9, nan}, []float64{1, 2}, math.Inf(1), "x: NaN at 1 of 2"},
		{"NaN tolerance", []float32{1}, []float64{1}, math.NaN(), "x: relative error"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			r := &recorder{TB: t}
			ok := Within(r, "x", c.got, c.want, c.tol)
			require.Equal(t, c.failure == "", ok)
			if c.failure == "" {
				require.Empty(t, r.failures)
				return
			}
			require.Len(t, r.failures, 1)
			require.Contains(t, r.failures[0], c.failure)
		})
	}
}

func TestCentralDifference(t *testing.T) {
	x := []float64{1, 2, -3}
	f := func(x []float64) float64 { return x[0]*x[0] + 3*x[1]*x[2] } // gradient (2 x0, 3 x2, 3 x1)
	Within(t, "gradient", CentralDifference(f, x, 1e-4), []float64{2, -9, 6}, 1e-10)
	require.Equal(t, []float64{1, 2, -3}, x)
}

func TestRandomData(t *testing.T) {
	const n = 20_000
	x := Normal(1, n)
	require.Equal(t, x, Normal(1, n))
	require.NotEqual(t, x, Normal(2, n))
	var sum, squares float64
	for _, v := range x {
		sum += v
		squares += v * v
	}
	require.InDelta(t, 0, sum/n, 0.03)
	require.InDelta(t, 1, squares/n, 0.05)

	u := Uniform(1, n, -2, 4)
	require.GreaterOrEqual(t, slices.Min(u), -2.0)
	require.Less(t, slices.Max(u), 4.0)
	require.InDelta(t, 1, (slices.Min(u)+slices.Max(u))/2, 0.01)
	ids := Tokens(1, n, 7)
	require.Equal(t, int32(0), slices.Min(ids))
	require.Equal(t, int32(6), slices.Max(ids))
	require.Equal(t, []float32{1.5, -2}, Convert[float32]([]float64{1.5, -2}))
}

func TestPoison(t *testing.T) {
	x := make([]float32, 3)
	Poison(x)
	require.True(t, x[0] != x[0] && x[2] != x[2])
	require.Equal(t, 0, Poisoned(x))
	x[0], x[1] = float32(math.NaN()), 2 // a NaN of another origin is no poison
	require.Equal(t, 2, Poisoned(x))
	x[2] = 0
	require.Equal(t, -1, Poisoned(x))
	h := make([]uint16, 1)
	Poison(h)
	require.True(t, math.IsNaN(float64(math.Float32frombits(uint32(h[0])<<16))), "bfloat16")
	require.True(t, h[0]&0x7c00 == 0x7c00 && h[0]&0x3ff != 0, "float16")
}

func TestGuarded(t *testing.T) {
	testGuarded[float32](t)
	testGuarded[float64](t)
	testGuarded[int32](t)
	testGuarded[int64](t)
	testGuarded[uint16](t)
}

func testGuarded[T Elem](t *testing.T) {
	x, check := Guarded[T](5)
	require.Len(t, x, 5)
	require.Equal(t, 5, cap(x))
	require.Equal(t, 0, Poisoned(x))
	clear(x)
	r := &recorder{TB: t}
	check(r, "x")
	require.Empty(t, r.failures)
	require.Equal(t, -1, Poisoned(x))
}

// TestGuardedTells writes past the end and before the begin, as a kernel with a wrong bound would.
func TestGuardedTells(t *testing.T) {
	for _, c := range []struct {
		at      int
		failure string
	}{
		{-1, "x: wrote 1 at 1 elements before its begin"},
		{5, "x: wrote 1 at 1 elements past its end"},
		{8, "x: wrote 1 at 4 elements past its end"},
	} {
		x, check := Guarded[float64](5)
		beyond(x, c.at)
		r := &recorder{TB: t}
		check(r, "x")
		require.Equal(t, []string{c.failure}, r.failures)
	}
}

// beyond writes 1 at an index outside of x.
func beyond(x []float64, i int) {
	*(*float64)(unsafe.Add(unsafe.Pointer(unsafe.SliceData(x)), i*8)) = 1
}

// TestHalfPrecision goes through every number of both types.
func TestHalfPrecision(t *testing.T) {
	for v, want := range map[float64]uint16{0: 0, 1: 0x3c00, -2: 0xc000, 65504: 0x7bff, 65520: 0x7c00, 0x1p-24: 1, 0.1: 0x2e66, 0x1p-14: 0x400} {
		require.Equal(t, want, Float16(v), "%v", v)
	}
	for v, want := range map[float64]uint16{0: 0, 1: 0x3f80, -2: 0xc000, 0.1: 0x3dcd, 1 + 0x1p-8: 0x3f80, 1 + 0x3p-8: 0x3f82, 3.5e38: 0x7f80} {
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
