package spec

import (
	"cmp"

	"github.com/gorgonia-nsa/nsa/internal/fault"
)

// Params are the sizes of Native Sparse Attention, with the paper's letters.
type Params struct {
	BlockLen    int // l: tokens in a compression block
	Stride      int // d: tokens between the starts of two compression blocks; divides l and l'
	SelectBlock int // l': tokens in a selection block
	TopN        int // n: selection blocks of a query, the forced ones included
	Window      int // w: tokens of the sliding window, the query's own included
}

// ForcedBlocks is the number of selection blocks that every query gets: the first one and the two newest.
const ForcedBlocks = 3

// IsForced reports whether query t gets a selection block whatever the scores are: block 0, the query's own and the one
// before it. A block in the future or a negative one is not forced, and none is if selectBlock is not positive.
func IsForced(t, block, selectBlock int) bool {
	if selectBlock < 1 || t < 0 || block < 0 {
		return false
	}
	own := t / selectBlock
	return block == 0 || block == own-1 || block == own
}

// FreeBlocks returns the number of earlier selection blocks of query t that are not forced: these are the blocks from 1
// to FreeBlocks. It is 0 if selectBlock is not positive.
func FreeBlocks(t, selectBlock int) int {
	if selectBlock < 1 {
		return 0
	}
	return FreeBlocksOf(t / selectBlock)
}

// FreeBlocksOf is FreeBlocks of a query whose own block is own.
func FreeBlocksOf(own int) int { return max(0, own-ForcedBlocks+1) }

// SelectsByScore reports whether a query has more than n blocks to select from. Otherwise it gets all of them. own is
// the query's own block.
func (p Params) SelectsByScore(own int) bool { return own >= p.TopN }

// Validate returns an error that names the sizes that do not fit each other.
func (p Params) Validate() error { return fault.In("ops", "", CheckParams(p)) }

// CheckParams is Validate without the name of this package in its error.
func CheckParams(p Params) error {
	err := cmp.Or(CheckBlocks(p.BlockLen, p.Stride),
		wantSize("SelectBlock", "selection block l'", p.SelectBlock), wantSize("TopN", "top n", p.TopN),
		wantSize("Window", "window w", p.Window))
	switch {
	case err != nil:
		return err
	case p.SelectBlock%p.Stride != 0:
		return fault.Between("SelectBlock Stride", "stride d = %d does not divide the selection block l' = %d",
			p.Stride, p.SelectBlock)
	case p.TopN < ForcedBlocks:
		return fault.Of("TopN", "top n", "= %d is smaller than the %d forced blocks", p.TopN, ForcedBlocks)
	}
	return nil
}

// CheckBlocks checks the sizes of the compression blocks alone.
func CheckBlocks(l, d int) error {
	err := cmp.Or(wantSize("BlockLen", "block length l", l), wantSize("Stride", "stride d", d))
	if err == nil && l%d != 0 {
		err = fault.Between("Stride BlockLen", "stride d = %d does not divide the block length l = %d", d, l)
	}
	return err
}

// wantSize checks that a size of Params is at least 1. name is that of its field.
func wantSize(name, label string, v int) error {
	if v < 1 {
		return fault.Of(name, label, "is %d, want at least 1", v)
	}
	return nil
}

// NumCompressed returns the number of complete compression blocks in s tokens; block i covers [i*d, i*d+l). It is 0 if
// l or d is not positive.
func NumCompressed(s, l, d int) int {
	if l < 1 || d < 1 || s < l {
		return 0
	}
	return (s-l)/d + 1
}

// NumVisible returns the number of compression blocks that query t sees: those that end at or before token t. t counts
// from 0.
func NumVisible(t, l, d int) int { return NumCompressed(t+1, l, d) }

// CompressedRows returns the number of rows of compressed keys and values: NumCompressed, but at least one, since
// Gorgonia's tensors cannot be empty. If there is no complete block, the one row is zero and no query sees it.
func CompressedRows(s, l, d int) int { return max(1, NumCompressed(s, l, d)) }
