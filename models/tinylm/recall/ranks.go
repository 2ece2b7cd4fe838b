package recall

import (
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
