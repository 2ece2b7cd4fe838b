package graph

import (
	"testing"

	"github.com/stretchr/testify/require"
	G "gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/ops"
)

func TestConform(t *testing.T) {
	vector := tensor.New(tensor.WithShape(4), tensor.WithBacking([]float64{1, 2, 3, 4}))
	one := tensor.New(tensor.WithShape(1), tensor.WithBacking([]float64{7}))
	for name, c := range map[string]struct {
		v     G.Value
		shape tensor.Shape
		same  bool
	}{
		"as it is":          {vector, tensor.Shape{4}, true},
		"other shape":       {vector, tensor.Shape{2, 2}, false},
		"other size":        {vector, tensor.Shape{3}, true},
		"scalar":            {G.NewF64(7), tensor.Shape{}, true},
		"scalar to tensor":  {G.NewF64(7), tensor.Shape{1, 1}, false},
		"element to scalar": {one, tensor.Shape{}, false},
	} {
		shape := c.v.Shape().Clone()
		got := conform(c.v, ops.Operand{Dtype: tensor.Float64, Shape: c.shape})
		require.Equal(t, c.same, got == c.v, name)
		require.True(t, c.v.Shape().Eq(shape), "%s: the value keeps its own shape", name)
		if !c.same {
			require.True(t, got.Shape().Eq(c.shape), name)
		}
	}
}
