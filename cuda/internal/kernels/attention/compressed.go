package attention

import (
	"math"

	"github.com/gorgonia-nsa/nsa/cuda/internal/kernels"
	"github.com/gorgonia-nsa/nsa/ops/spec/attention"
)

// compressedEntries returns the entries of compressed attention: their kernels are nsa_span_*, which span.go launches for
// all masks that are a span of keys.
func compressedEntries() []kernels.Entry {
	return spanEntries(func(a problem, op attention.Compressed) span {
		return a.spanOf(op.BlockLen, op.Stride, math.MaxInt)
	})
}
