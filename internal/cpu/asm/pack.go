package main

import (
	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	. "github.com/mmcloughlin/avo/reg"
)

// transpose writes transpose32, which packs a transposed operand: dst[p*drs+j] = src[j*srs+p]. cols is a positive
// multiple of 4, rows a positive multiple of the lanes of a vector. The code reads blocks of as many rows as a vector
// has lanes, four elements of each row at a time. It puts those of rows i, i+4, i+8, ... side by side in vector i, so
// that two shuffles inside parts of four complete the transposition.
func transpose(vt vectorType) {
	n := vt.lanes()
	rows, dst, drs, src, srs := loadParam("rows"), loadParam("dst"), loadParam("drs"), loadParam("src"), loadParam("srs")
	SHLQ(U8(2), drs)
	SHLQ(U8(2), srs)
	srs3 := GP64()
	LEAQ(Mem{Base: srs, Index: srs, Scale: 2}, srs3)

	vt.setLabel("block")
	cols, dstRow := loadParam("cols"), GP64()
	MOVQ(dst, dstRow)
	srcRows := []GPVirtual{GP64(), GP64(), GP64(), GP64()} // rows 0, 4, 8 and 12 of the block
	parts := n / 4
	MOVQ(src, srcRows[0])
	for q := 1; q < parts; q++ {
		LEAQ(Mem{Base: srcRows[q-1], Index: srs, Scale: 4}, srcRows[q])
	}
	LEAQ(Mem{Base: srcRows[parts-1], Index: srs, Scale: 4}, src)
	vt.setLabel("columns")
	in := make([]VecVirtual, 4)
	for i := range in {
		in[i] = vt.register()
		for q := range parts {
			m := Mem{Base: srcRows[q]}
			switch i {
			case 1, 2:
				m.Index, m.Scale = srs, uint8(i)
			case 3:
				m.Index, m.Scale = srs3, 1
			}
			switch {
			case q == 0:
				VMOVUPS(m, in[i].AsX())
			case vt.avx512():
				VINSERTF32X4(U8(q), m, in[i], in[i])
			default:
				VINSERTF128(U8(q), m, in[i], in[i])
			}
		}
	}
	pairs := make([]VecVirtual, 4)
	for i := range pairs {
		pairs[i] = vt.register()
	}
	VUNPCKLPS(in[1], in[0], pairs[0])
	VUNPCKHPS(in[1], in[0], pairs[1])
	VUNPCKLPS(in[3], in[2], pairs[2])
	VUNPCKHPS(in[3], in[2], pairs[3])
	for p := range 4 {
		out := vt.register()
		if p%2 == 0 {
			VUNPCKLPD(pairs[p/2+2], pairs[p/2], out)
		} else {
			VUNPCKHPD(pairs[p/2+2], pairs[p/2], out)
		}
		VMOVUPS(out, Mem{Base: dstRow})
		ADDQ(drs, dstRow)
	}
	for q := range parts {
		ADDQ(U8(16), srcRows[q])
	}
	SUBQ(U8(4), cols)
	JG(vt.label("columns"))
	ADDQ(U8(vt.bytes()), dst)
	SUBQ(U8(n), rows)
	JG(vt.label("block"))
}

// copyPanel packs a panel of an operand that is not transposed. rows is positive. The rows of src are as wide as a
// panel, and begin stride bytes apart.
func copyPanel(vt vectorType) {
	width := 256 // bytes: panelRowBytes of package cpu
	if !vt.avx512() {
		width = 64
	}
	rows, dst, src, stride := loadParam("rows"), loadParam("dst"), loadParam("src"), loadParam("stride")
	vt.setLabel("row")
	row := make([]VecVirtual, width/vt.bytes())
	for i := range row {
		row[i] = vt.register()
		VMOVUPS(Mem{Base: src, Disp: i * vt.bytes()}, row[i])
	}
	for i := range row {
		VMOVUPS(row[i], Mem{Base: dst, Disp: i * vt.bytes()})
	}
	ADDQ(stride, src)
	ADDQ(U32(width), dst)
	DECQ(rows)
	JNZ(vt.label("row"))
}
