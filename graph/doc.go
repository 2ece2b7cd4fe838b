// Package graph runs Gorgonia graphs of the ops of package ops, and any other, planned and in memory of its own:
// Machine is a gorgonia.VM, Grad takes gradients. Package nn builds layers, package optim trains them.
//
// A Machine plans once, by passes: steps in topological order, their types, fusions, an implementation for each, one arena
// in which memory is used again after its last reader. Then it runs many times without allocating, but for ops that run by
// their own Do. Where it runs is a Backend: the CPU, or a GPU by package cuda. A backend is of this module, since its kernels
// are told of their operands by a type of package internal/cpu; graphs, ops and solvers may be anyone's.
//
// What it is not: it does not rewrite the graph, but for copies of derivatives that gorgonia.Grad lets inputs share, or
// change an input; what it fuses are steps of its own plan. Ops that the backend does not implement run by their own Do on
// the host, and the plan says so.
//
// Nothing here panics for bad input, and a panic of an op comes back as an error that names the op and the node.
package graph
