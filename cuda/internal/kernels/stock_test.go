package kernels

import (
	"errors"
	"math"
	"slices"
	"testing"
)

// everyStockLaunch appends launches of each stock kernel, at sizes that take each of its ways.
func everyStockLaunch(to []Launch) ([]Launch, error) {
	const x, y, z, w = Ptr(0x1000), Ptr(0x2000), Ptr(0x3000), Ptr(0x4000)
	var errs [16]error
	n := 0
	keep := func(l []Launch, err error) {
		to, errs[n] = l, err
		n++
	}
	keep(Unary{Sigmoid, 1000}.Forward(to, x, y))
	keep(Binary{Pow, 1000, true, false}.Forward(to, x, y, z))
	for _, s := range [][3]int64{{10, 100, 1}, {10, 1e6, 1}, {10, 1e6, 3}, {1e7, 3, 1e4}} {
		r := Reduce{false, s[0], s[1], s[2]}
		keep(r.Forward(to, x, y, w))
		keep(r.Product(to, x, z, y, w))
		keep(AxisSoftmax{true, s[0], s[1], s[2]}.Forward(to, x, y))
	}
	keep(AxisSoftmax{false, 1, 2, 3}.Backward(to, x, y, z))
	return to, errors.Join(errs[:n]...)
}

func TestStockLaunchesMatchTheBinaries(t *testing.T) {
	c, err := load()
	if err != nil {
		t.Fatal(err)
	}
	launches, err := everyStockLaunch(nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range []struct{ sizes, xs, ys []int64 }{
		{[]int64{2, 3}, []int64{3, 1}, []int64{3, 1}},
		{[]int64{100, 200}, []int64{1, 100}, []int64{200, 1}},
		{[]int64{100, 7, 200}, []int64{200, 0, 1}, []int64{1400, 200, 1}},
	} {
		op, err := NewStridedCopy(s.sizes, s.xs, s.ys)
		if err != nil {
			t.Fatal(err)
		}
		if launches, err = op.Forward(launches, 0x1000, 0x2000); err != nil {
			t.Fatal(err)
		}
	}
	seen := map[string]bool{}
	for _, l := range launches {
		image, err := ImageOf(l.Kernel)
		if err != nil {
			t.Error(err)
			continue
		}
		seen[l.Kernel] = true
		k := c.manifest.Units[image].Kernels[l.Kernel]
		if !slices.Equal(k.Params, []int{len(l.Params())}) {
			t.Errorf("%s: an argument of %d bytes, the kernel has %v", l.Kernel, len(l.Params()), k.Params)
		}
		if threadsOf(l.Block) != 256 || len(k.Registers) == 0 || l.Grid.X < 1 || l.Grid.X > math.MaxInt32 || l.Grid.Y != 1 || l.Grid.Z != 1 {
			t.Errorf("%s: grid %v of blocks %v with %v registers a thread", l.Kernel, l.Grid, l.Block, k.Registers)
		}
	}
	if len(seen) != 8 { // and nsa_copy, for what is contiguous
		t.Errorf("launches of %v", seen)
	}
	if n := testing.AllocsPerRun(10, func() { launches, err = everyStockLaunch(launches[:0]) }); n > 1 || err != nil { // the joined errors
		t.Errorf("%v allocations, error %v", n, err)
	}
}

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
		op, err := NewStridedCopy(c.sizes, c.xs, c.ys)
		if err != nil || op.rank != c.rank || op.transpose != c.transpose {
			t.Errorf("%v: rank %d, transpose %v, error %v", c, op.rank, op.transpose, err)
		}
	}
	sizes, xs, ys := make([]int64, 7), make([]int64, 7), make([]int64, 7)
	for i := range sizes {
		sizes[i], xs[i], ys[i] = 2, 1<<i, 64>>i
	}
	var u *Unsupported
	if _, err := NewStridedCopy(sizes, xs, ys); !errors.As(err, &u) {
		t.Errorf("7 axes: %v", err)
	}
	if _, err := NewStridedCopy(sizes, xs, ys[1:]); !errors.As(err, &u) {
		t.Errorf("a stride too few: %v", err)
	}
	for name, f := range map[string]func() ([]Launch, error){
		"no unary function":  func() ([]Launch, error) { return Unary{unaryFunctions, 1}.Forward(nil, 1, 1) },
		"no binary function": func() ([]Launch, error) { return Binary{Function: -1, N: 1}.Forward(nil, 1, 1, 1) },
		"weighted maximum":   func() ([]Launch, error) { return Reduce{true, 1, 1, 1}.Product(nil, 1, 1, 1, 1) },
		"no lines":           func() ([]Launch, error) { return AxisSoftmax{Along: 1, Inner: 1}.Forward(nil, 1, 1) },
		"nothing to reduce":  func() ([]Launch, error) { return Reduce{Outer: 1, Inner: 1}.Forward(nil, 1, 1, 1) },
	} {
		if _, err := f(); !errors.As(err, &u) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestFunctionNames(t *testing.T) {
	for f := range unaryFunctions {
		if got, ok := FindUnary(f.String()); !ok || got != f {
			t.Errorf("%d is called %v", int(f), f)
		}
	}
	for f := range binaryFunctions {
		if got, ok := FindBinary(f.String()); !ok || got != f {
			t.Errorf("%d is called %v", int(f), f)
		}
	}
}
