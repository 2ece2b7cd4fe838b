package nn

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"
	G "gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/internal/memory"
	"github.com/gorgonia-nsa/nsa/internal/testutil"
)

// TestParamRefuses shapes and types, and first values with NaN or Inf in the type in which they are stored.
func TestParamRefuses(t *testing.T) {
	p, twins := Param{Name: "w", Shape: tensor.Shape{2}}, []Param{{Name: "w"}, {Name: "v"}, {Name: "w"}}
	built := func(p Param) error { return testutil.Err(p.New(tensor.Float32, 1)) }
	shaped := func(shape ...int) error { return built(Param{Name: "w", Shape: shape}) }
	first := func(init Init) error { return built(Param{Name: "w", Shape: tensor.Shape{3, 2}, Init: init}) }
	builder := func(b *Builder) error {
		require.Nil(t, b.Param("w"))
		return b.Err()
	}
	for _, c := range []struct {
		err  error
		want string
	}{
		{builder(NewBuilder(nil, []Param{p}, Random(tensor.Float32, 1))), "nil graph"},
		{builder(NewBuilder(G.NewGraph(), []Param{p}, nil)), "nil graph"},
		{builder(NewShapeBuilder(G.NewGraph(), []Param{p}, tensor.Int32)), "type int32"},
		{builder(NewShapeBuilder(G.NewGraph(), []Param{p}, tensor.Dtype{})), "type none"},
		{builder(NewShapeBuilder(G.NewGraph(), []Param{{Name: "w", Shape: tensor.Shape{-3, 8}}}, tensor.Float32)),
			"w: shape (-3, 8)"},
		{builder(NewBuilder(G.NewGraph(), twins, Random(tensor.Float32, 1))), "called w"},
		{shaped(-2), "at least 1"}, {shaped(0), "at least 1"}, {shaped(-3, -4), "at least 1"},
		{shaped(1<<40, 1<<40), "too large"}, {shaped(1<<32, 1<<32), "too large"}, {shaped(1<<62, 4), "too large"},
		{shaped(math.MaxInt), "too large"},
		{first(Normal(math.NaN())), "w: its first value"}, {first(LeCunNormal(0)), "w: its first value"},
		{first(LeCunNormal(-1)), "w: its first value"}, {first(XavierUniform(0, 0)), "w: its first value"},
		{first(Normal(1e300)), "Inf"},
	} {
		require.ErrorContains(t, c.err, c.want)
	}
	require.NoError(t, testutil.Err(Param{Name: "w", Shape: tensor.Shape{3}, Init: Normal(1e300)}.New(tensor.Float64, 1)))
	if total, _ := memory.Total(); total > 0 {
		require.ErrorIs(t, shaped(1<<24, 1<<25), memory.ErrTooMuch)
	}
	require.Equal(t, float32(1), testutil.Must(Param{Name: "w", Init: Ones()}.New(tensor.Float32, 1))(t).Data())
}

// TestAssign: values of all types take those of a tensor of their shape, and change nothing if they cannot.
func TestAssign(t *testing.T) {
	zeros := func(dt tensor.Dtype, shape ...int) *tensor.Dense {
		return tensor.New(tensor.Of(dt), tensor.WithShape(shape...))
	}
	of := func(backing any) *tensor.Dense { return tensor.New(tensor.WithBacking(backing)) }
	singles, doubles, indices, ids := of([]float32{1, 2}), of([]float64{math.Pi, -1}), of([]int32{-1, 7}), of([]int{3, 4})
	view := testutil.Must(zeros(tensor.Float32, 2, 3).Slice(nil, tensor.S(0, 2)))(t).(*tensor.Dense)
	for _, c := range []struct {
		dst  G.Value
		src  *tensor.Dense
		want any // the data of dst, or part of the error
	}{
		{zeros(tensor.Float32, 2), singles, []float32{1, 2}},
		{zeros(tensor.Float64, 2), doubles, []float64{math.Pi, -1}},
		{zeros(tensor.Float64, 2), singles, []float64{1, 2}},
		{zeros(tensor.Float32, 2), doubles, []float32{math.Pi, -1}},
		{zeros(tensor.Int32, 2), indices, []int32{-1, 7}},
		{zeros(tensor.Int, 2), ids, []int{3, 4}},
		{G.NewF32(9), tensor.New(tensor.FromScalar(float32(0.5))), float32(0.5)},
		{nil, singles, "nil value"},
		{singles, nil, "nil value"},
		{view, zeros(tensor.Float32, 2, 2), "a view or"},
		{zeros(tensor.Float32, 3), singles, "got shape (2), want (3)"},
		{G.NewF32(9), zeros(tensor.Float32, 1), "got shape (1), want ()"},
		{ids, new(tensor.Dense), "got shape"},
		{zeros(tensor.Int32, 2), ids, "got type int, want int32"},
		{zeros(tensor.Float32, 2), indices, "got type int32, want float32"},
		{ids, of([]int64{1, 2}), "type int64"},
	} {
		err := Assign(c.dst, c.src)
		if message, refused := c.want.(string); refused {
			require.ErrorContains(t, err, message)
			continue
		}
		require.NoError(t, err)
		require.Equal(t, c.want, c.dst.Data())
	}
	require.Equal(t, []int{3, 4}, ids.Data(), "unchanged")
}
