package graph

import (
	"cmp"
	"fmt"
	"math"
	"reflect"
	"slices"

	G "gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/internal/cpu"
	"github.com/gorgonia-nsa/nsa/ops/spec"
)

// lanes are the rows of a row-major tensor along an axis: elements at, at+stride, ..., n of them, for each at.
type lanes struct{ outer, n, stride int }

func lanesOf(shape tensor.Shape, axis int) lanes {
	return lanes{tensor.ProdInts(shape[:axis]), shape[axis], tensor.ProdInts(shape[axis+1:])}
}

// each calls f with the place of each row's first element.
func (l lanes) each(f func(at int)) {
	for o := range l.outer {
		for i := range l.stride {
			f(o*l.n*l.stride + i)
		}
	}
}

// row returns the row of x at a place: in x itself, or as a copy in scratch.
func row[T cpu.Float](l lanes, x []T, at int, scratch []T) []T {
	if l.stride == 1 {
		return x[at:][:l.n]
	}
	for j := range scratch {
		scratch[j] = x[at+j*l.stride]
	}
	return scratch
}

// put writes a row that does not lie in y yet.
func put[T cpu.Float](l lanes, y []T, at int, row []T) {
	if l.stride == 1 {
		return
	}
	for j, v := range row {
		y[at+j*l.stride] = v
	}
}

// softmax returns exp(x-max)/sum of each row, or its logarithm. Package tensor takes the maximum along the last axis
// over other elements. A row with NaN or +Inf, or of -Inf alone, is NaN.
func softmax[T cpu.Float](l lanes, logs bool) func(y []T, x [][]T) {
	in, out := make([]T, l.n), make([]T, l.n)
	return func(y []T, x [][]T) {
		l.each(func(at int) {
			x, p := row(l, x[0], at, in), out
			if l.stride == 1 {
				p = y[at:][:l.n]
			}
			top := cpu.Max(x)
			sum := cpu.ExpSum(p, x, 1, top)
			if logs {
				log := math.Log(float64(sum))
				for j, v := range x {
					p[j] = T(float64(v) - float64(top) - log)
				}
			} else {
				cpu.Scale(p, 1/sum)
			}
			put(l, y, at, p)
		})
	}
}

// softmaxGrad returns the gradient from a softmax p, or its logarithm, in x[1] and from its gradient g in x[2]: p (g -
// sum(p g)), or g - exp(p) sum(g).
func softmaxGrad[T cpu.Float](l lanes, logs bool) func(y []T, x [][]T) {
	return func(y []T, x [][]T) {
		l.each(func(at int) {
			var sum float64
			for i := at; i < at+l.n*l.stride; i += l.stride {
				if logs {
					sum += float64(x[2][i])
				} else {
					sum += float64(x[1][i]) * float64(x[2][i])
				}
			}
			for i := at; i < at+l.n*l.stride; i += l.stride {
				p, g := float64(x[1][i]), float64(x[2][i])
				if logs {
					y[i] = T(g - math.Exp(p)*sum)
				} else {
					y[i] = T(p * (g - sum))
				}
			}
		})
	}
}

// sparsemax returns the projection of each row on the simplex: max(0, x-t), where t makes it sum to 1. Gorgonia
// transposes the rows of most axes wrongly.
func sparsemax[T cpu.Float](l lanes) func(y []T, x [][]T) {
	sorted := make([]T, l.n)
	return func(y []T, x [][]T) {
		l.each(func(at int) {
			for j := range sorted {
				sorted[j] = x[0][at+j*l.stride]
			}
			top := cpu.Max(sorted)
			slices.SortFunc(sorted, func(a, b T) int { return cmp.Compare(b, a) })
			var sum, threshold T
			for j, v := range sorted {
				if sum += v - top; 1+T(j+1)*(v-top) > sum {
					threshold = (sum - 1) / T(j+1)
				}
			}
			for i := at; i < at+l.n*l.stride; i += l.stride {
				y[i] = max(0, x[0][i]-top-threshold)
			}
		})
	}
}

// largest returns the largest elements along axes. One of NaN is NaN. Package tensor is wrong along some axes, and
// skips some NaN.
func largest[T cpu.Float](shape tensor.Shape, along []int) func(y []T, x [][]T) {
	steps, size := make([]int, len(shape)), 1 // how far y moves with each axis
	for axis := len(shape) - 1; axis >= 0; axis-- {
		if !slices.Contains(along, axis) {
			steps[axis] = size
			size *= shape[axis]
		}
	}
	index := make([]int, len(shape))
	return func(y []T, x [][]T) {
		for i := range y {
			y[i] = T(math.Inf(-1))
		}
		clear(index)
		to, last := 0, len(shape)-1
		for from := 0; from < len(x[0]); from += shape[last] {
			for j, v := range x[0][from:][:shape[last]] {
				at := to + j*steps[last]
				y[at] = max(y[at], v)
			}
			for axis := last - 1; axis >= 0; axis-- {
				index[axis]++
				to += steps[axis]
				if index[axis] < shape[axis] {
					break
				}
				to -= steps[axis] * shape[axis]
				index[axis] = 0
			}
		}
	}
}

// byIndicesOf returns how to compute op, nil if it is another op.
func byIndicesOf(op G.Op) *byIndices {
	switch name := gorgoniaType(op); name {
	case "byIndicesOp", "byIndicesOpDiffOp":
		return &byIndices{axis: intField(op, "axis"), gradient: name == "byIndicesOpDiffOp"}
	}
	return nil
}

// do writes the result to dst, which is row-major.
func (s *byIndices) do(dst *tensor.Dense, args []G.Value) error {
	from, err := rowMajorData(args[len(args)-2])
	if err != nil {
		return err
	}
	list, err := rowMajorData(args[len(args)-1])
	if err != nil {
		return err
	}
	indices, ok := list.([]int)
	if !ok {
		return fmt.Errorf("the indices are %T, want []int", list)
	}
	x := args[0].Shape()
	length := x[s.axis]
	blocks, run := spec.Operand{Shape: x[:s.axis]}.Elements(), spec.Operand{Shape: x[s.axis+1:]}.Elements()
	// each calls f for each run of elements with its places in x and in the selection.
	each := func(f func(inX, selected int)) {
		for block := range blocks {
			for i, index := range indices {
				if index < 0 || index >= length {
					index = 0
				}
				f((block*length+index)*run, (block*len(indices)+i)*run)
			}
		}
	}
	if !s.gradient {
		to, from := reflect.ValueOf(dst.Data()), reflect.ValueOf(from)
		each(func(inX, selected int) { reflect.Copy(to.Slice(selected, selected+run), from.Slice(inX, inX+run)) })
		return nil
	}
	switch to := dst.Data().(type) {
	case []float64:
		sumRuns(to, from.([]float64), run, each)
	case []float32:
		sumRuns(to, from.([]float32), run, each)
	default:
		return fmt.Errorf("the gradient is %T, want []float32 or []float64", to)
	}
	return nil
}

// sumRuns sets dx to the sum of the runs of dy at their places.
func sumRuns[T cpu.Float](dx, dy []T, run int, each func(f func(inX, selected int))) {
	clear(dx)
	each(func(inX, selected int) { cpu.Add(dx[inX:][:run], dx[inX:][:run], dy[selected:][:run]) })
}

func rowMajorData(v G.Value) (any, error) {
	d, ok := toRowMajor(v).(*tensor.Dense)
	if !ok || !isPlainRowMajor(d) {
		return nil, fmt.Errorf("got a %T that is not row-major", v)
	}
	return d.Data(), nil
}
