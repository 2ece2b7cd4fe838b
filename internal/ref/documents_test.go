package ref_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gorgonia-nsa/nsa/internal/ref"
)

// TestDocumentsByHand: two rows of 8 tokens, with documents of 3, 0 and 5 tokens, and one of 8. Blocks have 2 tokens, 1
// apart.
func TestDocumentsByHand(t *testing.T) {
	x := ref.Documents{B: 2, S: 8, L: 2, D: 1, CU: []int32{0, 3, 3, 8, 16, 16}}
	require.Equal(t, []ref.Document{{0, 0, 3, 0, 2}, {0, 3, 8, 2, 6}, {1, 0, 8, 0, 7}}, x.List())
	seen := func(mask ref.Mask, b, t int) (keys []int) {
		for s := range x.S {
			if mask(b, 0, t, s) {
				keys = append(keys, s)
			}
		}
		return keys
	}
	window := x.Mask(ref.WindowMask(3))
	require.Equal(t, []int{0, 1, 2}, seen(window, 0, 2))
	require.Equal(t, []int{3}, seen(window, 0, 3))
	require.Equal(t, []int{5, 6, 7}, seen(window, 0, 7))
	require.Equal(t, []int{2, 3, 4}, seen(window, 1, 4))
	compressed := x.CompressedMask()
	require.Empty(t, seen(compressed, 0, 0))
	require.Equal(t, []int{0, 1}, seen(compressed, 0, 2))
	require.Empty(t, seen(compressed, 0, 3))
	require.Equal(t, []int{2}, seen(compressed, 0, 4))
	require.Equal(t, []int{0, 1, 2, 3, 4, 5, 6}, seen(compressed, 1, 7))

	idx := make([]int32, x.B*x.S*2)
	for i := range idx {
		idx[i] = []int32{0, -1}[i%2]
	}
	idx[7*2+1] = 1 // token 7: both blocks of 4 tokens of its document [3,8)
	selected := x.SelectedMask(idx, 1, 4)
	require.Equal(t, []int{3, 4, 5, 6}, seen(selected, 0, 6))
	require.Equal(t, []int{3, 4, 5, 6, 7}, seen(selected, 0, 7))
	require.Equal(t, []int{0, 1, 2}, seen(selected, 0, 2))

	tokens := ref.New(2, 8, 1, 1)
	for i := range tokens.Data {
		tokens.Data[i] = float64(i)
	}
	mean := x.Map(tokens, ref.Tokens, ref.Keys, func(x *ref.Tensor) *ref.Tensor { return ref.CompressMean(x, 2, 1) },
		2, 7, 1, 1)
	require.Equal(t, []float64{0.5, 1.5, 3.5, 4.5, 5.5, 6.5, 0, 8.5, 9.5, 10.5, 11.5, 12.5, 13.5, 14.5}, mean.Data)
}
