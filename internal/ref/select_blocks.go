package ref

import (
	"cmp"
	"slices"
)

// The forced blocks, which are among the n blocks of every query: the first InitBlocks of the sequence and the newest
// LocalBlocks, the query's own included.
const (
	InitBlocks  = 1
	LocalBlocks = 2
)

// NumSelection returns Ns, the number of selection blocks of S tokens: ceil(S/l'). The last block may be shorter.
func NumSelection(S, lp int) int { return (S + lp - 1) / lp }

// FoldMatrix returns the weights of compression blocks in the scores of selection blocks, [Nc,Ns] for S tokens: the
// number of tokens that the two blocks share, divided by d (equation 9 of the paper, which counts strides).
func FoldMatrix(S, l, d, lp int) *Tensor {
	m := New(NumCompressed(S, l, d), NumSelection(S, lp))
	for i := range m.Shape[0] {
		for j := range m.Shape[1] {
			lo, hi := max(i*d, j*lp), min(i*d+l, (j+1)*lp)
			m.Row(i)[j] = float64(max(0, hi-lo)) / float64(d)
		}
	}
	return m
}

// SelectBlocks returns the selected blocks of every query and group: q [B,S,Hq,D], kc [B,Nc,Hkv,D] -> idx [B,S,Hkv,n],
// ascending and padded with -1, and score [B,S,Hkv,Ns]. The score is each head's softmax over the compression blocks
// that the query sees, folded onto selection blocks and summed over the heads of the group (equations 8 to 10). The
// forced blocks are always selected. The others are the blocks with the best scores among the remaining ones up to the
// query's own; of equal scores the lower index wins. n is at least InitBlocks + LocalBlocks. No gradient flows through
// the selection.
func SelectBlocks(q, kc *Tensor, l, d, lp, n int) (idx []int32, score *Tensor) {
	B, S, Hkv := q.Shape[0], q.Shape[1], kc.Shape[2]
	fold := FoldMatrix(S, l, d, lp)
	score = New(B, S, Hkv, fold.Shape[1])
	eachRow(q, kc, CompressedMask(l, d), func(_, b, t, head, g int, keys []int) {
		p := logits(q, kc, b, t, head, g, keys)
		softmax(p, softmaxScale(q))
		for i, s := range keys {
			axpy(p[i], fold.Row(s), score.Row(b, t, g))
		}
	})
	idx = make([]int32, 0, B*S*Hkv*n)
	for b := range B {
		for t := range S {
			for g := range Hkv {
				idx = append(idx, selectOf(score.Row(b, t, g), t/lp, n)...)
			}
		}
	}
	return idx, score
}

// selectOf returns the n blocks of a query whose own block is own, ascending and padded with -1.
func selectOf(score []float64, own, n int) []int32 {
	var selected, rest []int32
	for j := range int32(own + 1) {
		if j < InitBlocks || int(j) > own-LocalBlocks {
			selected = append(selected, j)
		} else {
			rest = append(rest, j)
		}
	}
	slices.SortStableFunc(rest, func(a, b int32) int { return cmp.Compare(score[b], score[a]) })
	selected = append(selected, rest[:min(len(rest), n-len(selected))]...)
	slices.Sort(selected)
	for len(selected) < n {
		selected = append(selected, -1)
	}
	return selected
}
