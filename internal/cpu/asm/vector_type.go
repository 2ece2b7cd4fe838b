package main

import (
	"fmt"
	"math"

	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	. "github.com/mmcloughlin/avo/reg"
)

// vectorType is the kind of vector that a function is written for: elements of elemSize bytes in a register of 512 bits
// (AVX-512) or 256 bits (AVX2). Its methods write the instructions of that kind.
type vectorType struct {
	bits, elemSize int
	bf16           bool // the factors of fma are pairs of bf16, and its sums float32
}

func (vt vectorType) avx512() bool { return vt.bits == 512 }

// bytes and lanes return the length of a vector, in bytes and in elements.
func (vt vectorType) bytes() int { return vt.bits / 8 }
func (vt vectorType) lanes() int { return vt.bytes() / vt.elemSize }

// label returns a label of the code for vt. Its name contains the bits, since one function has code for both kinds.
func (vt vectorType) label(format string, args ...any) LabelRef {
	return LabelRef(fmt.Sprintf("x%d_", vt.bits) + fmt.Sprintf(format, args...))
}

// setLabel puts the label that label returns in front of the next instruction.
func (vt vectorType) setLabel(format string, args ...any) { Label(string(vt.label(format, args...))) }

func (vt vectorType) register() VecVirtual {
	if vt.avx512() {
		return ZMM()
	}
	return YMM()
}

func (vt vectorType) zero(v VecVirtual) { VXORPS(v, v, v) }

// bySize returns double for elements of 8 bytes, else single.
func bySize[F any](vt vectorType, single, double F) F {
	if vt.elemSize == 8 {
		return double
	}
	return single
}

// The operands of an instruction stand in the order of Go assembly: the destination last.

func (vt vectorType) fma(x, y, z Op) {
	if vt.bf16 {
		vdpbf16ps(x, y, z)
	} else {
		bySize(vt, VFMADD231PS, VFMADD231PD)(x, y, z)
	}
}

func (vt vectorType) add(x, y, z Op)    { bySize(vt, VADDPS, VADDPD)(x, y, z) }
func (vt vectorType) mov(x, y Op)       { bySize(vt, VMOVUPS, VMOVUPD)(x, y) }
func (vt vectorType) broadcast(m, v Op) { bySize(vt, VBROADCASTSS, VBROADCASTSD)(m, v) }

// maskedLoad and maskedStore load and store the lanes that mask selects. Other lanes are loaded as 0. mask is an opmask
// on AVX-512, a register of ones and zeros on AVX2.

func (vt vectorType) maskedLoad(m, mask, v Op) {
	switch {
	case vt.elemSize == 2:
		VMOVDQU16_Z(m, mask, v)
	case vt.avx512():
		bySize(vt, VMOVUPS_Z, VMOVUPD_Z)(m, mask, v)
	default:
		bySize(vt, VMASKMOVPS, VMASKMOVPD)(m, mask, v)
	}
}

func (vt vectorType) maskedStore(v, mask, m Op) {
	if vt.avx512() {
		bySize(vt, VMOVUPS, VMOVUPD)(v, mask, m)
	} else {
		bySize(vt, VMASKMOVPS, VMASKMOVPD)(v, mask, m)
	}
}

// readOnlyByName holds the memory that readOnly has made.
var readOnlyByName = map[string]Mem{}

// readOnly returns read-only memory of n words of 32 bits; word returns word i. Memory of one name is made once.
func readOnly(name string, n int, word func(i int) uint32) Mem {
	m, ok := readOnlyByName[name]
	if !ok {
		m = GLOBL(name, 8|16) // RODATA|NOPTR of textflag.h
		readOnlyByName[name] = m
		for i := range n {
			DATA(4*i, U32(word(i)))
		}
	}
	return m
}

// maskTable returns memory with maskTableLanes lanes of ones, followed by as many lanes of zeros, for AVX2. The mask of
// the first r lanes begins r lanes before the middle.
func (vt vectorType) maskTable() Mem {
	words := maskTableLanes * vt.elemSize / 4
	return readOnly(fmt.Sprintf("mask%d", 8*vt.elemSize), 2*words,
		func(i int) uint32 { return math.MaxUint32 * uint32(1-i/words) })
}

// maskTableLanes is the largest number of lanes that one call of masks covers on AVX2.
const maskTableLanes = 32

// masks returns a function that returns the mask of part u, of the given number of parts of partLanes lanes each.
// Together the masks select the first r lanes of all parts.
func (vt vectorType) masks(r GPVirtual, parts, partLanes int) func(u int) Op {
	if vt.avx512() {
		all := GP64()
		MOVQ(I32(-1), all)
		BZHIQ(r, all, all)
		ks := make([]Op, parts)
		for u := range ks {
			k := K()
			if u > 0 {
				SHRQ(U8(partLanes), all)
			}
			if partLanes > 16 {
				KMOVD(all.As32(), k)
			} else {
				KMOVW(all.As32(), k)
			}
			ks[u] = k
		}
		return func(u int) Op { return ks[u] }
	}
	base, offset := GP64(), GP64()
	LEAQ(vt.maskTable(), base)
	MOVQ(r, offset)
	NEGQ(offset)
	return func(u int) Op {
		m := YMM()
		at := Mem{Base: base, Index: offset, Scale: uint8(vt.elemSize), Disp: (maskTableLanes + u*partLanes) * vt.elemSize}
		if partLanes*vt.elemSize == 16 {
			x := m.AsX()
			VMOVUPS(at, x)
			return x
		}
		VMOVUPS(at, m)
		return m
	}
}
