package main

import (
	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	. "github.com/mmcloughlin/avo/reg"
)

// exponential holds the constants of exp32 in package cpu. Its code follows exp32 step by step, with fused multiply-adds.
type exponential struct {
	l                      lanes
	low, high              VecVirtual
	log2e, ln2high, ln2low Op
	coefficients           []Op
	one                    VecVirtual
}

func newExponential(l lanes) *exponential {
	e := &exponential{l: l, low: l.constant(-87.33654), high: l.constant(89), one: l.constant(1)}
	e.log2e, e.ln2high, e.ln2low = l.cheap(1.44269504088896341), l.cheap(0.693359375), l.cheap(-2.12194440e-4)
	for _, c := range []float32{1.9875691500e-4, 1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1, 5.0000001201e-1} {
		e.coefficients = append(e.coefficients, l.cheap(c))
	}
	return e
}

// apply returns exp(z) and overwrites z.
func (e *exponential) apply(z VecVirtual) VecVirtual {
	l := e.l
	keep := Op(YMM()) // mask of the lanes that are not below low; NaN is not below
	if l.wide() {
		keep = K()
	}
	const notLess = 5
	VCMPPS(U8(notLess), e.low, z, keep)
	VMINPS(z, e.high, z) // returns the second operand, z, if one is NaN
	n, r := l.vec(), z
	VMULPS(e.log2e, z, n)
	if l.wide() {
		VRNDSCALEPS(U8(8), n, n)
	} else {
		VROUNDPS(U8(8), n, n)
	}
	VFNMADD231PS(e.ln2high, n, r)
	VFNMADD231PS(e.ln2low, n, r)
	p := l.vec()
	VMOVUPS(e.coefficients[0], p)
	for _, c := range e.coefficients[1:] {
		VFMADD213PS(c, r, p)
	}
	square := l.vec()
	VMULPS(r, r, square)
	VADDPS(e.one, r, r)
	VFMADD213PS(r, square, p)
	if l.wide() {
		y := l.vec()
		VSCALEFPS_Z(n, p, keep, y)
		return y
	}
	// 2^n is multiplied in two factors, since 2^128 is no float32.
	i, h := YMM(), YMM()
	VCVTPS2DQ(n, i)
	VPSRAD(U8(1), i, h)
	VPSUBD(h, i, i)
	for _, part := range []VecVirtual{h, i} {
		VPSLLD(U8(23), part, part)
		VPADDD(e.one, part, part) // the bits of 1 are the exponent's bias
		VMULPS(part, p, p)
	}
	VANDPS(keep, p, p)
	return p
}

// sigmoid returns 1/(1+exp(-v)).
func (e *exponential) sigmoid(v VecVirtual) VecVirtual {
	z, s := e.l.vec(), e.l.vec()
	VXORPS(z, z, z)
	VSUBPS(v, z, z)
	d := e.apply(z)
	VADDPS(e.one, d, d)
	VDIVPS(d, e.one, s)
	return s
}
