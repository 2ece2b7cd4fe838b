package attention

import (
	"github.com/gorgonia-nsa/nsa/cuda/internal/kernels"
	"github.com/gorgonia-nsa/nsa/ops/spec/attention"
)

func slidingWindowEntries() []kernels.Entry {
	return spanEntries(func(a problem, op attention.SlidingWindow) span { return a.spanOf(1, 1, op.Window) })
}
