// Package documents holds the kernel of the table of packed documents.
package documents

import (
	"math"

	"github.com/gorgonia-nsa/nsa/cuda/internal/kernels"
	"github.com/gorgonia-nsa/nsa/graph"
	"github.com/gorgonia-nsa/nsa/ops/spec"
)

// Entries returns the entry of the table.
func Entries() []kernels.Entry {
	return kernels.Entries(kernels.EntryFor[spec.DocumentTable]{
		Types: kernels.In(kernels.Int32("cu_seqlens")).Out(kernels.Int32("table")),
		Guard: guardDocumentTable, Launches: documentTable,
	})
}

// documentTableParams is DocumentTableParams of document_table.cu.
type documentTableParams struct {
	cu, table                  kernels.Ref
	documents                  int64
	batch, seq, length, stride int32
}

// owned is kOwned of document_table.cu: the places of a block.
const owned = 1024

func guardDocumentTable(c *kernels.Call, op spec.DocumentTable) error {
	if n := c.In[0].N(); n > math.MaxInt32-owned || op.BlockLen > math.MaxInt32 {
		return graph.Refuse(graph.ReasonSize, "%d boundaries, blocks of %d tokens, want less than 2^31", n, op.BlockLen)
	}
	return nil
}

// documentTable adds cu_seqlens [K+1] -> table [B,S,4].
func documentTable(b *kernels.Builder, op spec.DocumentTable) {
	const maxGridRows = math.MaxUint16
	cu, table := b.In[0], b.Out[0]
	p := &documentTableParams{
		cu.Ref, table.Ref, cu.N() - 1, int32(op.Batch), int32(op.Seq), int32(op.BlockLen), int32(op.Stride),
	}
	grid := kernels.Dim{X: int(kernels.CeilDiv(table.Dim(1), owned)), Y: min(op.Batch, maxGridRows), Z: 1}
	b.AddLaunch("nsa_document_table_i32", grid, kernels.Threads(), 0, p)
}
