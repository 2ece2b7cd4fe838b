package main

import (
	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	. "github.com/mmcloughlin/avo/reg"
)

// transpose writes the packing of a transposed operand, dst[p*drs+j] = src[j*srs+p]. cols is a positive multiple of 4, rows a
// positive multiple of the lanes of a vector. The code reads blocks of that many rows, four elements of each row at a time. It
// joins the parts of four in vectors such that two shuffles inside the parts complete the transposition.
func transpose(l lanes) {
	n := l.n()
	rows, dst, drs, src, srs := arg("rows"), arg("dst"), arg("drs"), arg("src"), arg("srs")
	SHLQ(U8(2), drs)
	SHLQ(U8(2), srs)
	srs3 := GP64()
	LEAQ(Mem{Base: srs, Index: srs, Scale: 2}, srs3)

	l.here("block")
	cols, d := arg("cols"), GP64()
	MOVQ(dst, d)
	at := []GPVirtual{GP64(), GP64(), GP64(), GP64()} // rows 0, 4, 8 and 12 of the block
	parts := n / 4
	MOVQ(src, at[0])
	for q := 1; q < parts; q++ {
		LEAQ(Mem{Base: at[q-1], Index: srs, Scale: 4}, at[q])
	}
	LEAQ(Mem{Base: at[parts-1], Index: srs, Scale: 4}, src)
	l.here("columns")
	in := make([]VecVirtual, 4)
	for i := range in {
		in[i] = l.vec()
		for q := range parts {
			m := Mem{Base: at[q]}
			switch i {
			case 1, 2:
				m.Index, m.Scale = srs, uint8(i)
			case 3:
				m.Index, m.Scale = srs3, 1
			}
			switch {
			case q == 0:
				VMOVUPS(m, in[i].AsX())
			case l.wide():
				VINSERTF32X4(U8(q), m, in[i], in[i])
			default:
				VINSERTF128(U8(q), m, in[i], in[i])
			}
		}
	}
	t := make([]VecVirtual, 4)
	for i := range t {
		t[i] = l.vec()
	}
	VUNPCKLPS(in[1], in[0], t[0])
	VUNPCKHPS(in[1], in[0], t[1])
	VUNPCKLPS(in[3], in[2], t[2])
	VUNPCKHPS(in[3], in[2], t[3])
	for p := range 4 {
		o := l.vec()
		if p%2 == 0 {
			VUNPCKLPD(t[p/2+2], t[p/2], o)
		} else {
			VUNPCKHPD(t[p/2+2], t[p/2], o)
		}
		VMOVUPS(o, Mem{Base: d})
		ADDQ(drs, d)
	}
	for q := range parts {
		ADDQ(U8(16), at[q])
	}
	SUBQ(U8(4), cols)
	JG(l.label("columns"))
	ADDQ(U8(l.bytes()), dst)
	SUBQ(U8(n), rows)
	JG(l.label("block"))
}

// copyPanel writes the packing of an operand that is not transposed. rows is positive; the rows of src are as wide as a panel, and
// begin stride bytes apart.
func copyPanel(l lanes) {
	width := 256 // bytes: panelBytes of package cpu
	if !l.wide() {
		width = 64
	}
	rows, dst, src, stride := arg("rows"), arg("dst"), arg("src"), arg("stride")
	l.here("row")
	vs := make([]VecVirtual, width/l.bytes())
	for i := range vs {
		vs[i] = l.vec()
		VMOVUPS(Mem{Base: src, Disp: i * l.bytes()}, vs[i])
	}
	for i := range vs {
		VMOVUPS(vs[i], Mem{Base: dst, Disp: i * l.bytes()})
	}
	ADDQ(stride, src)
	ADDQ(U32(width), dst)
	DECQ(rows)
	JNZ(l.label("row"))
}
