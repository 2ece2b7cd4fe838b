package main

import (
	"math"

	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
)

// vectorFuncs are the vector functions, such as max32. Each has a Go twin of the same steps in vector.go or exp.go of
// package cpu: max32 has Max, expSum32 has ExpSum.
var vectorFuncs = []vectorFunc{
	{name: "max", slices: "x", resultType: "float32", unroll: 4, accumulators: 5, start: float32(math.Inf(-1)),
		setup: func(it *iteration) { it.vt.zero(it.acc[4]) }, // a lane becomes NaN when it meets a NaN
		body: func(it *iteration, u int) {
			v, nan := it.fillPastEnd(it.load("x", u), u), it.acc[4]
			VMAXPS(v, it.acc[u], it.acc[u])
			const unordered = 3
			if it.vt.avx512() {
				k := K()
				VCMPPS(U8(unordered), v, v, k)
				VMOVAPS(v, k, nan)
			} else {
				t := it.vt.register()
				VCMPPS(U8(unordered), v, v, t)
				VORPS(t, nan, nan)
			}
		},
		finish: func(it *iteration) {
			most, nan := it.vt.reduce(it.acc[:4], VMAXPS), it.vt.reduce(it.acc[4:], VADDPS)
			VADDSS(nan.AsX(), most.AsX(), most.AsX()) // nan is 0 or NaN
			storeResult(most)
		}},
	{name: "expSum", slices: "dst, x", scalars: "scale, shift", resultType: "float32", unroll: 2, usesExp: true,
		accumulators: 2,
		body: func(it *iteration, u int) {
			z := it.load("x", u)
			VFMSUB213PS(it.scalar["shift"], it.scalar["scale"], z)
			y := it.exp.apply(z)
			it.store(y, "dst", u)
			VADDPS(it.fillPastEnd(y, u), it.acc[u], it.acc[u])
		}},
	{name: "scale", slices: "x", scalars: "a", unroll: 4,
		body: func(it *iteration, u int) {
			v := it.load("x", u)
			VMULPS(it.scalar["a"], v, v)
			it.store(v, "x", u)
		}},
	{name: "dot", slices: "x, y", resultType: "float32", unroll: 4, accumulators: 4,
		body: func(it *iteration, u int) { VFMADD231PS(it.load("x", u), it.load("y", u), it.acc[u]) }},
	{name: "axpy", slices: "x, y", scalars: "a", unroll: 4,
		body: func(it *iteration, u int) {
			y := it.load("y", u)
			VFMADD231PS(it.load("x", u), it.scalar["a"], y)
			it.store(y, "y", u)
		}},
	{name: "add", slices: "dst, x, y", unroll: 4,
		body: func(it *iteration, u int) {
			v := it.load("x", u)
			VADDPS(it.load("y", u), v, v)
			it.store(v, "dst", u)
		}},
	{name: "softmaxGrad", slices: "dst, p, dp", scalars: "delta, scale", unroll: 4,
		body: func(it *iteration, u int) {
			v := it.load("dp", u)
			VSUBPS(it.scalar["delta"], v, v)
			VMULPS(it.load("p", u), v, v)
			VMULPS(it.scalar["scale"], v, v)
			it.store(v, "dst", u)
		}},
	{name: "sigmoid", slices: "dst, x", unroll: 2, usesExp: true,
		body: func(it *iteration, u int) { it.store(it.exp.sigmoid(it.load("x", u)), "dst", u) }},
	{name: "silu", slices: "dst, x", unroll: 2, usesExp: true,
		body: func(it *iteration, u int) {
			v := it.load("x", u)
			s := it.exp.sigmoid(v)
			VMULPS(v, s, s)
			it.store(s, "dst", u)
		}},
	{name: "siluGrad", slices: "dst, x, dy", unroll: 2, usesExp: true,
		body: func(it *iteration, u int) {
			v := it.load("x", u)
			s, r := it.exp.sigmoid(v), it.vt.register()
			VSUBPS(s, it.exp.one, r)
			VFMADD213PS(it.exp.one, v, r)
			VMULPS(it.load("dy", u), s, s)
			VMULPS(r, s, s)
			it.store(s, "dst", u)
		}},
	{name: "adamW", slices: "w, grad, m, v", scalars: "lr, beta1, beta2, eps, decay, clip, c1, c2", unroll: 1,
		setup: func(it *iteration) {
			for _, beta := range []string{"beta1", "beta2"} {
				rest := it.vt.constant(1)
				VSUBPS(it.scalar[beta], rest, rest)
				it.scalar["1-"+beta] = rest
			}
		},
		body: func(it *iteration, u int) {
			p, d := it.scalar, it.load("grad", u)
			VMULPS(p["clip"], d, d)
			m := it.load("m", u)
			VMULPS(p["beta1"], m, m)
			VFMADD231PS(p["1-beta1"], d, m)
			it.store(m, "m", u)
			VMULPS(d, d, d)
			v := it.load("v", u)
			VMULPS(p["beta2"], v, v)
			VFMADD231PS(p["1-beta2"], d, v)
			it.store(v, "v", u)
			VMULPS(p["c2"], v, v)
			VSQRTPS(v, v)
			VADDPS(p["eps"], v, v)
			VMULPS(p["c1"], m, m)
			VDIVPS(v, m, m)
			w := it.load("w", u)
			VFMADD231PS(p["decay"], w, m)
			VFNMADD231PS(p["lr"], m, w)
			it.store(w, "w", u)
		}},
	{name: "sumSquares", slices: "x", resultType: "float64", unroll: 4, accumulators: 4,
		body: func(it *iteration, u int) {
			v := it.load("x", u)
			it.vt.fma(v, v, it.acc[u])
		}},
}
