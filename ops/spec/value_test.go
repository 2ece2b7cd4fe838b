package spec_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	G "gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/internal/cpu"
	"github.com/gorgonia-nsa/nsa/internal/testutil"
	"github.com/gorgonia-nsa/nsa/ops"
	"github.com/gorgonia-nsa/nsa/ops/spec"
)

// TestPointAtValueLayouts: a kernel sees every Dense as row-major, whatever its layout. A row-major Dense is used in
// place.
func TestPointAtValueLayouts(t *testing.T) {
	dense := func(shape ...int) *tensor.Dense {
		x := tensor.New(tensor.Of(tensor.Float64), tensor.WithShape(shape...))
		for i := range x.Float64s() {
			x.Float64s()[i] = float64(i)
		}
		return x
	}
	transposed := dense(2, 3)
	require.NoError(t, transposed.T())
	permuted := dense(2, 3, 2)
	require.NoError(t, permuted.T(2, 0, 1))
	slice := func(x *tensor.Dense, s ...tensor.Slice) *tensor.Dense {
		return testutil.Must(x.Slice(s...))(t).(*tensor.Dense)
	}
	transposedView := slice(dense(2, 4), nil, G.S(1, 3))
	require.NoError(t, transposedView.T())
	columnMajor := func(shape ...int) *tensor.Dense {
		n := tensor.Shape(shape).TotalSize()
		return tensor.New(tensor.WithShape(shape...), tensor.AsFortran(dense(n).Float64s()))
	}
	for _, c := range []struct {
		name    string
		value   G.Value
		want    []float64
		shape   tensor.Shape
		inPlace bool
	}{
		{"row-major", dense(2, 3), []float64{0, 1, 2, 3, 4, 5}, tensor.Shape{2, 3}, true},
		{"transposed", transposed, []float64{0, 3, 1, 4, 2, 5}, tensor.Shape{3, 2}, false},
		{"permuted", permuted, []float64{0, 2, 4, 6, 8, 10, 1, 3, 5, 7, 9, 11}, tensor.Shape{2, 2, 3}, false},
		{"rows", slice(dense(4, 2), G.S(1, 3)), []float64{2, 3, 4, 5}, tensor.Shape{2, 2}, true},
		{"columns", slice(dense(2, 4), nil, G.S(1, 3)), []float64{1, 2, 5, 6}, tensor.Shape{2, 2}, false},
		{"one column", slice(dense(3, 2), nil, G.S(1)), []float64{1, 3, 5}, tensor.Shape{3}, false},
		{"every other row", slice(dense(6, 2), G.S(0, 6, 2)), []float64{0, 1, 4, 5, 8, 9}, tensor.Shape{3, 2}, false},
		{"column-major", columnMajor(2, 3), []float64{0, 1, 2, 3, 4, 5}, tensor.Shape{2, 3}, false},
		{"column-major vector", columnMajor(3, 1), []float64{0, 1, 2}, tensor.Shape{3, 1}, true},
		{"column vector", dense(3, 1), []float64{0, 1, 2}, tensor.Shape{3}, true},
		{"axes of one", dense(1, 3, 1), []float64{0, 1, 2}, tensor.Shape{1, 3, 1}, true},
		{"transposed columns", transposedView, []float64{1, 5, 2, 6}, tensor.Shape{2, 2}, false},
		{"one column of transposed columns", slice(transposedView, nil, G.S(0)), []float64{1, 2}, tensor.Shape{2}, true},
		{"scalar tensor", tensor.New(tensor.FromScalar(2.5)), []float64{2.5}, tensor.Shape{}, false},
		{"scalar", G.NewF64(2.5), []float64{2.5}, tensor.Shape{}, true},
		{"scalar for one element", G.NewF64(2.5), []float64{2.5}, tensor.Shape{1}, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			var b cpu.Buf
			require.NoError(t, spec.PointAtValue(&b, c.value, spec.Operand{Dtype: tensor.Float64, Shape: c.shape}))
			require.Equal(t, c.want, cpu.Slice[float64](&b))
			if c.inPlace {
				cpu.Slice[float64](&b)[0] = -1
				require.Contains(t, testutil.Floats(t, c.value.Data()), -1.0)
			}
		})
	}
}

// TestPointAtValueTypes: the layouts for the other element types.
func TestPointAtValueTypes(t *testing.T) {
	for dt, backing := range map[tensor.Dtype]any{tensor.Float32: []float32{0, 1, 2, 3, 4, 5},
		tensor.Int32: []int32{0, 1, 2, 3, 4, 5}} {
		x := tensor.New(tensor.WithShape(2, 3), tensor.WithBacking(backing))
		require.NoError(t, x.T())
		var b cpu.Buf
		require.NoError(t, spec.PointAtValue(&b, x, spec.Operand{Dtype: dt, Shape: tensor.Shape{3, 2}}))
		if dt == tensor.Float32 {
			require.Equal(t, []float32{0, 3, 1, 4, 2, 5}, cpu.Slice[float32](&b))
		} else {
			require.Equal(t, []int32{0, 3, 1, 4, 2, 5}, cpu.Slice[int32](&b))
		}
	}
	for dt, v := range map[tensor.Dtype]G.Value{tensor.Float32: G.NewF32(0), tensor.Float64: G.NewF64(0),
		tensor.Int32: G.NewI32(0)} {
		require.Equal(t, v, spec.NewValue(spec.Operand{Dtype: dt}))
		require.NoError(t, spec.PointAtValue(new(cpu.Buf), v, spec.Operand{Dtype: dt}))
	}
}

// TestNewValue: values have the type and the number of elements of their operand, and scalars are Gorgonia's where it
// has the type.
func TestNewValue(t *testing.T) {
	for _, dt := range []tensor.Dtype{
		tensor.Float64, tensor.Float32, tensor.Int, tensor.Int64, tensor.Int32, tensor.Byte, tensor.Bool,
		ops.BFloat16, ops.Float16,
	} {
		for _, shape := range []tensor.Shape{{}, {3}, {2, 1}} {
			v := spec.NewValue(spec.Operand{Dtype: dt, Shape: shape})
			require.Equal(t, dt, v.Dtype())
			require.Equal(t, shape.TotalSize(), max(1, v.Size()), "%v %v", dt, shape)
			_, scalar := v.(G.Scalar)
			require.Equal(t, shape.IsScalar() && !spec.IsHalf(dt), scalar, "%v %v", dt, shape)
		}
	}
	require.Zero(t, spec.Operand{}.Bytes())
	require.Equal(t, "none ()", spec.Operand{}.String())
}

func TestPointAtValueErrors(t *testing.T) {
	want := spec.Operand{Dtype: tensor.Float32, Shape: tensor.Shape{2, 3}}
	for _, c := range []struct {
		value G.Value
		err   string
	}{
		{nil, "no value"},
		{tensor.New(tensor.Of(tensor.Float64), tensor.WithShape(2, 3)), "float64 (2, 3)"},
		{tensor.New(tensor.Of(tensor.Float32), tensor.WithShape(3, 2)), "float32 (3, 2)"},
		{G.NewF32(1), "scalar of float32"},
		{G.NewI64(1), "scalar of int64"},
		{struct{ G.Value }{}, "struct { gorgonia.Value }"},
	} {
		require.ErrorContains(t, spec.PointAtValue(new(cpu.Buf), c.value, want), c.err)
	}
	require.ErrorContains(t, spec.PointAtValue(new(cpu.Buf), G.NewF32(1), spec.Operand{Dtype: tensor.Float64}),
		"want float64 ()")
}
