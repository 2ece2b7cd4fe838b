package graph_test

import (
	"math"
	"slices"

	"github.com/gorgonia-nsa/nsa/internal/ref"
)

// mapped returns the reference of a function of one number.
func mapped(f func(x float64) float64) reference {
	return func(in []*ref.Tensor) *ref.Tensor {
		return made(in[0].Shape, func(index []int) float64 { return f(at(in[0], index...)) })
	}
}

// broadcast returns f of two tensors. Along an axis of left, a has one element for all of b's; along an axis of right,
// b has one.
func broadcast(f func(a, b float64) float64, left, right []byte) reference {
	return func(in []*ref.Tensor) *ref.Tensor {
		shapes := [2][]int{in[0].Shape, in[1].Shape}
		for i, axes := range [][]byte{left, right} {
			if rank := max(len(in[0].Shape), len(in[1].Shape)); len(shapes[i]) < rank {
				full := make([]int, 0, rank)
				rest := shapes[i]
				for a := range rank {
					if slices.Contains(axes, byte(a)) {
						full = append(full, 1)
					} else {
						full, rest = append(full, rest[0]), rest[1:]
					}
				}
				shapes[i] = full
			}
		}
		a, b := in[0].Reshape(shapes[0]...), in[1].Reshape(shapes[1]...)
		to := make([]int, len(shapes[0]))
		for i := range to {
			to[i] = max(shapes[0][i], shapes[1][i])
		}
		pick := func(x *ref.Tensor, index []int) float64 {
			index = slices.Clone(index)
			for i, n := range x.Shape {
				index[i] = min(index[i], n-1)
			}
			return at(x, index...)
		}
		return made(to, func(index []int) float64 { return f(pick(a, index), pick(b, index)) })
	}
}

// window describes a convolution or a pooling over the last two axes of an image [B,C,H,W].
type window struct{ kernel, pad, stride, dilation []int }

func (w window) out(h, axis int) int {
	return (h+2*w.pad[axis]-w.dilation[axis]*(w.kernel[axis]-1)-1)/w.stride[axis] + 1
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
	x := in[0]
	kh, kw := w.kernel[0], w.kernel[1]
	return made([]int{x.Shape[0], w.out(x.Shape[2], 0), w.out(x.Shape[3], 1), x.Shape[1] * kh * kw},
		func(n []int) float64 {
			v, _ := w.pixel(x, n[0], n[3]/(kh*kw), n[1], n[2], n[3]/kw%kh, n[3]%kw)
			return v
		})
}

func (w window) conv(in []*ref.Tensor) *ref.Tensor {
	x, f := in[0], in[1]
	return made([]int{x.Shape[0], f.Shape[0], w.out(x.Shape[2], 0), w.out(x.Shape[3], 1)}, func(n []int) (s float64) {
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
		return made([]int{x.Shape[0], x.Shape[1], w.out(x.Shape[2], 0), w.out(x.Shape[3], 1)}, func(n []int) float64 {
			var v []float64
			for i := range w.kernel[0] {
				for j := range w.kernel[1] {
					if p, ok := w.pixel(x, n[0], n[1], n[2], n[3], i, j); ok {
						v = append(v, p)
					}
				}
			}
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
		type moments struct{ mean, rstd float64 }
		of := map[int]moments{}
		for k, v := range lists {
			m, variance := mean(v), 0.0
			for _, a := range v {
				variance += (a - m) * (a - m) / float64(len(v))
			}
			of[k] = moments{m, 1 / math.Sqrt(variance+eps)}
		}
		return made(x.Shape, func(n []int) float64 {
			m := of[key(n)]
			return (at(x, n...)-m.mean)*m.rstd*in[1].Data[n[1]] + in[2].Data[n[1]]
		})
	}
}

// sparsemax returns the projection of each row along an axis on the simplex.
func sparsemax(axis int) reference {
	return func(in []*ref.Tensor) *ref.Tensor {
		threshold := reduced([]int{axis}, func(v []float64) float64 {
			v = slices.Clone(v)
			slices.Sort(v)
			slices.Reverse(v)
			var tau, total float64
			for i, x := range v {
				if total += x; 1+float64(i+1)*x > total {
					tau = (total - 1) / float64(i+1)
				}
			}
			return tau
		})(in)
		return made(in[0].Shape, func(index []int) float64 {
			row := slices.Delete(slices.Clone(index), axis, axis+1)
			return max(0, at(in[0], index...)-at(threshold, row...))
		})
	}
}

// ctc returns the loss of log-probabilities [T,B,C]: minus the log of the sum over all paths that collapse to the
// targets.
func ctc(targets [][]int, lengths []int, mean bool) reference {
	return func(in []*ref.Tensor) *ref.Tensor {
		x, loss := in[0], 0.0
		for b, target := range targets {
			var total float64
			var walk func(t int, path []int, p float64)
			walk = func(t int, path []int, p float64) {
				if t == lengths[b] {
					var collapsed []int
					for i, c := range path {
						if c != 0 && (i == 0 || path[i-1] != c) {
							collapsed = append(collapsed, c)
						}
					}
					if slices.Equal(collapsed, target) {
						total += math.Exp(p)
					}
					return
				}
				for c := range x.Shape[2] {
					walk(t+1, append(slices.Clone(path), c), p+at(x, t, b, c))
				}
			}
			walk(0, nil, 0)
			if l := -math.Log(total); mean {
				loss += l / float64(len(target)*len(targets))
			} else {
				loss += l
			}
		}
		y := ref.New()
		y.Data[0] = loss
		return y
	}
}
