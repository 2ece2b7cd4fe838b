// Package attention holds the kernels of window, dense, compressed and selected attention and of the choice of blocks.
//
// Each op has kernels for all types and sizes, and in half precision kernels on matrix units, which are preferred: they take
// dims that are multiples of 8 up to 128. Forward saves o and the log-sum-exp of each row. Backward adds nothing up with atomics:
// query tiles own dq, key tiles own dk and dv, so that the bits are the same in each run.
package attention

import (
	"slices"

	"github.com/gorgonia-nsa/nsa/cuda/internal/kernels"
	"github.com/gorgonia-nsa/nsa/ops"
)

// The names of the rows.
const (
	general     = "cuda"
	matrixUnits = "cuda mma"
)

// Rows returns the implementations of the attention ops.
func Rows() []kernels.Row {
	return slices.Concat(
		spanRows(slidingWindow, slidingWindowGrad), spanRows(compressed, compressedGrad),
		kernels.Rows(
			kernels.Op[ops.SelectedAttentionOp]{Name: matrixUnits, Storage: "hhhi>hf", Build: selectedOnMatrixUnits},
			kernels.Op[ops.SelectedAttentionOp]{Name: general, Storage: "ttti>tf", Build: selected},
			kernels.Op[ops.SelectedAttentionGradOp]{Name: matrixUnits, Storage: "hhhihfh>hhh", Build: selectedGradOnMatrixUnits},
			kernels.Op[ops.SelectedAttentionGradOp]{Name: general, Storage: "tttitft>ttt", Build: selectedGrad},
			kernels.Op[ops.SelectBlocksOp]{Name: matrixUnits, Storage: "hhf>i", Build: selectBlocksOnMatrixUnits},
			kernels.Op[ops.SelectBlocksOp]{Name: general, Storage: "ttf>i", Build: selectBlocks},
		),
	)
}

// spanRows returns the rows of an op whose mask is a span of keys, and of its gradient: q, k, v -> o, lse, and q, k, v, o, lse, do ->
// dq, dk, dv.
func spanRows[S, G any](maskOf func(S) mask, maskOfGrad func(G) mask) []kernels.Row {
	op := func(build func(*kernels.Builder, mask) error) func(*kernels.Builder, S) error {
		return func(b *kernels.Builder, op S) error { return build(b, maskOf(op)) }
	}
	grad := func(build func(*kernels.Builder, mask) error) func(*kernels.Builder, G) error {
		return func(b *kernels.Builder, op G) error { return build(b, maskOfGrad(op)) }
	}
	return kernels.Rows(
		kernels.Op[S]{Name: matrixUnits, Storage: "hhh>hf", Build: op(forwardOnMatrixUnits)},
		kernels.Op[S]{Name: general, Storage: "ttt>tf", Build: op(forward)},
		kernels.Op[G]{Name: matrixUnits, Storage: "hhhhfh>hhh", Build: grad(backwardOnMatrixUnits)},
		kernels.Op[G]{Name: general, Storage: "ttttft>ttt", Build: grad(backward)},
	)
}

// mask is what a query sees in window, dense and compressed attention: key i stands for the tokens [i*stride, i*stride+length)
// and is seen from its last one on; of those keys a query sees the window newest.
type mask struct{ length, stride, window int64 }

// everything is a window that hides no key.
const everything = 1 << 62

func slidingWindow(op ops.SlidingWindowOp) mask         { return mask{1, 1, int64(op.Window)} }
func slidingWindowGrad(op ops.SlidingWindowGradOp) mask { return mask{1, 1, int64(op.Window)} }

func compressed(op ops.CompressedAttentionOp) mask {
	return mask{int64(op.BlockLen), int64(op.Stride), everything}
}

func compressedGrad(op ops.CompressedAttentionGradOp) mask {
	return mask{int64(op.BlockLen), int64(op.Stride), everything}
}
