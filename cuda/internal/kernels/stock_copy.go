package kernels

import "slices"

// maxCopyAxes is the number of axes that a strided copy has once neighbours are merged.
const maxCopyAxes = 6

// StridedCopy is a copy of float32 elements between two strided places: stock_copy.cu. NewStridedCopy makes one.
type StridedCopy struct {
	n             int64
	sizes, xs, ys [maxCopyAxes]int64 // the innermost axis first
	rank          int
	transpose     bool // x is contiguous along axis 1
}

type stockCopyParams struct {
	x, y        Ptr
	n           int64
	sizes       [maxCopyAxes]int64
	xStrides    [maxCopyAxes]int64
	yStrides    [maxCopyAxes]int64
	rank, packs int32
}

// NewStridedCopy returns the copy of the elements of an array of the given sizes, the outermost axis first, that lie xs apart
// in x and ys apart in y. A stride of 0 in x repeats. Axes that lie alike in both are merged; more than 6 that are left are
// *Unsupported.
func NewStridedCopy(sizes, xs, ys []int64) (StridedCopy, error) {
	const name = "strided copy"
	op := StridedCopy{n: 1}
	if len(xs) != len(sizes) || len(ys) != len(sizes) {
		return op, unsupported(name, "%d sizes, %d and %d strides", len(sizes), len(xs), len(ys))
	}
	for i := len(sizes) - 1; i >= 0; i-- {
		if err := check(name, F32, size{"elements", op.n}, size{"size of an axis", sizes[i]}); err != nil {
			return op, err
		}
		op.n *= sizes[i]
		if sizes[i] == 1 {
			continue
		}
		if l := op.rank - 1; l >= 0 && xs[i] == op.xs[l]*op.sizes[l] && ys[i] == op.ys[l]*op.sizes[l] {
			op.sizes[l] *= sizes[i]
			continue
		}
		if op.rank == maxCopyAxes {
			return op, unsupported(name, "more than %d axes that cannot be merged", maxCopyAxes)
		}
		op.sizes[op.rank], op.xs[op.rank], op.ys[op.rank] = sizes[i], xs[i], ys[i]
		op.rank++
	}
	if op.rank == 0 {
		op.sizes[0], op.xs[0], op.ys[0], op.rank = 1, 1, 1, 1
	}
	if i := slices.Index(op.xs[1:op.rank], 1) + 1; i > 0 && op.ys[0] == 1 && op.xs[0] > 1 && op.sizes[0] >= 8 && op.sizes[i] >= 8 {
		op.transpose = true
		for _, of := range []*[maxCopyAxes]int64{&op.sizes, &op.xs, &op.ys} {
			of[1], of[i] = of[i], of[1]
		}
	}
	return op, nil
}

// Forward appends the copy of what begins at x to what begins at y. They do not overlap.
func (op StridedCopy) Forward(to []Launch, x, y Ptr) ([]Launch, error) {
	if op.rank == 1 && op.xs[0] == 1 && op.ys[0] == 1 {
		return Copy(to, x, y, 4*op.n)
	}
	p := stockCopyParams{x: x, y: y, n: op.n, sizes: op.sizes, xStrides: op.xs, yStrides: op.ys, rank: int32(op.rank)}
	if op.transpose {
		tiles := pieces(op.sizes[0], 32) * pieces(op.sizes[1], 32) * (op.n / (op.sizes[0] * op.sizes[1]))
		return append(to, launch(stockNames.transpose, blocks(tiles), threads, 0, &p)), nil
	}
	packs := op.xs[0] == 1 && op.ys[0] == 1 && op.sizes[0]%4 == 0
	for d := 1; d < op.rank; d++ {
		packs = packs && op.xs[d]%4 == 0 && op.ys[d]%4 == 0
	}
	p.packs = flag(packs)
	return append(to, launch(stockNames.copying, elements(F32, op.n), threads, 0, &p)), nil
}
