package ops

import (
	"gorgonia.org/gorgonia"

	"github.com/gorgonia-nsa/nsa/ops/spec"
)

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
