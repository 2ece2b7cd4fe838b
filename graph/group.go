package graph

import (
	"fmt"
	"maps"
	"slices"

	"github.com/gorgonia-nsa/nsa/internal/gather"
)

// Group is the ranks of a job: processes, one for each device, that run the same plan. Package graph/dist makes Groups.
// All methods but AllGather may be called from any goroutine. Go must be able to compare Groups: use a pointer.
type Group interface {
	Rank() int // of this process, from 0
	Size() int // number of ranks, at least 1

	// AllGather sends data to all ranks and returns the data of all, by rank. All ranks call it in the same order, one
	// call at a time. It is for small data and for the CPU. what names the operation in errors; a rank that calls for
	// another one, or does not come in time, is an error that names the rank. The caller may change data afterwards, and
	// owns the result.
	AllGather(what string, data []byte) ([][]byte, error)

	// Watch begins to watch an operation that has been enqueued on a device. The Group calls done from a goroutine of
	// its own, one call at a time, until it returns true or an error. After an error, or if the operation takes longer
	// than the deadline, the Group fails.
	Watch(what string, done func() (bool, error))

	// Fail ends the job on all ranks: Done is closed, Err is the first error, and all calls return it.
	Fail(error)
	Done() <-chan struct{}
	Err() error
}

// WithGroup makes the machine one of several that run the same plan, each on a device of its own with a part of the
// batch. Gradients are averaged over the ranks: those of WithOptimizer's weights in a Step, behind the sums of
// WithGradSums; without an optimizer the derivatives of all inputs, in each run. So each rank's loss is the mean over
// its part, and all parts have one size. The first Step checks that weights are equal on all ranks.
//
// All ranks make machines, and run them, in the same order. A Group of one rank changes nothing. The machine does not
// close g.
func WithGroup(g Group) Option { return func(o *options) { o.group, o.hasGroup = g, true } }

// Agree returns an error on all ranks if a fact, such as the hash of the data, differs between ranks. The error names
// the fact and the first rank that differs from rank 0.
func Agree(g Group, facts map[string]string) error {
	if g.Size() == 1 {
		return nil
	}
	all, err := gather.JSON(g, "comparison of ranks", facts)
	if err != nil {
		return err
	}
	first := all[0]
	for rank, theirs := range all {
		names := slices.AppendSeq(slices.Collect(maps.Keys(first)), maps.Keys(theirs))
		for _, name := range slices.Sorted(slices.Values(names)) {
			if first[name] != theirs[name] {
				return fmt.Errorf("rank %d has %s %q, rank 0 has %q", rank, name, theirs[name], first[name])
			}
		}
	}
	return nil
}
