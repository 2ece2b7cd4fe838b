package recall

import (
	"encoding/json"
	"fmt"

	"github.com/gorgonia-nsa/nsa/graph"
	"github.com/gorgonia-nsa/nsa/internal/fault"
	"github.com/gorgonia-nsa/nsa/internal/value"
)

// ranks returns the number of ranks that share documents.
func (o Options) ranks() int {
	if value.IsNil(o.Group) {
		return 1
	}
	return o.Group.Size()
}

func (o Options) rank() int {
	if o.ranks() == 1 {
		return 0
	}
	return o.Group.Rank()
}

// checkRanks returns an error unless ranks can share documents of so many tokens, and of these halved until a rank's
// part has whole ones.
func (o Options) checkRanks(context int) error {
	if n := o.ranks(); n&(n-1) != 0 || context%(n*n) != 0 {
		return fault.Between("ContextParallel Context", "%d ranks share a context of %d tokens, want a power of two and a "+
			"multiple of its square", n, context)
	}
	return nil
}

// fail ends the job, if there is one, after an error of this rank.
func (o Options) fail(err error) {
	if err != nil && o.ranks() > 1 {
		o.Group.Fail(err)
	}
}

// gather sends a value to all ranks and returns those of all, by rank.
func gather[T any](g graph.Group, what string, own T) ([]T, error) {
	if value.IsNil(g) {
		return []T{own}, nil
	}
	data, err := json.Marshal(own)
	if err != nil {
		return nil, err
	}
	texts, err := g.AllGather(what, data)
	if err != nil {
		return nil, err
	}
	all := make([]T, len(texts))
	for rank, text := range texts {
		if err := json.Unmarshal(text, &all[rank]); err != nil {
			return nil, fmt.Errorf("%s: rank %d: %w", what, rank, err)
		}
	}
	return all, nil
}
