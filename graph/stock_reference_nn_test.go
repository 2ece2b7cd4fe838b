package graph_test

import (
	"fmt"
	"math"
	"slices"

	G "gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/internal/ref"
)

// nnOps are the ops of neural networks.
func nnOps() (rows []referenced) {
	x := func(shape ...int) operand { return normal("", shape...) }
	p := func(shape ...int) operand { return positive("", shape...) }
	add := func(r ...referenced) { rows = append(rows, r...) }
	for _, c := range []struct {
		a, b        []int
		left, right []byte
	}{
		{[]int{2}, []int{2, 2}, []byte{1}, nil}, {[]int{2, 3}, []int{2}, nil, []byte{1}},
		{[]int{3}, []int{2, 3}, []byte{0}, nil}, {[]int{2, 3}, []int{3}, nil, []byte{0}},
		{[]int{2, 1}, []int{2, 3}, []byte{1}, nil},
		{[]int{2, 3}, []int{1, 3}, nil, []byte{0}}, {[]int{1, 1, 2}, []int{2, 3, 2}, []byte{0, 1}, nil},
		{[]int{2, 1, 1}, []int{2, 3, 2}, []byte{1, 2}, nil}, {[]int{1, 3, 1}, []int{2, 3, 2}, []byte{0, 2}, nil},
		{[]int{2, 3, 2}, []int{1, 3, 2}, nil, []byte{0}}, {[]int{2, 3, 1}, []int{2, 3, 2}, []byte{2}, nil},
		{[]int{2}, []int{2, 3, 2}, []byte{1, 2}, nil}, {[]int{3}, []int{2, 3, 2}, []byte{0, 2}, nil},
		{[]int{2}, []int{2, 3, 2}, []byte{0, 1}, nil}, {[]int{3, 1}, []int{1, 4}, []byte{1}, []byte{0}},
		{[]int{2, 3, 4, 2}, []int{1, 3, 1, 1}, nil, []byte{0, 2, 3}}, {[]int{1, 1}, []int{2, 3}, []byte{0, 1}, nil},
		{[]int{1}, []int{3}, []byte{0}, nil}, {[]int{1, 1}, []int{1, 1}, []byte{1}, []byte{0}},
		{[]int{2, 3}, []int{2, 1}, nil, []byte{1}},
	} {
		for _, o := range []struct {
			name string
			f    func(a, b *G.Node, l, r []byte) (*G.Node, error)
			want func(a, b float64) float64
		}{
			{"Add", G.BroadcastAdd, func(a, b float64) float64 { return a + b }}, {"Sub", G.BroadcastSub,
				func(a, b float64) float64 { return a - b }},
			{"Prod", G.BroadcastHadamardProd, func(a, b float64) float64 { return a * b }}, {"Div", G.BroadcastHadamardDiv,
				func(a, b float64) float64 { return a / b }}, {"Pow", G.BroadcastPow, math.Pow},
		} {
			add(of(fmt.Sprint("Broadcast ", o.name, c), two(func(a, b *G.Node) (*G.Node, error) {
				return o.f(a, b, c.left,
					c.right)
			}), broadcast(o.want, c.left, c.right), p(c.a...), p(c.b...)))
		}
	}
	for _, c := range []struct {
		name string
		f    func(a, b *G.Node, same bool, l, r []byte) (*G.Node, error)
		want func(a, b float64) bool
	}{
		{"Gt", G.BroadcastGt, func(a, b float64) bool { return a > b }}, {"Gte", G.BroadcastGte,
			func(a, b float64) bool { return a >= b }}, {"Lt", G.BroadcastLt, func(a, b float64) bool { return a < b }},
		{"Lte", G.BroadcastLte, func(a, b float64) bool { return a <= b }}, {"Eq", G.BroadcastEq,
			func(a, b float64) bool { return a == b }}, {"Ne", G.BroadcastNe, func(a, b float64) bool { return a != b }},
	} {
		add(valuesOnly(of("Broadcast "+c.name, two(func(a, b *G.Node) (*G.Node, error) {
			return c.f(a, b, true, nil,
				[]byte{0})
		}), broadcast(truth(c.want), nil, []byte{0}), x(5, 3), x(3))))
	}
	dropout := of("Dropout", one(func(x *G.Node) (*G.Node, error) { return G.Dropout(x, 0.3) }),
		mapped(func(x float64) float64 { return x }), x(3, 5))
	dropout.eval = true
	add(dropout)
	ones := []int{1, 1}
	for _, w := range []window{
		{[]int{3, 3}, []int{1, 1}, ones, ones}, {[]int{2, 2}, []int{0, 0}, []int{2, 2}, ones},
		{[]int{3, 3}, []int{1, 1}, []int{3, 3}, ones}, {[]int{2, 2}, []int{1, 1}, ones, []int{2, 2}},
		{ones, []int{0, 0}, ones, ones},
		{[]int{3, 2}, []int{2, 0}, []int{1, 2}, []int{1, 3}}, {[]int{1, 3}, []int{0, 1}, []int{2, 1}, ones},
		{[]int{5, 5}, []int{0, 0}, ones, ones},
	} {
		for _, image := range [][]int{{2, 1, 6, 6}, {1, 2, 5, 7}, {3, 2, 5, 5}, {1, 1, 5, 5}} {
			add(of(fmt.Sprint("Im2Col ", w, image), one(func(x *G.Node) (*G.Node, error) {
				return G.Im2Col(x, w.kernel, w.pad,
					w.stride, w.dilation)
			}), w.im2col, x(image...)))
			for _, filters := range []int{1, 2} {
				add(of(fmt.Sprint("Conv2d ", w, image, filters), two(func(a, f *G.Node) (*G.Node, error) {
					return G.Conv2d(a, f,
						w.kernel, w.pad, w.stride, w.dilation)
				}), w.conv,
					x(image...), x(filters, image[1], w.kernel[0], w.kernel[1])))
			}
			if w.dilation[0]*w.dilation[1] == 1 {
				add(of(fmt.Sprint("MaxPool2D ", w, image), one(func(x *G.Node) (*G.Node, error) {
					return G.MaxPool2D(x, w.kernel,
						w.pad, w.stride)
				}), w.pool(slices.Max[[]float64]), x(image...)))
				add(of(fmt.Sprint("AveragePool2D ", w, image), one(func(x *G.Node) (*G.Node, error) {
					return G.AveragePool2D(x,
						w.kernel, w.pad, w.stride)
				}),
					w.pool(func(v []float64) float64 { return sum(v) / float64(image[3]) }), x(image...)))
			}
		}
	}
	for _, c := range [][3]int{{3, 1, 1}, {2, 0, 2}} {
		w := window{[]int{1, c[0]}, []int{0, c[1]}, []int{1, c[2]}, ones}
		add(of(fmt.Sprint("Conv1d ", c), two(func(a, f *G.Node) (*G.Node, error) {
			return G.Conv1d(a, f, c[0], c[1], c[2],
				1)
		}), w.conv, x(1, 2, 1, 6), x(3, 2, 1, c[0])),
			of(fmt.Sprint("MaxPool1D ", c), one(func(x *G.Node) (*G.Node, error) { return G.MaxPool1D(x, c[0], c[1], c[2]) }),
				w.pool(slices.Max[[]float64]), x(2, 2, 1, 6)))
	}
	for _, image := range [][]int{{1, 3, 3, 3}, {2, 1, 1, 5}, {1, 1, 1, 1}} {
		whole := window{image[2:], []int{0, 0}, ones, ones}
		add(valuesOnly(of(fmt.Sprint("GlobalAveragePool2D ", image), one(G.GlobalAveragePool2D), whole.pool(mean),
			x(image...))))
		for scale := 1; scale <= 3; scale++ {
			add(of(fmt.Sprint("Upsample2D ", image, scale), one(func(x *G.Node) (*G.Node, error) {
				return G.Upsample2D(x,
					scale)
			}), func(in []*ref.Tensor) *ref.Tensor {
				return made([]int{image[0], image[1], image[2] * scale, image[3] * scale},
					func(n []int) float64 { return at(in[0], n[0], n[1], n[2]/scale, n[3]/scale) })
			}, x(image...)))
		}
	}
	for _, shape := range [][]int{{3, 2, 2, 2}, {4, 3}, {2, 1, 3, 3}, {5, 1}, {1, 2, 3, 1}, {4, 2, 1, 1}} {
		channels := []int{1, shape[1], 1, 1}[:len(shape)]
		add(of(fmt.Sprint("BatchNorm ", shape), func(n []*G.Node) (*G.Node, error) {
			y, _, _, _, err := G.BatchNorm(n[0], n[1], n[2], 0.9, 1e-5)
			return y, err
		}, normed(1e-5, func(n []int) int { return n[1] }), x(shape...), x(channels...), x(channels...)))
	}
	for _, shape := range [][]int{{2, 4, 2, 2}, {1, 4, 1, 1}, {2, 4, 3, 5}, {1, 4, 16, 17}} {
		for _, groups := range []int{1, 2, 4} {
			if shape[2]*shape[3]*4/groups == 1 {
				continue
			}
			add(of(fmt.Sprint("GroupNorm ", shape, groups), func(n []*G.Node) (*G.Node, error) {
				return G.GroupNorm(n[0], n[1],
					n[2], groups, 4, 1e-5)
			},
				normed(1e-5, func(n []int) int { return n[0]*groups + n[1]*groups/4 }), x(shape...), x(1, 4, 1, 1), x(1, 4, 1, 1)))
		}
	}
	for _, shape := range [][]int{{4}, {1}, {2, 3}, {1, 4}, {4, 1}, {5, 7}, {2, 3, 4}, {2, 3, 2, 3}} {
		for axis := -1; axis < len(shape); axis++ {
			var axes []int
			along1 := len(shape) - 1
			if axis >= 0 {
				axes, along1 = []int{axis}, axis
			}
			add(of(fmt.Sprint("Sparsemax ", shape, axes), along(G.Sparsemax, axes...), sparsemax(along1), x(shape...)))
		}
	}
	for _, reduction := range []G.Reduction{G.ReductionSum, G.ReductionMean} {
		for _, c := range []struct {
			shape   []int
			targets [][]int
			lengths []int
		}{{[]int{4, 2, 3}, [][]int{{1, 2}, {2}}, []int{4, 4}}, {[]int{3, 1, 2}, [][]int{{1}}, []int{3}},
			{[]int{4, 2, 3}, [][]int{{1}, {2, 2}}, []int{3, 4}}, {[]int{5, 2, 3}, [][]int{{1, 2, 1}, {2, 1}}, []int{5, 4}}} {
			longest, flat, sizes := 0, []int(nil), []int(nil)
			for _, t := range c.targets {
				longest = max(longest, len(t))
				sizes = append(sizes, len(t))
			}
			for _, t := range c.targets {
				flat = append(flat, append(slices.Clone(t), make([]int, longest-len(t))...)...)
			}
			row := of(fmt.Sprint("CTCLoss ", reduction, c), one(func(x *G.Node) (*G.Node,
				error) { // its gradient is right for log-probabilities
				return G.CTCLoss(G.Must(G.LogSoftMax(x, 2)), fixed(x, "targets", slices.Clone(flat), len(sizes), longest),
					fixed(x, "lengths", slices.Clone(c.lengths), len(sizes)), fixed(x, "sizes", slices.Clone(sizes), len(sizes)),
					reduction)
			}), func(in []*ref.Tensor) *ref.Tensor {
				return ctc(c.targets, c.lengths, reduction == G.ReductionMean)([]*ref.Tensor{softmax(2, true)(in)})
			}, x(c.shape...))
			if reduction == G.ReductionMean {
				row = valuesOnly(row)
			}
			add(row)
		}
	}
	for _, shape := range [][]int{{3}, {2, 2}, {2, 3, 2}} {
		n := tensor.Shape(shape).TotalSize()
		add(valuesOnly(of(fmt.Sprint("DiagFlat ", shape), one(G.DiagFlat), func(in []*ref.Tensor) *ref.Tensor {
			return made([]int{n, n}, func(i []int) float64 {
				if i[0] != i[1] {
					return 0
				}
				return in[0].Data[i[0]]
			})
		}, x(shape...))))
	}
	for axis := range 2 {
		for _, power := range []int{1, 2, 3} {
			add(of(fmt.Sprint("Norm ", axis, power), one(func(x *G.Node) (*G.Node, error) { return G.Norm(x, axis, power) }),
				reduced([]int{axis}, func(v []float64) (s float64) {
					for _, x := range v {
						s += math.Pow(x, float64(power))
					}
					return math.Pow(s, 1/float64(power))
				}), p(3, 4)))
		}
	}
	add(of("LeakyRelu", one(func(x *G.Node) (*G.Node, error) { return G.LeakyRelu(x, 0.1) }),
		mapped(func(x float64) float64 { return max(x, 0) + 0.1*min(x, 0) }), x(3, 5)),
		of("Rectify", one(G.Rectify), mapped(func(x float64) float64 { return max(x, 0) }), x(3, 5)),
		of("Mish", one(G.Mish), mapped(func(x float64) float64 { return x * math.Tanh(math.Log1p(math.Exp(x))) }), x(3, 5)),
		valuesOnly(of("At", one(func(x *G.Node) (*G.Node, error) { return G.At(x, 1, 2) }),
			func(in []*ref.Tensor) *ref.Tensor { return ref.From([]float64{at(in[0], 1, 2)}) }, x(2, 3))),
		valuesOnly(of("SizeOf", one(func(x *G.Node) (*G.Node, error) { return G.SizeOf(1, x) }),
			func([]*ref.Tensor) *ref.Tensor { return ref.From([]float64{3}) }, x(2, 3))))
	for _, shape := range [][]int{{3, 5}, {1}, {1, 1}, {4, 1}, {}} {
		for _, c := range functions() {
			in := x
			if slices.Contains([]string{"Log", "Log2", "Sqrt", "InverseSqrt", "Inverse", "Log1p"}, c.name) {
				in = p
			}
			row := of(fmt.Sprint(c.name, " ", shape), one(c.op), mapped(c.f), in(shape...))
			if c.slope == nil {
				row = valuesOnly(row)
			}
			add(row)
		}
		for _, c := range functions2() {
			row := of(fmt.Sprint(c.name, " ", shape), two(c.op), broadcast(c.f, nil, nil), p(shape...), p(shape...))
			if c.slopeA == nil && c.name[1] != 'a' && c.name[1] != 'i' {
				row = valuesOnly(row)
			}
			if c.name[len(c.name)-2:] != "se" {
				add(row)
			}
		}
	}
	return rows
}
