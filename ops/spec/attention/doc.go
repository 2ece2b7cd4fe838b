// Package attention has the specs of the attention of NSA's three branches, of block selection, and of their gradients:
// SlidingWindow (and dense attention), Compressed, Selected, SelectBlocks, Grad. Package ops has their constructors.
//
// To read: dims.go (sizes, pieces of work), span.go (masks), keys.go (scores), softmax.go, finite.go, span_forward.go;
// then stats.go, grad.go, span_grad.go; then selected.go and selected_grad.go, which take the same parts.
// spec/sequences.go has rows and documents.
package attention
