// Package all joins the tables of all kernels.
package all

import (
	"github.com/gorgonia-nsa/nsa/cuda/internal/kernels"
	"github.com/gorgonia-nsa/nsa/cuda/internal/kernels/attention"
	"github.com/gorgonia-nsa/nsa/cuda/internal/kernels/compress"
	"github.com/gorgonia-nsa/nsa/cuda/internal/kernels/decode"
	"github.com/gorgonia-nsa/nsa/cuda/internal/kernels/documents"
	"github.com/gorgonia-nsa/nsa/cuda/internal/kernels/linear"
	"github.com/gorgonia-nsa/nsa/cuda/internal/kernels/memory"
	"github.com/gorgonia-nsa/nsa/cuda/internal/kernels/norm"
	"github.com/gorgonia-nsa/nsa/cuda/internal/kernels/optimizer"
	"github.com/gorgonia-nsa/nsa/cuda/internal/kernels/pointwise"
	"github.com/gorgonia-nsa/nsa/cuda/internal/kernels/stock"
	"github.com/gorgonia-nsa/nsa/cuda/internal/kernels/vocab"
	"github.com/gorgonia-nsa/nsa/graph"
)

// Table returns the entries of all ops.
func Table() kernels.Table {
	return kernels.NewTable(
		attention.Entries(), compress.Entries(), decode.Entries(), documents.Entries(), linear.Entries(),
		memory.Entries(), norm.Entries(), optimizer.Entries(), pointwise.Entries(), stock.Entries(), vocab.Entries(),
	)
}

// Describe returns the op whose entries Table has for a call: its Spec, or the description of one of Gorgonia's own ops. It returns
// nil for an op that is not known.
func Describe(s graph.Call) any {
	if s.Spec != nil {
		return s.Spec
	}
	return stock.Recognise(s.Op)
}
