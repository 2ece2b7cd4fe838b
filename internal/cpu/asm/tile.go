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
	maxVectors := len(rows)
	local := func(name string) Mem { // a copy of a parameter in memory, which the code changes
		m := AllocLocal(8)
		MOVQ(arg(name), m)
		return m
	}
	colsLeft, last, bcol, ccol, scol := local("n"), AllocLocal(8), local("b"), local("c"), local("s")

	l.here("columns")
	cols, block := GP64(), GP64()
	MOVQ(colsLeft, cols)
	MOVQ(U32(maxVectors*l.n()), block)
	CMPQ(cols, block)
	CMOVQGT(block, cols)
	for v := 1; v < maxVectors; v++ {
		CMPQ(cols, U32(v*l.n()))
		JLE(l.label("vectors%d", v))
	}
	for v := maxVectors; v >= 1; v-- {
		l.here("vectors%d", v)
		if v > 1 {
			SUBQ(U32((v-1)*l.n()), cols)
		}
		tileColumns(l, v, rows[v-1], cols, bcol, ccol, scol, last)
	}

	l.here("next")
	step := U32(maxVectors * l.bytes())
	ADDQ(step, bcol)
	ADDQ(step, ccol)
	CMPQ(scol, U32(0))
	JE(l.label("cut"))
	ADDQ(step, scol)
	l.here("cut")
	SUBQ(U32(maxVectors*l.n()), colsLeft)
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

// registerTile is the code of one register tile: v vectors of some rows of C, whose sums stay in registers over all of k.
type registerTile struct {
	lanes
	name string // begins its labels
	v    int
	mask Op  // of the lanes in the last vector
	last Mem // number of these lanes

	k, b, brs, acs GPVirtual // strides in bytes
	a              rowAddresses
	acc            [][]VecVirtual // the sums, by row
}

// tileKernel writes one register tile of r rows and v vectors over all of k, and moves c and s down by r rows.
func tileKernel(l lanes, name string, r, v int, mask Op, a, c, s GPVirtual, bcol, last Mem) {
	t := &registerTile{lanes: l, name: name, v: v, mask: mask, last: last}
	t.k, t.b, t.brs, t.acs = arg("k"), GP64(), t.stride("brs"), t.stride("acs")
	MOVQ(bcol, t.b)
	t.a = t.addressRows(a, r)
	t.acc = make([][]VecVirtual, r)
	for i := range t.acc {
		t.acc[i] = l.accumulators(v, 0)
	}
	if !l.wide() { // or the end of the loop waits for the rows of C
		t.prefetch(c)
	}
	t.loop()
	t.addSummands(s)
	t.store(c)
}

// stride returns a stride in bytes.
func (t *registerTile) stride(param string) GPVirtual {
	g := arg(param)
	SHLQ(U8(t.size/4+1), g)
	return g
}

// rowAddresses address an element of each row of A. Rows 0 to 5 lie at 0, 1, 2, 3, 4 and 5 strides from a0, the next six from a6.
type rowAddresses struct {
	rows                    int
	a0, a6, ars, ars3, ars5 GPVirtual
}

// addressRows returns the addresses of r rows from a on.
func (t *registerTile) addressRows(a GPVirtual, r int) rowAddresses {
	x := rowAddresses{rows: r, a0: GP64(), a6: GP64(), ars3: GP64(), ars5: GP64()}
	MOVQ(a, x.a0)
	if r > 1 {
		x.ars = t.stride("ars")
	}
	if r > 3 {
		LEAQ(Mem{Base: x.ars, Index: x.ars, Scale: 2}, x.ars3)
	}
	if r > 5 {
		LEAQ(Mem{Base: x.ars, Index: x.ars, Scale: 4}, x.ars5)
	}
	if r > 6 {
		LEAQ(Mem{Base: a, Index: x.ars3, Scale: 2}, x.a6)
	}
	return x
}

// row returns the element of row i.
func (x rowAddresses) row(i int) Mem {
	m := Mem{Base: x.a0}
	if i >= 6 {
		m.Base = x.a6
	}
	switch i % 6 {
	case 1, 2, 4:
		m.Index, m.Scale = x.ars, uint8(i%6)
	case 3:
		m.Index, m.Scale = x.ars3, 1
	case 5:
		m.Index, m.Scale = x.ars5, 1
	}
	return m
}

// advance moves the addresses to the next element of each row.
func (x rowAddresses) advance(acs GPVirtual) {
	ADDQ(acs, x.a0)
	if x.rows > 6 {
		ADDQ(acs, x.a6)
	}
}

// prefetch prefetches the rows of C.
func (t *registerTile) prefetch(c GPVirtual) {
	next, crs := GP64(), t.stride("crs")
	MOVQ(c, next)
	for range t.acc {
		PREFETCHT0(Mem{Base: next})
		ADDQ(crs, next)
	}
}

// loop writes the loop over k. A masked load of AVX2 takes the slot of another load, so whole vectors have a loop of their own there, of
// two steps.
func (t *registerTile) loop() {
	if !t.wide() {
		CMPQ(t.last, U32(t.n()))
		JNE(t.label("%s_k", t.name))
		TESTQ(U32(1), t.k)
		JZ(t.label("%s_pairs", t.name))
		t.step(false)
		DECQ(t.k)
		JZ(t.label("%s_sums", t.name))
		t.here("%s_pairs", t.name)
		t.step(false)
		t.step(false)
		SUBQ(U8(2), t.k)
		JNZ(t.label("%s_pairs", t.name))
		JMP(t.label("%s_sums", t.name))
	}
	t.here("%s_k", t.name)
	t.step(true)
	DECQ(t.k)
	JNZ(t.label("%s_k", t.name))
	t.here("%s_sums", t.name)
}

// step adds the products of one row of B to the sums, and moves to the next row.
func (t *registerTile) step(masked bool) {
	row := make([]VecVirtual, t.v)
	for j := range row {
		row[j] = t.vec()
		at := Mem{Base: t.b, Disp: j * t.bytes()}
		if j == t.v-1 && masked {
			t.movIn(at, t.mask, row[j])
		} else {
			t.mov(at, row[j])
		}
	}
	ADDQ(t.brs, t.b)
	for i := range t.acc {
		x := t.vec()
		t.broadcast(t.a.row(i), x)
		for j := range row {
			t.fma(x, row[j], t.acc[i][j])
		}
	}
	t.a.advance(t.acs)
}

// addSummands adds the rows at s to the sums, unless s is nil.
func (t *registerTile) addSummands(s GPVirtual) {
	TESTQ(s, s)
	JZ(t.label("%s_store", t.name))
	srs := t.stride("srs")
	for _, sums := range t.acc {
		for j, sum := range sums {
			x := t.vec()
			at := Mem{Base: s, Disp: j * t.bytes()}
			if j == t.v-1 {
				t.movIn(at, t.mask, x)
				t.add(x, sum, sum)
			} else {
				t.add(at, sum, sum)
			}
		}
		ADDQ(srs, s)
	}
	t.here("%s_store", t.name)
}

// store stores the sums at c. Masked stores of AVX2 are slow on some processors, so whole vectors have stores of their own there.
func (t *registerTile) store(c GPVirtual) {
	crs := t.stride("crs")
	if t.wide() {
		t.storeRows(c, crs, true)
		return
	}
	CMPQ(t.last, U32(t.n()))
	JNE(t.label("%s_masked", t.name))
	t.storeRows(c, crs, false)
	JMP(t.label("%s_done", t.name))
	t.here("%s_masked", t.name)
	t.storeRows(c, crs, true)
	t.here("%s_done", t.name)
}

func (t *registerTile) storeRows(c, crs GPVirtual, masked bool) {
	for _, sums := range t.acc {
		for j, sum := range sums {
			at := Mem{Base: c, Disp: j * t.bytes()}
			if j == t.v-1 && masked {
				t.movOut(sum, t.mask, at)
			} else {
				t.mov(sum, at)
			}
		}
		ADDQ(crs, c)
	}
}
