package main

import (
	"math"

	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	. "github.com/mmcloughlin/avo/reg"
)

// kernels are the vector functions. Their Go twins are in package cpu.
var kernels = []kernel{
	{name: "max", slices: "x", result: "float32", unroll: 4, sums: 5, start: float32(math.Inf(-1)),
		setup: func(x *iteration) { x.l.zero(x.sums[4]) }, // a lane becomes NaN when it meets a NaN
		body: func(x *iteration, u int) {
			v, nan := x.orStart(x.load("x", u), u), x.sums[4]
			VMAXPS(v, x.sums[u], x.sums[u])
			const unordered = 3
			if x.l.wide() {
				k := K()
				VCMPPS(U8(unordered), v, v, k)
				VMOVAPS(v, k, nan)
			} else {
				t := x.l.vec()
				VCMPPS(U8(unordered), v, v, t)
				VORPS(t, nan, nan)
			}
		},
		finish: func(x *iteration) {
			most, nan := x.l.fold(x.sums[:4], VMAXPS), x.l.fold(x.sums[4:], VADDPS)
			VADDSS(nan.AsX(), most.AsX(), most.AsX()) // nan is 0 or NaN
			result(most)
		}},
	{name: "expSum", slices: "dst, x", scalars: "scale, shift", result: "float32", unroll: 2, exp: true, sums: 2,
		body: func(x *iteration, u int) {
			z := x.load("x", u)
			VFMSUB213PS(x.scalar["shift"], x.scalar["scale"], z)
			y := x.exp.apply(z)
			x.store(y, "dst", u)
			VADDPS(x.orStart(y, u), x.sums[u], x.sums[u])
		}},
	{name: "scale", slices: "x", scalars: "a", unroll: 4,
		body: func(x *iteration, u int) {
			v := x.load("x", u)
			VMULPS(x.scalar["a"], v, v)
			x.store(v, "x", u)
		}},
	{name: "dot", slices: "x, y", result: "float32", unroll: 4, sums: 4,
		body: func(x *iteration, u int) { VFMADD231PS(x.load("x", u), x.load("y", u), x.sums[u]) }},
	{name: "dots", slices: "x, a, b, c, d", result: "float32", results: 4, unroll: 2, sums: 8,
		body: func(x *iteration, u int) {
			v := x.load("x", u)
			for i, row := range []string{"a", "b", "c", "d"} {
				VFMADD231PS(x.load(row, u), v, x.sums[2*i+u])
			}
		},
		finish: func(x *iteration) { // horizontal additions fold the four rows together
			var rows [4]VecVirtual
			for i := range rows {
				sum, other := x.sums[2*i], x.sums[2*i+1]
				VADDPS(other, sum, sum)
				if x.l.wide() {
					VEXTRACTF64X4(U8(1), sum, other.AsY())
					VADDPS(other.AsY(), sum.AsY(), sum.AsY())
				}
				rows[i] = sum
			}
			ab, cd, all, upper := YMM(), YMM(), YMM(), XMM()
			VHADDPS(rows[1].AsY(), rows[0].AsY(), ab)
			VHADDPS(rows[3].AsY(), rows[2].AsY(), cd)
			VHADDPS(cd, ab, all)
			VEXTRACTF128(U8(1), all, upper)
			VADDPS(upper, all.AsX(), upper)
			results, err := ReturnIndex(0).Resolve() // the four results lie one after the other
			if err != nil {
				panic(err)
			}
			VMOVUPS(upper, results.Addr)
		}},
	{name: "axpy", slices: "x, y", scalars: "a", unroll: 4,
		body: func(x *iteration, u int) {
			y := x.load("y", u)
			VFMADD231PS(x.load("x", u), x.scalar["a"], y)
			x.store(y, "y", u)
		}},
	{name: "add", slices: "dst, x, y", unroll: 4,
		body: func(x *iteration, u int) {
			v := x.load("x", u)
			VADDPS(x.load("y", u), v, v)
			x.store(v, "dst", u)
		}},
	{name: "softmaxGrad", slices: "dst, p, dp", scalars: "delta, scale", unroll: 4,
		body: func(x *iteration, u int) {
			v := x.load("dp", u)
			VSUBPS(x.scalar["delta"], v, v)
			VMULPS(x.load("p", u), v, v)
			VMULPS(x.scalar["scale"], v, v)
			x.store(v, "dst", u)
		}},
	{name: "sigmoid", slices: "dst, x", unroll: 2, exp: true,
		body: func(x *iteration, u int) { x.store(x.exp.sigmoid(x.load("x", u)), "dst", u) }},
	{name: "silu", slices: "dst, x", unroll: 2, exp: true,
		body: func(x *iteration, u int) {
			v := x.load("x", u)
			s := x.exp.sigmoid(v)
			VMULPS(v, s, s)
			x.store(s, "dst", u)
		}},
	{name: "siluGrad", slices: "dst, x, dy", unroll: 2, exp: true,
		body: func(x *iteration, u int) {
			v := x.load("x", u)
			s, r := x.exp.sigmoid(v), x.l.vec()
			VSUBPS(s, x.exp.one, r)
			VFMADD213PS(x.exp.one, v, r)
			VMULPS(x.load("dy", u), s, s)
			VMULPS(r, s, s)
			x.store(s, "dst", u)
		}},
	{name: "adamW", slices: "w, grad, m, v", scalars: "lr, beta1, beta2, eps, decay, clip, c1, c2", unroll: 1,
		setup: func(x *iteration) {
			for _, beta := range []string{"beta1", "beta2"} {
				rest := x.l.constant(1)
				VSUBPS(x.scalar[beta], rest, rest)
				x.scalar["1-"+beta] = rest
			}
		},
		body: func(x *iteration, u int) {
			p, d := x.scalar, x.load("grad", u)
			VMULPS(p["clip"], d, d)
			m := x.load("m", u)
			VMULPS(p["beta1"], m, m)
			VFMADD231PS(p["1-beta1"], d, m)
			x.store(m, "m", u)
			VMULPS(d, d, d)
			v := x.load("v", u)
			VMULPS(p["beta2"], v, v)
			VFMADD231PS(p["1-beta2"], d, v)
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
		}},
	{name: "sumSquares", slices: "x", result: "float64", unroll: 4, sums: 4,
		body: func(x *iteration, u int) {
			v := x.load("x", u)
			x.l.fma(v, v, x.sums[u])
		}},
}
