// Package ops holds the operations of Native Sparse Attention (arXiv 2502.11089) and of a language model around it as
// Gorgonia ops: constructors that take and return *gorgonia.Node, with shape rules, symbolic gradients and CPU kernels
// in float32 and float64. They work with gorgonia.Grad and every gorgonia VM; of a LispMachine only the forward pass.
// Package graph plans and runs the same ops, in memory of its own and on other devices.
//
// Layouts are [B,S,H,D] (batch, sequence, head, dim), row-major and contiguous. B is the batch, S the sequence length,
// Hq and Hkv the numbers of query and key/value heads (Hkv divides Hq; the Hq/Hkv query heads of a group share keys,
// values and selection), D the key dim, Dv the value dim.
//
// A row of the batch is one sequence, or it holds several documents that do not see each other: see DocumentTable and
// WithDocuments.
//
// Wrong ranks, sizes and types are errors of the constructor, of the form "ops: sliding window: ...". No constructor
// panics for bad input.
//
// What an op does is in its Spec, which bears its name: SlidingWindow applies attention.SlidingWindow of package
// ops/spec/attention. See ops/spec for what a Spec is.
package ops
