package main

import (
	"fmt"

	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	. "github.com/mmcloughlin/avo/reg"
)

// tileRows returns the largest number of rows of a register tile whose rows have 1, 2, ... vectors. The accumulators use the
// registers that one row of B and an element of A leave free.
func (l lanes) tileRows() []int {
	if l.wide() {
		return []int{12, 12, 8, 6}
	}
	return []int{12, 6}
}

// tile writes the small product of elements of size bytes, for positive m, n and k:
//
//	for i := range m {
//		for j := range n {
//			var sum float32
//			for p := range k {
//				sum += a[i*ars+p*acs] * b[p*brs+j]
//			}
//			c[i*crs+j] = sum + s[i*srs+j] // s may be nil
//		}
//	}
func tile(size int) {
	const signature = "m, n, k int, a *%[1]s, ars, acs int, b *%[1]s, brs int, c *%[1]s, crs int, s *%[1]s, srs int)"
	function(fmt.Sprintf("tile%d", 8*size), fmt.Sprintf(signature, fmt.Sprintf("float%d", 8*size)), size, tileBlocks)
}

// tileBlocks cuts columns into blocks of as many vectors as possible, and rows into register tiles. Smaller blocks and tiles at
// the end have code of their own. The last vector of a block of columns is masked.
func tileBlocks(l lanes) {
	rows := l.tileRows()
	most := len(rows)
	local := func(name string) Mem { // a copy of a parameter in memory, which the code changes
		m := AllocLocal(8)
		MOVQ(arg(name), m)
		return m
	}
	left, last, bcol, ccol, scol := local("n"), AllocLocal(8), local("b"), local("c"), local("s")

	l.here("columns")
	cols, block := GP64(), GP64()
	MOVQ(left, cols)
	MOVQ(U32(most*l.n()), block)
	CMPQ(cols, block)
	CMOVQGT(block, cols)
	for v := 1; v < most; v++ {
		CMPQ(cols, U32(v*l.n()))
		JLE(l.label("vectors%d", v))
	}
	for v := most; v >= 1; v-- {
		l.here("vectors%d", v)
		if v > 1 {
			SUBQ(U32((v-1)*l.n()), cols)
		}
		tileColumns(l, v, rows[v-1], cols, bcol, ccol, scol, last)
	}

	l.here("next")
	step := U32(most * l.bytes())
	ADDQ(step, bcol)
	ADDQ(step, ccol)
	CMPQ(scol, U32(0))
	JE(l.label("cut"))
	ADDQ(step, scol)
	l.here("cut")
	SUBQ(U32(most*l.n()), left)
	JG(l.label("columns"))
}

// tileColumns writes the loop over all rows for a block of v vectors. lanesLeft is the number of lanes in the last vector; the code
// stores it in last.
func tileColumns(l lanes, v, rows int, lanesLeft GPVirtual, bcol, ccol, scol, last Mem) {
	mask := l.masks(lanesLeft, 1, l.n())(0)
	MOVQ(lanesLeft, last)
	m, a, c, s := arg("m"), arg("a"), GP64(), GP64()
	MOVQ(ccol, c)
	MOVQ(scol, s)
	l.here("rows%d", v)
	for r := rows; r >= 1; r-- {
		name := fmt.Sprintf("tile%dx%d", r, v)
		if r == rows {
			for q := rows - 1; q >= 1; q-- {
				CMPQ(m, U32(q))
				JE(l.label("tile%dx%d", q, v))
			}
		} else {
			l.here("%s", name)
		}
		tileKernel(l, name, r, v, mask, a, c, s, bcol, last)
		if r < rows {
			JMP(l.label("next"))
			continue
		}
		ars := arg("ars")
		IMUL3Q(U32(rows*l.size), ars, ars)
		ADDQ(ars, a)
		SUBQ(U32(rows), m)
		JG(l.label("rows%d", v))
		JMP(l.label("next"))
	}
}

// tileKernel writes one register tile of r rows and v vectors over all of k, and moves c and s down by r rows.
func tileKernel(l lanes, name string, r, v int, mask Op, a, c, s GPVirtual, bcol, last Mem) {
	stride := func(param string) GPVirtual {
		g := arg(param)
		SHLQ(U8(l.size/4+1), g) // bytes
		return g
	}
	k, b, brs, acs := arg("k"), GP64(), stride("brs"), stride("acs")
	MOVQ(bcol, b)
	// Rows 0 to 5 lie at 0, 1, 2, 3, 4 and 5 strides from a0, the next six from a6.
	a0, a6, ars, ars3, ars5 := GP64(), GP64(), GPVirtual(nil), GP64(), GP64()
	MOVQ(a, a0)
	if r > 1 {
		ars = stride("ars")
	}
	if r > 3 {
		LEAQ(Mem{Base: ars, Index: ars, Scale: 2}, ars3)
	}
	if r > 5 {
		LEAQ(Mem{Base: ars, Index: ars, Scale: 4}, ars5)
	}
	if r > 6 {
		LEAQ(Mem{Base: a, Index: ars3, Scale: 2}, a6)
	}
	element := func(i int) Mem {
		m := Mem{Base: a0}
		if i >= 6 {
			m.Base = a6
		}
		switch i % 6 {
		case 1, 2, 4:
			m.Index, m.Scale = ars, uint8(i%6)
		case 3:
			m.Index, m.Scale = ars3, 1
		case 5:
			m.Index, m.Scale = ars5, 1
		}
		return m
	}

	acc := make([][]VecVirtual, r)
	for i := range acc {
		acc[i] = l.accumulators(v, 0)
	}
	if !l.wide() { // prefetch the rows of C, or the end of the loop waits for them
		next, crs := GP64(), stride("crs")
		MOVQ(c, next)
		for range acc {
			PREFETCHT0(Mem{Base: next})
			ADDQ(crs, next)
		}
	}
	step := func(masked bool) {
		row := make([]VecVirtual, v)
		for j := range row {
			row[j] = l.vec()
			at := Mem{Base: b, Disp: j * l.bytes()}
			if j == v-1 && masked {
				l.movIn(at, mask, row[j])
			} else {
				l.mov(at, row[j])
			}
		}
		ADDQ(brs, b)
		for i := range acc {
			x := l.vec()
			l.broadcast(element(i), x)
			for j := range row {
				l.fma(x, row[j], acc[i][j])
			}
		}
		ADDQ(acs, a0)
		if r > 6 {
			ADDQ(acs, a6)
		}
	}
	if !l.wide() { // a masked load of AVX2 takes the slot of another load, so whole vectors have a loop of their own, of two steps
		CMPQ(last, U32(l.n()))
		JNE(l.label("%s_k", name))
		TESTQ(U32(1), k)
		JZ(l.label("%s_pairs", name))
		step(false)
		DECQ(k)
		JZ(l.label("%s_sums", name))
		l.here("%s_pairs", name)
		step(false)
		step(false)
		SUBQ(U8(2), k)
		JNZ(l.label("%s_pairs", name))
		JMP(l.label("%s_sums", name))
	}
	l.here("%s_k", name)
	step(true)
	DECQ(k)
	JNZ(l.label("%s_k", name))
	l.here("%s_sums", name)

	TESTQ(s, s)
	JZ(l.label("%s_store", name))
	srs := stride("srs")
	for i := range acc {
		for j := range acc[i] {
			x := l.vec()
			at := Mem{Base: s, Disp: j * l.bytes()}
			if j == v-1 {
				l.movIn(at, mask, x)
				l.add(x, acc[i][j], acc[i][j])
			} else {
				l.add(at, acc[i][j], acc[i][j])
			}
		}
		ADDQ(srs, s)
	}
	l.here("%s_store", name)
	crs := stride("crs")
	store := func(masked bool) {
		for i := range acc {
			for j := range acc[i] {
				at := Mem{Base: c, Disp: j * l.bytes()}
				if j == v-1 && masked {
					l.movOut(acc[i][j], mask, at)
				} else {
					l.mov(acc[i][j], at)
				}
			}
			ADDQ(crs, c)
		}
	}
	if l.wide() {
		store(true)
		return
	}
	// Masked stores of AVX2 are slow on some processors.
	CMPQ(last, U32(l.n()))
	JNE(l.label("%s_masked", name))
	store(false)
	JMP(l.label("%s_done", name))
	l.here("%s_masked", name)
	store(true)
	l.here("%s_done", name)
}
