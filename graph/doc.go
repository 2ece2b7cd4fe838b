// Package graph runs Gorgonia graphs, of the ops of package ops or of any others, by a plan and in memory of its own.
// Machine is a gorgonia.VM, Grad takes gradients. Package nn builds layers, package optim trains them.
//
// A Machine makes its plan once, in passes: it sorts the steps in topological order, sets their types, fuses steps,
// chooses an implementation for each, and lays out one arena, in which memory is used again after its last reader. Then
// it runs the plan many times. Runs do not allocate, except for ops that run by their own Do. A Backend says where a
// Machine runs: on the CPU, or on a GPU by package cuda. Only this module can implement a Backend, because kernels get
// their operands by a type of package internal/cpu. Graphs, ops and solvers may be of any module.
//
// A Machine does not rewrite the graph: fusion changes only steps of the plan. The exception is gorgonia.Grad, which
// may let inputs share a derivative: the Machine then adds copies to the graph. A Machine itself changes no input; a
// spec.Updating op does. Ops that the backend does not implement run by their own Do on the host, and the plan says so.
//
// Bad input is an error, never a panic. A panic of an op becomes an error that names the op and the node.
//
// To read, from the bottom: backend.go (the contract of a device), plan.go (what passes work on), then the passes in
// the order of compile.go, machine.go, and what a run does: inputs.go, replay.go, run_host.go, results.go, run.go. A
// file calls only those below it. options.go has the options, open.go NewMachine and Close; grad.go and check.go work
// on graphs without a machine.
package graph
