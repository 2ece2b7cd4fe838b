// Package ref is the oracle of this module: the ops of Native Sparse Attention (arXiv 2502.11089) and of a language
// model around it, and AdamW and Muon, forward and backward, in float64 and plain loops. It is written to be read and
// to be right. Every kernel is tested against it. Its own tests compare it with examples worked out by hand, with
// central differences, and in attention with golden values of an independent implementation whose gradients come from
// automatic differentiation.
//
// It is not fast. It takes only valid arguments: a bad shape is a bug of the test that passes it, and may panic. It
// imports no other package of this module. Functions return new tensors and never change their arguments, except the
// optimizer step. Tensors share memory only through [Tensor.Reshape], [Tensor.Row] and [From].
//
// Notation, in all comments: B batch, S sequence, Hq query heads, Hkv key/value heads (the groups), h = Hq / Hkv query
// heads of a group, D dimension of queries and keys, Dv of values, l tokens of a compression block, d stride of these
// blocks, Nc their number, l' tokens of a selection block, Ns their number, n selected blocks, w window. Tokens and
// blocks count from 0. Layouts are [B,S,H,D]. The gradient of F is FGrad, next to it. dx is the derivative of a scalar
// loss with respect to x, in the shape of x.
package ref
