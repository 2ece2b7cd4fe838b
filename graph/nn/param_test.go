package nn

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"
	G "gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/internal/testutil"
)

// TestParamRefusesNotFinite: a first value has no NaN and no Inf, in the type in which it is stored.
func TestParamRefusesNotFinite(t *testing.T) {
	for name, init := range map[string]Init{
		"NaN": Normal(math.NaN()), "LeCunNormal(0)": LeCunNormal(0), "LeCunNormal(-1)": LeCunNormal(-1), "XavierUniform(0, 0)": XavierUniform(0, 0),
	} {
		p := Param{Name: "w", Shape: tensor.Shape{3, 2}, Init: init}
		require.ErrorContains(t, testutil.Err(p.New(tensor.Float64, 1)), "w: its first value", name)
	}
	p := Param{Name: "w", Shape: tensor.Shape{3}, Init: Normal(1e300)}
	require.NoError(t, testutil.Err(p.New(tensor.Float64, 1)))
	require.ErrorContains(t, testutil.Err(p.New(tensor.Float32, 1)), "Inf")
}

func TestBuilderRefusesTwins(t *testing.T) {
	w := Param{Name: "w", Shape: tensor.Shape{3}, Init: Ones()}
	b := NewBuilder(G.NewGraph(), []Param{w, {Name: "v", Shape: tensor.Shape{2}}, w}, Random(tensor.Float32, 1))
	require.ErrorContains(t, b.Err(), "called w")
}

// TestAssign: values of all types take those of a tensor of their shape, and change nothing if they cannot.
func TestAssign(t *testing.T) {
	zeros := func(dt tensor.Dtype, shape ...int) *tensor.Dense {
		return tensor.New(tensor.Of(dt), tensor.WithShape(shape...))
	}
	singles, doubles := tensor.New(tensor.WithBacking([]float32{1, 2})),
		tensor.New(tensor.WithBacking([]float64{math.Pi, -1}))
	indices, ids := tensor.New(tensor.WithBacking([]int32{-1, 7})), tensor.New(tensor.WithBacking([]int{3, 4}))
	matrix := zeros(tensor.Float32, 2, 3)
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
		{testutil.Must(matrix.Slice(nil, tensor.S(0, 2)))(t).(*tensor.Dense), zeros(tensor.Float32, 2, 2), "a view or"},
		{zeros(tensor.Float32, 3), singles, "got shape (2), want (3)"},
		{G.NewF32(9), zeros(tensor.Float32, 1), "got shape (1), want ()"},
		{ids, new(tensor.Dense), "got shape"},
		{zeros(tensor.Int32, 2), ids, "got type int, want int32"},
		{zeros(tensor.Float32, 2), indices, "got type int32, want float32"},
		{ids, tensor.New(tensor.WithBacking([]int64{1, 2})), "type int64"},
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
