package opcases

import (
	"fmt"
	"math"
	"slices"

	"github.com/gorgonia-nsa/nsa/internal/ref"
	"github.com/gorgonia-nsa/nsa/ops"
)

// CheckChoice holds chosen blocks idx [B,S,Hkv,n] to the oracle's scores for q [B,S,Hq,D] and kc [B,Nc,Hkv,D]: of each query
// the forced ones are among them, ascending and padded with -1, and none is left out whose score is above that of a chosen
// one by more than tolerance, relative to the sum of a row's scores. It returns in how many rows the choice is not the
// oracle's, and the first error.
func CheckChoice(p ops.Params, q, kc *ref.Tensor, idx []int32, tolerance float64) (others int, err error) {
	S, Hq, Hkv := q.Shape[1], q.Shape[2], kc.Shape[2]
	if S < p.BlockLen {
		kc = ref.New(kc.Shape[0], 0, Hkv, kc.Shape[3])
	}
	want, scores := ref.SelectBlocks(q, kc, p.BlockLen, p.Stride, p.SelectBlock, p.TopN)
	rounding := tolerance * float64(Hq/Hkv*p.BlockLen/p.Stride) // a row of scores sums to h*l/d
	for i := 0; i < len(idx); i += p.TopN {
		row := idx[i : i+p.TopN]
		if slices.Equal(row, want[i:i+p.TopN]) {
			continue
		}
		others++
		at := i / p.TopN
		b, t, g := at/Hkv/S, at/Hkv%S, at%Hkv
		own, score := t/p.SelectBlock, scores.Row(b, t, g)
		bad := func(format string, args ...any) (int, error) {
			return others, fmt.Errorf("query %d of batch %d, group %d: %v, want %v: %s", t, b, g, row, want[i:i+p.TopN], fmt.Sprintf(format, args...))
		}
		if own < p.TopN || !slices.IsSorted(row) || row[0] != 0 || int(row[p.TopN-2]) != own-1 || int(row[p.TopN-1]) != own {
			return bad("not the forced blocks and more in ascending order")
		}
		worst := math.Inf(1)
		for j, block := range row[1 : p.TopN-2] {
			if block <= row[j] {
				return bad("block %d twice", block)
			}
			worst = min(worst, score[block])
		}
		for j := 1; j < own-1; j++ {
			if !slices.Contains(row, int32(j)) && score[j] > worst+rounding {
				return bad("block %d scores %v, a chosen one %v", j, score[j], worst)
			}
		}
	}
	return others, nil
}
