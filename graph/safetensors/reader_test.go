package safetensors_test

import (
	"math"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/graph/safetensors"
	"github.com/gorgonia-nsa/nsa/internal/testutil"
)

// TestReader: a Reader has the names, shapes and types of the file, and the numbers that Read gives.
func TestReader(t *testing.T) {
	path := filepath.Join(t.TempDir(), "x.safetensors")
	f := safetensors.File{Metadata: map[string]string{"a": "b"}, Tensors: map[string]*tensor.Dense{
		"large":  dense(testutil.Convert[float32](testutil.Normal(1, 70_001)), 1, 70_001), // more than one piece
		"small":  dense([]float32{1, -2}, 2),
		"scalar": dense([]float32{3}),
		"f64":    dense([]float64{4}, 1),
		"i32":    dense([]int32{5, 6}, 1, 2),
	}}
	for _, dtype := range []string{"F32", "BF16", "F16"} {
		require.NoError(t, f.WriteAs(path, dtype))
		whole, r := testutil.Must(safetensors.Read(path))(t), testutil.Closing(safetensors.Open(path))(t)
		require.Equal(t, f.Metadata, r.Metadata())
		require.Len(t, r.Names(), len(f.Tensors))
		for _, name := range r.Names() {
			x := whole.Tensors[name]
			shape, ok := r.Shape(name)
			require.True(t, ok)
			require.Equal(t, append([]int{}, x.Shape()...), shape)
			n := x.Shape().TotalSize()
			if x.Dtype() != tensor.Float32 {
				require.ErrorContains(t, r.Read(name, make([]float32, n)), "want F32, BF16 or F16")
				continue
			}
			require.Equal(t, dtype, r.Type(name))
			dst := make([]float32, n)
			require.NoError(t, r.Read(name, dst))
			require.Equal(t, x.Float32s(), dst)
			require.ErrorContains(t, r.Read(name, make([]float32, n+1)), path+`: tensor "`)
		}
		_, ok := r.Shape("missing")
		require.False(t, ok)
		require.Empty(t, r.Type("missing"))
		require.ErrorContains(t, r.Read("missing", nil), `tensor "missing": not in the file`)
		require.NoError(t, r.Close())
		require.ErrorIs(t, r.Read("large", make([]float32, 70_001)), os.ErrClosed)
	}
	_, err := safetensors.Open(filepath.Join(t.TempDir(), "missing"))
	require.ErrorIs(t, err, os.ErrNotExist)
	content := testutil.Must(os.ReadFile(path))(t)
	require.NoError(t, os.WriteFile(path, content[:len(content)-1], 0o644))
	_, err = safetensors.Open(path)
	require.ErrorContains(t, err, path+`: tensor "small": data_offsets`)
}

func dense(data any, shape ...int) *tensor.Dense {
	return tensor.New(tensor.WithShape(shape...), tensor.WithBacking(data))
}

func one(x *tensor.Dense) safetensors.File {
	return safetensors.File{Tensors: map[string]*tensor.Dense{"x": x}}
}

// TestWriteAs: float32 is rounded to nearest even, other types are as they are, and a number that would become infinite
// leaves the old file.
func TestWriteAs(t *testing.T) {
	path := filepath.Join(t.TempDir(), "x.safetensors")
	x := append(testutil.Normal(1, 20_000), 0x1p-24, 0x1.8p-24, 1+0x1p-9, 1+0x1.8p-8, 65519, math.Inf(-1), math.NaN())
	in := testutil.Convert[float32](x)
	for dtype, round := range map[string]func(float64) float64{
		"F32":  func(v float64) float64 { return float64(float32(v)) },
		"BF16": func(v float64) float64 { return testutil.FromBFloat16(testutil.BFloat16(v)) },
		"F16":  func(v float64) float64 { return testutil.FromFloat16(testutil.Float16(float64(float32(v)))) },
	} {
		require.NoError(t, safetensors.File{Tensors: map[string]*tensor.Dense{"a": dense(in, len(in)),
			"b": dense([]float64{0.1}, 1)}}.WriteAs(path, dtype))
		f := testutil.Must(safetensors.Read(path, safetensors.AllowNaN))(t)
		require.Equal(t, []float64{0.1}, f.Tensors["b"].Float64s())
		got := f.Tensors["a"].Float32s()
		for i, v := range x {
			if want := float32(round(v)); got[i] != want && !(want != want && got[i] != got[i]) {
				t.Fatalf("%s of %g is %g, want %g", dtype, v, got[i], want)
			}
		}
	}
	for dtype, v := range map[string]float32{"F16": -65520, "BF16": math.MaxFloat32} {
		err := one(dense([]float32{0, v}, 2)).WriteAs(path, dtype)
		require.ErrorContains(t, err, `tensor "x": element 1 is `)
		require.Len(t, testutil.Must(safetensors.Read(path, safetensors.AllowNaN))(t).Tensors, 2)
		require.NoError(t, one(dense([]float32{math.Nextafter32(v, 0)}, 1)).WriteAs(path+dtype, "F32"))
	}
	require.ErrorContains(t, one(dense([]float32{1}, 1)).WriteAs(path, "F64"), `type "F64" for float32`)
}
