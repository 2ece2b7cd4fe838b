package main

import (
	"fmt"

	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	. "github.com/mmcloughlin/avo/reg"
)

// tileRows returns the largest number of rows of a register tile whose rows have 1, 2, ... vectors. The sums use the
// registers that one row of B and an element of A leave free.
func (vt vectorType) tileRows() []int {
	if vt.avx512() {
		return []int{12, 12, 8, 6}
	}
	return []int{12, 6}
}

// writeTile writes tile32 or tile64, the micro-kernel for elements of elemSize bytes. m, n and k are positive:
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
func writeTile(elemSize int) {
	const signature = "m, n, k int, a *%[1]s, ars, acs int, b *%[1]s, brs int, c *%[1]s, crs int, s *%[1]s, srs int)"
	float := fmt.Sprintf("float%d", 8*elemSize)
	writeFunction(fmt.Sprintf("tile%d", 8*elemSize), fmt.Sprintf(signature, float), elemSize, tileColumnLoop)
}

// writeTileBF16 writes tileBF16: tile32 for A and B whose elements are pairs of bf16, each as the bits of a float32.
// The product of two pairs is the sum of their two products.
func writeTileBF16() {
	writeFunctionBF16("tileBF16", "m, n, k int, a *float32, ars, acs int, b *float32, brs int, c *float32, crs int, "+
		"s *float32, srs int)", 4, tileColumnLoop)
}

// tileColumnLoop cuts C into blocks of columns of as many vectors as possible, and these into register tiles. Smaller
// blocks and tiles at the end have code of their own. The last vector of a block of columns is masked.
func tileColumnLoop(vt vectorType) {
	maxRows := vt.tileRows()
	maxVectors := len(maxRows)
	local := func(name string) Mem { // a copy of a parameter in memory, which the code changes
		m := AllocLocal(8)
		MOVQ(loadParam(name), m)
		return m
	}
	colsLeft, lastLanes, bcol, ccol, scol := local("n"), AllocLocal(8), local("b"), local("c"), local("s")

	vt.setLabel("columns")
	cols, maxCols := GP64(), GP64()
	MOVQ(colsLeft, cols)
	MOVQ(U32(maxVectors*vt.lanes()), maxCols)
	CMPQ(cols, maxCols)
	CMOVQGT(maxCols, cols)
	for v := 1; v < maxVectors; v++ {
		CMPQ(cols, U32(v*vt.lanes()))
		JLE(vt.label("vectors%d", v))
	}
	for v := maxVectors; v >= 1; v-- {
		vt.setLabel("vectors%d", v)
		if v > 1 {
			SUBQ(U32((v-1)*vt.lanes()), cols)
		}
		tileRowLoop(vt, v, maxRows[v-1], cols, bcol, ccol, scol, lastLanes)
	}

	vt.setLabel("next")
	step := U32(maxVectors * vt.bytes())
	ADDQ(step, bcol)
	ADDQ(step, ccol)
	CMPQ(scol, U32(0))
	JE(vt.label("advanced"))
	ADDQ(step, scol)
	vt.setLabel("advanced")
	SUBQ(U32(maxVectors*vt.lanes()), colsLeft)
	JG(vt.label("columns"))
}

// tileRowLoop writes the loop over all rows of C for a block of columns of the given number of vectors, in register
// tiles of at most maxRows rows. lanesLeft is the number of lanes in the last vector; the code stores it in lastLanes.
// bcol, ccol and scol hold the addresses of the block in B, C and S.
func tileRowLoop(vt vectorType, vectors, maxRows int, lanesLeft GPVirtual, bcol, ccol, scol, lastLanes Mem) {
	mask := vt.masks(lanesLeft, 1, vt.lanes())(0)
	MOVQ(lanesLeft, lastLanes)
	m, a, c, s := loadParam("m"), loadParam("a"), GP64(), GP64()
	MOVQ(ccol, c)
	MOVQ(scol, s)
	vt.setLabel("rows%d", vectors)
	for r := maxRows; r >= 1; r-- {
		name := fmt.Sprintf("tile%dx%d", r, vectors)
		if r == maxRows {
			for q := maxRows - 1; q >= 1; q-- {
				CMPQ(m, U32(q))
				JE(vt.label("tile%dx%d", q, vectors))
			}
		} else {
			vt.setLabel("%s", name)
		}
		writeRegisterTile(vt, name, r, vectors, mask, a, c, s, bcol, lastLanes)
		if r < maxRows {
			JMP(vt.label("next"))
			continue
		}
		ars := loadParam("ars")
		IMUL3Q(U32(maxRows*vt.elemSize), ars, ars)
		ADDQ(ars, a)
		SUBQ(U32(maxRows), m)
		JG(vt.label("rows%d", vectors))
		JMP(vt.label("next"))
	}
}

// registerTile is the code of one register tile: some vectors of some rows of C, whose sums stay in registers over all
// of k.
type registerTile struct {
	vectorType
	name      string // begins its labels
	vectors   int    // of each row
	mask      Op     // of the lanes in the last vector
	lastLanes Mem    // number of these lanes

	k        GPVirtual      // steps that are left
	a        rowAddresses   // of the elements of A for the next step
	b        GPVirtual      // address of the row of B for the next step
	acs, brs GPVirtual      // strides in bytes
	sums     [][]VecVirtual // by row and vector
}

// writeRegisterTile writes one register tile of the given rows and vectors over all of k, and moves c and s down by its
// rows.
func writeRegisterTile(vt vectorType, name string, rows, vectors int, mask Op, a, c, s GPVirtual, bcol, lastLanes Mem) {
	t := &registerTile{vectorType: vt, name: name, vectors: vectors, mask: mask, lastLanes: lastLanes}
	t.k, t.b, t.brs, t.acs = loadParam("k"), GP64(), t.stride("brs"), t.stride("acs")
	MOVQ(bcol, t.b)
	t.a = t.addressRows(a, rows)
	t.sums = make([][]VecVirtual, rows)
	for i := range t.sums {
		t.sums[i] = vt.newAccumulators(vectors, 0)
	}
	if !vt.avx512() { // without it the end of the loop waits for the rows of C
		t.prefetch(c)
	}
	t.depthLoop()
	t.addSummands(s)
	t.store(c)
}

// stride loads the parameter of that name, a stride in elements, and returns it in bytes.
func (t *registerTile) stride(param string) GPVirtual {
	stride := loadParam(param)
	SHLQ(U8(t.elemSize/4+1), stride)
	return stride
}

// rowAddresses address an element of each row of A. Rows 0 to 5 lie at 0, 1, 2, 3, 4 and 5 strides from a0, the next
// six from a6.
type rowAddresses struct {
	rows                    int
	a0, a6, ars, ars3, ars5 GPVirtual
}

// addressRows returns the addresses of the given number of rows from a on.
func (t *registerTile) addressRows(a GPVirtual, rows int) rowAddresses {
	x := rowAddresses{rows: rows, a0: GP64(), a6: GP64(), ars3: GP64(), ars5: GP64()}
	MOVQ(a, x.a0)
	if rows > 1 {
		x.ars = t.stride("ars")
	}
	if rows > 3 {
		LEAQ(Mem{Base: x.ars, Index: x.ars, Scale: 2}, x.ars3)
	}
	if rows > 5 {
		LEAQ(Mem{Base: x.ars, Index: x.ars, Scale: 4}, x.ars5)
	}
	if rows > 6 {
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
	for range t.sums {
		PREFETCHT0(Mem{Base: next})
		ADDQ(crs, next)
	}
}

// depthLoop writes the loop over k. A masked load of AVX2 takes the slot of another load, so there whole vectors have a
// loop of their own, of two steps an iteration.
func (t *registerTile) depthLoop() {
	if !t.avx512() {
		CMPQ(t.lastLanes, U32(t.lanes()))
		JNE(t.label("%s_k", t.name))
		TESTQ(U32(1), t.k)
		JZ(t.label("%s_pairs", t.name))
		t.step(false)
		DECQ(t.k)
		JZ(t.label("%s_sums", t.name))
		t.setLabel("%s_pairs", t.name)
		t.step(false)
		t.step(false)
		SUBQ(U8(2), t.k)
		JNZ(t.label("%s_pairs", t.name))
		JMP(t.label("%s_sums", t.name))
	}
	t.setLabel("%s_k", t.name)
	t.step(true)
	DECQ(t.k)
	JNZ(t.label("%s_k", t.name))
	t.setLabel("%s_sums", t.name)
}

// step adds to the sums the products of one row of B, and moves to the next row. If masked, the last vector of the row
// is loaded with the mask.
func (t *registerTile) step(masked bool) {
	row := make([]VecVirtual, t.vectors)
	for j := range row {
		row[j] = t.register()
		at := Mem{Base: t.b, Disp: j * t.bytes()}
		if j == t.vectors-1 && masked {
			t.maskedLoad(at, t.mask, row[j])
		} else {
			t.mov(at, row[j])
		}
	}
	ADDQ(t.brs, t.b)
	for i := range t.sums {
		x := t.register()
		t.broadcast(t.a.row(i), x)
		for j := range row {
			t.fma(x, row[j], t.sums[i][j])
		}
	}
	t.a.advance(t.acs)
}

// addSummands adds the rows at s to the sums, unless s is nil.
func (t *registerTile) addSummands(s GPVirtual) {
	TESTQ(s, s)
	JZ(t.label("%s_store", t.name))
	srs := t.stride("srs")
	for _, sums := range t.sums {
		for j, sum := range sums {
			x := t.register()
			at := Mem{Base: s, Disp: j * t.bytes()}
			if j == t.vectors-1 {
				t.maskedLoad(at, t.mask, x)
				t.add(x, sum, sum)
			} else {
				t.add(at, sum, sum)
			}
		}
		ADDQ(srs, s)
	}
	t.setLabel("%s_store", t.name)
}

// store stores the sums at c. Masked stores of AVX2 are slow on some processors, so there whole vectors have stores of
// their own.
func (t *registerTile) store(c GPVirtual) {
	crs := t.stride("crs")
	if t.avx512() {
		t.storeRows(c, crs, true)
		return
	}
	CMPQ(t.lastLanes, U32(t.lanes()))
	JNE(t.label("%s_masked", t.name))
	t.storeRows(c, crs, false)
	JMP(t.label("%s_done", t.name))
	t.setLabel("%s_masked", t.name)
	t.storeRows(c, crs, true)
	t.setLabel("%s_done", t.name)
}

// storeRows stores the sums at c and moves c down by their rows. If masked, the last vector of each row is stored with
// the mask.
func (t *registerTile) storeRows(c, crs GPVirtual, masked bool) {
	for _, sums := range t.sums {
		for j, sum := range sums {
			at := Mem{Base: c, Disp: j * t.bytes()}
			if j == t.vectors-1 && masked {
				t.maskedStore(sum, t.mask, at)
			} else {
				t.mov(sum, at)
			}
		}
		ADDQ(crs, c)
	}
}
