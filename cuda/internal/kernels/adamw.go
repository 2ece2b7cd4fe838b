package kernels

import (
	"math"
	"unsafe"
)

// AdamWTensor describes one tensor of AdamW, as the device reads it: adamw.cu.
type AdamWTensor struct {
	Weight   Ptr // float32
	Grad     Ptr
	M, V     Ptr // float32
	Half     Ptr // copy of the weight in half precision, 0 for none
	N        int64
	GradType Type
	HalfType Type
	Decay    int32 // 1: by the step's decay, 0: none
	_        int32
}

// AdamWRun is a run of the elements of one tensor, as the device reads it.
type AdamWRun struct {
	First  int64
	Tensor int32
	N      int32
}

// adamWRun is the length of a run.
const adamWRun = 1 << 14

// AdamWRuns cuts tensors of the given sizes into runs. Their order decides that of the sum of squares.
func AdamWRuns(sizes ...int64) []AdamWRun {
	var runs []AdamWRun
	for i, n := range sizes {
		for first := int64(0); first < n; first += adamWRun {
			runs = append(runs, AdamWRun{first, int32(i), int32(min(n-first, adamWRun))})
		}
	}
	return runs
}

// AdamW is one step over all tensors. Tensors and Runs are arrays on the device, of AdamWTensor and AdamWRun: Bytes gives
// their content. hyper and norm are float64 [9] and [1], as ops.AdamWOp has them.
type AdamW struct {
	Runs int64 // number of runs
}

type adamWParams struct {
	tensors, runs, hyper, squares, norm Ptr
	count                               int64
}

// Step appends the norm of all gradients and, where it is finite, the update of weights, moments and copies.
func (op AdamW) Step(to []Launch, tensors, runs, hyper, norm, work Ptr) ([]Launch, error) {
	if err := check("adamw", F32, size{"runs", op.Runs}, size{"elements", adamWRun}); err != nil {
		return to, err
	}
	p := adamWParams{tensors, runs, hyper, work, norm, op.Runs}
	grid := Dim{int(min(op.Runs, math.MaxInt32)), 1, 1}
	return append(to,
		launch(names.adamWSquares, grid, threads, 0, &p),
		launch(names.adamWNorm, Dim{1, 1, 1}, Dim{1024, 1, 1}, 0, &p),
		launch(names.adamWUpdate, grid, threads, 0, &p)), nil
}

// WorkBytes returns the work memory of Step.
func (op AdamW) WorkBytes() int64 { return align(op.Runs * 8) }

// Bytes returns the memory of an array, to be copied to the device. It is that of items.
func Bytes[T AdamWTensor | AdamWRun](items []T) []byte {
	if len(items) == 0 {
		return nil
	}
	return unsafe.Slice((*byte)(unsafe.Pointer(&items[0])), len(items)*int(unsafe.Sizeof(items[0])))
}
