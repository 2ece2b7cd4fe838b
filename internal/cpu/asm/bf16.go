package main

import (
	"encoding/binary"
	"fmt"
	"log"
	"math"
	"os"
	"regexp"
	"strconv"

	. "github.com/mmcloughlin/avo/build"
	"github.com/mmcloughlin/avo/ir"
	. "github.com/mmcloughlin/avo/operand"
	. "github.com/mmcloughlin/avo/reg"
)

// vdpbf16ps writes VDPBF16PS: each lane of sum, a float32, gets the two products of the pairs of bf16 in x and y. It
// takes denormals as 0. Neither avo nor Go's assembler knows it: encodeBF16 replaces it by its bytes.
func vdpbf16ps(x, y, sum Op) {
	Instruction(&ir.Instruction{Opcode: "VDPBF16PS", Operands: []Op{x, y, sum}, Inputs: []Op{x, y, sum},
		Outputs: []Op{sum}, ISA: []string{"AVX512_BF16"}})
}

var vdpbf16psText = regexp.MustCompile(`VDPBF16PS +Z(\d+), Z(\d+), Z(\d+)`)

// encodeBF16 replaces each VDPBF16PS in an assembly file by its bytes: EVEX.512.F3.0F38.W0 52 /r.
func encodeBF16(file string) {
	text, err := os.ReadFile(file)
	if err != nil {
		log.Fatal(err)
	}
	text = vdpbf16psText.ReplaceAllFunc(text, func(line []byte) []byte {
		var x, y, sum int
		for i, to := range []*int{&x, &y, &sum} {
			*to, _ = strconv.Atoi(string(vdpbf16psText.FindSubmatch(line)[1+i]))
		}
		not := func(v, bit int) byte { return byte(^v >> bit & 1) } // EVEX holds the high bits of registers inverted
		code := []byte{0x62,
			not(sum, 3)<<7 | not(x, 4)<<6 | not(x, 3)<<5 | not(sum, 4)<<4 | 2,
			byte(^y&15)<<3 | 4 | 2,
			0x40 | not(y, 4)<<3,
			0x52, byte(0xc0 | sum&7<<3 | x&7)}
		return fmt.Appendf(nil, "LONG $0x%08x; WORD $0x%04x // %s", binary.LittleEndian.Uint32(code),
			binary.LittleEndian.Uint16(code[4:]), line)
	})
	if err := os.WriteFile(file, text, 0o644); err != nil {
		log.Fatal(err)
	}
}

// lanesLoop writes a loop over the n elements of some slices, 16 in an iteration. body gets the mask of the lanes
// before the end. After it the address of slice i moves by 16 elements of sizes[i] bytes.
func lanesLoop(slices []GPVirtual, sizes []int, body func(mask Op)) {
	n, lanes, all, mask := loadParam("n"), GP64(), GP64(), K()
	Label("loop")
	MOVQ(U32(16), lanes)
	CMPQ(n, lanes)
	CMOVQLT(n, lanes)
	MOVQ(I32(-1), all)
	BZHIQ(lanes, all, all)
	KMOVW(all.As32(), mask)
	body(mask)
	for i, s := range slices {
		ADDQ(U32(16*sizes[i]), s)
	}
	SUBQ(U32(16), n)
	JG(LabelRef("loop"))
}

// bitsConstant returns a register with b in every lane.
func (vt vectorType) bitsConstant(b uint32) VecVirtual { return vt.constant(math.Float32frombits(b)) }

// interleave writes interleaveBF16: dst[i] holds the bits of x[i] and, above them, of y[i]. n is positive.
func interleave(vt vectorType) {
	dst, x, y := loadParam("dst"), loadParam("x"), loadParam("y")
	lanesLoop([]GPVirtual{dst, x, y}, []int{4, 2, 2}, func(mask Op) {
		low, high := ZMM(), ZMM()
		VPMOVZXWD_Z(Mem{Base: x}, mask, low)
		VPMOVZXWD_Z(Mem{Base: y}, mask, high)
		VPSLLD(U8(16), high, high)
		VPORD(low, high, high)
		VMOVDQU32(high, mask, Mem{Base: dst})
	})
}

// widen writes widenBF16: dst[i] = x[i]. n is positive.
func widen(vt vectorType) {
	dst, x := loadParam("dst"), loadParam("x")
	lanesLoop([]GPVirtual{dst, x}, []int{4, 2}, func(mask Op) {
		v := ZMM()
		VPMOVZXWD_Z(Mem{Base: x}, mask, v)
		VPSLLD(U8(16), v, v)
		VMOVDQU32(v, mask, Mem{Base: dst})
	})
}

// round writes roundBF16: dst[i] = x[i], rounded to nearest even. n is positive. VCVTNEPS2BF16 would lose denormals.
func round(vt vectorType) {
	dst, x := loadParam("dst"), loadParam("x")
	one, half, quiet := vt.bitsConstant(1), vt.bitsConstant(0x7fff), vt.bitsConstant(0x40)
	lanesLoop([]GPVirtual{dst, x}, []int{2, 4}, func(mask Op) {
		v, high, sum, nan := ZMM(), ZMM(), ZMM(), K()
		VMOVDQU32_Z(Mem{Base: x}, mask, v)
		VPSRLD(U8(16), v, high)
		VPANDD(one, high, sum)
		VPADDD(half, sum, sum)
		VPADDD(v, sum, sum)
		VPSRLD(U8(16), sum, sum)
		const unordered = 3
		VCMPPS(U8(unordered), v, v, nan)
		VPORD(quiet, high, nan, sum)
		VPMOVDW(sum, mask, Mem{Base: dst})
	})
}
