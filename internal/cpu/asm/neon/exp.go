package main

// exponential holds the constants of exp32 in package cpu. The code that apply writes follows exp32 step by step, with
// fused multiply-adds.
type exponential struct {
	*function
	low, high, log2e, ln2high, ln2low, one vec
	coefficients                           []vec // of the polynomial, highest power first
}

func newExponential(f *function) *exponential {
	e := &exponential{function: f, low: f.constant(-87.33654), high: f.constant(89), one: f.constant(1)}
	e.log2e, e.ln2high, e.ln2low = f.constant(1.44269504088896341), f.constant(0.693359375), f.constant(-2.12194440e-4)
	for _, c := range []float32{1.9875691500e-4, 1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1,
		5.0000001201e-1} {
		e.coefficients = append(e.coefficients, f.constant(c))
	}
	return e
}

// apply returns exp(z) and overwrites z.
func (e *exponential) apply(z vec) vec {
	below, n, r := e.vec(), e.vec(), z
	e.do(fcmgt, below, e.low, z) // NaN is not below
	e.do(fmin, z, z, e.high)
	e.do(fmul, n, z, e.log2e)
	e.do(frintn, n, n)
	e.do(fmls, r, n, e.ln2high)
	e.do(fmls, r, n, e.ln2low)
	p, q := e.vec(), e.vec()
	e.copy(p, e.coefficients[0])
	for _, c := range e.coefficients[1:] {
		e.copy(q, c)
		e.do(fmla, q, p, r)
		p, q = q, p
	}
	square := q
	e.do(fmul, square, r, r)
	e.do(fadd, r, r, e.one)
	e.do(fmla, r, p, square)
	p = r
	// 2^n is multiplied in two factors: n may be 128, and 2^128 is no float32.
	rest, half := n, square
	e.do(fcvtzs, rest, n)
	e.shiftRight(half, rest, 1)
	e.do(sub, rest, rest, half)
	for _, part := range []vec{half, rest} {
		e.shiftLeft(part, part, 23)
		e.do(add, part, part, e.one) // the bits of 1 are the exponent's bias
		e.do(fmul, p, p, part)
	}
	e.clearBits(p, p, below)
	return p
}

// sigmoid returns 1/(1+exp(-v)) and leaves v as it is.
func (e *exponential) sigmoid(v vec) vec {
	z := e.vec()
	e.do(fneg, z, v)
	d := e.apply(z)
	e.do(fadd, d, d, e.one)
	e.do(fdiv, d, e.one, d)
	return d
}
