package stock

import (
	"errors"
	"slices"
	"testing"

	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/graph"
)

func TestStridedCopyMergesAxes(t *testing.T) {
	for _, c := range []struct {
		sizes, xs, ys []int64
		rank          int
		transpose     bool
	}{
		{[]int64{2, 3, 4}, []int64{12, 4, 1}, []int64{12, 4, 1}, 1, false},
		{[]int64{2, 3, 4}, []int64{24, 4, 1}, []int64{12, 4, 1}, 2, false},
		{[]int64{2, 1, 4}, []int64{4, 99, 1}, []int64{4, 77, 1}, 1, false},
		{[]int64{20, 30}, []int64{1, 20}, []int64{30, 1}, 2, true},
		{[]int64{20, 2, 30}, []int64{2, 1, 40}, []int64{60, 30, 1}, 2, true},
		{[]int64{20, 3}, []int64{1, 20}, []int64{3, 1}, 2, false},
		{[]int64{1, 1}, []int64{5, 7}, []int64{1, 1}, 1, false},
		{nil, nil, nil, 1, false},
	} {
		op, err := copyParamsOf(c.sizes, c.xs, c.ys)
		if transposed := op.toTranspose(); err != nil || int(op.rank) != c.rank || transposed != c.transpose {
			t.Errorf("%v: rank %d, transpose %v, error %v", c, op.rank, transposed, err)
		}
	}
	sizes, xs, ys := make([]int64, 7), make([]int64, 7), make([]int64, 7)
	for i := range sizes {
		sizes[i], xs[i], ys[i] = 2, 1<<i, 64>>i
	}
	var u *graph.Unsupported
	if err := (elementCopy{view{0, sizes, xs}, view{0, sizes, ys}}).guard(); !errors.As(err, &u) {
		t.Errorf("7 axes: %v", err)
	}
}

// TestStockReductionsThatTensorGetsWrongAreRefused: exactly the reductions that package tensor gets wrong are left to
// the host.
func TestStockReductionsThatTensorGetsWrongAreRefused(t *testing.T) {
	right, wrong := 0, 0
	for rank, n := 3, 27; rank <= 4; rank, n = rank+1, 3*n {
		for code := range n {
			shape := make(tensor.Shape, rank)
			for i := range shape {
				shape[i] = code%3 + 1
				code /= 3
			}
			for mask := 1; mask < 1<<rank; mask++ {
				var axes []int
				for a := range shape {
					if mask>>a&1 == 1 {
						axes = append(axes, a)
					}
				}
				ok := tensorSums(shape, axes)
				if got := hostReduces(shape, axes); got && !ok {
					t.Errorf("the sum along %v of %v is taken for right", axes, shape)
				} else if !got && ok {
					t.Errorf("the sum along %v of %v is taken for wrong", axes, shape)
				}
				if ok {
					right++
				} else {
					wrong++
				}
			}
		}
	}
	t.Logf("%d right, %d wrong", right, wrong)
}

// tensorSums reports whether package tensor adds up an array correctly along the axes.
func tensorSums(shape tensor.Shape, axes []int) (ok bool) {
	defer func() {
		if recover() != nil {
			ok = false
		}
	}()
	x := make([]float64, shape.TotalSize())
	want := map[int]float64{}
	at := make([]int, len(shape))
	for i := range x {
		x[i] = float64(i*i%101) + 0.5
		kept := 0
		for a := range shape {
			if !slices.Contains(axes, a) {
				kept = kept*shape[a] + at[a]
			}
		}
		want[kept] += x[i]
		for a := len(at) - 1; a >= 0; a-- {
			if at[a]++; at[a] < shape[a] {
				break
			}
			at[a] = 0
		}
	}
	y, err := tensor.New(tensor.WithShape(shape...), tensor.WithBacking(x)).Sum(axes...)
	if err != nil {
		return false
	}
	got, isSlice := y.Data().([]float64)
	if !isSlice {
		got = []float64{y.Data().(float64)}
	}
	for i, v := range got {
		if want[i] != v {
			return false
		}
	}
	return len(got) == len(want)
}
