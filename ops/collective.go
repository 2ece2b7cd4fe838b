package ops

import (
	"gorgonia.org/gorgonia"

	"github.com/gorgonia-nsa/nsa/ops/spec"
	"github.com/gorgonia-nsa/nsa/ops/spec/collective"
)

// AllReduce returns the elementwise sum of x over ranks, in x's shape. The collective ops run on a graph.Machine with
// WithGroup, whose ranks all run the same ops in the same order. Where a group has several times as many ranks, the first
// so many are together, so are the next, and on. With one rank they are copies, which a graph.Machine leaves out. Each is
// differentiable: the gradient counts x's part in the results of all ranks.
func AllReduce(x *gorgonia.Node, ranks int) (*gorgonia.Node, error) {
	return spec.Apply(collective.AllReduce{Ranks: ranks}, x)
}

// AllReduceMean returns the elementwise mean of x over ranks, such as the loss of a whole batch: see AllReduce.
func AllReduceMean(x *gorgonia.Node, ranks int) (*gorgonia.Node, error) {
	return spec.Apply(collective.AllReduce{Ranks: ranks, Mean: true}, x)
}

// Reduce returns on the rank root the elementwise sum of x over ranks, on the others zeros: see AllReduce.
func Reduce(x *gorgonia.Node, root, ranks int) (*gorgonia.Node, error) {
	return spec.Apply(collective.Reduce{Ranks: ranks, Root: root}, x)
}

// Broadcast returns the x of the rank root: see AllReduce.
func Broadcast(x *gorgonia.Node, root, ranks int) (*gorgonia.Node, error) {
	return spec.Apply(collective.Broadcast{Ranks: ranks, Root: root}, x)
}

// AllGather returns the x [n,...] of all ranks, one after the other, [ranks*n,...]: see AllReduce.
func AllGather(x *gorgonia.Node, ranks int) (*gorgonia.Node, error) {
	return spec.Apply(collective.AllGather{Ranks: ranks}, x)
}

// ReduceScatter returns this rank's part [n,...] of the elementwise sum of x [ranks*n,...] over ranks: see AllReduce.
func ReduceScatter(x *gorgonia.Node, ranks int) (*gorgonia.Node, error) {
	return spec.Apply(collective.ReduceScatter{Ranks: ranks}, x)
}

// GatherSequence returns whole sequences [B,2*ranks*S,...] of which x [2B,S,...] is this rank's part: rows 2b and 2b+1 are
// those of the 2*ranks chunks of sequence b that collective.Chunks names. See AllReduce.
func GatherSequence(x *gorgonia.Node, ranks int) (*gorgonia.Node, error) {
	return spec.Apply(collective.GatherSequence{Ranks: ranks}, x)
}

// ScatterSequence returns this rank's part [2B,S,...] of the elementwise sum of x [B,2*ranks*S,...] over ranks: see
// GatherSequence.
func ScatterSequence(x *gorgonia.Node, ranks int) (*gorgonia.Node, error) {
	return spec.Apply(collective.ScatterSequence{Ranks: ranks}, x)
}
