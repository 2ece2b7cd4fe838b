// Package collective has the specs of ops over the ranks of a graph.Group: AllReduce, Reduce, Broadcast, AllGather,
// ReduceScatter, and GatherSequence and ScatterSequence, of sequences that lie over ranks. Every rank runs the same ops
// in the same order, each with operands of its own. They need a graph.Machine with WithGroup: a machine of one rank or
// of Gorgonia gives an error, unless Ranks is 1.
//
// Gradients are those of the sum of what all ranks compute: a rank's gradient counts its operand's part in the results
// of all ranks.
package collective
