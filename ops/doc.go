// Package ops holds the operations of Native Sparse Attention (arXiv 2502.11089) and of a language model around it as
// Gorgonia ops: constructors that take and return *gorgonia.Node, with shape rules, symbolic gradients and CPU kernels in
// float32 and float64. They work with gorgonia.Grad and every gorgonia VM; of a LispMachine only the forward pass. Package graph
// plans and runs the same ops, in memory of its own and on other devices.
//
// Layouts are [B,S,H,D] (batch, sequence, head, dim), row-major and contiguous. B is the batch, S the sequence length, Hq
// and Hkv the numbers of query and key/value heads (Hkv divides Hq; the Hq/Hkv query heads of a group share keys, values
// and selection), D the key dim, Dv the value dim.
//
// A row of the batch is one sequence, or it holds several documents that do not see each other: see DocumentTable and
// WithDocuments.
//
// Wrong ranks, sizes and types are errors of the constructor, of the form "ops: sliding window: ...". No constructor
// panics for bad input.
//
// An op is a Spec: a plain struct of its parameters with the shape rule, the gradient and the CPU kernel. Its file holds
// the gradient, too, except for attention: see attention.go. A Spec may have several outputs, but an op of Gorgonia has one. So the first
// output is the value of the op's node. Each other output (LSE; dK and dV after dQ) is a node whose only input is that node.
//
// In the code of the kernels, functions whose names begin with bind add phases to a kernel, which run in the order of these calls.
// bindCheck sets the kernel's check instead, and bindTerms adds no phase where there is one term.
package ops
