package graph_test

import (
	"fmt"
	"math"
	"slices"

	G "gorgonia.org/gorgonia"

	"github.com/gorgonia-nsa/nsa/internal/ref"
)

// subsets returns all sets of axes of a tensor of n axes, but the empty one.
func subsets(n int) (sets [][]int) {
	for mask := 1; mask < 1<<n; mask++ {
		var set []int
		for a := range n {
			if mask>>a&1 == 1 {
				set = append(set, a)
			}
		}
		sets = append(sets, set)
	}
	return sets
}

// reduced returns the reduction of x along axes: f of all elements that fall on one.
func reduced(axes []int, f func(v []float64) float64) reference {
	return func(in []*ref.Tensor) *ref.Tensor {
		x := in[0]
		var shape []int
		for a, n := range x.Shape {
			if !slices.Contains(axes, a) {
				shape = append(shape, n)
			}
		}
		lists := make([][]float64, len(ref.New(shape...).Data))
		made(x.Shape, func(index []int) float64 {
			to := 0
			for a, i := range index {
				if !slices.Contains(axes, a) {
					to = to*x.Shape[a] + i
				}
			}
			lists[to] = append(lists[to], at(x, index...))
			return 0
		})
		y := ref.New(shape...)
		for i, v := range lists {
			y.Data[i] = f(v)
		}
		return y
	}
}

func sum(v []float64) (s float64) {
	for _, x := range v {
		s += x
	}
	return s
}

func mean(v []float64) float64 { return sum(v) / float64(len(v)) }

// softmax returns the softmax of x along an axis, or its logarithm.
func softmax(axis int, logs bool) reference {
	return func(in []*ref.Tensor) *ref.Tensor {
		x := in[0]
		top := reduced([]int{axis}, slices.Max[[]float64])(in)
		total := reduced([]int{axis}, func(v []float64) (s float64) {
			for _, x := range v {
				s += math.Exp(x - slices.Max(v))
			}
			return s
		})(in)
		return made(x.Shape, func(index []int) float64 {
			row := slices.Delete(slices.Clone(index), axis, axis+1)
			y := at(x, index...) - at(top, row...) - math.Log(at(total, row...))
			if logs {
				return y
			}
			return math.Exp(y)
		})
	}
}

// contracted returns the sum over pairs of axes of the products of elements of a and b: first the other axes of a, then
// those of b.
func contracted(axesA, axesB []int) reference {
	return func(in []*ref.Tensor) *ref.Tensor {
		a, b := in[0], in[1]
		var free [2][]int
		var shape []int
		for i, x := range in {
			for axis, n := range x.Shape {
				if !slices.Contains([][]int{axesA, axesB}[i], axis) {
					free[i], shape = append(free[i], axis), append(shape, n)
				}
			}
		}
		var over []int
		for _, axis := range axesA {
			over = append(over, a.Shape[axis])
		}
		return made(shape, func(index []int) (s float64) {
			ia, ib := make([]int, len(a.Shape)), make([]int, len(b.Shape))
			for i, axis := range free[0] {
				ia[axis] = index[i]
			}
			for i, axis := range free[1] {
				ib[axis] = index[len(free[0])+i]
			}
			made(over, func(k []int) float64 {
				for i := range k {
					ia[axesA[i]], ib[axesB[i]] = k[i], k[i]
				}
				s += at(a, ia...) * at(b, ib...)
				return 0
			})
			return s
		})
	}
}

// batched returns products of the matrices in the last two axes.
func batched(transA, transB bool) reference {
	return func(in []*ref.Tensor) *ref.Tensor {
		a, b := in[0], in[1]
		d := len(a.Shape)
		m, k, n := a.Shape[d-2], a.Shape[d-1], b.Shape[d-1]
		if transA {
			m, k = k, m
		}
		if transB {
			n = b.Shape[d-2]
		}
		return made(append(slices.Clone(a.Shape[:d-2]), m, n), func(index []int) (s float64) {
			outer, i, j := index[:d-2], index[d-2], index[d-1]
			element := func(x *ref.Tensor, trans bool, i, j int) float64 {
				if trans {
					i, j = j, i
				}
				return at(x, append(slices.Clone(outer), i, j)...)
			}
			for l := range k {
				s += element(a, transA, i, l) * element(b, transB, l, j)
			}
			return s
		})
	}
}

// referencedOps are the ops that are not element by element.
func referencedOps() (rows []referenced) {
	x := func(shape ...int) operand { return normal("", shape...) }
	add := func(r ...referenced) { rows = append(rows, r...) }

	// reductions along every set of axes
	for _, shape := range [][]int{{1}, {5}, {1, 1}, {1, 4}, {3, 1}, {3, 4}, {2, 3, 2}, {3, 1, 2}, {1, 1, 3},
		{2, 3, 2, 2}, {1, 2, 1, 3}, {2, 1, 3, 2, 2}} {
		for _, axes := range append(subsets(len(shape)), nil) {
			over := axes
			if axes == nil {
				over = subsets(len(shape))[1<<len(shape)-2]
			}
			for _, c := range []struct {
				name string
				f    func(*G.Node, ...int) (*G.Node, error)
				want func([]float64) float64
			}{{"Sum", G.Sum, sum}, {"Mean", G.Mean, mean}, {"Max", G.Max, slices.Max[[]float64]}} {
				row := of(fmt.Sprint(c.name, " ", shape, axes), along(c.f, axes...), reduced(over, c.want), x(shape...))
				if c.name == "Max" && len(shape) > 4 { // Gorgonia broadcasts along four axes: Grad is an error
					row = valuesOnly(row)
				}
				add(row)
			}
		}
	}
	// softmax along each axis
	for _, shape := range [][]int{{1}, {5}, {1, 1}, {1, 4}, {3, 1}, {3, 4}, {2, 3, 2}, {3, 1, 2}, {2, 3, 2, 2}} {
		for axis := -1; axis < len(shape); axis++ {
			var axes []int
			along1 := axis
			if axis >= 0 {
				axes = []int{axis}
			} else if along1 = len(shape) - 1; len(shape) == 2 && shape[1] == 1 { // Gorgonia takes a column for a vector
				along1 = 0
			}
			add(of(fmt.Sprint("SoftMax ", shape, axes), along(G.SoftMax, axes...), softmax(along1, false), x(shape...)),
				of(fmt.Sprint("LogSoftMax ", shape, axes), along(G.LogSoftMax, axes...), softmax(along1, true), x(shape...)))
		}
	}
	// products
	for _, s := range [][2][]int{{{3, 5}, {5, 4}}, {{1, 5}, {5, 4}}, {{3, 5}, {5, 1}}, {{1, 1}, {1, 4}}, {{3, 1},
		{1, 1}}, {{1, 1}, {1, 1}}, {{3, 1}, {1, 4}}, {{1, 7}, {7, 1}}} {
		add(of(fmt.Sprint("Mul ", s), two(G.Mul), contracted([]int{1}, []int{0}), x(s[0]...), x(s[1]...)))
	}
	for _, s := range [][2][]int{{{3, 5}, {5}}, {{1, 5}, {5}}, {{3, 1}, {1}}, {{1, 1}, {1}}, {{4, 4}, {4}}} {
		add(of(fmt.Sprint("Mul ", s), two(G.Mul), contracted([]int{1}, []int{0}), x(s[0]...), x(s[1]...)))
	}
	for _, s := range [][2][]int{{{3}, {3, 5}}, {{3}, {3, 1}}, {{1}, {1, 5}}, {{1}, {1, 1}}, {{4}, {4, 4}}, {{5}, {5}},
		{{1}, {1}}} {
		add(of(fmt.Sprint("Mul ", s), two(G.Mul), contracted([]int{0}, []int{0}), x(s[0]...), x(s[1]...)))
	}
	for _, s := range [][2][]int{{{3}, {4}}, {{1}, {4}}, {{3}, {1}}, {{1}, {1}}} {
		add(of(fmt.Sprint("OuterProd ", s), two(func(a, b *G.Node) (*G.Node, error) { return G.OuterProd(a, b) }),
			contracted(nil, nil), x(s[0]...), x(s[1]...)))
	}
	for _, outer := range [][]int{{2}, {1}, {2, 3}, {1, 2}} {
		for _, mkn := range [][3]int{{3, 2, 4}, {1, 3, 1}, {2, 1, 3}, {1, 1, 1}} {
			for t := range 4 {
				transA, transB := t&1 == 1, t&2 == 2
				a, b := []int{mkn[0], mkn[1]}, []int{mkn[1], mkn[2]}
				if transA {
					slices.Reverse(a)
				}
				if transB {
					slices.Reverse(b)
				}
				add(of(fmt.Sprint("BatchedMatMul ", outer, mkn, transA, transB), two(func(a, b *G.Node) (*G.Node,
					error) {
					return G.BatchedMatMul(a, b, transA, transB)
				}),
					batched(transA, transB), x(append(slices.Clone(outer), a...)...), x(append(slices.Clone(outer), b...)...)))
			}
		}
	}
	for _, c := range []struct{ a, b, axesA, axesB []int }{
		{[]int{1}, []int{1}, []int{0}, []int{0}}, {[]int{3}, []int{3}, []int{0}, []int{0}},
		{[]int{2, 3}, []int{3}, []int{1}, []int{0}}, {[]int{3}, []int{3, 2}, []int{0}, []int{0}},
		{[]int{2, 3}, []int{4, 3}, []int{1}, []int{1}}, {[]int{3, 2}, []int{3, 4}, []int{0}, []int{0}},
		{[]int{2, 3}, []int{2, 3}, []int{0, 1}, []int{0, 1}},
		{[]int{2, 3}, []int{3, 2}, []int{0, 1}, []int{1, 0}}, {[]int{2, 3, 2}, []int{3, 4}, []int{1}, []int{0}},
		{[]int{2, 3, 4}, []int{4, 3, 5}, []int{1, 2}, []int{1, 0}},
		{[]int{2, 3, 4}, []int{4, 3, 5}, []int{2, 1}, []int{0, 1}},
		{[]int{2, 2, 2, 3}, []int{2, 3, 2}, []int{0, 3}, []int{0, 1}},
	} {
		add(of(fmt.Sprint("Tensordot ", c), two(func(a, b *G.Node) (*G.Node, error) {
			return G.Tensordot(c.axesA, c.axesB,
				a, b)
		}),
			contracted(c.axesA, c.axesB), x(c.a...), x(c.b...)))
	}
	add(moves(x)...)
	return rows
}
