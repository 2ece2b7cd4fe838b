package graph_test

import (
	"fmt"
	"math"
	"slices"

	G "gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/internal/ref"
)

type (
	shape     = []int
	reduction = func(*G.Node, ...int) (*G.Node, error)
)

var reductions = map[string]reduction{"Sum": G.Sum, "Mean": G.Mean, "Max": G.Max}

// ofPositive are the functions that take positive numbers.
var ofPositive = []string{"Log", "Log2", "Sqrt", "InverseSqrt", "Inverse", "Log1p"}

// referencedOps are stock ops with references, in many shapes.
func referencedOps() (rows []referenced) {
	x, p := normal, positive
	add := func(name string, f build, want reference, in ...operand) *referenced {
		rows = append(rows, referenced{on(name, f, slices.Clone(in)...), want})
		return &rows[len(rows)-1]
	}
	valuesOnly := func(r *referenced) { r.wrong = noGradient }
	correct := func(r *referenced, why string) { r.stock = corrected(why, r.stock) }

	for _, s := range []shape{{1}, {5}, {1, 1}, {1, 4}, {3, 1}, {3, 4}, {2, 3, 2}, {3, 1, 2}, {1, 1, 3}, {2, 3, 2, 2},
		{1, 2, 1, 3}, {2, 1, 3, 2, 2}} {
		sets := subsets(len(s))
		all := sets[len(sets)-1]
		backwards := slices.Clone(all)
		slices.Reverse(backwards)
		for i, axes := range append(sets, nil, backwards) {
			over, order := axes, ""
			if axes == nil {
				over = all
			} else if i > len(sets) { // Gorgonia has no second gradients of these
				order = " backwards"
			}
			for name, want := range map[string]func([]float64) float64{"Sum": sum, "Mean": mean, "Max": slices.Max[[]float64]} {
				row := add(fmt.Sprint(name, order, " ", s, axes), along(reductions[name], axes...), reduced(over, want), x(s...))
				if name == "Max" && len(s) > 4 { // Gorgonia broadcasts along four axes: Grad is an error
					valuesOnly(row)
				}
			}
		}
	}
	for _, s := range []shape{{1}, {4}, {5}, {1, 1}, {1, 4}, {3, 1}, {4, 1}, {3, 4}, {5, 7}, {2, 3, 2}, {3, 1, 2},
		{2, 3, 4}, {2, 3, 2, 3}} {
		for axis := range len(s) + 1 {
			axes, of, last := shape{axis}, axis, len(s)-1
			if axis > last { // without an axis Gorgonia takes a column for a vector, but not in Sparsemax
				if axes, of = nil, last; len(s) == 2 && s[1] == 1 {
					of = 0
				}
			}
			add(fmt.Sprint("SoftMax ", s, axes), along(G.SoftMax, axes...), rowwise(of, softmax(false)), x(s...))
			add(fmt.Sprint("LogSoftMax ", s, axes), along(G.LogSoftMax, axes...), rowwise(of, softmax(true)), x(s...))
			add(fmt.Sprint("Sparsemax ", s, axes), along(G.Sparsemax, axes...), rowwise(min(axis, last), sparsemax), x(s...))
		}
	}
	// products: see lengths
	product := func(name, axes string, f func(a, b *G.Node) (*G.Node, error)) *referenced {
		a, b, want := einsum(axes)
		return add(name+" "+axes, two(f), want, x(lengths(a)...), x(lengths(b)...))
	}
	for _, axes := range []string{"ij,jk->ik", "uj,jk->uk", "ij,ju->iu", "uv,vk->uk", "iu,uv->iv", "uv,vw->uw",
		"iu,uk->ik", "uj,jv->uv", "ij,j->i", "uj,j->u", "iu,u->i", "uv,v->u", "kl,l->k", "i,ij->j", "i,iu->u", "u,uj->j",
		"u,uv->v", "k,kl->l", "j,j->", "u,u->"} {
		product("Mul", axes, G.Mul)
	}
	for _, axes := range []string{"i,k->ik", "u,k->uk", "i,u->iu", "u,v->uv"} {
		correct(product("OuterProd", axes, func(a, b *G.Node) (*G.Node, error) { return G.OuterProd(a, b) }),
			"one for the other")
	}
	for _, outer := range []string{"b", "u", "bi", "ub"} {
		for _, m := range []string{"jkl", "vkw", "jwl"} { // a is m[0] x m[1], b is m[1] x m[2]
			for _, trans := range [][]bool{{false, false}, {true, false}, {false, true}, {true, true}} {
				a, b := m[:2], m[1:]
				if trans[0] {
					a = m[1:2] + m[:1]
				}
				if trans[1] {
					b = m[2:] + m[1:2]
				}
				product(fmt.Sprint("BatchedMatMul ", trans), outer+a+","+outer+b+"->"+outer+m[:1]+m[2:],
					func(a, b *G.Node) (*G.Node, error) { return G.BatchedMatMul(a, b, trans...) })
			}
		}
	}
	for _, c := range []struct {
		axes string
		a, b shape // the axes that are summed over
	}{
		{"u,u->", shape{0}, shape{0}}, {"i,i->", shape{0}, shape{0}}, {"bi,i->b", shape{1}, shape{0}},
		{"i,ib->b", shape{0}, shape{0}},
		{"bi,ki->bk", shape{1}, shape{1}}, {"ib,ik->bk", shape{0}, shape{0}}, {"bi,bi->", shape{0, 1}, shape{0, 1}},
		{"bi,ib->", shape{0, 1}, shape{1, 0}}, {"bik,il->bkl", shape{1}, shape{0}}, {"bik,kij->bj", shape{1, 2}, shape{1, 0}},
		{"bik,kij->bj", shape{2, 1}, shape{0, 1}}, {"bkli,bij->klj", shape{0, 3}, shape{0, 1}},
	} {
		product(fmt.Sprint("Tensordot ", c.a), c.axes,
			func(a, b *G.Node) (*G.Node, error) { return G.Tensordot(c.a, c.b, a, b) })
	}

	// Ops that move elements.
	for _, s := range []shape{{1}, {5}, {4, 3}, {1, 3}, {3, 1}, {2, 3, 4}, {3, 1, 2}, {2, 2, 3, 2}, {9}, {7, 3}, {2, 8},
		{2, 7, 3}, {8, 1}, {2, 3, 9}, {5, 2, 2, 2}} {
		slice := func(by []tensor.Slice) {
			add(fmt.Sprint("Slice ", s, by), one(func(x *G.Node) (*G.Node, error) { return G.Slice(x, by...) }), sliced(by),
				x(s...))
		}
		for code := range min(1<<(2*len(s)), 64) {
			by := make([]tensor.Slice, len(s))
			for a, n := range s {
				by[a] = [][]tensor.Slice{{nil}, {G.S(n - 1)}, {G.S(0, max(1, n-1))}, {G.S(n/2, n)}}[code>>(2*a)&3][0]
			}
			slice(by)
		}
		for axis, n := range s {
			for _, r := range [][3]int{{0, n, 2}, {1, n, 2}, {1, n - 1, 3}, {1, n + 5, 1}} {
				if size := min(n, r[1]) - r[0]; size >= 2*r[2] && (axis == 0 || size%r[2] == 0) { // else an error
					by := make([]tensor.Slice, len(s))
					by[axis] = G.S(r[0], r[1], r[2])
					slice(by)
				}
			}
		}
	}
	for _, s := range []shape{{3, 4}, {1, 3}, {3, 1}, {1, 1}, {2, 3, 4}, {1, 3, 2}, {2, 1, 3}, {3, 2, 1}, {2, 3, 1, 2}} {
		for _, axes := range permutations(len(s)) {
			to := make(shape, len(s))
			for i, a := range axes {
				to[i] = s[a]
			}
			add(fmt.Sprint("Transpose ", s, axes), along(G.Transpose, axes...), moved(to, func(index []int) []int {
				from := make([]int, len(index))
				for i, a := range axes {
					from[a] = index[i]
				}
				return from
			}), x(s...))
		}
	}
	for axis, lists := range [][][]shape{
		{{{2}, {3}}, {{1}, {1}}, {{1}, {2}, {1}}, {{2, 3}, {1, 3}, {2, 3}}, {{1, 3}, {2, 3}}, {{3, 1}, {2, 1}},
			{{1, 2, 3}, {2, 2, 3}}},
		{{{2, 1}, {2, 3}, {2, 1}}, {{2, 1, 2}, {2, 3, 2}}},
		{{{2, 2, 1}, {2, 2, 3}}, {{1, 2, 1, 3}, {1, 2, 2, 3}}},
	} {
		for _, same := range []shape{{1, 3}, {2, 1}, {1, 1}, {2, 3, 2}, {1, 1, 2}, {2, 1, 1}} {
			if axis < len(same) {
				lists = append(lists, []shape{same, same})
			}
		}
		for _, shapes := range lists {
			to, in := slices.Clone(shapes[0]), []operand{x(shapes[0]...)}
			for _, s := range shapes[1:] {
				to[axis] += s[axis]
				in = append(in, x(s...))
			}
			add(fmt.Sprint("Concat ", axis, shapes), func(n []*G.Node) (*G.Node, error) { return G.Concat(axis, n...) },
				func(in []*ref.Tensor) *ref.Tensor {
					return made(to, func(index []int) float64 {
						index, i := slices.Clone(index), 0
						for ; index[axis] >= in[i].Shape[axis]; i++ {
							index[axis] -= in[i].Shape[axis]
						}
						return at(in[i], index...)
					})
				}, in...)
		}
	}
	for _, c := range [][2]shape{{{4}, {2, 2}}, {{2, 3}, {6}}, {{2, 3}, {3, 2}}, {{2, 3, 2}, {4, 3}}, {{1, 3}, {3}},
		{{3}, {3, 1}}, {{3}, {1, 3}}, {{1}, {1, 1}}, {{1, 1}, {1}}, {{3, 1}, {1, 3}}, {{3, 1, 2}, {2, 3}}} {
		add(fmt.Sprint("Reshape ", c), one(func(x *G.Node) (*G.Node, error) { return G.Reshape(x, slices.Clone(c[1])) }),
			func(in []*ref.Tensor) *ref.Tensor { return in[0].Reshape(c[1]...) }, x(c[0]...))
	}
	for _, s := range []shape{{1}, {4}, {3, 4}, {1, 3}, {3, 1}, {2, 3, 4}, {3, 2, 1}, {2, 3, 1, 4}} {
		for axis, n := range s {
			for _, indices := range [][]int{{n - 1}, {0, n / 2, 0}, {n - 1, -1, n, 0, n / 2}} { // those outside select element 0
				to := slices.Clone(s)
				to[axis] = len(indices)
				add(fmt.Sprint("ByIndices ", s, axis, indices), one(func(x *G.Node) (*G.Node, error) {
					return G.ByIndices(x, fixed(x, "indices", slices.Clone(indices), len(indices)), axis)
				}), moved(to, func(index []int) []int {
					if index[axis] = indices[index[axis]]; index[axis] >= n {
						index[axis] = 0
					}
					index[axis] = max(0, index[axis])
					return index
				}), x(s...))
			}
		}
	}
	for _, image := range []shape{{1, 3, 3, 3}, {2, 1, 1, 5}, {1, 1, 1, 1}} {
		ones := []int{1, 1}
		valuesOnly(add(fmt.Sprint("GlobalAveragePool2D ", image), one(G.GlobalAveragePool2D),
			window{image[2:], []int{0, 0}, ones, ones}.pool(mean), x(image...)))
		for scale := 1; scale <= 3; scale++ {
			add(fmt.Sprint("Upsample2D ", image, scale), one(func(x *G.Node) (*G.Node, error) { return G.Upsample2D(x, scale) }),
				moved(shape{image[0], image[1], image[2] * scale, image[3] * scale}, func(n []int) []int {
					return []int{n[0], n[1], n[2] / scale, n[3] / scale}
				}), x(image...))
		}
	}
	valuesOnly(add("At", one(func(x *G.Node) (*G.Node, error) { return G.At(x, 1, 2) }),
		moved(nil, func([]int) []int { return []int{1, 2} }), x(2, 3)))
	valuesOnly(add("SizeOf", one(func(x *G.Node) (*G.Node, error) { return G.SizeOf(1, x) }),
		func([]*ref.Tensor) *ref.Tensor { return ref.From([]float64{3}) }, x(2, 3)))
	for _, s := range []shape{{3}, {2, 2}, {2, 3, 2}} {
		n := tensor.ProdInts(s)
		valuesOnly(add(fmt.Sprint("DiagFlat ", s), one(G.DiagFlat), func(in []*ref.Tensor) *ref.Tensor {
			y := ref.New(n, n)
			for i, v := range in[0].Data {
				y.Data[i*n+i] = v
			}
			return y
		}, x(s...)))
	}

	// Functions of elements.
	for _, s := range []shape{{3, 5}, {1}, {1, 1}, {4, 1}, {}} {
		for _, c := range slices.Concat(functions(1), functions(2)) {
			in := []operand{x(s...)}
			if c.f2 {
				in = []operand{p(s...), p(s...)}
			} else if slices.Contains(ofPositive, c.name) {
				in[0] = p(s...)
			}
			row := add(fmt.Sprint(c.name, " ", s), c.op, elementwise(c.f), in...)
			if correct(row, map[string]string{"Log2": "times ln 2, not over it",
				"InverseSqrt": "of another power"}[c.name]); c.values {
				valuesOnly(row)
			}
		}
	}
	for name, c := range map[string]struct {
		op   func(x *G.Node) (*G.Node, error)
		want func(x float64) float64
	}{
		"LeakyRelu": {func(x *G.Node) (*G.Node, error) { return G.LeakyRelu(x, 0.1) },
			func(x float64) float64 { return max(x, 0.1*x) }},
		"Rectify": {G.Rectify, func(x float64) float64 { return max(x, 0) }},
		"Mish":    {G.Mish, func(x float64) float64 { return x * math.Tanh(math.Log1p(math.Exp(x))) }},
		"Dropout": {func(x *G.Node) (*G.Node, error) { return G.Dropout(x, 0.3) }, func(x float64) float64 { return x }},
	} {
		row := add(name, one(c.op), elementwise(func(x ...float64) float64 { return c.want(x[0]) }), x(3, 5))
		row.eval = true
		correct(row, map[string]string{"Dropout": "divided by p"}[name])
	}
	for _, c := range []struct {
		a, b        shape
		left, right []byte
	}{
		{shape{2}, shape{2, 2}, []byte{1}, nil}, {shape{2, 3}, shape{2}, nil, []byte{1}},
		{shape{3}, shape{2, 3}, []byte{0}, nil},
		{shape{2, 3}, shape{3}, nil, []byte{0}}, {shape{2, 1}, shape{2, 3}, []byte{1}, nil},
		{shape{2, 3}, shape{1, 3}, nil, []byte{0}},
		{shape{1, 1, 2}, shape{2, 3, 2}, []byte{0, 1}, nil}, {shape{2, 1, 1}, shape{2, 3, 2}, []byte{1, 2}, nil},
		{shape{1, 3, 1}, shape{2, 3, 2}, []byte{0, 2}, nil}, {shape{2, 3, 2}, shape{1, 3, 2}, nil, []byte{0}},
		{shape{2, 3, 1}, shape{2, 3, 2}, []byte{2}, nil}, {shape{2}, shape{2, 3, 2}, []byte{1, 2}, nil},
		{shape{3}, shape{2, 3, 2}, []byte{0, 2}, nil}, {shape{2}, shape{2, 3, 2}, []byte{0, 1}, nil},
		{shape{3, 1}, shape{1, 4}, []byte{1}, []byte{0}}, {shape{2, 3, 4, 2}, shape{1, 3, 1, 1}, nil, []byte{0, 2, 3}},
		{shape{1, 1}, shape{2, 3}, []byte{0, 1}, nil}, {shape{1}, shape{3}, []byte{0}, nil},
		{shape{1, 1}, shape{1, 1}, []byte{1}, []byte{0}}, {shape{2, 3}, shape{2, 1}, nil, []byte{1}},
	} {
		for i, f := range broadcasts {
			of := functions(2)[i]
			add(fmt.Sprint("Broadcast ", of.name, c),
				two(func(a, b *G.Node) (*G.Node, error) { return f(a, b, c.left, c.right) }),
				broadcast(of.f, c.left, c.right), p(c.a...), p(c.b...))
		}
		for _, of := range comparisons {
			valuesOnly(add(fmt.Sprint("Broadcast ", of.name, c), two(func(a, b *G.Node) (*G.Node, error) {
				return of.broadcast(a, b, true, c.left, c.right)
			}), broadcast(of.truth, c.left, c.right), x(c.a...), x(c.b...)))
		}
	}
	for axis := range 2 {
		for _, power := range []int{1, 2, 3} {
			add(fmt.Sprint("Norm ", axis, power), one(func(x *G.Node) (*G.Node, error) { return G.Norm(x, axis, power) }),
				reduced([]int{axis}, func(v []float64) (s float64) {
					for _, x := range v {
						s += math.Pow(x, float64(power))
					}
					return math.Pow(s, 1/float64(power))
				}), p(3, 4))
		}
	}

	// Ops on images.
	for _, w := range []window{
		{shape{3, 3}, shape{1, 1}, shape{1, 1}, shape{1, 1}}, {shape{2, 2}, shape{0, 0}, shape{2, 2}, shape{1, 1}},
		{shape{3, 3}, shape{1, 1}, shape{3, 3}, shape{1, 1}}, {shape{2, 2}, shape{1, 1}, shape{1, 1}, shape{2, 2}},
		{shape{1, 1}, shape{0, 0}, shape{1, 1}, shape{1, 1}}, {shape{3, 2}, shape{2, 0}, shape{1, 2}, shape{1, 3}},
		{shape{1, 3}, shape{0, 1}, shape{2, 1}, shape{1, 1}}, {shape{5, 5}, shape{0, 0}, shape{1, 1}, shape{1, 1}},
	} {
		for _, image := range []shape{{2, 1, 6, 6}, {1, 2, 5, 7}, {3, 2, 5, 5}, {1, 1, 5, 5}} {
			what := fmt.Sprint(w, image)
			add("Im2Col "+what, one(func(x *G.Node) (*G.Node, error) {
				return G.Im2Col(x, w.kernel, w.pad, w.stride, w.dilation)
			}), w.im2col, x(image...))
			for _, filters := range []int{1, 2} {
				add(fmt.Sprint("Conv2d ", what, filters), two(func(a, f *G.Node) (*G.Node, error) {
					return G.Conv2d(a, f, w.kernel, w.pad, w.stride, w.dilation)
				}), w.conv, x(image...), x(filters, image[1], w.kernel[0], w.kernel[1]))
			}
			if w.dilation[0]*w.dilation[1] == 1 {
				add("MaxPool2D "+what, one(func(x *G.Node) (*G.Node, error) { return G.MaxPool2D(x, w.kernel, w.pad, w.stride) }),
					w.pool(slices.Max[[]float64]), x(image...))
				average := func(v []float64) float64 { return sum(v) / float64(image[3]) }
				correct(add("AveragePool2D "+what, one(func(x *G.Node) (*G.Node, error) {
					return G.AveragePool2D(x, w.kernel, w.pad, w.stride)
				}), w.pool(average), x(image...)), "wrong")
			}
		}
	}
	for _, c := range [][3]int{{3, 1, 1}, {2, 0, 2}} {
		w := window{[]int{1, c[0]}, []int{0, c[1]}, []int{1, c[2]}, []int{1, 1}}
		add(fmt.Sprint("Conv1d ", c), two(func(a, f *G.Node) (*G.Node, error) { return G.Conv1d(a, f, c[0], c[1], c[2], 1) }),
			w.conv, x(1, 2, 1, 6), x(3, 2, 1, c[0]))
		add(fmt.Sprint("MaxPool1D ", c), one(func(x *G.Node) (*G.Node, error) { return G.MaxPool1D(x, c[0], c[1], c[2]) }),
			w.pool(slices.Max[[]float64]), x(2, 2, 1, 6))
	}
	for _, s := range []shape{{3, 2, 2, 2}, {4, 3}, {2, 1, 3, 3}, {5, 1}, {1, 2, 3, 1}, {4, 2, 1, 1}} {
		channels := shape{1, s[1], 1, 1}[:len(s)]
		add(fmt.Sprint("BatchNorm ", s), func(n []*G.Node) (*G.Node, error) {
			y, _, _, _, err := G.BatchNorm(n[0], n[1], n[2], 0.9, 1e-5)
			return y, err
		}, normed(1e-5, func(n []int) int { return n[1] }), x(s...), x(channels...), x(channels...))
	}
	for _, s := range []shape{{2, 4, 2, 2}, {1, 4, 1, 1}, {2, 4, 3, 5}, {1, 4, 16, 17}} {
		for _, groups := range []int{1, 2, 4} {
			if s[2]*s[3]*4/groups > 1 {
				add(fmt.Sprint("GroupNorm ", s, groups), func(n []*G.Node) (*G.Node, error) {
					return G.GroupNorm(n[0], n[1], n[2], groups, 4, 1e-5)
				}, normed(1e-5, func(n []int) int { return n[0]*groups + n[1]*groups/4 }), x(s...), x(1, 4, 1, 1), x(1, 4, 1, 1))
			}
		}
	}
	for _, reduction := range []G.Reduction{G.ReductionSum, G.ReductionMean} {
		for _, c := range []struct {
			shape   shape
			targets [][]int
			lengths []int
		}{
			{shape{4, 2, 3}, [][]int{{1, 2}, {2}}, []int{4, 4}}, {shape{3, 1, 2}, [][]int{{1}}, []int{3}},
			{shape{4, 2, 3}, [][]int{{1}, {2, 2}}, []int{3, 4}}, {shape{5, 2, 3}, [][]int{{1, 2, 1}, {2, 1}}, []int{5, 4}},
		} {
			batch, longest, sizes := len(c.targets), 0, []int(nil)
			for _, t := range c.targets {
				longest, sizes = max(longest, len(t)), append(sizes, len(t))
			}
			flat := make([]int, batch*longest)
			for i, t := range c.targets {
				copy(flat[i*longest:], t)
			}
			want := ctc(c.targets, c.lengths, reduction == G.ReductionMean)
			// its gradient is right for log-probabilities
			row := add(fmt.Sprint("CTCLoss ", reduction, c), one(func(x *G.Node) (*G.Node, error) {
				return G.CTCLoss(G.Must(G.LogSoftMax(x, 2)), fixed(x, "targets", slices.Clone(flat), batch, longest),
					fixed(x, "lengths", slices.Clone(c.lengths), batch), fixed(x, "sizes", slices.Clone(sizes), batch), reduction)
			}), func(in []*ref.Tensor) *ref.Tensor {
				return want([]*ref.Tensor{rowwise(2, softmax(true))(in)})
			}, x(c.shape...))
			if reduction == G.ReductionMean {
				valuesOnly(row)
			}
		}
	}
	return rows
}
