package main

import (
	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	. "github.com/mmcloughlin/avo/reg"
)

// exponential holds the constants of exp32 in package cpu. The code that apply writes follows exp32 step by step, with
// fused multiply-adds.
type exponential struct {
	vt                     vectorType
	low, high              VecVirtual
	log2e, ln2high, ln2low Op
	coefficients           []Op // of the polynomial, highest power first
	one                    VecVirtual
}

func newExponential(vt vectorType) *exponential {
	e := &exponential{vt: vt, low: vt.constant(-87.33654), high: vt.constant(89), one: vt.constant(1)}
	e.log2e = vt.constantOperand(1.44269504088896341)
	e.ln2high, e.ln2low = vt.constantOperand(0.693359375), vt.constantOperand(-2.12194440e-4)
	for _, c := range []float32{1.9875691500e-4, 1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1,
		5.0000001201e-1} {
		e.coefficients = append(e.coefficients, vt.constantOperand(c))
	}
	return e
}

// apply returns exp(z) and overwrites z.
func (e *exponential) apply(z VecVirtual) VecVirtual {
	vt := e.vt
	keep := Op(YMM()) // mask of the lanes that are not below low; NaN is not below
	if vt.avx512() {
		keep = K()
	}
	const notLess = 5
	VCMPPS(U8(notLess), e.low, z, keep)
	VMINPS(z, e.high, z) // returns the second operand, z, if one is NaN
	const toNearest = 8  // and no exception for an inexact result
	n, r := vt.register(), z
	VMULPS(e.log2e, z, n)
	if vt.avx512() {
		VRNDSCALEPS(U8(toNearest), n, n)
	} else {
		VROUNDPS(U8(toNearest), n, n)
	}
	VFNMADD231PS(e.ln2high, n, r)
	VFNMADD231PS(e.ln2low, n, r)
	p := vt.register()
	VMOVUPS(e.coefficients[0], p)
	for _, c := range e.coefficients[1:] {
		VFMADD213PS(c, r, p)
	}
	square := vt.register()
	VMULPS(r, r, square)
	VADDPS(e.one, r, r)
	VFMADD213PS(r, square, p)
	if vt.avx512() {
		y := vt.register()
		VSCALEFPS_Z(n, p, keep, y)
		return y
	}
	// 2^n is multiplied in two factors: n may be 128, and 2^128 is no float32.
	rest, half := YMM(), YMM()
	VCVTPS2DQ(n, rest)
	VPSRAD(U8(1), rest, half)
	VPSUBD(half, rest, rest)
	for _, part := range []VecVirtual{half, rest} {
		VPSLLD(U8(23), part, part)
		VPADDD(e.one, part, part) // the bits of 1 are the exponent's bias
		VMULPS(part, p, p)
	}
	VANDPS(keep, p, p)
	return p
}

// sigmoid returns 1/(1+exp(-v)) and leaves v as it is.
func (e *exponential) sigmoid(v VecVirtual) VecVirtual {
	z, s := e.vt.register(), e.vt.register()
	e.vt.zero(z)
	VSUBPS(v, z, z)
	d := e.apply(z)
	VADDPS(e.one, d, d)
	VDIVPS(d, e.one, s)
	return s
}
