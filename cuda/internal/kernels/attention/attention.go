// Package attention holds the kernels of window, dense, compressed and selected attention and of block selection.
//
// Each op has general kernels for all types and sizes. In half precision kernels on tensor cores are preferred: mma (mma.sync) for
// dims that are multiples of 8 up to 128, and wgmma on compute capability 9.0, up to the widths of allWidths. Forward saves o and the
// log-sum-exp of each row. Backward uses no atomics on floats: query tiles own dq, key tiles own dk and dv, so the bits are the same
// in each run.
//
// The names of kernels are put together from parts: nsa_<branch>_<pass>_[<kind>]<width>_<type>, such as nsa_span_dq_wgmma64_bf16. The
// branch is span (window, dense, compressed), selected, joined (selected blocks joined to longer ones), forced, pairs or walk. Digits after
// selected or walk are the keys of a piece of a block, if fewer than 64. The pass is forward, dq or dkv; dq_tall has tiles of more rows. The
// kind is mma, wgmma or, for the general kernels, nothing. The width is that of D and Dv, such as 192x128, or the tile of a general kernel.
//
// They are in attention_[<kind>_]<pass>.cu, those of walks in attention_walk_<pass>.cu and the forward of pairs in
// attention_wgmma_pairs_forward.cu. Several entries share attention_delta (attention_dq.cu), span_reduce (attention_mma_dkv.cu),
// selected_reduce (attention_dkv.cu) and the inverse index (attention_index.cu). The lists of pairs and walks and pairs_dq are in
// attention_pairs.cu. manifest.json has all names by file.
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
