package main

import (
	"fmt"
	"math"
	"strings"

	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	. "github.com/mmcloughlin/avo/reg"
)

// kernel describes a loop over n elements of float32 slices.
type kernel struct {
	name    string
	slices  string // names of the slices, such as "x, y"
	scalars string // names of the numbers, such as "a", or empty
	result  string // type of the result, or empty; float64 converts the loaded vectors to float64
	results int    // number of results; 0 means one, if result is not empty
	unroll  int    // vectors in one iteration
	exp     bool   // the kernel uses iteration.exp

	// sums is the number of accumulators. Their lanes begin as start.
	sums  int
	start float32

	setup  func(x *iteration)        // writes the code before the loop, or nil
	body   func(x *iteration, u int) // writes the code for vector u of an iteration
	finish func(x *iteration)        // writes the code after the loop; nil adds up the accumulators if there is a result
}

// iteration is the code of one iteration of a loop: over whole vectors, or the last one with masks.
type iteration struct {
	l      lanes
	at     map[string]GPVirtual  // address of each slice
	scalar map[string]VecVirtual // the numbers, each in every lane
	sums   []VecVirtual
	start  VecVirtual // initial value of the accumulators
	exp    *exponential
	mask   func(u int) Op // nil for whole vectors
}

func (x *iteration) mem(slice string, u int) Mem {
	return Mem{Base: x.at[slice], Disp: u * 4 * x.l.n()}
}

// load returns vector u of a slice, with zeros in the lanes past its end.
func (x *iteration) load(slice string, u int) VecVirtual {
	v, m := x.l.vec(), x.mem(slice, u)
	switch {
	case x.l.size == 4 && x.mask == nil:
		x.l.mov(m, v)
	case x.l.size == 4:
		x.l.movIn(m, x.mask(u), v)
	case x.mask == nil:
		VCVTPS2PD(m, v)
	case x.l.wide():
		VCVTPS2PD_Z(m, x.mask(u), v)
	default:
		half := XMM()
		VMASKMOVPS(m, x.mask(u), half)
		VCVTPS2PD(half, v)
	}
	return v
}

func (x *iteration) store(v VecVirtual, slice string, u int) {
	if x.mask == nil {
		x.l.mov(v, x.mem(slice, u))
	} else {
		x.l.movOut(v, x.mask(u), x.mem(slice, u))
	}
}

// orStart replaces the lanes of v past the end of the slices by the initial value of the accumulators.
func (x *iteration) orStart(v VecVirtual, u int) VecVirtual {
	if x.mask == nil {
		return v
	}
	o := x.l.vec()
	if x.l.wide() {
		VBLENDMPS(v, x.start, x.mask(u), o)
	} else {
		VBLENDVPS(x.mask(u), v, x.start, o)
	}
	return o
}

// result stores the first lane of v.
func result(v VecVirtual) { Store(v.AsX(), ReturnIndex(0)) }

func names(list string) []string {
	return strings.FieldsFunc(list, func(r rune) bool { return strings.ContainsRune(", ", r) })
}

// write writes the kernel for both widths.
func (k kernel) write() {
	signature := "n int, " + k.slices + " *float32"
	if k.scalars != "" {
		signature += ", " + k.scalars + " float32"
	}
	signature += ") " + k.result
	if k.results > 0 {
		signature = strings.TrimSuffix(signature, k.result) + "(" + strings.Repeat(", "+k.result, k.results)[2:] + ")"
	}
	size := 4
	if k.result == "float64" {
		size = 8
	}
	function(k.name+"32", signature, size, k.loop)
}

// loop writes the kernel for vectors l.
func (k kernel) loop(l lanes) {
	x := &iteration{l: l, at: map[string]GPVirtual{}, scalar: map[string]VecVirtual{}}
	n := arg("n")
	for _, s := range names(k.slices) {
		x.at[s] = arg(s)
	}
	if k.exp {
		x.exp = newExponential(l)
	}
	for _, s := range names(k.scalars) {
		x.scalar[s] = l.param(s)
	}
	if k.sums > 0 {
		x.sums, x.start = l.accumulators(k.sums, k.start), l.accumulators(1, k.start)[0]
	}
	if k.setup != nil {
		k.setup(x)
	}
	whole := U32(k.unroll * l.n())
	l.here("loop")
	CMPQ(n, whole)
	JL(l.label("tail"))
	for u := range k.unroll {
		k.body(x, u)
	}
	for _, s := range names(k.slices) {
		ADDQ(U32(k.unroll*4*l.n()), x.at[s])
	}
	SUBQ(whole, n)
	JMP(l.label("loop"))
	l.here("tail")
	TESTQ(n, n)
	JZ(l.label("done"))
	x.mask = lanes{l.bits, 4}.masks(n, k.unroll, l.n())
	for u := range k.unroll {
		if u > 0 {
			CMPQ(n, U32(u*l.n()))
			JLE(l.label("done"))
		}
		k.body(x, u)
	}
	l.here("done")
	switch {
	case k.finish != nil:
		k.finish(x)
	case k.result == "float64":
		result(l.fold(x.sums, VADDPD))
	case k.result != "":
		result(l.fold(x.sums, VADDPS))
	}
}

// param broadcasts a number to all lanes.
func (l lanes) param(name string) VecVirtual {
	v := l.vec()
	m, err := Param(name).Resolve()
	if err != nil {
		panic(err)
	}
	l.broadcast(m.Addr, v)
	return v
}

// table returns memory that holds c in every lane of an AVX2 register.
func table(c float32) Mem {
	bits := math.Float32bits(c)
	return memory(fmt.Sprintf("c%08x", bits), 8, func(int) uint32 { return bits })
}

// constant returns a register with c in every lane.
func (l lanes) constant(c float32) VecVirtual {
	v := l.vec()
	VBROADCASTSS(table(c), v)
	return v
}

// cheap returns c in every lane: a register for AVX-512, which has many, memory for AVX2.
func (l lanes) cheap(c float32) Op {
	if l.wide() {
		return l.constant(c)
	}
	return table(c)
}

// accumulators returns count registers with c in every lane.
func (l lanes) accumulators(count int, c float32) []VecVirtual {
	vs := make([]VecVirtual, count)
	for i := range vs {
		if c != 0 {
			vs[i] = l.constant(c)
			continue
		}
		vs[i] = l.vec()
		l.zero(vs[i])
	}
	return vs
}

// fold combines all accumulators and all their lanes with op, always in the same order. The first lane of the result holds the total.
func (l lanes) fold(vs []VecVirtual, op func(...Op)) VecVirtual {
	for step := 1; step < len(vs); step *= 2 {
		for i := 0; i+step < len(vs); i += 2 * step {
			op(vs[i+step], vs[i], vs[i])
		}
	}
	v := vs[0]
	if l.wide() {
		h := YMM()
		VEXTRACTF64X4(U8(1), v, h)
		op(h, v.AsY(), h)
		v = h
	}
	x := XMM()
	VEXTRACTF128(U8(1), v.AsY(), x)
	op(x, v.AsX(), x)
	t := XMM()
	VPERMILPD(U8(1), x, t)
	op(t, x, x)
	if l.size == 4 {
		VPERMILPS(U8(1), x, t)
		op(t, x, x)
	}
	return x
}
