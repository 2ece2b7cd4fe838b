package inspect

import (
	"math/bits"
	"slices"
	"sync"

	"gonum.org/v1/gonum/floats"

	"github.com/gorgonia-nsa/nsa/ops"
)

// BranchDistance says how far back the attention of a branch goes.
type BranchDistance struct {
	Branch string
	Shares []float64 // of the attention probability, by distance: [0] at 0, [i] at 2^(i-1) to 2^i - 1 tokens
	Mean   float64   // mean distance in tokens; for a compressed key, to the middle of its block
}

// distanceSums has the sums for a BranchDistance.
type distanceSums struct {
	sums  []float64 // by distance
	total float64   // of all probabilities
	far   float64   // of probability times distance
}

// add adds the probabilities of all queries of a branch. In the selected branch it writes to shares the probability of
// each block, [S,Hkv,n]; elsewhere shares is empty.
func (l *distanceSums) add(a *attention, shares []float64) {
	heads := make([]distanceSums, a.heads)
	parts := make([][]float64, a.heads)
	perGroup := a.heads / a.groups
	var wait sync.WaitGroup
	for head := range a.heads {
		wait.Go(func() {
			h := distanceSums{sums: make([]float64, bucket(float64(a.tokens-1))+1)}
			parts[head] = make([]float64, a.tokens*a.n)
			a.eachQuery(head, func(t int, keys []int, p []float64) {
				for j, i := range keys {
					d := a.distance(t, i)
					h.sums[bucket(d)] += p[j]
					h.total += p[j]
					h.far += p[j] * d
					if s, ok := a.spec.(ops.SelectedAttentionOp); ok {
						parts[head][t*a.n+slices.Index(a.selected(t, head/perGroup), int32(i/s.SelectBlock))] += p[j]
					}
				}
			})
			heads[head] = h
		})
	}
	wait.Wait()
	for head, h := range heads {
		if l.sums == nil {
			l.sums = make([]float64, len(h.sums))
		}
		floats.Add(l.sums, h.sums)
		l.total, l.far = l.total+h.total, l.far+h.far
		for i, p := range parts[head] {
			t, slot := i/a.n, i%a.n
			shares[(t*a.groups+head/perGroup)*a.n+slot] += p / float64(perGroup)
		}
	}
}

// result returns the BranchDistance of the sums. In a text shorter than a compressed block no query sees a compressed
// key: then all numbers are 0.
func (l *distanceSums) result(branch string) BranchDistance {
	r := BranchDistance{Branch: branch, Shares: l.sums}
	if l.total > 0 {
		floats.Scale(1/l.total, r.Shares)
		r.Mean = l.far / l.total
	}
	return r
}

// bucket returns the index of a distance in BranchDistance.Shares.
func bucket(distance float64) int { return bits.Len(uint(distance)) }

// bucketStart returns the shortest distance of a bucket.
func bucketStart(i int) int { return 1 << i >> 1 }
