package main

import (
	"fmt"
	"strings"
)

// vectorType is the number of bytes of an element. A vector has 16 bytes.
type vectorType int

const (
	single vectorType = 4
	double vectorType = 8
)

const vectorBytes = 16

// lanes returns the number of elements of a vector.
func (vt vectorType) lanes() int { return vectorBytes / int(vt) }

// shift returns the binary logarithm of the size of an element.
func (vt vectorType) shift() int { return int(vt)/4 + 1 }

// arrangement is ARM's name for all lanes of a vector.
func (vt vectorType) arrangement() string {
	return map[vectorType]string{single: "4s", double: "2d"}[vt]
}

// instruction is one of the instructions on all lanes of vectors of 32-bit elements. code has zeros for the registers.
type instruction struct {
	name string
	code uint32
}

// Of three registers: the destination, which also is an operand of fmla and fmls, and two operands.
var (
	fadd  = instruction{"fadd", 0x4e20d400}
	fsub  = instruction{"fsub", 0x4ea0d400}
	fmul  = instruction{"fmul", 0x6e20dc00}
	fdiv  = instruction{"fdiv", 0x6e20fc00}
	fmla  = instruction{"fmla", 0x4e20cc00} // d += n*m, rounded once
	fmls  = instruction{"fmls", 0x4ea0cc00} // d -= n*m, rounded once
	fmax  = instruction{"fmax", 0x4e20f400} // NaN if an operand is NaN
	fmin  = instruction{"fmin", 0x4ea0f400} // NaN if an operand is NaN
	faddp = instruction{"faddp", 0x6e20d400}
	fmaxp = instruction{"fmaxp", 0x6e20f400}
	fcmgt = instruction{"fcmgt", 0x6ea0e400}
	add   = instruction{"add", 0x4ea08400}
	sub   = instruction{"sub", 0x6ea08400}
	trn1  = instruction{"trn1", 0x4e802800}
	trn2  = instruction{"trn2", 0x4e806800}
)

// Of two registers: the destination and an operand.
var (
	fneg   = instruction{"fneg", 0x6ea0f800}
	fsqrt  = instruction{"fsqrt", 0x6ea1f800}
	frintn = instruction{"frintn", 0x4e218800} // to the nearest integer, half to even
	fcvtzs = instruction{"fcvtzs", 0x4ea1b800} // to int32
)

// do writes an instruction on vectors of float32 or int32. The registers are in ARM's order: the destination first.
func (f *function) do(in instruction, registers ...vec) { f.doAs(single, in, registers...) }

// doAs is do for vectors of type vt. Only instructions on floats have a form for double.
func (f *function) doAs(vt vectorType, in instruction, registers ...vec) {
	names, code := make([]string, len(registers)), in.code
	for i, r := range registers {
		names[i] = fmt.Sprintf("v%d.%s", int(r), vt.arrangement())
		code |= uint32(r) << []int{0, 5, 16}[i]
	}
	if vt == double {
		code |= 1 << 22
	}
	f.word(code, "%s %s", in.name, strings.Join(names, ", "))
}

// word writes an instruction by its code.
func (f *function) word(code uint32, format string, args ...any) {
	fmt.Fprintf(f.out, "\tWORD $%#08x // %s\n", code, fmt.Sprintf(format, args...))
}

// fmlaFirst writes d += n*m[0]: all lanes of n times the first lane of m.
func (f *function) fmlaFirst(vt vectorType, d, n, m vec) {
	code, a, lane := uint32(0x4f801000), vt.arrangement(), "s"
	if vt == double {
		code, lane = code|1<<22, "d"
	}
	f.word(code|uint32(m)<<16|uint32(n)<<5|uint32(d), "fmla v%d.%s, v%d.%s, v%d.%s[0]", int(d), a, int(n), a, int(m), lane)
}

// shiftLeft sets d to the int32 lanes of n, shifted by the given bits.
func (f *function) shiftLeft(d, n vec, bits int) {
	f.word(0x4f005400|uint32(32+bits)<<16|uint32(n)<<5|uint32(d), "shl v%d.4s, v%d.4s, #%d", int(d), int(n), bits)
}

// shiftRight sets d to the int32 lanes of n, shifted by the given bits. It keeps their signs.
func (f *function) shiftRight(d, n vec, bits int) {
	f.word(0x4f000400|uint32(64-bits)<<16|uint32(n)<<5|uint32(d), "sshr v%d.4s, v%d.4s, #%d", int(d), int(n), bits)
}

// clearBits sets d = n &^ m.
func (f *function) clearBits(d, n, m vec) {
	f.word(0x4e601c00|uint32(m)<<16|uint32(n)<<5|uint32(d), "bic v%d.16b, v%d.16b, v%d.16b", int(d), int(n), int(m))
}

// zipHalves sets d to the lower halves of n and m, or to the upper ones.
func (f *function) zipHalves(d, n, m vec, upper bool) {
	code, name := uint32(0x4ec03800), "zip1"
	if upper {
		code, name = 0x4ec07800, "zip2"
	}
	f.word(code|uint32(m)<<16|uint32(n)<<5|uint32(d), "%s v%d.2d, v%d.2d, v%d.2d", name, int(d), int(n), int(m))
}

// toDouble sets d to the lower two floats of n, or to the upper ones, as float64.
func (f *function) toDouble(d, n vec, upper bool) {
	code, text := uint32(0x0e617800), "fcvtl v%d.2d, v%d.2s"
	if upper {
		code, text = 0x4e617800, "fcvtl2 v%d.2d, v%d.4s"
	}
	f.word(code|uint32(n)<<5|uint32(d), text, int(d), int(n))
}

// sumOfDoubles sets the first lane of d to the sum of the two float64 of n.
func (f *function) sumOfDoubles(d, n vec) {
	f.word(0x7e70d800|uint32(n)<<5|uint32(d), "faddp d%d, v%d.2d", int(d), int(n))
}

// copy sets d = n.
func (f *function) copy(d, n vec) {
	f.op("VORR", fmt.Sprintf("V%d.B16", int(n)), fmt.Sprintf("V%d.B16", int(n)), fmt.Sprintf("V%d.B16", int(d)))
}

func (f *function) zero(v vec) {
	name := fmt.Sprintf("V%d.B16", int(v))
	f.op("VEOR", name, name, name)
}

// loadLanes loads the first lanes of v from disp bytes after r and clears the others.
func (f *function) loadLanes(vt vectorType, v vec, r gp, disp, lanes int) {
	switch lanes * int(vt) {
	case 16:
		f.op("FMOVQ", mem(r, disp), v)
	case 4:
		f.op("FMOVS", mem(r, disp), v)
	default: // 8 or 12
		f.op("FMOVD", mem(r, disp), v)
		if lanes == 3 {
			f.scope(func() {
				third := f.vec()
				f.op("FMOVS", mem(r, disp+8), third)
				f.op("VMOV", third.lane(0), v.lane(2))
			})
		}
	}
}

// storeLanes stores the first lanes of v at disp bytes after r.
func (f *function) storeLanes(vt vectorType, v vec, r gp, disp, lanes int) {
	switch lanes * int(vt) {
	case 16:
		f.op("FMOVQ", v, mem(r, disp))
	case 4:
		f.op("FMOVS", v, mem(r, disp))
	default: // 8 or 12
		f.op("FMOVD", v, mem(r, disp))
		if lanes == 3 {
			f.scope(func() {
				third := f.vec()
				f.op("VMOV", v.lane(2), third.lane(0))
				f.op("FMOVS", third, mem(r, disp+8))
			})
		}
	}
}

// loadVectors loads consecutive vectors from disp bytes after r. The last one has the given number of lanes.
func (f *function) loadVectors(vt vectorType, vs []vec, r gp, disp, lastLanes int) {
	for len(vs) > 2 || len(vs) == 2 && lastLanes == vt.lanes() {
		f.op("FLDPQ", mem(r, disp), fmt.Sprintf("(%v, %v)", vs[0], vs[1]))
		vs, disp = vs[2:], disp+2*vectorBytes
	}
	for i, v := range vs {
		lanes := vt.lanes()
		if i == len(vs)-1 {
			lanes = lastLanes
		}
		f.loadLanes(vt, v, r, disp, lanes)
		disp += vectorBytes
	}
}
