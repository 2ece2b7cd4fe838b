package ops

import (
	"gorgonia.org/gorgonia"

	"github.com/gorgonia-nsa/nsa/ops/spec"
	"github.com/gorgonia-nsa/nsa/ops/spec/attention"
)

// Params are the sizes of Native Sparse Attention: block length l, stride d, selection block l', top n and window w.
type Params = spec.Params

// NumCompressed returns the number of complete compression blocks in s tokens; block i covers [i*d, i*d+l). It is 0 if
// l or d is not positive.
func NumCompressed(s, l, d int) int { return spec.NumCompressed(s, l, d) }

// ValueError is the error of an op that refuses the values of an int32 input: tokens outside the vocabulary, selected
// blocks, boundaries of documents. errors.As finds it in the error of a graph.Machine's run.
type ValueError = spec.ValueError

// The storage types of half precision. Only arrays in device memory have these types: no value on the host, no node of
// a graph.
var (
	BFloat16 = spec.BFloat16 // 8 bits of exponent, 7 of fraction
	Float16  = spec.Float16  // IEEE 754 binary16
)

// LSE returns the second output of an attention op, [B,Hq,S]: for each query the natural log of the sum of the
// exponentials of its scaled logits, -Inf if the query sees no key. o is a node that CompressedAttention,
// SelectedAttention, SlidingWindow or CausalAttention returned. Any other node is an error.
func LSE(o *gorgonia.Node) (*gorgonia.Node, error) { return attention.LSE(o) }

// Option is an option of the ops that look beyond a token. Linear has LinearOption.
type Option = spec.Option

// WithDocuments tells an op that the rows of the batch hold documents that do not see each other. table comes from
// DocumentTable. A nil table changes nothing: each row is one document.
func WithDocuments(table *gorgonia.Node) Option { return spec.WithDocuments(table) }

// WithStart tells an op that the queries of row b are tokens start[b], start[b]+1, ... of the sequence of its keys, which
// may be longer: CompressedAttention, SelectBlocks, SelectedAttention, SlidingWindow, CausalAttention, and RoPE, whose x
// may be keys, too. start is int32 or int [B]. Results are those rows that the op has for a query of every token; on the
// CPU they have the same bits. It is an error of the run if start is below 0 or if a query lies past the last key. So a
// prompt can run in chunks, and a sequence on several devices. It excludes WithDocuments. A nil start changes nothing.
// On CUDA a machine checks a start that comes from the host; kernels take a start that is out of range for the nearest
// that is not.
func WithStart(start *gorgonia.Node) Option { return spec.WithStart(start) }

// DocumentTable returns a table of the documents that are packed into the rows of a batch. The option WithDocuments
// gives the table to an op. The batch has batch rows of seq tokens. Tokens are counted row by row, and document i holds
// the tokens [cuSeqlens[i], cuSeqlens[i+1]).
//
// cuSeqlens [K+1] is int32 or int. It begins with 0, never falls and ends with batch*seq. It contains every multiple of
// seq, since a document lies in one row. Documents may be empty, so one graph takes any number of documents up to K:
// unused boundaries repeat the last one. Wrong boundaries are an error of the run, which names the first wrong one. No
// shape depends on the boundaries, so new boundaries need no new graph, plan or capture.
//
// An op with the option computes for every document the results that the document alone would have; on the CPU the bits
// are the same. Positions, windows, compression blocks and selection blocks begin at the document's first token and end
// with its last. The indices of SelectBlocks count from the document's first block.
//
// A document of n tokens has NumCompressed(n, l, d) compressed keys. They follow the compressed keys of the documents
// before it in the row, and all of them fit into the NumCompressed(seq, l, d) keys of the row. The unused keys are
// zero, and no query sees them. Of p only l and d count: Params{} is for
// graphs without compression.
func DocumentTable(cuSeqlens *gorgonia.Node, batch, seq int, p Params) (*gorgonia.Node, error) {
	op := spec.DocumentTable{Batch: batch, Seq: seq, BlockLen: p.BlockLen, Stride: p.Stride}
	cuSeqlens, err := spec.Int32Input(op, "cu_seqlens", cuSeqlens)
	if err != nil {
		return nil, err
	}
	return spec.Apply(op, cuSeqlens)
}
