package main

import (
	"testing"

	"github.com/stretchr/testify/require"
	G "gorgonia.org/gorgonia"
)

// TestShortAttention builds attention at short lengths, also at one without a complete compression block.
func TestShortAttention(t *testing.T) {
	for s := 16; s <= 4096; s *= 4 {
		a := attentionBench{attentionShape: attentionShape{heads: 16, kvHeads: 2, dim: 64, valueDim: 32}, s: s}
		q := input(G.NewGraph(), "q", 1, s, a.heads, a.dim)
		require.Equal(t, []int{1, s, a.heads, a.valueDim}, []int(a.graph(q, a.nsa).Shape()))
	}
}
