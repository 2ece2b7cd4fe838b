// Package spec has what a planner knows of an op. A Spec is a plain struct of the op's parameters with the shape rule,
// the gradient and the CPU kernel. Apply puts it into a graph. The specs of a family of ops lie in a folder below this
// one: attention, collective, compress, decode, linear, norm, optimizer, pointwise, vocab. A file bears the name of its
// op. Parts that folders share are here: shape rules (shapes.go), phases of CPU kernels (phases.go), packed documents
// (document_table.go, sequences.go), and the sizes of NSA (params.go).
//
// A Spec may have several outputs, but an op of Gorgonia has one. So the first output is the value of the op's node.
// Each other output (LSE; dK and dV after dQ) is a node whose only input is that node: see Output.
//
// Functions whose names begin with Bind add phases to a CPU kernel, which run in the order of these calls. BindCheck
// sets the kernel's check instead.
package spec
