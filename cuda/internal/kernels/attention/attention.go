// Package attention holds the kernels of window, dense, compressed and selected attention and of block selection.
//
// Each op has general kernels for all types and sizes. In half precision kernels on tensor cores are preferred: mma (mma.sync) for
// dims that are multiples of 8 up to 128, and wgmma on compute capability 9.0, up to the widths of allWidths. Forward saves o and the
// log-sum-exp of each row. Backward uses no atomics on floats: query tiles own dq, key tiles own dk and dv, so the bits are the same
// in each run.
//
// A guard is what a build function refuses, and whom it asks: checkPolicy first, then problemOf, then mmaWidth or wgmmaWidths.
package attention

import (
	"slices"

	"github.com/gorgonia-nsa/nsa/cuda/internal/kernels"
)

// The names of the entries for tensor cores. The general kernels have none.
const (
	mma   = "cuda mma"
	wgmma = "cuda wgmma"
)

// Entries returns the entries of the attention ops.
func Entries() []kernels.Entry {
	return slices.Concat(spanEntries(windowSpan), spanEntries(compressedSpan), selectedEntries(), selectEntries())
}
