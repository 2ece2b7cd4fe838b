// Package optimizer has the spec of the update of all weights, by AdamW or Muon. It is no op of a graph: package
// graph/optim runs it.
package optimizer
