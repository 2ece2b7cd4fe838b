package main

import (
	"fmt"
	"math"
	"strings"

	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	. "github.com/mmcloughlin/avo/reg"
)

// vectorFunc describes a vector function of package cpu: a loop over the n elements of float32 slices.
type vectorFunc struct {
	name       string // without the 32 at its end
	slices     string // names of the slices, such as "x, y"
	scalars    string // names of the numbers, such as "a", or empty
	resultType string // type of the result, or empty; float64 converts the loaded vectors to float64
	unroll     int    // vectors of each slice in one iteration
	usesExp    bool   // the function uses iteration.exp

	// accumulators is the number of registers that hold sums across iterations. Their lanes begin as start.
	accumulators int
	start        float32

	setup  func(it *iteration)        // writes the code before the loop, or nil
	body   func(it *iteration, u int) // writes the code for vector u of an iteration
	finish func(it *iteration)        // writes the code after the loop; nil adds up the accumulators if there is a result
}

// iteration is the code of one iteration of a loop: over whole vectors, or the last one with masks.
type iteration struct {
	vt       vectorType
	address  map[string]GPVirtual  // of each slice
	scalar   map[string]VecVirtual // the numbers, each in every lane
	acc      []VecVirtual          // the accumulators
	accStart VecVirtual            // their initial value
	exp      *exponential
	mask     func(u int) Op // mask of vector u; nil for whole vectors
}

// mem returns the memory of vector u of a slice.
func (it *iteration) mem(slice string, u int) Mem {
	return Mem{Base: it.address[slice], Disp: u * 4 * it.vt.lanes()}
}

// load returns vector u of a slice, with zeros in the lanes past its end.
func (it *iteration) load(slice string, u int) VecVirtual {
	v, m := it.vt.register(), it.mem(slice, u)
	switch {
	case it.vt.elemSize == 4 && it.mask == nil:
		it.vt.mov(m, v)
	case it.vt.elemSize == 4:
		it.vt.maskedLoad(m, it.mask(u), v)
	case it.mask == nil:
		VCVTPS2PD(m, v)
	case it.vt.avx512():
		VCVTPS2PD_Z(m, it.mask(u), v)
	default:
		half := XMM()
		VMASKMOVPS(m, it.mask(u), half)
		VCVTPS2PD(half, v)
	}
	return v
}

// store stores v as vector u of a slice, without the lanes past its end.
func (it *iteration) store(v VecVirtual, slice string, u int) {
	if it.mask == nil {
		it.vt.mov(v, it.mem(slice, u))
	} else {
		it.vt.maskedStore(v, it.mask(u), it.mem(slice, u))
	}
}

// fillPastEnd returns vector u, v, with its lanes past the end of the slices replaced by the initial value of the
// accumulators.
func (it *iteration) fillPastEnd(v VecVirtual, u int) VecVirtual {
	if it.mask == nil {
		return v
	}
	filled := it.vt.register()
	if it.vt.avx512() {
		VBLENDMPS(v, it.accStart, it.mask(u), filled)
	} else {
		VBLENDVPS(it.mask(u), v, it.accStart, filled)
	}
	return filled
}

// storeResult returns the first lane of v from the function that is written.
func storeResult(v VecVirtual) { Store(v.AsX(), ReturnIndex(0)) }

// splitNames splits a list such as "x, y".
func splitNames(list string) []string {
	return strings.FieldsFunc(list, func(r rune) bool { return strings.ContainsRune(", ", r) })
}

// write writes the function for both vector types.
func (f vectorFunc) write() {
	signature := "n int, " + f.slices + " *float32"
	if f.scalars != "" {
		signature += ", " + f.scalars + " float32"
	}
	elemSize := 4
	if f.resultType == "float64" {
		elemSize = 8
	}
	writeFunction(f.name+"32", signature+") "+f.resultType, elemSize, f.writeLoop)
}

func (f vectorFunc) writeLoop(vt vectorType) {
	it := &iteration{vt: vt, address: map[string]GPVirtual{}, scalar: map[string]VecVirtual{}}
	n := loadParam("n")
	for _, s := range splitNames(f.slices) {
		it.address[s] = loadParam(s)
	}
	if f.usesExp {
		it.exp = newExponential(vt)
	}
	for _, s := range splitNames(f.scalars) {
		it.scalar[s] = vt.broadcastParam(s)
	}
	if f.accumulators > 0 {
		it.acc, it.accStart = vt.newAccumulators(f.accumulators, f.start), vt.newAccumulators(1, f.start)[0]
	}
	if f.setup != nil {
		f.setup(it)
	}
	whole := U32(f.unroll * vt.lanes())
	vt.setLabel("loop")
	CMPQ(n, whole)
	JL(vt.label("tail"))
	for u := range f.unroll {
		f.body(it, u)
	}
	for _, s := range splitNames(f.slices) {
		ADDQ(U32(f.unroll*4*vt.lanes()), it.address[s])
	}
	SUBQ(whole, n)
	JMP(vt.label("loop"))
	vt.setLabel("tail")
	TESTQ(n, n)
	JZ(vt.label("done"))
	it.mask = vectorType{bits: vt.bits, elemSize: 4}.masks(n, f.unroll, vt.lanes())
	for u := range f.unroll {
		if u > 0 {
			CMPQ(n, U32(u*vt.lanes()))
			JLE(vt.label("done"))
		}
		f.body(it, u)
	}
	vt.setLabel("done")
	switch {
	case f.finish != nil:
		f.finish(it)
	case f.resultType == "float64":
		storeResult(vt.reduce(it.acc, VADDPD))
	case f.resultType != "":
		storeResult(vt.reduce(it.acc, VADDPS))
	}
}

// broadcastParam returns a register with a parameter in every lane.
func (vt vectorType) broadcastParam(name string) VecVirtual {
	v := vt.register()
	m, err := Param(name).Resolve()
	if err != nil {
		panic(err)
	}
	vt.broadcast(m.Addr, v)
	return v
}

// constantTable returns memory that holds c in every lane of an AVX2 register.
func constantTable(c float32) Mem {
	bits := math.Float32bits(c)
	return readOnly(fmt.Sprintf("c%08x", bits), 8, func(int) uint32 { return bits })
}

// constant returns a register with c in every lane.
func (vt vectorType) constant(c float32) VecVirtual {
	v := vt.register()
	VBROADCASTSS(constantTable(c), v)
	return v
}

// constantOperand returns c in every lane: a register for AVX-512, which has many, memory for AVX2.
func (vt vectorType) constantOperand(c float32) Op {
	if vt.avx512() {
		return vt.constant(c)
	}
	return constantTable(c)
}

// newAccumulators returns count registers with c in every lane.
func (vt vectorType) newAccumulators(count int, c float32) []VecVirtual {
	vs := make([]VecVirtual, count)
	for i := range vs {
		if c != 0 {
			vs[i] = vt.constant(c)
			continue
		}
		vs[i] = vt.register()
		vt.zero(vs[i])
	}
	return vs
}

// reduce combines all accumulators and all their lanes with op, always in the same order. The first lane of the result
// holds the total.
func (vt vectorType) reduce(vs []VecVirtual, op func(...Op)) VecVirtual {
	for step := 1; step < len(vs); step *= 2 {
		for i := 0; i+step < len(vs); i += 2 * step {
			op(vs[i+step], vs[i], vs[i])
		}
	}
	v := vs[0]
	if vt.avx512() {
		upper := YMM()
		VEXTRACTF64X4(U8(1), v, upper)
		op(upper, v.AsY(), upper)
		v = upper
	}
	x := XMM()
	VEXTRACTF128(U8(1), v.AsY(), x)
	op(x, v.AsX(), x)
	t := XMM()
	VPERMILPD(U8(1), x, t)
	op(t, x, x)
	if vt.elemSize == 4 {
		VPERMILPS(U8(1), x, t)
		op(t, x, x)
	}
	return x
}
