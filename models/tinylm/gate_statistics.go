package tinylm

import (
	"math"

	"github.com/gorgonia-nsa/nsa/ops"
)

// GateStatistics has weighted means over the gates of queries. Add makes them; weights should sum to 1.
type GateStatistics struct {
	Mean    [ops.NumBranches]float64 // of the compressed, selected and window branch
	Entropy float64                  // mean entropy of the gates' shares in their sum, in nats; at most ln 3
}

// Add adds the gates of a head for one query.
func (s *GateStatistics) Add(gates [ops.NumBranches]float64, weight float64) {
	sum := 0.0
	for _, v := range gates {
		sum += v
	}
	for k, v := range gates {
		s.Mean[k] += v * weight
		if p := v / sum; p > 0 {
			s.Entropy -= p * math.Log(p) * weight
		}
	}
}
