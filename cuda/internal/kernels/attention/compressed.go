package attention

import (
	"math"

	"github.com/gorgonia-nsa/nsa/cuda/internal/kernels"
	"github.com/gorgonia-nsa/nsa/ops/spec/attention"
)

func compressedEntries() []kernels.Entry {
	return spanEntries(func(a problem, op attention.Compressed) span {
		return a.spanOf(op.BlockLen, op.Stride, math.MaxInt)
	})
}
