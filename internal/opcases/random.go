package opcases

import (
	"math/rand/v2"
	"slices"

	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/ops"
	"github.com/gorgonia-nsa/nsa/ops/spec"
	"github.com/gorgonia-nsa/nsa/ops/spec/attention"
	"github.com/gorgonia-nsa/nsa/ops/spec/compress"
	"github.com/gorgonia-nsa/nsa/ops/spec/pointwise"
)

// RandomCall is a call of an op of NSA, or of its gradient, with random sizes. A call is valid, or one thing in it is
// wrong.
type RandomCall struct {
	Spec    spec.Spec
	In, Out []spec.Operand // types and shapes as in graphs; the Out of a wrong call is the one before it was spoiled
	Names   []string       // names of the inputs in errors
	// Wrong lists names; the error of a wrong call must contain at least one of them. It is nil for a valid call.
	Wrong []string
	// Huge is set for a call that is valid except for a size that no memory holds.
	Huge bool
	// Forward computes the inputs lse, and o if the call reads it, of a valid gradient call from its other inputs. Nil
	// for none.
	Forward *ForwardCall
	// Block is the size of a selection block, if the call has an input "idx".
	Block int
}

// ForwardCall is an op to be run before a call. It reads the call's inputs In and writes the call's inputs Out; -1
// stands for an output that the call does not read.
type ForwardCall struct {
	Spec    spec.Spec
	In, Out []int
}

// Random returns a call. Six of ten calls are valid: no operand has more than limit elements, and there are no more
// than limit scores. In three of ten one thing is wrong. In one of ten an axis is huge.
func Random(rng *rand.Rand, limit int) RandomCall {
	kind := rng.IntN(10)
	r := &random{Rand: rng, limit: limit, huge: kind == 9}
	c := r.call()
	c.Huge = r.huge
	if c.Out = nil; kind < 9 || !tooLarge(c.In) {
		c.Out, _ = c.Spec.Infer(c.In)
	}
	if 6 <= kind && kind < 9 {
		r.spoil(&c)
	}
	return c
}

// random draws sizes.
type random struct {
	*rand.Rand
	limit int
	huge  bool
	dt    tensor.Dtype
}

func oneOf[T any](r *random, list ...T) T { return list[r.IntN(len(list))] }

// size draws a size, which is often a boundary of kernels or next to one.
func (r *random) size(limit int) int {
	n := oneOf(r, 1, 2, 3, 8, 12, 16, 31, 32, 33, 63, 64, 65, 72, 96, 100, 127, 128, 129, 136, 192, 200, 256, 300,
		1+r.IntN(limit))
	return min(n, limit)
}

func (r *random) float(shape ...int) spec.Operand { return spec.Operand{Dtype: r.dt, Shape: shape} }

// params draws valid sizes of blocks.
func (r *random) params() ops.Params {
	d := oneOf(r, 1, 2, 3, 4, 8, 16, 16)
	return ops.Params{
		Stride: d, BlockLen: d * (1 + r.IntN(4)), SelectBlock: oneOf(r, d*(1+r.IntN(4)), 16*d, (64+d-1)/d*d),
		TopN: 3 + r.IntN(oneOf(r, 1, 6, 80)), Window: r.size(400),
	}
}

// callSizes are the sizes of the operands of a call.
type callSizes struct {
	ops.Params
	b, s, hq, hkv, dim, dv int
}

// sizes draws sizes within the bound on elements. If the call is to be huge, one of them is.
func (r *random) sizes() callSizes {
	z := callSizes{Params: r.params(), b: 1 + r.IntN(3), s: r.size(300), hkv: 1 + r.IntN(4)}
	z.hq = z.hkv * oneOf(r, 1, 1, 2, 3, 4, 5, 6, 8, 16, 32, 33, 64, 65, 70)
	z.dim, z.dv = r.size(300), r.size(300)
	if r.IntN(2) == 0 {
		z.dim, z.dv = 8*(1+r.IntN(16)), 8*(1+r.IntN(16))
	}
	for z.b*z.s*z.hq*max(z.dim, z.dv, z.s, z.TopN) > r.limit {
		r.shrink(&z)
	}
	if r.huge {
		n := 1 << (20 + r.IntN(30))
		switch r.IntN(5) {
		case 0:
			z.b = n
		case 1:
			z.s = n + r.IntN(100)
		case 2:
			z.hkv, z.hq = n, n*(z.hq/z.hkv)
		case 3:
			z.dim = n
		case 4:
			z.TopN = n
		}
	}
	return z
}

// shrink reduces the first size that is not small yet. If all are as small as possible, it raises the bound on
// elements.
func (r *random) shrink(z *callSizes) {
	switch {
	case z.s > 40:
		z.s /= 2
	case z.hq > 8*z.hkv:
		z.hq = z.hkv
	case z.b > 1:
		z.b--
	case max(z.dim, z.dv, z.s, z.TopN) > 64:
		z.dim, z.dv, z.TopN = min(z.dim, 64), min(z.dv, 64), min(z.TopN, 16)
		z.s = min(z.s, 64)
	case z.hq > 1:
		z.hq, z.hkv = 1, 1
	case z.s > 1:
		z.s /= 2
	default:
		z.dim, z.dv, z.TopN = 1, 1, 3
		r.limit = max(r.limit, 3)
	}
}

// call draws an op and its operands.
func (r *random) call() RandomCall {
	r.dt = oneOf(r, tensor.Float32, tensor.Float32, tensor.Float64)
	z := r.sizes()
	p, b, s, hq, hkv, dim, dv := z.Params, z.b, z.s, z.hq, z.hkv, z.dim, z.dv
	nc := max(1, ops.NumCompressed(s, p.BlockLen, p.Stride))
	q, k, v := r.float(b, s, hq, dim), r.float(b, s, hkv, dim), r.float(b, s, hkv, dv)
	kc, vc := r.float(b, nc, hkv, dim), r.float(b, nc, hkv, dv)
	o, lse := r.float(b, s, hq, dv), r.float(b, hq, s)
	idx := spec.Operand{Dtype: tensor.Int32, Shape: tensor.Shape{b, s, hkv, p.TopN}}
	window := attention.SlidingWindow{Window: p.Window}
	compressed := attention.Compressed{BlockLen: p.BlockLen, Stride: p.Stride}
	selected := attention.Selected{SelectBlock: p.SelectBlock}
	delta := r.IntN(2) == 0
	third, name := o, "o"
	if delta {
		third, name = lse, "delta"
	}
	ifReadsO := func(input int) int { // the index of the input o, -1 if the call reads delta instead
		if delta {
			return -1
		}
		return input
	}
	withForward := func(c RandomCall, spec spec.Spec, in []int, o, lse int) RandomCall {
		c.Forward = &ForwardCall{spec, in, []int{o, lse}}
		return c
	}
	qkv := []int{0, 1, 2}
	newCall := func(spec spec.Spec, names []string, in ...spec.Operand) RandomCall {
		c := RandomCall{Spec: spec, In: slices.Clone(in), Names: names, Block: p.SelectBlock}
		for i := range c.In {
			c.In[i].Shape = slices.Clone(c.In[i].Shape)
		}
		return c
	}
	switch hidden := 1 + r.IntN(20); r.IntN(14) {
	case 0, 1:
		return newCall(window, []string{"q", "k", "v"}, q, k, v)
	case 2:
		c := newCall(attention.SlidingWindowGrad{Forward: window, Delta: delta},
			[]string{"q", "k", "v", name, "lse", "do"}, q, k, v, third, lse, o)
		return withForward(c, window, qkv, ifReadsO(3), 4)
	case 3:
		return newCall(compressed, []string{"q", "kc", "vc"}, q, kc, vc)
	case 4:
		c := newCall(attention.CompressedGrad{Forward: compressed, Delta: delta},
			[]string{"q", "kc", "vc", name, "lse", "do"}, q, kc, vc, third, lse, o)
		return withForward(c, compressed, qkv, ifReadsO(3), 4)
	case 5, 6:
		return withForward(newCall(attention.SelectBlocks{Params: p}, []string{"q", "kc", "lse"}, q, kc, lse),
			compressed, []int{0, 1, 1}, -1, 2)
	case 7:
		return newCall(selected, []string{"q", "k", "v", "idx"}, q, k, v, idx)
	case 8:
		c := newCall(attention.SelectedGrad{Forward: selected, Delta: delta},
			[]string{"q", "k", "v", "idx", name, "lse", "do"}, q, k, v, idx, third, lse, o)
		return withForward(c, selected, []int{0, 1, 2, 3}, ifReadsO(4), 5)
	case 9:
		return newCall(compress.Mean{BlockLen: p.BlockLen, Stride: p.Stride}, []string{"x"}, k)
	case 10:
		return newCall(compress.MeanGrad{BlockLen: p.BlockLen, Stride: p.Stride, Tokens: s}, []string{"dy"}, kc)
	case 11:
		return newCall(compress.MLP{BlockLen: p.BlockLen, Stride: p.Stride}, []string{"x", "pe", "w1", "w2"},
			k, r.float(p.BlockLen, dim), r.float(hidden, p.BlockLen*dim), r.float(dim, hidden))
	case 12:
		k.Shape[3] += k.Shape[3] % 2
		return newCall(pointwise.RoPE{Base: 1e4, Start: r.IntN(1000)}, []string{"x"}, k)
	default:
		return newCall(pointwise.GatedSum{Sigmoid: delta}, []string{"gates", "branch 0", "branch 1"},
			r.float(b, s, hq, 2), o, o)
	}
}

// tooLarge reports whether an operand has more elements than the shape rules can count.
func tooLarge(list []spec.Operand) bool {
	return slices.ContainsFunc(list, func(o spec.Operand) bool {
		room := 1 << 58
		for _, n := range o.Shape {
			room /= n
		}
		return room == 0
	})
}

// spoil makes one thing in a valid call wrong.
func (r *random) spoil(c *RandomCall) {
	i := r.IntN(len(c.In))
	x := &c.In[i]
	c.Wrong = c.Names // the error names this input, or another one that it does not fit
	switch r.IntN(7) {
	case 0:
		x.Shape[r.IntN(len(x.Shape))] = oneOf(r, 0, 0, -1)
		c.Wrong = []string{"zero size"}
	case 1:
		x.Shape[r.IntN(len(x.Shape))] = 1 << 60
		x.Shape[r.IntN(len(x.Shape))] += 1 << 60
		c.Wrong = []string{"too large"}
	case 2:
		x.Shape = append(x.Shape, 1)
	case 3:
		x.Shape = x.Shape[:len(x.Shape)-1]
	case 4:
		if x.Dtype == tensor.Int32 {
			x.Dtype = tensor.Float32
		} else {
			x.Dtype = oneOf(r, tensor.Int, tensor.Int32, tensor.Uint8)
		}
	case 5:
		c.In, c.Wrong = c.In[:len(c.In)-1], []string{"inputs", "no branches", "for 2 branches"}
	default:
		r.spoilParameter(c)
	}
}

// spoilParameter makes a parameter of the Spec wrong, or a shape if no parameter can be wrong.
func (r *random) spoilParameter(c *RandomCall) {
	bad := oneOf(r, 0, -1, -1<<40)
	l, d, shape := oneOf(r, bad, 48, 48), oneOf(r, bad, 5, 7), false
	blocks := []string{"block length l", "stride d"}
	switch op := c.Spec.(type) {
	case attention.SlidingWindow:
		c.Spec, c.Wrong = attention.SlidingWindow{Window: bad}, []string{"window w"}
	case attention.SlidingWindowGrad:
		op.Forward.Window = bad
		c.Spec, c.Wrong = op, []string{"window w"}
	case attention.Compressed:
		c.Spec, c.Wrong = attention.Compressed{BlockLen: l, Stride: d}, blocks
	case attention.CompressedGrad:
		op.Forward.BlockLen, op.Forward.Stride = l, d
		c.Spec, c.Wrong = op, blocks
	case compress.Mean:
		c.Spec, c.Wrong = compress.Mean{BlockLen: l, Stride: d}, blocks
	case compress.MeanGrad:
		op.BlockLen, op.Stride = l, d
		c.Spec, c.Wrong = op, blocks
	case compress.MLP:
		c.Spec, c.Wrong = compress.MLP{BlockLen: l, Stride: d}, blocks
	case pointwise.RoPE:
		c.Spec, c.Wrong = pointwise.RoPE{Base: float64(bad)}, []string{"base"}
	case attention.Selected:
		c.Spec, c.Wrong = attention.Selected{SelectBlock: bad}, []string{"selection block l'"}
	case attention.SelectedGrad:
		op.Forward.SelectBlock = bad
		c.Spec, c.Wrong = op, []string{"selection block l'"}
	case attention.SelectBlocks:
		switch p := &op.Params; r.IntN(4) {
		case 0:
			p.BlockLen, p.Stride = l, d
			c.Wrong = blocks
		case 1:
			p.SelectBlock = oneOf(r, bad, p.Stride*3+1)
			c.Wrong = []string{"selection block l'"}
			shape = p.SelectBlock > 0 && p.Stride == 1
		case 2:
			p.TopN = oneOf(r, bad, 1, 2)
			c.Wrong = []string{"top n"}
		default:
			p.Window = bad
			c.Wrong = []string{"window w"}
		}
		c.Spec = op
	default:
		shape = true
	}
	if shape { // the batch of the last input must be that of the other inputs
		c.In[len(c.In)-1].Shape[0]++
		c.Wrong = c.Names
	}
}
