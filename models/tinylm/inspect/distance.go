package inspect

import (
	"math/bits"
	"slices"
	"sync"

	"gonum.org/v1/gonum/floats"

	"github.com/gorgonia-nsa/nsa/ops/spec/attention"
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
// each block, [S,Hkv,n]; elsewhere shares is empty. Groups run in parallel.
func (l *distanceSums) add(a *attentionOf, shares []float64) {
	groups, perGroup := make([]distanceSums, a.groups), a.heads/a.groups
	selected, _ := a.spec.(attention.Selected)
	var wait sync.WaitGroup
	for g := range groups {
		wait.Go(func() {
			sum := distanceSums{sums: make([]float64, bucket(float64(a.tokens-1))+1)}
			for head := g * perGroup; head < (g+1)*perGroup; head++ {
				a.eachQuery(head, func(t int, keys []int, p []float64) {
					for j, i := range keys {
						d := a.distance(t, i)
						sum.sums[bucket(d)] += p[j]
						sum.total += p[j]
						sum.far += p[j] * d
						if len(shares) > 0 {
							slot := slices.Index(a.selected(t, g), int32(i/selected.SelectBlock))
							shares[(t*a.groups+g)*a.n+slot] += p[j] / float64(perGroup)
						}
					}
				})
			}
			groups[g] = sum
		})
	}
	wait.Wait()
	for _, sum := range groups {
		if l.sums == nil {
			l.sums = make([]float64, len(sum.sums))
		}
		floats.Add(l.sums, sum.sums)
		l.total, l.far = l.total+sum.total, l.far+sum.far
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

func bucketStart(i int) int { return 1 << i >> 1 }
