// Package attention holds the kernels of window, dense, compressed and selected attention and of the choice of blocks.
//
// Each op has general kernels for all types and sizes. In half precision kernels on tensor cores are preferred. They take dims that
// are multiples of 8, up to 128, or up to the widths of allWidths on compute capability 9.0. Forward saves o and the log-sum-exp of
// each row. Backward uses no atomics on floats: query tiles own dq, key tiles own dk and dv, so the bits are the same in each run.
package attention

import (
	"slices"

	"github.com/gorgonia-nsa/nsa/cuda/internal/kernels"
)

// The names of the rows.
const (
	general     = "cuda"
	tensorCores = "cuda mma"
	warpGroups  = "cuda wgmma"
)

// Rows returns the implementations of the attention ops.
func Rows() []kernels.Row {
	return slices.Concat(spanRows(slidingWindow), spanRows(compressed), selectedRows(), selectRows())
}
