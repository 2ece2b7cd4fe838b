package graph_test

import (
	"math"
	"slices"
	"strings"

	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/internal/ref"
)

// elementwise returns the reference of a function of numbers, applied to each element.
func elementwise(f func(x ...float64) float64) reference {
	return func(in []*ref.Tensor) *ref.Tensor {
		return made(in[0].Shape, func(index []int) float64 {
			var x []float64
			for _, v := range in {
				x = append(x, at(v, index...))
			}
			return f(x...)
		})
	}
}

// moved returns a reference of this shape that only moves elements: from says where an element comes from.
func moved(shape []int, from func(index []int) []int) reference {
	return func(in []*ref.Tensor) *ref.Tensor {
		return made(shape, func(index []int) float64 { return at(in[0], from(slices.Clone(index))...) })
	}
}

// sliced returns the part of a tensor that gorgonia.Slice returns. Gorgonia rounds lengths down and drops axes of
// length one.
func sliced(by []tensor.Slice) reference {
	return func(in []*ref.Tensor) *ref.Tensor {
		var kept, shape []int
		from, step := make([]int, len(by)), make([]int, len(by))
		for a, n := range in[0].Shape {
			if step[a] = 1; by[a] != nil {
				from[a], step[a] = by[a].Start(), max(1, by[a].Step())
				n = (min(n, by[a].End()) - from[a]) / step[a]
			}
			if by[a] == nil || n > 1 {
				kept, shape = append(kept, a), append(shape, n)
			}
		}
		return moved(shape, func(index []int) []int {
			at := slices.Clone(from)
			for i, a := range kept {
				at[a] += index[i] * step[a]
			}
			return at
		})(in)
	}
}

// broadcast returns f of two tensors. Along an axis of left, a has one element for all of b's; along an axis of right,
// b has one.
func broadcast(f func(x ...float64) float64, left, right []byte) reference {
	return func(in []*ref.Tensor) *ref.Tensor {
		rank := max(len(in[0].Shape), len(in[1].Shape))
		to, x := make([]int, rank), [2]*ref.Tensor{}
		for i, axes := range [][]byte{left, right} {
			shape := slices.Clone(in[i].Shape)
			for a := range rank {
				if len(in[i].Shape) < rank && slices.Contains(axes, byte(a)) {
					shape = slices.Insert(shape, a, 1)
				}
				to[a] = max(to[a], shape[a])
			}
			x[i] = in[i].Reshape(shape...)
		}
		pick := func(x *ref.Tensor, index []int) float64 {
			index = slices.Clone(index)
			for i, n := range x.Shape {
				index[i] = min(index[i], n-1)
			}
			return at(x, index...)
		}
		return made(to, func(index []int) float64 { return f(pick(x[0], index), pick(x[1], index)) })
	}
}

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

// reduced returns the reduction of x along axes: f of all elements that fall on one.
func reduced(axes []int, f func(v []float64) float64) reference {
	return func(in []*ref.Tensor) *ref.Tensor {
		y := ref.New(others(in[0].Shape, axes)...)
		lists := make([][]float64, len(y.Data))
		made(in[0].Shape, func(index []int) float64 {
			to := 0
			for i, k := range others(index, axes) {
				to = to*y.Shape[i] + k
			}
			lists[to] = append(lists[to], at(in[0], index...))
			return 0
		})
		for i, v := range lists {
			y.Data[i] = f(v)
		}
		return y
	}
}

// others returns the numbers of all axes but some.
func others(list, axes []int) (rest []int) {
	for a, n := range list {
		if !slices.Contains(axes, a) {
			rest = append(rest, n)
		}
	}
	return rest
}

func sum(v []float64) (s float64) {
	for _, x := range v {
		s += x
	}
	return s
}

func mean(v []float64) float64 { return sum(v) / float64(len(v)) }

// rowwise returns f of each row along an axis.
func rowwise(axis int, f func(row []float64) []float64) reference {
	return func(in []*ref.Tensor) *ref.Tensor {
		y, n, stride := in[0].Clone(), in[0].Shape[axis], tensor.ProdInts(in[0].Shape[axis+1:])
		for i := range y.Data {
			if i/stride%n > 0 {
				continue
			}
			row := make([]float64, n)
			for j := range row {
				row[j] = in[0].Data[i+j*stride]
			}
			for j, v := range f(row) {
				y.Data[i+j*stride] = v
			}
		}
		return y
	}
}

// softmax returns the softmax of a row, or its logarithm.
func softmax(logs bool) func(row []float64) []float64 {
	return func(row []float64) []float64 {
		top, total := slices.Max(row), 0.0
		for _, x := range row {
			total += math.Exp(x - top)
		}
		for i, x := range row {
			if row[i] = x - top - math.Log(total); !logs {
				row[i] = math.Exp(x-top) / total
			}
		}
		return row
	}
}

// sparsemax returns the projection of a row on the simplex.
func sparsemax(row []float64) []float64 {
	sorted := slices.Sorted(slices.Values(row))
	slices.Reverse(sorted)
	var tau, total float64
	for i, x := range sorted {
		if total += x; 1+float64(i+1)*x > total {
			tau = (total - 1) / float64(i+1)
		}
	}
	for i, x := range row {
		row[i] = max(0, x-tau)
	}
	return row
}

// lengths are those of the axes that einsum's letters stand for.
func lengths(axes string) (shape []int) {
	for _, c := range axes {
		shape = append(shape, map[rune]int{'b': 2, 'i': 3, 'j': 5, 'k': 4, 'l': 4, 'u': 1, 'v': 1, 'w': 1}[c])
	}
	return shape
}

// einsum returns sums of products of elements of two tensors. The letters name their axes, as in "ij,jk->ik".
func einsum(axes string) (a, b string, f reference) {
	in, out, _ := strings.Cut(axes, "->")
	a, b, _ = strings.Cut(in, ",")
	all := out
	for _, c := range a {
		if !strings.ContainsRune(all, c) {
			all += string(c)
		}
	}
	return a, b, func(in []*ref.Tensor) *ref.Tensor {
		return made(lengths(out), func(index []int) (s float64) {
			made(lengths(all[len(out):]), func(rest []int) float64 {
				whole := slices.Concat(index, rest)
				element := func(x *ref.Tensor, axes string) float64 {
					var index []int
					for _, c := range axes {
						index = append(index, whole[strings.IndexRune(all, c)])
					}
					return at(x, index...)
				}
				s += element(in[0], a) * element(in[1], b)
				return 0
			})
			return s
		})
	}
}

// window describes a convolution or a pooling over the last two axes of an image [B,C,H,W].
type window struct{ kernel, pad, stride, dilation []int }

func (w window) out(x *ref.Tensor, axis int) int {
	return (x.Shape[2+axis]+2*w.pad[axis]-w.dilation[axis]*(w.kernel[axis]-1)-1)/w.stride[axis] + 1
}

// pixel returns the element of the image under element (i,j) of the kernel of the output (y,z). It reports whether
// there is one.
func (w window) pixel(x *ref.Tensor, b, c, y, z, i, j int) (float64, bool) {
	r, s := y*w.stride[0]-w.pad[0]+i*w.dilation[0], z*w.stride[1]-w.pad[1]+j*w.dilation[1]
	if r < 0 || s < 0 || r >= x.Shape[2] || s >= x.Shape[3] {
		return 0, false
	}
	return at(x, b, c, r, s), true
}

func (w window) im2col(in []*ref.Tensor) *ref.Tensor {
	x, kh, kw := in[0], w.kernel[0], w.kernel[1]
	return made([]int{x.Shape[0], w.out(x, 0), w.out(x, 1), x.Shape[1] * kh * kw}, func(n []int) float64 {
		v, _ := w.pixel(x, n[0], n[3]/(kh*kw), n[1], n[2], n[3]/kw%kh, n[3]%kw)
		return v
	})
}

func (w window) conv(in []*ref.Tensor) *ref.Tensor {
	x, f := in[0], in[1]
	return made([]int{x.Shape[0], f.Shape[0], w.out(x, 0), w.out(x, 1)}, func(n []int) (s float64) {
		made(f.Shape[1:], func(k []int) float64 {
			v, _ := w.pixel(x, n[0], k[0], n[2], n[3], k[1], k[2])
			s += v * at(f, n[1], k[0], k[1], k[2])
			return 0
		})
		return s
	})
}

// pool returns f of the pixels of each window.
func (w window) pool(f func([]float64) float64) reference {
	return func(in []*ref.Tensor) *ref.Tensor {
		x := in[0]
		return made([]int{x.Shape[0], x.Shape[1], w.out(x, 0), w.out(x, 1)}, func(n []int) float64 {
			var v []float64
			made(w.kernel, func(k []int) float64 {
				if p, ok := w.pixel(x, n[0], n[1], n[2], n[3], k[0], k[1]); ok {
					v = append(v, p)
				}
				return 0
			})
			return f(v)
		})
	}
}

// normed returns a normalisation: x minus the mean, over the root of the variance plus eps, times scale plus bias, by
// channel. Elements of one key share mean and variance.
func normed(eps float64, key func(index []int) int) reference {
	return func(in []*ref.Tensor) *ref.Tensor {
		x, lists := in[0], map[int][]float64{}
		made(x.Shape, func(n []int) float64 {
			lists[key(n)] = append(lists[key(n)], at(x, n...))
			return 0
		})
		means, deviations := map[int]float64{}, map[int]float64{}
		for k, v := range lists {
			means[k] = mean(v)
			squares := 0.0
			for _, a := range v {
				squares += (a - means[k]) * (a - means[k])
			}
			deviations[k] = math.Sqrt(squares/float64(len(v)) + eps)
		}
		return made(x.Shape, func(n []int) float64 {
			k := key(n)
			return (at(x, n...)-means[k])/deviations[k]*in[1].Data[n[1]] + in[2].Data[n[1]]
		})
	}
}

// ctc returns the loss of log-probabilities [T,B,C]: minus the log of the sum over all paths that collapse to the
// targets.
func ctc(targets [][]int, lengths []int, mean bool) reference {
	return func(in []*ref.Tensor) *ref.Tensor {
		x, loss := in[0], ref.New()
		for b, target := range targets {
			var total float64
			var walk func(t int, path []int, p float64)
			walk = func(t int, path []int, p float64) {
				if t == lengths[b] {
					if slices.Equal(slices.DeleteFunc(slices.Compact(path), func(c int) bool { return c == 0 }), target) {
						total += math.Exp(p)
					}
					return
				}
				for c := range x.Shape[2] {
					walk(t+1, append(slices.Clone(path), c), p+at(x, t, b, c))
				}
			}
			walk(0, nil, 0)
			scale := 1.0
			if mean {
				scale = float64(len(target) * len(targets))
			}
			loss.Data[0] -= math.Log(total) / scale
		}
		return loss
	}
}
