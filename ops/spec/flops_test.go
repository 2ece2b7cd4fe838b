package spec_test

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"
	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/ops/spec"
	"github.com/gorgonia-nsa/nsa/ops/spec/attention"
	"github.com/gorgonia-nsa/nsa/ops/spec/compress"
	"github.com/gorgonia-nsa/nsa/ops/spec/linear"
)

// TestFLOPsOfLongBlocks: with blocks of all tokens, however long, selected attention has the operations of dense
// attention.
func TestFLOPsOfLongBlocks(t *testing.T) {
	for _, S := range []int{1, 10, 300} {
		q, k := spec.Operand{Dtype: tensor.Float32, Shape: tensor.Shape{2, S, 4, 8}},
			spec.Operand{Dtype: tensor.Float32, Shape: tensor.Shape{2, S, 2, 8}}
		dense := spec.FLOPs(attention.SlidingWindow{Window: math.MaxInt}, []spec.Operand{q, k, k})
		require.Positive(t, dense)
		for _, block := range []int{S, 2 * S, math.MaxInt / 2, math.MaxInt} {
			for _, n := range []int{1, 2, 3, 16, 1 << 40} {
				idx := spec.Operand{Dtype: tensor.Int32, Shape: tensor.Shape{2, S, 2, n}}
				require.Equal(t, dense, spec.FLOPs(attention.Selected{SelectBlock: block},
					[]spec.Operand{q, k, k, idx}), "%d blocks of %d", n, block)
			}
		}
	}
}

// TestFLOPsOfCompression: compression by an MLP has the operations of its two linear layers, and its gradient those of
// theirs.
func TestFLOPsOfCompression(t *testing.T) {
	const D, hidden = 6, 5
	operand := func(shape ...int) spec.Operand { return spec.Operand{Dtype: tensor.Float32, Shape: shape} }
	for _, c := range []struct{ S, l, d, blocks int }{{3, 4, 2, 0}, {4, 4, 4, 1}, {11, 4, 2, 4}, {32, 8, 8, 4}} {
		w1, w2 := operand(hidden, c.l*D), operand(D, hidden)
		block, inside := operand(2*c.blocks*3, c.l*D), operand(2*c.blocks*3, hidden)
		in := []spec.Operand{operand(2, c.S, 3, D), operand(c.l, D), w1, w2}
		forward := spec.FLOPs(linear.Linear{}, []spec.Operand{block, w1}) + spec.FLOPs(linear.Linear{},
			[]spec.Operand{inside, w2})
		require.Equal(t, forward, spec.FLOPs(compress.MLP{BlockLen: c.l, Stride: c.d}, in), "%+v", c)
		require.Equal(t, 2*forward, spec.FLOPs(compress.MLPGrad{BlockLen: c.l, Stride: c.d}, in), "%+v", c)
	}
}
