package attention

import (
	"github.com/gorgonia-nsa/nsa/cuda/internal/kernels"
	"github.com/gorgonia-nsa/nsa/ops/spec/attention"
)

// slidingWindowEntries returns the entries of window and dense attention: their kernels are nsa_span_*, which span.go
// launches for all masks that are a span of keys.
func slidingWindowEntries() []kernels.Entry {
	return spanEntries(func(a problem, op attention.SlidingWindow) span { return a.spanOf(1, 1, op.Window) })
}
