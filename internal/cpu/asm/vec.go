package main

import (
	"math"

	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	. "github.com/mmcloughlin/avo/reg"
)

// vec writes the vector functions.
func vec(l lanes) {
	for _, k := range kernels {
		k.write(l)
	}
	sumSquares(l)
}

// result stores the first lane of v.
func result(v VecVirtual) { Store(v.AsX(), ReturnIndex(0)) }

var kernels = []kernel{
	{name: "max", slices: "x", result: "float32", unroll: 4, is: `
m := float32(math.Inf(-1))
for i := range n {
	m = max(m, x[i])
}
return m`, setup: func(l lanes) (func(*turn, int), func()) {
		least := l.constant(float32(math.Inf(-1)))
		most := l.accumulators(4, float32(math.Inf(-1)))
		nan := l.accumulators(1, 0)[0] // lanes that have met a NaN are NaN
		return func(x *turn, u int) {
				v := x.keep(x.load("x", u), least, u)
				VMAXPS(v, most[u], most[u])
				if l.wide() {
					k := K()
					VCMPPS(U8(3), v, v, k)
					VMOVAPS(v, k, nan)
				} else {
					t := l.vec()
					VCMPPS(U8(3), v, v, t)
					VORPS(t, nan, nan)
				}
			}, func() {
				m := l.fold(most, VMAXPS)
				n := l.fold([]VecVirtual{nan}, VADDPS)
				// n is 0 or NaN.
				VADDSS(n.AsX(), m.AsX(), m.AsX())
				result(m)
			}
	}},
	{name: "expSum", slices: "dst, x", scalars: "scale, shift", result: "float32", unroll: 2, is: `
var sum float32
for i := range n {
	dst[i] = exp(x[i]*scale - shift)
	sum += dst[i]
}
return sum`, setup: func(l lanes) (func(*turn, int), func()) {
		e, scale, shift := newExponential(l), l.param("scale"), l.param("shift")
		sums := l.accumulators(2, 0)
		nothing := l.accumulators(1, 0)[0]
		return func(x *turn, u int) {
			z := x.load("x", u)
			VFMSUB213PS(shift, scale, z)
			y := e.apply(z)
			x.store(y, "dst", u)
			VADDPS(x.keep(y, nothing, u), sums[u], sums[u])
		}, func() { result(l.fold(sums, VADDPS)) }
	}},
	{name: "scale", slices: "x", scalars: "a", unroll: 4, is: `
for i := range n {
	x[i] *= a
}`, setup: func(l lanes) (func(*turn, int), func()) {
		a := l.param("a")
		return func(x *turn, u int) {
			v := x.load("x", u)
			VMULPS(a, v, v)
			x.store(v, "x", u)
		}, nil
	}},
	{name: "dot", slices: "x, y", result: "float32", unroll: 4, is: `
var sum float32
for i := range n {
	sum += x[i] * y[i]
}
return sum`, setup: func(l lanes) (func(*turn, int), func()) {
		sums := l.accumulators(4, 0)
		return func(x *turn, u int) {
			VFMADD231PS(x.load("x", u), x.load("y", u), sums[u])
		}, func() { result(l.fold(sums, VADDPS)) }
	}},
	{name: "axpy", slices: "x, y", scalars: "a", unroll: 4, is: `
for i := range n {
	y[i] += a * x[i]
}`, setup: func(l lanes) (func(*turn, int), func()) {
		a := l.param("a")
		return func(x *turn, u int) {
			y := x.load("y", u)
			VFMADD231PS(x.load("x", u), a, y)
			x.store(y, "y", u)
		}, nil
	}},
	{name: "add", slices: "dst, x, y", unroll: 4, is: `
for i := range n {
	dst[i] = x[i] + y[i]
}`, setup: func(l lanes) (func(*turn, int), func()) {
		return func(x *turn, u int) {
			v := x.load("x", u)
			VADDPS(x.load("y", u), v, v)
			x.store(v, "dst", u)
		}, nil
	}},
	{name: "mulScale", slices: "dst, x, w", scalars: "a", unroll: 4, is: `
for i := range n {
	dst[i] = x[i] * w[i] * a
}`, setup: func(l lanes) (func(*turn, int), func()) {
		a := l.param("a")
		return func(x *turn, u int) {
			v := x.load("x", u)
			VMULPS(x.load("w", u), v, v)
			VMULPS(a, v, v)
			x.store(v, "dst", u)
		}, nil
	}},
	{name: "softmaxGrad", slices: "dst, p, dp", scalars: "delta, scale", unroll: 4, is: `
for i := range n {
	dst[i] = p[i] * (dp[i] - delta) * scale
}`, setup: func(l lanes) (func(*turn, int), func()) {
		delta, scale := l.param("delta"), l.param("scale")
		return func(x *turn, u int) {
			v := x.load("dp", u)
			VSUBPS(delta, v, v)
			VMULPS(x.load("p", u), v, v)
			VMULPS(scale, v, v)
			x.store(v, "dst", u)
		}, nil
	}},
	{name: "sigmoid", slices: "dst, x", unroll: 2, is: `
for i := range n {
	dst[i] = 1 / (1 + exp(-x[i]))
}`, setup: func(l lanes) (func(*turn, int), func()) {
		e := newExponential(l)
		return func(x *turn, u int) { x.store(e.sigmoid(x.load("x", u)), "dst", u) }, nil
	}},
	{name: "silu", slices: "dst, x", unroll: 2, is: `
for i := range n {
	dst[i] = x[i] / (1 + exp(-x[i]))
}`, setup: func(l lanes) (func(*turn, int), func()) {
		e := newExponential(l)
		return func(x *turn, u int) {
			v := x.load("x", u)
			s := e.sigmoid(v)
			VMULPS(v, s, s)
			x.store(s, "dst", u)
		}, nil
	}},
	{name: "siluGrad", slices: "dst, x, dy", unroll: 2, is: `
for i := range n {
	s := 1 / (1 + exp(-x[i]))
	dst[i] = dy[i] * s * (1 + x[i]*(1-s))
}`, setup: func(l lanes) (func(*turn, int), func()) {
		e := newExponential(l)
		return func(x *turn, u int) {
			v := x.load("x", u)
			s := e.sigmoid(v)
			r := l.vec()
			VSUBPS(s, e.one, r)
			VFMADD213PS(e.one, v, r)
			VMULPS(x.load("dy", u), s, s)
			VMULPS(r, s, s)
			x.store(s, "dst", u)
		}, nil
	}},
	{name: "adamW", slices: "w, grad, m, v", scalars: "lr, beta1, beta2, eps, decay, clip, c1, c2", unroll: 1, is: `
for i := range n {
	d := grad[i] * clip
	m[i] = beta1*m[i] + (1-beta1)*d
	v[i] = beta2*v[i] + (1-beta2)*d*d
	w[i] -= lr * (m[i]*c1/(sqrt(v[i]*c2)+eps) + decay*w[i])
}`, setup: func(l lanes) (func(*turn, int), func()) {
		p := map[string]VecVirtual{}
		for _, name := range names("lr, beta1, beta2, eps, decay, clip, c1, c2") {
			p[name] = l.param(name)
		}
		rest1, rest2 := l.constant(1), l.constant(1)
		VSUBPS(p["beta1"], rest1, rest1)
		VSUBPS(p["beta2"], rest2, rest2)
		return func(x *turn, u int) {
			d := x.load("grad", u)
			VMULPS(p["clip"], d, d)
			m := x.load("m", u)
			VMULPS(p["beta1"], m, m)
			VFMADD231PS(rest1, d, m)
			x.store(m, "m", u)
			VMULPS(d, d, d)
			v := x.load("v", u)
			VMULPS(p["beta2"], v, v)
			VFMADD231PS(rest2, d, v)
			x.store(v, "v", u)
			VMULPS(p["c2"], v, v)
			VSQRTPS(v, v)
			VADDPS(p["eps"], v, v)
			VMULPS(p["c1"], m, m)
			VDIVPS(v, m, m)
			w := x.load("w", u)
			VFMADD231PS(p["decay"], w, m)
			VFNMADD231PS(p["lr"], m, w)
			x.store(w, "w", u)
		}, nil
	}},
}

// sumSquares is the one loop that reads float32 and adds float64.
func sumSquares(l lanes) {
	const unroll = 4
	d := lanes{l.bits, 8}
	half := d.n() * 4 // bytes of float32 in a vector of float64
	TEXT(l.fn("sumSquares"), 4, "func(n int, x *float32) float64")
	Pragma("noescape")
	Doc(l.fn("sumSquares")+" does:", "",
		"\tvar sum float64",
		"\tfor i := range n {",
		"\t\tsum += float64(x[i]) * float64(x[i])",
		"\t}",
		"\treturn sum")
	n, at := GP64(), GP64()
	Load(Param("n"), n)
	Load(Param("x"), at)
	sums := d.accumulators(unroll, 0)
	turn := func(mask func(int) Op) {
		for u := range unroll {
			v, m := d.vec(), Mem{Base: at, Disp: u * half}
			switch {
			case mask == nil:
				VCVTPS2PD(m, v)
			case l.wide():
				VCVTPS2PD_Z(m, mask(u), v)
			default:
				x := XMM()
				VMASKMOVPS(m, mask(u), x)
				VCVTPS2PD(x, v)
			}
			d.fma(v, v, sums[u])
		}
	}
	whole := U32(unroll * d.n())
	Label("loop")
	CMPQ(n, whole)
	JL(LabelRef("tail"))
	turn(nil)
	ADDQ(U32(unroll*half), at)
	SUBQ(whole, n)
	JMP(LabelRef("loop"))
	Label("tail")
	TESTQ(n, n)
	JZ(LabelRef("done"))
	turn(l.masks(n, unroll, d.n()))
	Label("done")
	result(d.fold(sums, VADDPD))
	VZEROUPPER()
	RET()
}
