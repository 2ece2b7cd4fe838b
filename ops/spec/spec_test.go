package spec_test

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"
	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/ops"
	"github.com/gorgonia-nsa/nsa/ops/spec"
	"github.com/gorgonia-nsa/nsa/ops/spec/attention"
	"github.com/gorgonia-nsa/nsa/ops/spec/compress"
	"github.com/gorgonia-nsa/nsa/ops/spec/linear"
)

// TestForcedBlocks compares with the definition: the forced blocks of query t are the first one and the two newest, and
// the free ones lie between them. No number is a block if the size is not positive.
func TestForcedBlocks(t *testing.T) {
	for _, size := range []int{-1, 0, 1, 2, 3} {
		for q := -3; q < 12; q++ {
			free := 0
			for block := -2; block < 14; block++ {
				exists := size > 0 && q >= 0 && block >= 0 && block*size <= q
				forced := exists && (block == 0 || (block+2)*size > q)
				require.Equal(t, forced, spec.IsForced(q, block, size), "t = %d, block = %d, l' = %d", q, block, size)
				if exists && !forced {
					free++
				}
			}
			require.Equal(t, free, spec.FreeBlocks(q, size), "t = %d, l' = %d", q, size)
		}
	}
}

// TestNumCompressed counts the blocks [i*d, i*d+l) within s tokens one by one. Sizes that are not positive have no
// blocks.
func TestNumCompressed(t *testing.T) {
	sizes := []int{-1, 0, 1, 2, 3, 5}
	for _, l := range sizes {
		for _, d := range sizes {
			for s := -2; s < 12; s++ {
				want := 0
				for i := 0; l > 0 && d > 0 && i*d+l <= s; i++ {
					want++
				}
				require.Equal(t, want, ops.NumCompressed(s, l, d), "s = %d, l = %d, d = %d", s, l, d)
				require.Equal(t, want, spec.NumVisible(s-1, l, d), "t = %d, l = %d, d = %d", s-1, l, d)
			}
		}
	}
	require.Zero(t, ops.NumCompressed(math.MaxInt, math.MinInt, 1))
}

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
