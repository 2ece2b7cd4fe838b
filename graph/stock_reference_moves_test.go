package graph_test

import (
	"fmt"
	"slices"

	G "gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/internal/ref"
)

// moves are the ops that only move elements.
func moves(x func(...int) operand) (rows []referenced) {
	add := func(r ...referenced) { rows = append(rows, r...) }
	for _, shape := range [][]int{{1}, {5}, {4, 3}, {1, 3}, {3, 1}, {2, 3, 4}, {3, 1, 2}, {2, 2, 3, 2}} {
		for code := range min(1<<(2*len(shape)), 64) {
			by := make([]tensor.Slice, len(shape))
			from, size, drop := make([]int, len(shape)), slices.Clone(shape), make([]bool, len(shape))
			for a, n := range shape {
				switch code >> (2 * a) & 3 {
				case 1:
					by[a], from[a], drop[a] = G.S(n-1), n-1, true
				case 2:
					by[a], size[a] = G.S(0, max(1, n-1)), max(1, n-1)
					drop[a] = size[a] == 1
				case 3:
					by[a], from[a], size[a] = G.S(n/2, n), n/2, n-n/2
					drop[a] = size[a] == 1
				}
			}
			var kept []int
			for a := range shape {
				if !drop[a] {
					kept = append(kept, size[a])
				}
			}
			add(of(fmt.Sprint("Slice ", shape, by), one(func(x *G.Node) (*G.Node, error) { return G.Slice(x, by...) }),
				func(in []*ref.Tensor) *ref.Tensor {
					return made(kept, func(index []int) float64 {
						full, k := slices.Clone(from), 0
						for a := range full {
							if !drop[a] {
								full[a] += index[k]
								k++
							}
						}
						return at(in[0], full...)
					})
				}, x(shape...)))
		}
	}
	for _, shape := range [][]int{{9}, {7, 3}, {2, 8}, {2, 7, 3}, {8, 1}, {2, 3, 9}, {5, 2, 2, 2}} {
		for axis, n := range shape {
			for _, r := range [][3]int{{0, n, 2}, {1, n, 2}, {1, n - 1, 3}, {0, n, 1}, {1, n + 5, 1}} {
				if size := min(n, r[1]) - r[0]; size < 2*r[2] || axis > 0 && size%r[2] > 0 { // the latter is an error
					continue
				}
				by, to := make([]tensor.Slice, len(shape)), slices.Clone(shape)
				by[axis], to[axis] = G.S(r[0], r[1], r[2]), (min(n, r[1])-r[0])/r[2] // Gorgonia rounds down
				add(of(fmt.Sprint("Slice ", shape, axis, r), one(func(x *G.Node) (*G.Node, error) { return G.Slice(x, by...) }),
					func(in []*ref.Tensor) *ref.Tensor {
						return made(to, func(index []int) float64 {
							index = slices.Clone(index)
							index[axis] = r[0] + index[axis]*r[2]
							return at(in[0], index...)
						})
					}, x(shape...)))
			}
		}
	}
	for _, shape := range [][]int{{3, 4}, {1, 3}, {3, 1}, {1, 1}, {2, 3, 4}, {1, 3, 2}, {2, 1, 3}, {3, 2, 1},
		{2, 3, 1, 2}} {
		for _, axes := range permutations(len(shape)) {
			to := make([]int, len(shape))
			for i, a := range axes {
				to[i] = shape[a]
			}
			add(of(fmt.Sprint("Transpose ", shape, axes), along(G.Transpose, axes...), func(in []*ref.Tensor) *ref.Tensor {
				return made(to, func(index []int) float64 {
					from := make([]int, len(index))
					for i, a := range axes {
						from[a] = index[i]
					}
					return at(in[0], from...)
				})
			}, x(shape...)))
		}
	}
	for _, shapes := range [][][]int{{{2}, {3}}, {{1}, {1}}, {{1}, {2}, {1}}, {{2, 3}, {1, 3}, {2, 3}}, {{1, 3}, {1, 3}},
		{{1, 3}, {2, 3}}, {{2, 1}, {2, 1}}, {{2, 1}, {2, 3}, {2, 1}},
		{{3, 1}, {2, 1}}, {{1, 1}, {1, 1}}, {{2, 3, 2}, {2, 3, 2}}, {{2, 1, 2}, {2, 3, 2}}, {{2, 2, 1}, {2, 2, 3}},
		{{1, 2, 3}, {2, 2, 3}}, {{1, 1, 2}, {1, 1, 2}}, {{2, 1, 1}, {2, 1, 1}}, {{1, 2, 1, 3}, {1, 2, 2, 3}}} {
		for axis := range shapes[0] {
			fits, to := true, slices.Clone(shapes[0])
			var in []operand
			for i, s := range shapes {
				in = append(in, x(s...))
				for a := range s {
					fits = fits && (a == axis || s[a] == to[a])
				}
				if i > 0 {
					to[axis] += s[axis]
				}
			}
			if !fits {
				continue
			}
			add(of(fmt.Sprint("Concat ", axis, shapes), func(n []*G.Node) (*G.Node, error) { return G.Concat(axis, n...) },
				func(in []*ref.Tensor) *ref.Tensor {
					return made(to, func(index []int) float64 {
						index = slices.Clone(index)
						for _, x := range in {
							if index[axis] < x.Shape[axis] {
								return at(x, index...)
							}
							index[axis] -= x.Shape[axis]
						}
						panic("outside")
					})
				}, in...))
		}
	}
	for _, c := range [][2][]int{{{4}, {2, 2}}, {{2, 3}, {6}}, {{2, 3}, {3, 2}}, {{2, 3, 2}, {4, 3}}, {{1, 3}, {3}},
		{{3}, {3, 1}}, {{3}, {1, 3}}, {{1}, {1, 1}}, {{1, 1}, {1}}, {{3, 1}, {1, 3}}, {{3, 1, 2}, {2, 3}}} {
		add(of(fmt.Sprint("Reshape ", c), one(func(x *G.Node) (*G.Node, error) { return G.Reshape(x, slices.Clone(c[1])) }),
			func(in []*ref.Tensor) *ref.Tensor { return in[0].Reshape(c[1]...) }, x(c[0]...)))
	}
	return rows
}

// permutations returns all orders of 0 to n-1.
func permutations(n int) (all [][]int) {
	if n == 0 {
		return [][]int{nil}
	}
	for _, p := range permutations(n - 1) {
		for i := range n {
			all = append(all, slices.Insert(slices.Clone(p), i, n-1))
		}
	}
	return all
}
