package main

import (
	"github.com/gorgonia-nsa/nsa/graph"
	"github.com/gorgonia-nsa/nsa/ops"
)

// cost is what an op has to do at the least: the arithmetic of its products and the bytes of its operands, each read or
// written once.
type cost struct {
	flop  float64 // 0 for an op that is not of products
	bytes float64
}

func costOf(s graph.PlanStep) cost {
	var c cost
	for _, o := range s.Inputs {
		c.bytes += float64(o.Bytes())
	}
	for _, o := range s.Outputs {
		c.bytes += float64(o.Operand.Bytes())
	}
	in := func(i int) []int { return s.Inputs[i].Shape }
	size := func(i int) float64 { return float64(s.Inputs[i].Elements()) }
	switch op := s.Spec.(type) {
	case ops.LinearOp:
		c.flop = 2 * size(0) * float64(in(1)[0])
	case ops.LinearInputGradOp:
		c.flop = 2 * size(0) * float64(in(1)[1])
	case ops.LinearWeightGradOp:
		c.flop = 2 * size(0) * float64(op.Out)
	case ops.SlidingWindowOp:
		c.flop = attention(in(0), in(2), 2, 2, windowPairs(in(0)[1], op.Window))
	case ops.SlidingWindowGradOp:
		c.flop = attention(in(0), in(2), 6, 4, windowPairs(in(0)[1], op.Window))
	case ops.CausalAttentionOp:
		c.flop = attention(in(0), in(2), 2, 2, windowPairs(in(0)[1], in(0)[1]))
	case ops.CausalAttentionGradOp:
		c.flop = attention(in(0), in(2), 6, 4, windowPairs(in(0)[1], in(0)[1]))
	case ops.CompressedAttentionOp:
		c.flop = attention(in(0), in(2), 2, 2, compressedPairs(in(0)[1], op.BlockLen, op.Stride))
	case ops.CompressedAttentionGradOp:
		c.flop = attention(in(0), in(2), 6, 4, compressedPairs(in(0)[1], op.BlockLen, op.Stride))
	case ops.SelectBlocksOp:
		c.flop = attention(in(0), in(0), 2, 0, compressedPairs(in(0)[1], op.Params.BlockLen, op.Params.Stride))
	case ops.SelectedAttentionOp:
		c.flop = attention(in(0), in(2), 2, 2, selectedPairs(in(0)[1], op.SelectBlock, in(3)[3]))
	case ops.SelectedAttentionGradOp:
		c.flop = attention(in(0), in(2), 6, 4, selectedPairs(in(0)[1], op.SelectBlock, in(3)[3]))
	}
	return c
}

// attention returns the arithmetic over pairs of a query and a key in each head: perKey flop for each of the D elements of a
// key, and perValue for each of the Dv of a value.
func attention(q, v []int, perKey, perValue, pairs float64) float64 {
	return float64(q[0]*q[2]) * pairs * (perKey*float64(q[3]) + perValue*float64(v[3]))
}

func windowPairs(s, window int) float64 {
	return sumOver(s, func(t int) int { return min(t+1, window) })
}

func compressedPairs(s, length, stride int) float64 {
	return sumOver(s, func(t int) int { return ops.NumVisible(t, length, stride) })
}

// selectedPairs counts the keys of n blocks, of which the newest ends at the query.
func selectedPairs(s, block, n int) float64 {
	return sumOver(s, func(t int) int { return min(t+1, (n-1)*block+t%block+1) })
}

func sumOver(s int, f func(t int) int) float64 {
	n := 0
	for t := range s {
		n += f(t)
	}
	return float64(n)
}
