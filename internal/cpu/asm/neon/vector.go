package main

import "math"

// vectorFuncs are the vector functions, such as max32. Each has a Go twin of the same steps in vector.go or exp.go of
// package cpu: max32 has Max, expSum32 has ExpSum.
var vectorFuncs = []vectorFunc{
	{name: "max", slices: "x", result: "float32", unroll: 4, accumulators: 4, start: float32(math.Inf(-1)),
		body:   func(it *iteration, u int) { it.do(fmax, it.acc[u], it.acc[u], it.fillPastEnd(it.load("x", u))) },
		finish: func(it *iteration) vec { return it.reduce(fmax, fmaxp) }},
	{name: "expSum", slices: "dst, x", scalars: "scale, shift", result: "float32", unroll: 2, usesExp: true,
		accumulators: 2,
		body: func(it *iteration, u int) {
			z, x := it.vec(), it.load("x", u)
			it.do(fneg, z, it.scalar["shift"])
			it.do(fmla, z, x, it.scalar["scale"])
			y := it.exp.apply(z)
			it.store(y, "dst", u)
			it.do(fadd, it.acc[u], it.acc[u], it.fillPastEnd(y))
		},
		finish: sumOfAccumulators},
	{name: "scale", slices: "x", scalars: "a", unroll: 4,
		body: func(it *iteration, u int) {
			v := it.load("x", u)
			it.do(fmul, v, v, it.scalar["a"])
			it.store(v, "x", u)
		}},
	{name: "dot", slices: "x, y", result: "float32", unroll: 4, accumulators: 4,
		body:   func(it *iteration, u int) { it.do(fmla, it.acc[u], it.load("x", u), it.load("y", u)) },
		finish: sumOfAccumulators},
	{name: "axpy", slices: "x, y", scalars: "a", unroll: 4,
		body: func(it *iteration, u int) {
			y := it.load("y", u)
			it.do(fmla, y, it.load("x", u), it.scalar["a"])
			it.store(y, "y", u)
		}},
	{name: "add", slices: "dst, x, y", unroll: 4,
		body: func(it *iteration, u int) {
			v := it.load("x", u)
			it.do(fadd, v, v, it.load("y", u))
			it.store(v, "dst", u)
		}},
	{name: "softmaxGrad", slices: "dst, p, dp", scalars: "delta, scale", unroll: 4,
		body: func(it *iteration, u int) {
			v := it.load("dp", u)
			it.do(fsub, v, v, it.scalar["delta"])
			it.do(fmul, v, v, it.load("p", u))
			it.do(fmul, v, v, it.scalar["scale"])
			it.store(v, "dst", u)
		}},
	{name: "sigmoid", slices: "dst, x", unroll: 2, usesExp: true,
		body: func(it *iteration, u int) { it.store(it.exp.sigmoid(it.load("x", u)), "dst", u) }},
	{name: "silu", slices: "dst, x", unroll: 2, usesExp: true,
		body: func(it *iteration, u int) {
			v := it.load("x", u)
			s := it.exp.sigmoid(v)
			it.do(fmul, s, s, v)
			it.store(s, "dst", u)
		}},
	{name: "siluGrad", slices: "dst, x, dy", unroll: 2, usesExp: true,
		body: func(it *iteration, u int) {
			v := it.load("x", u)
			s, r, rest := it.exp.sigmoid(v), it.vec(), it.vec()
			it.do(fsub, rest, it.exp.one, s)
			it.copy(r, it.exp.one)
			it.do(fmla, r, v, rest)
			it.do(fmul, s, s, it.load("dy", u))
			it.do(fmul, s, s, r)
			it.store(s, "dst", u)
		}},
	{name: "adamW", slices: "w, grad, m, v", scalars: "lr, beta1, beta2, eps, decay, clip, c1, c2", unroll: 1,
		setup: func(it *iteration) {
			for _, beta := range []string{"beta1", "beta2"} {
				rest := it.constant(1)
				it.do(fsub, rest, rest, it.scalar[beta])
				it.scalar["1-"+beta] = rest
			}
		},
		body: func(it *iteration, u int) {
			p, d := it.scalar, it.load("grad", u)
			it.do(fmul, d, d, p["clip"])
			m := it.load("m", u)
			it.do(fmul, m, m, p["beta1"])
			it.do(fmla, m, d, p["1-beta1"])
			it.store(m, "m", u)
			it.do(fmul, d, d, d)
			v := it.load("v", u)
			it.do(fmul, v, v, p["beta2"])
			it.do(fmla, v, d, p["1-beta2"])
			it.store(v, "v", u)
			it.do(fmul, v, v, p["c2"])
			it.do(fsqrt, v, v)
			it.do(fadd, v, v, p["eps"])
			it.do(fmul, m, m, p["c1"])
			it.do(fdiv, m, m, v)
			w := it.load("w", u)
			it.do(fmla, m, w, p["decay"])
			it.do(fmls, w, m, p["lr"])
			it.store(w, "w", u)
		}},
	{name: "sumSquares", slices: "x", result: "float64", unroll: 2, accumulators: 4,
		body: func(it *iteration, u int) {
			v, d := it.load("x", u), it.vec()
			for half := range 2 {
				it.toDouble(d, v, half == 1)
				it.doAs(double, fmla, it.acc[2*u+half], d, d)
			}
		},
		finish: func(it *iteration) vec {
			total := it.combine(double, fadd)
			it.sumOfDoubles(total, total)
			return total
		}},
}

// sumOfAccumulators returns the sum of all lanes of all accumulators.
func sumOfAccumulators(it *iteration) vec { return it.reduce(fadd, faddp) }
