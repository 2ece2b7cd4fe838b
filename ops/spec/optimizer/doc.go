// Package optimizer has the specs of the update of weights: SumSquares, GradNorm, AdamW, Muon. They are no ops of a
// graph that a user builds: graph.WithOptimizer puts them behind the gradients of a plan.
package optimizer
