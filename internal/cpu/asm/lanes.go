package main

import (
	"fmt"
	"math"

	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	. "github.com/mmcloughlin/avo/reg"
)

// lanes is a vector of elements of size bytes in a register of the given number of bits: 512 is AVX-512, 256 is AVX2.
type lanes struct{ bits, size int }

func (l lanes) wide() bool { return l.bits == 512 }

// bytes and n return the length of a vector, in bytes and in elements.
func (l lanes) bytes() int { return l.bits / 8 }
func (l lanes) n() int     { return l.bytes() / l.size }

// label returns the name of a place in the code for these lanes. It contains the width, since one function has code for both widths.
func (l lanes) label(format string, args ...any) LabelRef {
	return LabelRef(fmt.Sprintf("x%d_", l.bits) + fmt.Sprintf(format, args...))
}

// here sets a label.
func (l lanes) here(format string, args ...any) { Label(string(l.label(format, args...))) }

func (l lanes) vec() VecVirtual {
	if l.wide() {
		return ZMM()
	}
	return YMM()
}

// zero clears v.
func (l lanes) zero(v VecVirtual) { VXORPS(v, v, v) }

// pick returns the instruction for the element's size.
func pick[F any](l lanes, single, double F) F {
	if l.size == 4 {
		return single
	}
	return double
}

func (l lanes) fma(x, y, z Op)    { pick(l, VFMADD231PS, VFMADD231PD)(x, y, z) }
func (l lanes) add(x, y, z Op)    { pick(l, VADDPS, VADDPD)(x, y, z) }
func (l lanes) mov(x, y Op)       { pick(l, VMOVUPS, VMOVUPD)(x, y) }
func (l lanes) broadcast(m, v Op) { pick(l, VBROADCASTSS, VBROADCASTSD)(m, v) }

// movIn and movOut load and store the lanes that mask selects: an opmask on AVX-512, a register of ones and zeros on AVX2.

func (l lanes) movIn(m, mask, v Op) {
	if l.wide() {
		pick(l, VMOVUPS_Z, VMOVUPD_Z)(m, mask, v)
	} else {
		pick(l, VMASKMOVPS, VMASKMOVPD)(m, mask, v)
	}
}

func (l lanes) movOut(v, mask, m Op) {
	if l.wide() {
		pick(l, VMOVUPS, VMOVUPD)(v, mask, m)
	} else {
		pick(l, VMASKMOVPS, VMASKMOVPD)(v, mask, m)
	}
}

var memories = map[string]Mem{}

// memory returns read-only memory of n words of 32 bits.
func memory(name string, n int, word func(i int) uint32) Mem {
	m, ok := memories[name]
	if !ok {
		m = GLOBL(name, 8|16) // RODATA|NOPTR
		memories[name] = m
		for i := range n {
			DATA(4*i, U32(word(i)))
		}
	}
	return m
}

// maskTable returns memory with maskLanes lanes of ones, followed by as many lanes of zeros, for AVX2. The mask of the first r lanes
// begins r lanes before the middle.
func (l lanes) maskTable() Mem {
	words := maskLanes * l.size / 4
	return memory(fmt.Sprintf("mask%d", 8*l.size), 2*words, func(i int) uint32 { return math.MaxUint32 * uint32(1-i/words) })
}

const maskLanes = 32

// masks returns a function that returns the mask of part u. The masks select the first r lanes of count parts of size lanes each.
func (l lanes) masks(r GPVirtual, count, size int) func(u int) Op {
	if l.wide() {
		all := GP64()
		MOVQ(I32(-1), all)
		BZHIQ(r, all, all)
		ks := make([]Op, count)
		for u := range ks {
			k := K()
			if u > 0 {
				SHRQ(U8(size), all)
			}
			KMOVW(all.As32(), k)
			ks[u] = k
		}
		return func(u int) Op { return ks[u] }
	}
	base, off := GP64(), GP64()
	LEAQ(l.maskTable(), base)
	MOVQ(r, off)
	NEGQ(off)
	return func(u int) Op {
		m := YMM()
		at := Mem{Base: base, Index: off, Scale: uint8(l.size), Disp: (maskLanes + u*size) * l.size}
		if size*l.size == 16 {
			x := m.AsX()
			VMOVUPS(at, x)
			return x
		}
		VMOVUPS(at, m)
		return m
	}
}
