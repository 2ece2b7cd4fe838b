// Package optim trains the weights of a graph: AdamW, schedules of its learning rate, and the loss scale of fp16.
//
// An AdamW is a gorgonia.Solver for any VM, and a graph.Solver for a graph.Machine, which takes its step in one recording
// with the run.
package optim
